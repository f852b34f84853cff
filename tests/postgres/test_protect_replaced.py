"""Triggers of protected tables that were replaced: the doctor tells, and protect puts it right."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from sinkfence.errors import JobMismatch
from sinkfence_postgres import doctor, protect, transaction


@pytest.fixture
def shop(db):
    """A schema of this test's own, with a table of orders of jobs."""
    name = f"shop_{secrets.token_hex(6)}"
    db.admin.execute(f"create schema {name} create table orders (id bigint, job text, note text)")
    yield name
    db.admin.execute(f"drop schema {name} cascade")


def triggers(db, table):
    query = "select tgname, tgenabled, tgfoid::regproc::text from pg_trigger where tgrelid = %s::regclass"
    return sorted(db.admin.execute(query, (table,)).fetchall())


REPLACED = {
    "never asked": "before insert or update or delete on {t} for each statement when (false)",
    "asked otherwise": "before insert or update or delete on {t} for each statement"
    " when (current_setting('sinkfence.held', true) is null)",
    "always": "before insert or update or delete on {t} for each statement",
    "without an event": "before insert or update on {t} for each statement {when}",
    "of some columns": "before insert or update of note or delete on {t} for each statement {when}",
    "too late": "after insert or update or delete on {t} for each statement {when}",
    "by row": "before insert or update or delete on {t} for each row {when}",
    "with transition tables": "after insert on {t} referencing new table as it for each statement {when}",
}
WHEN = (
    "when (starts_with(current_setting('sinkfence.held', true),"
    " pg_current_xact_id_if_assigned()::text || E'\\n') is not true)"
)


def found(db, table):
    """What the doctor says of a table: grade and text."""
    [found] = [each for each in doctor(db.admin).findings if each.name == f"table {table}"]
    return found.grade, found.says


@pytest.mark.parametrize("column", [None, "job"], ids=["any job", "by job"])
@pytest.mark.parametrize("how", REPLACED)
def test_a_trigger_that_was_replaced_is_told_and_put_right(db, shop, column, how):
    """Of the same name, function and arguments: what counts is when it is called, too."""
    table = f"{shop}.orders"
    protect(db.admin, table, job_id=column)
    before = triggers(db, table)
    argument = f"'{column}'" if column else ""
    db.admin.execute(
        f"create or replace trigger sinkfence_statement {REPLACED[how].format(t=table, when=WHEN)}"
        f" execute function sinkfence.refuse_write({argument})"
    )
    assert triggers(db, table) == before
    grade, says = found(db, table)
    assert (grade, "trigger sinkfence_statement on " in says) == ("broken", True)
    assert "is not as protect makes it" in says
    assert "missing" not in says
    protect(db.admin, table, job_id=column)
    assert found(db, table)[0] == "ok"
    with pytest.raises(psycopg.Error, match="without a fencing token"):
        db.admin.execute(f"delete from {table}")


@pytest.mark.parametrize(
    "made",
    [
        "create or replace trigger sinkfence_insert after insert on {t} for each row when (false)"
        " execute function sinkfence.refuse_write('job')",
        "create or replace trigger sinkfence_insert after insert on {t} for each row"
        " execute function suppress_redundant_updates_trigger()",
        "drop trigger sinkfence_insert on {t}; create constraint trigger sinkfence_insert after insert on {t}"
        " deferrable initially deferred for each row when (new.job is null)"
        " execute function sinkfence.refuse_write('job')",
        "create trigger another before insert on {t} for each row"
        " execute function sinkfence.refuse_write('job')",
    ],
    ids=["never asked", "another function", "deferred", "one more"],
)
def test_what_looks_at_rows_is_held_against_what_protect_makes(db, shop, token, made):
    """Replaced by whatever is of its name, or with something of ours beside it."""
    table = f"{shop}.orders"
    protect(db.admin, table, job_id="job")
    before = triggers(db, table)
    db.admin.execute(made.format(t=table))
    assert found(db, table)[0] == "broken"
    protect(db.admin, table, job_id="job")
    assert found(db, table)[0] == "ok"
    assert triggers(db, table) == before
    db.arm(token())
    with db.connect() as conn, pytest.raises(JobMismatch), transaction(conn, token()):
        conn.execute(f"insert into {table} values (1, 'another')")


@pytest.mark.parametrize("column", [None, "job"], ids=["any job", "by job"])
@pytest.mark.parametrize("parted", [False, True], ids=["plain", "partitioned"])
def test_a_table_whose_triggers_were_all_replaced_is_told(db, shop, column, parted):
    """Nothing of ours is called there any more, and the names are left: once for the whole table."""
    table = f"{shop}.everything"
    if parted:
        db.admin.execute(
            f"create table {table} (id bigint, job text) partition by range (id);"
            f"create table {table}_1 partition of {table} for values from (1) to (9)"
        )
    else:
        db.admin.execute(f"create table {table} (id bigint, job text)")
    protect(db.admin, table, job_id=column)
    db.admin.execute(
        f"create function {shop}.nothing() returns trigger language plpgsql as 'begin return new; end'"
    )
    query = (
        "select pg_get_triggerdef(oid) from pg_trigger where tgrelid = any(%s::regclass[]) and tgparentid = 0"
    )
    for (made,) in db.admin.execute(query, ([table, *([f"{table}_1"] if parted else [])],)).fetchall():
        head = made.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1).partition(" EXECUTE ")[0]
        db.admin.execute(f"{head} EXECUTE FUNCTION {shop}.nothing()")
    db.admin.execute(f"insert into {table} values (1, 'anybody')")
    grade, says = found(db, table)
    assert (grade, says.startswith("not protected: ")) == ("broken", True)
    assert not [each for each in doctor(db.admin).findings if each.name == f"table {table}_1"]
    protect(db.admin, table, job_id=column)
    assert found(db, table)[0] == "ok"


@pytest.mark.parametrize("settings", ["", "set quote_all_identifiers = on"])
@pytest.mark.parametrize(
    "kind", ["text", 'text collate "POSIX"', "varchar", "varchar(50)", "{s}.words", "{s}.code"]
)
def test_what_protect_makes_is_what_is_looked_for(db, shop, kind, settings):
    """Whatever the type of the column, and whatever the session has set, nothing is found to be amiss."""
    db.admin.execute(f"create domain {shop}.words as text; create domain {shop}.code as varchar(50)")
    name = f'{shop}."It\'s \\ %s"'
    db.admin.execute(f'create table {name} (id int, "A \\ ""job""" {kind.format(s=shop)})', prepare=False)
    for warn_only in (True, False):
        with db.connect(autocommit=True) as conn:
            conn.execute(settings or "select 1")
            protect(conn, name, job_id='A \\ "job"', warn_only=warn_only)
            grades = [each.grade for each in doctor(conn).findings if "It's" in each.name]
        assert grades == ["note" if warn_only else "ok"]
    db.admin.execute(f"drop table {name}")
