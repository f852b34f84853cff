"""What the doctor finds in a database as it is, and says to do about it."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced
from sinkfence_postgres import aio, doctor, guard, install, protect
from sinkfence_postgres.doctor import _locks
from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.postgres import postgres

NOTHING = contextlib.nullcontext()


def of(report, name):
    """The findings of this name: grade and text."""
    return [(each.grade, each.says) for each in report.findings if each.name == name]


@pytest.fixture
def role(own_db):
    """A role that may log in, dropped at the end."""
    name = f"app_{secrets.token_hex(6)}"
    own_db.admin.execute(f"create role {name} login password 'secret'")
    yield name
    own_db.admin.execute(f"reset role; drop owned by {name} cascade; drop role {name}")


def login(db, role):
    parts = urlsplit(db.dsn)
    return parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}").geturl()


def test_a_fenced_database(own_db, role):
    """Version, triggers, roles and locks are as they should be, for the role of an application."""
    protect(own_db.admin, "entry")
    own_db.admin.execute(f"grant sinkfence_writer to {role}; grant insert on entry to {role}")
    with psycopg.connect(login(own_db, role)) as conn:
        report = doctor(conn)
    assert report.fenced
    report.check()
    assert of(report, "schema") == [("ok", "version 1")]
    assert of(report, "triggers") == [("ok", "marks are kept, and COMMIT checks")]
    assert of(report, "roles") == [("ok", "nobody that writes can go round the check")]
    assert of(report, "table public.entry") == [("ok", "protected (any job)")]
    assert of(report, "advisory locks") == [("ok", "exclude each other between two connections")]
    text = str(report)
    assert text.startswith(f"database {own_db.admin.info.dbname!r} of PostgreSQL ")
    assert "  ok      table public.entry: protected (any job)\n" in text


def test_a_superuser_is_told_that_it_sees_nothing(own_db):
    """Nothing stops it: what it finds says nothing of the application, so fenced is not claimed."""
    report = doctor(own_db.admin)
    assert [each.grade for each in report.findings if each.grade in ("unknown", "broken")] == ["unknown"]
    assert not report.fenced
    assert "            -> ask as the role that your application logs in with" in str(report)


def test_without_sinkfence(dsn):
    """It says to install, and goes no further; `check` raises with the report."""
    with psycopg.connect(dsn) as conn:
        report = doctor(conn)
    assert of(report, "schema") == [("broken", "sinkfence is not installed here")]
    assert len(report.findings) == 1
    with pytest.raises(NotEnforced, match="-> run sinkfence_postgres"):
        report.check()


def test_another_version(own_db):
    """Older and newer schemas are told apart by what to do."""
    version = "create or replace function sinkfence.schema_version() returns int language sql immutable as"
    for number, advice in ((0, "install"), (99, "newer sinkfence")):
        own_db.admin.execute(f"{version} 'select {number}'")
        [finding] = doctor(own_db.admin).findings
        assert (finding.grade, f"version is {number}" in finding.says) == ("broken", True)
        assert advice in finding.advice


FAULTS = {
    "alter table sinkfence.mark disable trigger keep_mark": "keep_mark of sinkfence.mark is disabled",
    "alter table sinkfence.sealed enable trigger seal": "seal of sinkfence.sealed is disabled",
    "drop trigger keep_marks on sinkfence.mark": "keep_marks of sinkfence.mark is missing",
    "alter schema sinkfence owner to postgres": "schema sinkfence belongs to postgres",
    "alter database {db} set session_replication_role = replica": "set for everybody in database {db}",
    "alter database {db} set session_replication_role = 'REPLICA'": "set for everybody in database {db}",
    "set session_replication_role = replica": "session_replication_role is replica",
}
ODDITIES = {
    "set synchronous_commit = off": "synchronous_commit is off",
    "set default_transaction_isolation = serializable": "is serializable",
    "create table t (generation int)": "t.generation is integer",
    "create table t (generation text)": "t.generation is text",
}


@pytest.mark.parametrize("made", FAULTS | ODDITIES)
def test_what_is_wrong_is_found(db, made):
    """Each fault and oddity is told by name, with its grade and an advice."""
    with db.connect() as conn:
        name = conn.info.dbname
        conn.execute(made.format(db=name))
        report = doctor(conn)
        conn.rollback()
    [found] = [each for each in report.findings if (FAULTS | ODDITIES)[made].format(db=name) in each.says]
    assert found.grade == ("broken" if made in FAULTS else "note")
    assert found.advice


def test_an_application_without_any_right_can_ask(own_db, role):
    """It takes no special right, and tells of the role's own settings."""
    own_db.admin.execute(f"alter role {role} set synchronous_commit = off")
    with psycopg.connect(login(own_db, role)) as conn:
        report = doctor(conn)
    assert report.fenced
    assert "superuser, whom nothing stops" not in str(report)
    [setting] = [says for _, says in of(report, "settings") if says.startswith("synchronous_commit")]
    assert setting == "synchronous_commit is off: what was committed may be lost in a crash"


RIGHTS = {
    "grant all on sinkfence.mark to {role}": "{role} has DELETE, INSERT, ",
    "grant update (owner) on sinkfence.mark to {role}": "{role} has UPDATE on table sinkfence.mark",
    "grant delete on sinkfence.sealed to public": "everybody has DELETE on table sinkfence.sealed",
    "grant trigger on sinkfence.sealed to {role}": "{role} has TRIGGER on table sinkfence.sealed",
    "grant insert on sinkfence.ledger to {role}": "{role} has INSERT on table sinkfence.ledger",
    "grant create on schema sinkfence to {role}": "{role} has CREATE on schema sinkfence",
    "grant sinkfence_owner to {role}": "{role} can act as sinkfence_owner",
    "grant pg_write_all_data to {role}": "{role} may write to all tables, the marks among them",
    "grant pg_write_server_files to {role}": "{role} may write the files of the server, the marks'",
    "grant pg_execute_server_program to {role}": "{role} may run programs as the server",
    "grant {superuser} to {role}": "{superuser} is a superuser, whom nothing stops, and can be had by who",
    "alter role {role} superuser": "{role} is a superuser, whom nothing stops, and can be had by who writes",
    "alter table entry owner to {role}": "{role} owns, and can disable the triggers of, public.entry",
    "alter schema public owner to {role}": "{role} owns schema public, and can drop and make anew, public.",
    "grant all on entry to {role}": "{role} has TRIGGER, and can replace the triggers, on public.entry",
    "grant all on entry to public": "everybody has TRIGGER, and can replace the triggers, on public.entry",
    "alter table sinkfence.mark owner to {role}": "table sinkfence.mark belongs to {role}",
    "alter function sinkfence.arm owner to {role}": "function sinkfence.arm(text,bigint,text) belongs to ",
    "alter table sinkfence.mark set unlogged": "sinkfence.mark is unlogged: a crash of the server",
    "alter role {role} set session_replication_role = 'Replica'": "= replica is set for {role}",
}
SINCE = {
    "grant set on parameter session_replication_role to {role}": (
        15,
        "{role} may SET session_replication_role: protected tables do not look",
    ),
    "grant set on parameter session_replication_role to public": (
        15,
        "everybody may SET session_replication_role: protected tables do not look",
    ),
    "grant alter system on parameter session_replication_role to {role}": (
        15,
        "{role} may ALTER SYSTEM session_replication_role: protected tables do not look",
    ),
    "grant alter system on parameter archive_command to {role}": (
        15,
        "{role} may ALTER SYSTEM archive_command: it can run programs as the server",
    ),
    "alter database {db} owner to {role}": (
        15,
        "pg_database_owner owns schema public, and can drop and make",
    ),
    "grant pg_create_subscription to {role}": (16, "{role} may have a subscription write"),
}


@pytest.fixture
def names(own_db, role):
    """The role of an application, to which `entry` is protected, and others."""
    admin = own_db.admin
    admin.execute(f"grant sinkfence_writer to {role}; grant select on sinkfence.mark to {role}")
    protect(admin, "entry")
    with contextlib.ExitStack() as stack:
        made = {}
        for name in ("superuser", "operator"):
            made[name] = f"{role}_{name}"
            admin.execute(f"create role {made[name]}")
            stack.callback(admin.execute, f"drop owned by {made[name]} cascade; drop role {made[name]}")
        admin.execute(f"alter role {made['superuser']} superuser")
        yield {"role": role, "db": admin.info.dbname, **made}
        admin.execute(f"alter database {admin.info.dbname} owner to current_user")


def added(own_db, names, made):
    """What a statement adds to the report of the application's role, and whether that is fenced."""
    with psycopg.connect(login(own_db, names["role"])) as conn:
        before = doctor(conn)
        # before PostgreSQL 16 a role that does not inherit may not guard: a note
        assert ("ok", "nobody that writes can go round the check") in of(before, "roles")
        assert before.fenced
        own_db.admin.execute(made.format(**names))
        conn.rollback()
        after = doctor(conn)
    public = " from public" if "public" in made else f" from {names['role']}"
    if "parameter" in made:  # belongs to the server
        own_db.admin.execute(made.split(" to ")[0].replace("grant", "revoke").format(**names) + public)
    return [each for each in of(after, "roles") if each not in of(before, "roles")], after.fenced


@pytest.mark.parametrize("made", RIGHTS | SINCE)
def test_an_application_that_can_go_round_the_check_is_not_fenced(own_db, names, made):
    """Whatever lets it: the finding is broken, and so is the verdict."""
    version, expected = SINCE.get(made, (0, RIGHTS.get(made)))
    if own_db.admin.info.server_version < 10_000 * version:
        pytest.skip("there is no such right yet")
    found, fenced = added(own_db, names, made)
    assert not fenced
    assert [(grade, expected.format(**names) in says) for grade, says in found if grade != "unknown"] == [
        ("broken", True)
    ], found


def test_its_advice_can_be_run_whatever_the_role_is_called(own_db, role):
    """Names are quoted where they must be."""
    odd = f'"Odd ""{role}"""'
    own_db.admin.execute(
        f"create role {odd} in role pg_write_all_data; grant insert on sinkfence.mark to {odd}"
    )
    try:
        advice = [each.advice for each in doctor(own_db.admin).findings if each.says.startswith(odd)]
        assert len(advice) == 2
        for statement in advice:
            own_db.admin.execute(statement)
        assert not [each for each in doctor(own_db.admin).findings if odd in each.says]
    finally:
        own_db.admin.execute(f"drop owned by {odd}; drop role {odd}")


def test_who_only_installs_is_told_why_it_counts_as_an_application(own_db, names):
    """It has sinkfence_writer, by `GRANT ... TO CURRENT_USER` for instance: to take that back is enough."""
    admin, installer = own_db.admin, names["operator"]
    admin.execute(f"alter role {installer} login; grant sinkfence_owner, sinkfence_writer to {installer}")
    with psycopg.connect(login(own_db, names["role"])) as conn:
        (found,) = [each for each in doctor(conn).findings if each.says.startswith(installer)]
        assert (found.grade, "because it has sinkfence_writer" in found.advice) == ("broken", True)
        first, second = (part.partition(" REVOKE ")[2] for part in found.advice.split("; "))
        admin.execute(f"revoke {first}")
        (weak,) = [each for each in doctor(conn).findings if each.says.startswith(installer)]
        assert (weak.grade, weak.advice) == ("weak", f"let a superuser run REVOKE {second}")
        assert doctor(conn).fenced
        admin.execute(f"revoke {second}")
        assert of(doctor(conn), "roles") == [("ok", "nobody that writes can go round the check")]


def test_a_group_that_an_application_is_in_counts_as_its_own(own_db, names):
    """Also where it takes a SET ROLE first."""
    own_db.admin.execute("alter role {role} noinherit; grant {operator} to {role}".format(**names))
    found, fenced = added(own_db, names, "grant insert on sinkfence.mark to {operator}")
    assert [grade for grade, _ in found] == ["broken"]
    assert not fenced


@pytest.mark.parametrize(
    "made", ["grant pg_write_all_data to {operator}", "grant sinkfence_owner to {operator}"]
)
def test_who_could_go_round_and_writes_nothing_is_named(own_db, names, made):
    """An operator's role is no application's: weak, and fenced."""
    found, fenced = added(own_db, names, made)
    assert [grade for grade, _ in found] == ["weak"]
    assert fenced


@pytest.mark.parametrize(
    "made",
    [
        "alter role {role} bypassrls",
        "alter role {role} replication",
        "grant pg_read_all_data, pg_signal_backend to {role}",
        "grant select, insert, update, delete, truncate, references on entry to {role}",
        "alter table entry owner to {operator}",
        "alter schema public owner to {operator}",
        "alter database {db} owner to {operator}",
        "grant all on entry to {operator}",
        "grant execute on function sinkfence.clean_ledger to {role}",
    ],
)
def test_what_lets_nobody_go_round_is_not_named(own_db, names, made):
    """Row security, reading, replication, an owner that nobody logs in as: none has to do with the check."""
    assert added(own_db, names, made) == ([], True)


def test_a_trigger_that_was_replaced_lets_a_late_write_in(own_db, names):
    """So TRIGGER alone is enough to go round. What was done with it is found when it has been taken back."""
    own_db.admin.execute("grant insert, trigger on entry to {role}".format(**names))
    with psycopg.connect(login(own_db, names["role"])) as conn:
        conn.execute(
            "create or replace trigger sinkfence_statement before insert or update or delete on entry"
            " for each statement when (false) execute function sinkfence.refuse_write()"
        )
        conn.execute("insert into entry (note) values ('unguarded')")
        conn.commit()
        own_db.admin.execute("revoke trigger on entry from {role}".format(**names))
        report = doctor(conn)
    assert own_db.notes() == ["unguarded"]
    assert not report.fenced
    [(grade, says)] = of(report, "table public.entry")
    assert (grade, "trigger sinkfence_statement on public.entry is not as" in says) == ("broken", True)


def test_the_owner_of_a_schema_makes_a_protected_table_anew(own_db, names):
    """Of a table that is not its own, and so without what protected it."""
    own_db.admin.execute(
        "create schema shop authorization {role}; create table shop.entry (note text)".format(**names)
    )
    protect(own_db.admin, "shop.entry")
    with psycopg.connect(login(own_db, names["role"])) as conn:
        assert [each for each in of(doctor(conn), "roles") if each[0] == "broken"] == [
            ("broken", "{role} owns schema shop, and can drop and make anew, shop.entry".format(**names))
        ]
        conn.execute("drop table shop.entry; create table shop.entry (note text)")
        conn.execute("insert into shop.entry values ('unguarded')")
    own_db.admin.execute("drop schema shop cascade")


def test_an_application_that_may_not_write_is_told(own_db, role):
    """It may be one that reads, so this is no more than a note."""
    with psycopg.connect(login(own_db, role)) as conn:
        report = doctor(conn)
    assert ("note", f"{role} may not guard, nor arm") in of(report, "roles")
    assert report.fenced


OLD = [path for path in Path("/usr/lib/postgresql").glob("1[45]") if (path / "bin" / "initdb").is_file()]


@pytest.mark.parametrize("version", ["newest", "before 16"])
def test_before_postgres_16_who_may_create_roles_may_take_the_marks(monkeypatch, version):
    """It can make itself their owner, and is named; later it takes somebody to let it."""
    if version == "before 16":
        if not OLD:
            pytest.skip("no PostgreSQL 14 or 15 is installed here")
        monkeypatch.setattr(binaries, "find_postgres", lambda: OLD[0])
    with postgres() as server, psycopg.connect(server.dsn, autocommit=True) as admin:
        install(admin)
        admin.execute("create role creator login createrole password 'pw'")
        named = "creator has CREATEROLE: before PostgreSQL 16 it may GRANT itself sinkfence_owner, "
        for grade in ("weak", "broken"):
            report = doctor(admin)
            found = [each for each, says in of(report, "roles") if says.startswith(named)]
            assert found == ([grade] if admin.info.server_version < 160000 else [])
            admin.execute("grant sinkfence_writer to creator")
        admin.execute("set role creator")
        with NOTHING if found else pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute("grant sinkfence_owner to creator")


def test_a_name_forges_no_line_of_the_report(own_db):
    """Whoever may name a table can't write that all is well."""
    own_db.admin.execute('create table "odd\nfenced\u2028fenced" (note text)')
    protect(own_db.admin, '"odd\nfenced\u2028fenced"')
    lines = str(doctor(own_db.admin)).splitlines()
    assert '  ok      table public."odd\\nfenced\\u2028fenced": protected (any job)' in lines
    assert [line for line in lines if line.startswith("fenced")] == []


def test_a_prepared_transaction_that_holds_a_job(elsewhere, token):
    """It keeps successors from arming without end: named, with what ends it. Others are not."""
    elsewhere.arm(token())
    for name in ("guarded", "another"):
        with elsewhere.connect() as conn:
            if name == "guarded":
                guard(conn, token())
            conn.execute("create table if not exists t (id int); insert into t values (1)")
            conn.execute(f"prepare transaction '{name}'")
            conn.autocommit = True
        if name == "guarded":
            [(grade, says)] = of(doctor(elsewhere.admin), "prepared transactions")
            assert (grade, "'guarded' of postgres, since 2" in says) == ("weak", True)
            elsewhere.admin.execute("rollback prepared 'guarded'")
    assert of(doctor(elsewhere.admin), "prepared transactions") == []
    elsewhere.admin.execute("rollback prepared 'another'")


def test_locks_that_do_nothing_are_found():
    """A server that accepts advisory locks and grants all of them is refused. (None can be run here.)"""
    findings = []
    plan = _locks(findings)
    next(plan)
    plan.send([(1,)])
    with pytest.raises(StopIteration):
        plan.send([(2, True, True)])
    assert [(each.name, each.grade) for each in findings] == [("advisory locks", "broken")]


@pytest.mark.parametrize("answer", [(1, True, True), (2, False, True), (2, False, False)])
def test_one_session_or_another_server_is_no_trial(answer):
    """Where the second connection leads to the same session, or elsewhere, nothing is claimed."""
    findings = []
    plan = _locks(findings)
    next(plan)
    plan.send([(1,)])
    with pytest.raises(StopIteration):
        plan.send([answer])
    assert [(each.name, each.grade) for each in findings] == [("advisory locks", "unknown")]


def test_no_second_connection_is_no_trial(own_db, role):
    """Where none can be had, the rest is told, and that this was not tried."""
    own_db.admin.execute(f"alter role {role} connection limit 1")
    with psycopg.connect(login(own_db, role)) as conn:
        report = doctor(conn)
    assert of(report, "schema") == [("ok", "version 1")]
    [(grade, says)] = of(report, "advisory locks")
    assert (grade, "too many connections" in says) == ("unknown", True)
    assert not report.fenced


AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
ONE = {"pool_size": 1, "max_overflow": 0}


@pytest.mark.parametrize(
    ("kind", "pool"),
    [
        ("psycopg", {}),
        ("psycopg2", ONE),
        ("session", {"poolclass": sa.pool.NullPool}),
        ("session", {"poolclass": sa.pool.StaticPool}),
        ("aio psycopg", {}),
        ("aio session", ONE),
        ("aio asyncpg", {}),
        ("aio asyncpg", {"poolclass": sa.pool.NullPool}),
        ("psycopg", AUTOCOMMIT),
        ("psycopg2", AUTOCOMMIT),
        ("session", AUTOCOMMIT),
        ("aio asyncpg", AUTOCOMMIT),
    ],
)
def test_every_kind_of_connection_can_ask(db, kind, pool):
    """The answer is the same over each, also from a pool of one, and in autocommit."""

    async def asynchronous():
        if kind == "aio psycopg":
            async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
                return await aio.doctor(conn)
        engine = sa_aio.create_async_engine(db.url(kind.split()[1].replace("session", "psycopg")), **pool)
        async with sa_aio.AsyncSession(engine) if "session" in kind else engine.connect() as conn:
            report = await aio.doctor(conn)
        await engine.dispose()
        return report

    def synchronous():
        engine = sa.create_engine(db.url(kind.replace("session", "psycopg")), **pool)
        with orm.Session(engine) if kind == "session" else engine.connect() as conn:
            report = doctor(conn)
        engine.dispose()
        return report

    report = db.run(asynchronous()) if kind.startswith("aio") else synchronous()
    assert report == doctor(db.admin)
    assert [each.grade for each in report.findings if each.grade in ("unknown", "broken")] == ["unknown"]


def test_an_open_transaction_stays_open(db):
    """It looks in the caller's transaction, and leaves its end to the caller; an idle one stays idle."""
    with db.connect() as conn:
        conn.execute("create temp table mine (id int)")
        doctor(conn)
        conn.execute("table mine")
        conn.rollback()
        doctor(conn)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
