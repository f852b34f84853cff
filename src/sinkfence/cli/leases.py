"""`sinkfence leases`: who holds what, and what an operator may do about it."""

import contextlib
from collections.abc import Generator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sinkfence.cli import places
from sinkfence.cli.consent import ask, logged
from sinkfence.cli.exits import CODES, REFUSED
from sinkfence.cli.masking import Place
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.output import put_list, put_one
from sinkfence.cli.places import AsJson, Job, Prefix, Yes, lease_store
from sinkfence.cli.streams import say
from sinkfence.cli.where import connected
from sinkfence.errors import Conflict
from sinkfence.grants import Record
from sinkfence.tokens import label, parse_generation

if TYPE_CHECKING:
    from sinkfence.stores.sql import SqlStore

commands: Final = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=CODES)

MANY: Final = 1_000_000
"""A step of the count from which a typing error is more likely than a need: `hold()` stops there, too."""


@commands.callback()
def group() -> None:
    """See who holds what, take a lease away, mend a count.

    A destination never asks whether a lease still holds: it refuses by the numbers that it has seen. So no
    command here can let a stale owner write. And an owner whose lease you take away may go on writing until
    the next owner arms.

    \b
    Examples:
      export SINKFENCE_STORE=postgresql+psycopg://ops@db.example/shop
      sinkfence leases list reports/
      sinkfence leases release reports/latest
    """


@commands.command("list", epilog=CODES)
def list_(prefix: Prefix = "", store: places.Store = None, as_json: AsJson = False) -> None:
    """List the jobs, and who holds them.

    They come in bytewise order of their job_ids. A job is `held`, `free`, `done` (completed) or `run out`:
    its lease is over, and nobody has taken the job since. The list has the labels of the owners; `show` and
    --json have the random bits as well.

    \b
    Example:
      sinkfence leases list reports/ --store sqlite:///leases.db
    """
    with lease_store(store) as (opened, _):
        found = opened.list(prefix)
    table = [
        {
            "JOB": each.job_id,
            "GENERATION": str(each.generation),
            "STATE": state(each),
            "OWNER": label(each.owner) if each.owner else "-",
            "SECONDS LEFT": f"{each.remaining:.1f}" if each.remaining else "-",
        }
        for each in found
    ]
    put_list("leases", [fields(each) for each in found], table, as_json=as_json)


@commands.command(epilog=CODES)
def show(job: Job, store: places.Store = None, as_json: AsJson = False) -> None:
    """Show all that the store knows of one job.

    Never write under a generation that you found here: a stale owner would look new by it.

    \b
    Example:
      sinkfence leases show reports/latest --json
    """
    with lease_store(store) as (opened, _):
        record = existing(opened, job)
    put_one(fields(record), as_json=as_json)


@commands.command(epilog=CODES)
def release(job: Job, store: places.Store = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take a lease away, so that another worker may take the job.

    For an owner that is dead or frozen, where the end of its lease is too far away. If another owner has the
    job by now, or a lease that was shown as run out was renewed, nothing changes. The next owner gets a
    higher number. The old owner gets LeaseLost at its next renewal, and a destination admits its writes
    until the next owner arms.

    \b
    Example:
      sinkfence leases release reports/latest --store sqlite:///leases.db
    """
    with lease_store(store) as (opened, place):
        record = existing(opened, job)
        if record.state == "done":
            raise Mistake(f"job {job!r} is completed, and nobody holds it: `reopen` runs it again", REFUSED)
        if record.owner is None:
            raise Mistake(f"nobody holds job {job!r}: any worker may take it", REFUSED)
        what = f"Its lease is taken away; the next owner gets a number above {record.generation}."
        what = f"{standing(record)}\n{what}"
        with change(opened, record, place=place, act="release", what=what, yes=yes):
            changed = opened.reopen(job, seen=record)
    put_one(fields(changed), as_json=as_json)


@commands.command(epilog=CODES)
def reopen(job: Job, store: places.Store = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Let a completed job run again.

    Its recorded result is dropped. The next owner gets a higher number. A step that does not name its
    occasion is taken for the one in the first run, and skipped. If somebody holds the job, the lease is taken
    away as by `release`.

    \b
    Example:
      sinkfence leases reopen invoice-42 --store sqlite:///leases.db
    """
    with lease_store(store) as (opened, place):
        record = existing(opened, job)
        if record.state == "open" and record.owner is None:
            raise Mistake(f"job {job!r} is open and free already", REFUSED)
        dropped = "\nIts result is dropped." if record.result is not None else ""
        what = f"{standing(record)}\nIt is made open and free.{dropped}"
        with change(opened, record, place=place, act="reopen", what=what, yes=yes):
            changed = opened.reopen(job, seen=record)
    put_one(fields(changed), as_json=as_json)


@commands.command("raise", epilog=CODES)
def raise_(
    job: Job,
    above: Annotated[
        str, typer.Option(metavar="N", help="The highest generation that any destination has seen.")
    ],
    store: places.Store = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Raise a count that has gone back behind a mark.

    For a lease store that has forgotten numbers which it had issued: a backup was restored, or a standby
    promoted. The next owner gets a number above N. A present lease is taken away. If the count has reached N
    already, nothing changes. No command lowers a count: a number that is far too high stays.

    \b
    Examples, the first of which shows N:
      sinkfence marks show reports/latest
      sinkfence leases raise reports/latest --above 1234
    """
    try:
        n = parse_generation(above)
    except ValueError as error:
        raise Mistake(f"--above: {error}") from None

    with lease_store(store) as (opened, place):
        record = opened.get(places.job_id(job))
        if record is not None and record.generation >= n:
            say(f"Nothing to do: the next owner's number is above {n} already.")
            put_one(fields(record), as_json=as_json)
            return
        before = record or Record(job, 0, "open", None, None, None)
        what = f"{standing(record) if record else f'There is no job {job!r}: its record is made.'}\n"
        what += f"Its count goes from {before.generation} to {n}, and never back."
        if n - before.generation > MANY:
            what += f" THAT IS {n - before.generation:,} MORE: is the number right?"
        if record is not None and record.state == "open" and record.owner is not None:
            what += " Its lease is taken away."
        act = f"raise above {n}"
        with change(opened, before, place=place, act=act, what=what, yes=yes):
            changed = opened.raise_above(job, n, seen=before)
    put_one(fields(changed), as_json=as_json)


@contextlib.contextmanager
def change(
    opened: "SqlStore", record: Record, *, place: Place, act: str, what: str, yes: bool
) -> Generator[None]:
    """Ask, and let the body change the record if it is still the one that was shown; log who, and where.

    The body looks whether it is that one in the same statement: nobody may lose a lease that the operator has
    not seen, and the answer may have taken minutes.
    """
    # The store's own word: a URL's query and variables may lead elsewhere than it seems.
    at = str(connected(opened, place))
    ask(f"{at}\n{what}", yes=yes)
    try:
        with logged(f"{act} job {record.job_id!r}, generation {record.generation}", at):
            yield
    except Conflict:
        says = f"job {record.job_id!r} has another owner or state by now, or its lease goes on, so look again"
        raise Mistake(f"nothing was done: {says}", REFUSED) from None


def existing(opened: "SqlStore", job: str) -> Record:
    """Return a job's record, which must be there."""
    record = opened.get(places.job_id(job))
    if record is None:
        raise Mistake(f"there is no job {job!r} in this store: `sinkfence leases list` shows all", REFUSED)
    return record


def standing(record: Record) -> str:
    """Say how things stand with a job."""
    by = f" by {label(record.owner)!r}" if record.owner else ""
    left = f", for {record.remaining:.1f} s more" if record.remaining else ""
    return f"Job {record.job_id!r}, generation {record.generation}: {state(record)}{by}{left}."


def state(record: Record) -> str:
    """Return the word for how things stand with a job."""
    if record.state == "done":
        return "done"
    if record.owner is None:
        return "free"
    return "held" if record.remaining else "run out"


def fields(record: Record) -> dict[str, Any]:
    """Return a record as JSON has it."""
    until = record.lease_until
    return {**asdict(record), "state": state(record), "lease_until": until and until.isoformat()}
