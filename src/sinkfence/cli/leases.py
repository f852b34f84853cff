"""`sinkfence leases`: who holds what, and what an operator may do about it."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sinkfence.cli import places, where
from sinkfence.cli.consent import ask, logged, say
from sinkfence.cli.exits import CODES, REFUSED
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.output import put_list, put_one
from sinkfence.cli.places import AsJson, Job, Prefix, Yes, lease_store
from sinkfence.errors import Conflict
from sinkfence.grants import Record
from sinkfence.tokens import label, parse_generation

if TYPE_CHECKING:
    from sinkfence.stores.sql import SqlStore

commands: Final = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=CODES)

CHANGED: Final = (
    "nothing was done: job {job!r} has another owner or state by now, or its lease goes on, so look again"
)

MANY: Final = 1_000_000
"""A step of the count from which a typing error is more likely than a need: `hold()` stops there, too."""


@commands.callback()
def group() -> None:
    """See who holds what, take a lease away, mend a count.

    A destination never asks whether a lease still holds: it refuses by the numbers it has seen. So nothing
    here can let a stale owner write, and what is taken away goes on writing until the next owner arms.

    \b
    Examples:
      export SINKFENCE_STORE=postgresql+psycopg://ops@db.example/shop
      sinkfence leases list reports/
      sinkfence leases release reports/latest
    """


@commands.command("list", epilog=CODES)
def list_(prefix: Prefix = "", store: places.Store = None, as_json: AsJson = False) -> None:
    """List the jobs, in bytewise order of their ids.

    A job is held, free, done (completed), or its lease has run out and nobody has taken the job since. Of
    an owner the label is shown; the random bits behind it, by `show` and --json.

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

    The generation is to look at. Who writes under a number that was found here makes a stale owner look new.

    \b
    Example:
      sinkfence leases show reports/latest --json
    """
    with lease_store(store) as (opened, _):
        record = existing(opened, job)
    put_one(fields(record), as_json=as_json)


@commands.command(epilog=CODES)
def release(job: Job, store: places.Store = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take a lease away: another may take the job at once.

    For an owner that is known to be dead or frozen, where waiting for the end of its lease takes too long.
    Only the lease that was shown is taken away: if another owner has the job by now, or a lease that was
    shown as run out was renewed, nothing changes. The generation stays, and the next owner's is higher. The
    old owner hears LeaseLost at its next renewal; until the next owner arms a destination, that one still
    admits the old owner.

    \b
    Example:
      sinkfence leases release reports/latest --store sqlite:///leases.db
    """

    def take(found: Record) -> Record:
        return opened.reopen(job, seen=found)

    with lease_store(store) as (opened, place):
        record = existing(opened, job)
        if record.state == "done":
            raise Mistake(f"job {job!r} is completed, and nobody holds it: `reopen` runs it again", REFUSED)
        if record.owner is None:
            raise Mistake(f"nobody holds job {job!r}: any worker may take it", REFUSED)
        what = (
            f"{standing(record)}\nIts lease is taken away; the next owner gets a number above "
            f"{record.generation}."
        )
        changed = change(opened, record, take, place=place, act="release", what=what, yes=yes)
    put_one(fields(changed), as_json=as_json)


@commands.command(epilog=CODES)
def reopen(job: Job, store: places.Store = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Make a completed job one that can be run again. Its recorded result is dropped.

    The generation stays, and the next owner's is higher. Steps of the job whose name does not say which time
    it is are taken for repetitions of those of the first run. If somebody holds the job, the lease is taken
    away as by `release`.

    \b
    Example:
      sinkfence leases reopen invoice-42 --store sqlite:///leases.db
    """

    def free(found: Record) -> Record:
        return opened.reopen(job, seen=found)

    with lease_store(store) as (opened, place):
        record = existing(opened, job)
        if record.state == "open" and record.owner is None:
            raise Mistake(f"job {job!r} is open and free already", REFUSED)
        dropped = "\nIts result is dropped." if record.result is not None else ""
        what = f"{standing(record)}\nIt is made open and free.{dropped}"
        changed = change(opened, record, free, place=place, act="reopen", what=what, yes=yes)
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

    For a lease store that has lost what it had issued: a restored backup, a promoted standby. The next
    owner gets a number above N; if the count is there already, nothing is changed. A present lease
    is taken away. A count never goes down again, by whatever means: a number that is far too high stays.

    \b
    Examples, first where to find N:
      sinkfence marks show reports/latest --postgres postgresql://ops@db.example/shop
      sinkfence leases raise reports/latest --above 1234 --store sqlite:///leases.db
    """
    try:
        n = parse_generation(above)
    except ValueError as error:
        raise Mistake(f"--above: {error}") from None

    def lift(found: Record) -> Record:
        return opened.raise_above(job, n, seen=found)

    with lease_store(store) as (opened, place):
        record = opened.get(places.job_id(job))
        if record is not None and record.generation >= n:
            say(f"Nothing to do: the next owner's number is above {n} already.")
            put_one(fields(record), as_json=as_json)
            return
        before = record or Record(job, 0, "open", None, None, 0.0)
        what = f"{standing(record) if record else f'There is no job {job!r}: its record is made.'}\n"
        what += f"Its count goes from {before.generation} to {n}, and never back."
        if n - before.generation > MANY:
            what += f" THAT IS {n - before.generation:,} MORE: is the number right?"
        if record is not None and record.state == "open" and record.owner is not None:
            what += " Its lease is taken away."
        act = f"raise above {n}"
        changed = change(opened, before, lift, place=place, act=act, what=what, yes=yes)
    put_one(fields(changed), as_json=as_json)


def change(
    opened: "SqlStore",
    record: Record,
    make: Callable[[Record], Record],
    *,
    place: where.Place,
    act: str,
    what: str,
    yes: bool,
) -> Record:
    """Ask, and change the record if it is still the one that was shown; log who did that, and where."""
    # The store's own word: a URL's query and variables may lead elsewhere than it seems.
    at = str(where.connected(opened, place))
    ask(f"{at}\n{what}", yes=yes)
    try:
        with logged(f"{act} job {record.job_id!r}, generation {record.generation}", at):
            # In one statement with the look whether it is that one: nobody may lose a lease that the
            # operator has not seen, and the answer may have taken minutes.
            return make(record)
    except Conflict as error:
        if getattr(error, "earlier_attempt_unknown", False):
            raise
        raise Mistake(CHANGED.format(job=record.job_id), REFUSED) from None


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
