"""A fleet whose old clients know nothing of tokens moves over: counted first, refused when none is left."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from sinkfence.errors import JobMismatch, MissingToken, SchemaMismatch
from sinkfence_postgres import PostgresSink, doctor, protect, refusal, transaction


@pytest.fixture
def orders(db):
    """A table of this test's own."""
    name = f"fleet_{secrets.token_hex(6)}"
    db.admin.execute(f"create table {name} (id bigint generated always as identity, job text, note text)")
    yield name
    db.admin.execute(f"drop table {name} cascade")


@pytest.fixture
def finding(db, orders):
    """What the doctor says of the table."""

    def finding(conn=None):
        [found] = [
            each for each in doctor(conn or db.admin).findings if each.name == f"table public.{orders}"
        ]
        return found

    return finding


def misses(finding):
    """How many transactions it has counted."""
    assert finding.grade == "note"
    return int(finding.says.partition("): ")[2].split()[0])


def write(conn, orders, job="x", times=1):
    for _ in range(times):
        conn.execute(f"insert into {orders} (job) values (%s)", (job,))


def test_a_mixed_fleet_moves_over(db, orders, finding, token):
    """C92: an old client writes while the job is at 2; it is counted, found, and then refused."""
    db.arm(token())
    db.arm(token(1))
    protect(db.admin, orders, job_id="job", warn_only=True)
    warnings = []
    with db.connect(application_name="old client") as old, db.connect() as new:
        old.add_notice_handler(lambda diag: warnings.append((diag.severity, diag.message_primary)))
        write(old, orders, token().job_id, times=3)
        old.commit()
        with transaction(new, token(1)):
            write(new, orders, token().job_id)
        assert misses(finding()) == 1
        [(severity, message)] = warnings
        assert severity == "WARNING"
        assert "without" not in message
        for part in (f"INSERT on public.{orders}", "no fencing token", "by role postgres", '"old client"'):
            assert part in message
        protect(db.admin, orders, job_id="job")
        assert finding().grade == "ok"
        with pytest.raises(psycopg.Error) as caught:
            write(old, orders, token().job_id)
        assert isinstance(refusal(caught.value), MissingToken)
        with transaction(new, token(1)):
            write(new, orders, token().job_id)
    assert db.admin.execute(f"select count(*) from {orders}").fetchone() == (5,)


def test_the_count_outlives_rollbacks_and_repetitions(db, orders, finding):
    """A transaction that was rolled back would have been refused, too; each is counted once per table."""
    protect(db.admin, orders, warn_only=True)
    assert misses(finding()) == 0
    with db.connect() as old:
        write(old, orders, times=2)
        old.rollback()
        assert misses(finding()) == 1
        protect(db.admin, orders, warn_only=True)
        write(old, orders)
        old.execute(f"delete from {orders}")
        old.commit()
        assert misses(finding()) == 2


def test_a_row_of_another_job_is_counted(db, orders, finding, token):
    """A guarded transaction that would meet SF004 is told so, and goes on."""
    protect(db.admin, orders, job_id="job", warn_only=True)
    db.arm(token())
    warnings = []
    with db.connect() as conn:
        conn.add_notice_handler(lambda diag: warnings.append(diag.message_primary))
        with transaction(conn, token()):
            write(conn, orders, token().job_id)
            write(conn, orders, "another", times=2)
    assert misses(finding()) == 1
    [warning] = warnings
    assert "a row of another job" in warning


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_counting_makes_nobody_wait_or_fail(db, orders, finding, isolation):
    """Old clients write side by side, under any isolation, as they did before."""
    protect(db.admin, orders, warn_only=True)
    with db.connect() as one, db.connect() as two:
        for conn in (one, two):
            conn.execute(f"set transaction isolation level {isolation}")
            conn.execute("select 1")
        write(one, orders)
        write(two, orders)
        two.commit()
        one.commit()
    assert misses(finding()) == 2


def test_each_table_has_its_own_count(db, orders, finding):
    """One transaction that writes to two counts in both."""
    db.admin.execute(f"create table {orders}_2 (id int, job text)")
    protect(db.admin, orders, warn_only=True)
    protect(db.admin, f"{orders}_2", warn_only=True)
    with db.connect() as old:
        write(old, orders)
        old.execute(f"insert into {orders}_2 values (1)")
        write(old, orders)
        old.execute(f"insert into {orders}_2 values (1)")
    says = [each.says for each in doctor(db.admin).findings if each.name.startswith(f"table public.{orders}")]
    assert [": 1 transactions would have been refused" in one for one in says] == [True, True]
    db.admin.execute(f"drop table {orders}_2")
    sequences = "select count(*) from pg_class where relkind = 'S' and relname like 'sinkfence%%'"
    assert db.admin.execute(sequences).fetchone() == (1,)


def test_counting_goes_on_without_its_counter(db, orders, finding):
    """Where somebody has dropped the sequence, writers write and the doctor says what to do."""
    protect(db.admin, orders, warn_only=True)
    [sequence] = db.admin.execute("select sinkfence.counter(%s)::text", (orders,)).fetchone()
    db.admin.execute(f"drop sequence {sequence}")
    with db.connect() as old:
        write(old, orders)
    assert (finding().grade, "no counter" in finding().says) == ("broken", True)
    protect(db.admin, orders, warn_only=True)
    with db.connect() as old:
        write(old, orders)
    assert misses(finding()) == 1
    protect(db.admin, orders)
    assert db.admin.execute("select sinkfence.counter(%s)", (orders,)).fetchone() == (None,)


def test_counting_makes_nobody_fail_who_may_not_count(own_db):
    """Where the sequence was taken from everybody, a writer writes, and is told as ever."""
    own_db.admin.execute("create table orders (job text); grant insert on orders to public")
    protect(own_db.admin, "orders", warn_only=True)
    own_db.admin.execute("revoke all on all sequences in schema public from public")
    own_db.admin.execute("set role sinkfence_writer")
    told = []
    own_db.admin.add_notice_handler(lambda notice: told.append(notice.message_primary))
    write(own_db.admin, "orders")
    assert len(told) == 1


def test_a_partition_that_is_detached_looks_at_no_row(db, orders, token):
    """It refuses whoever comes without a guard, until it is protected by itself."""
    db.admin.execute(
        f"create table {orders}_all (job text) partition by list (job);"
        f"create table {orders}_one partition of {orders}_all default"
    )
    try:
        protect(db.admin, f"{orders}_all", job_id="job")
        db.admin.execute(f"alter table {orders}_all detach partition {orders}_one")
        PostgresSink(db.dsn).arm(token())
        with pytest.raises(psycopg.Error) as caught:
            write(db.admin, f"{orders}_one")
        assert isinstance(refusal(caught.value), MissingToken)
        with db.connect() as conn, transaction(conn, token()):
            write(conn, f"{orders}_one", "another")
    finally:
        db.admin.execute(f"drop table {orders}_all, {orders}_one")


def test_partitions_are_protected_each_by_itself(db, orders, finding, token):
    """Whatever is written to a partition by its name is refused, and counted with its table."""
    db.arm(token())
    db.admin.execute(
        f"""
        create table {orders}_w (id int, job text) partition by range (id);
        create table {orders}_1 partition of {orders}_w for values from (0) to (10) partition by range (id);
        create table {orders}_11 partition of {orders}_1 for values from (0) to (5);
        create table {orders}_2 partition of {orders}_w for values from (10) to (20)
        """
    )
    with db.connect(autocommit=True) as conn:
        protect(db.admin, f"{orders}_w", warn_only=True)
        for part in ("w", "1", "11"):
            conn.execute(f"insert into {orders}_{part} values (1, 'x')")
        [found] = [each for each in doctor(db.admin).findings if each.name == f"table public.{orders}_w"]
        assert misses(found) == 3
        for column in ("job", None):
            protect(db.admin, f"{orders}_w", job_id=column)
            for part in ("w", "1", "11"):
                for statement in ("insert into {} values (1, 'x')", "truncate {}", "delete from {}"):
                    with pytest.raises(psycopg.Error, match="without a fencing token"):
                        conn.execute(statement.format(f"{orders}_{part}"))
        protect(db.admin, f"{orders}_w", job_id="job")
        for statement in (
            "insert into {}_11 values (1, 'another')",
            "update {}_1 set id = 2",
            "update {}_w set id = 11",  # to another partition
        ):
            with pytest.raises(JobMismatch), transaction(conn, token()):
                conn.execute(statement.format(orders))
        with transaction(conn, token()):
            conn.execute(f"insert into {orders}_w values (1, %s)", (token().job_id,))
            conn.execute(f"update {orders}_w set id = 11 where job = %s", (token().job_id,))
    db.admin.execute(f"drop table {orders}_w")


@pytest.mark.parametrize("column", [None, "job"])
def test_a_later_partition_is_half_protected(db, orders, token, column):
    """A new one refuses rows at once; TRUNCATE by its own name when it is protected again, as doctor says."""

    def found():
        [found] = [each for each in doctor(db.admin).findings if each.name == f"table public.{orders}_w"]
        return found.grade, found.says

    db.admin.execute(f"create table {orders}_w (id int, job text) partition by range (id)")
    protect(db.admin, f"{orders}_w", job_id=column)
    assert found()[0] == "ok"
    db.admin.execute(f"create table {orders}_1 partition of {orders}_w for values from (0) to (9)")
    db.admin.execute(f"create table {orders}_2 (id int, job text)")
    db.admin.execute(f"alter table {orders}_w attach partition {orders}_2 for values from (10) to (19)")
    grade, says = found()
    assert grade == "broken"
    assert f"trigger sinkfence_truncate is missing on public.{orders}_1" in says
    with db.connect(autocommit=True) as conn:
        for number, start in ((1, 0), (2, 10)):
            with pytest.raises(psycopg.Error, match="without a fencing token"):
                conn.execute(f"insert into {orders}_{number} values ({start}, 'x')")
            conn.execute(f"truncate {orders}_{number}")
        protect(db.admin, f"{orders}_w", job_id=column)
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute(f"truncate {orders}_1")
    assert found()[0] == "ok"
    db.admin.execute(f"alter table {orders}_2 disable trigger sinkfence_update")
    assert "sinkfence_update on public." in found()[1]
    protect(db.admin, f"{orders}_w", job_id=column)
    assert found()[0] == "ok"
    db.admin.execute(f"drop table {orders}_w")


@pytest.mark.parametrize("kind", ["", "partition by range (id)"], ids=["table", "partitioned"])
def test_a_column_that_was_renamed_is_told(db, token, orders, kind):
    """Its triggers go with the column, the refusal and the doctor say what was renamed, protect mends it."""
    name = f"{orders}_r"

    def found():
        [found] = [each for each in doctor(db.admin).findings if each.name == f"table public.{name}"]
        return found.grade, found.says

    def refusal_of(job):
        with db.connect() as conn, pytest.raises(JobMismatch) as caught, transaction(conn, token()):
            conn.execute(f"insert into {name} values (1, %s)", (job,))
        return str(caught.value)

    db.arm(token())
    db.admin.execute(f"create table {name} (id int, job text) {kind}")
    if kind:
        db.admin.execute(f"create table {name}_1 partition of {name} for values from (0) to (9)")
    protect(db.admin, name, job_id="job")
    assert found() == ("ok", "protected (job_id='job')")
    db.admin.execute(f"alter table {name} rename job to whose")
    assert "the column that was job (it was renamed" in refusal_of("another")
    grade, says = found()
    assert (grade, "trigger sinkfence_insert on public." in says) == ("broken", True)
    assert "looks at another column" in says
    db.admin.execute(f"alter table {name} add job text")  # which the triggers do not look at
    assert found()[0] == "broken"
    protect(db.admin, name, job_id="job")
    assert found()[0] == "ok"
    db.admin.execute(f"alter table {name} drop job cascade")
    assert found()[0] == "broken"
    protect(db.admin, name, job_id="whose")
    assert found() == ("ok", "protected (job_id='whose')")
    assert 'a row of job "another"' in refusal_of("another")
    db.admin.execute(f"drop table {name}")


def test_heirs_are_protected_with_their_table(db, orders, token):
    """A table that INHERITS is written to through its parent, and by itself."""
    db.admin.execute(f"create table {orders}_heir () inherits ({orders})")
    protect(db.admin, orders, job_id="job")
    db.arm(token())
    with db.connect() as conn:
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute(f"insert into {orders}_heir (id, job) values (1, 'x')")
        conn.rollback()
        with transaction(conn, token()):
            conn.execute(f"insert into {orders}_heir (id, job) values (1, %s)", (token().job_id,))
        other = token(job_id=f"{token().job_id}/other")
        db.arm(other)
        with pytest.raises(JobMismatch), transaction(conn, other):
            conn.execute(f"delete from {orders}")


@pytest.fixture
def people(own_db):
    """An owner of tables and an application, neither of whom has anything to do with sinkfence."""
    suffix = secrets.token_hex(6)
    owner, app = f"owner_{suffix}", f"app_{suffix}"
    own_db.admin.execute(
        f"""
        create role {owner} nologin; create role {app} login password 'secret';
        create schema shop authorization {owner}; grant usage on schema shop to {app};
        set role {owner};
        create table shop.orders (id bigint generated always as identity, job text);
        grant select, insert, delete on shop.orders to {app};
        reset role
        """
    )
    yield owner, app
    own_db.admin.execute(f"drop owned by {owner}, {app} cascade; drop role {owner}, {app}")


def as_role(db, role):
    conn = db.connect(autocommit=True)
    conn.execute(f"set session authorization {role}")
    return conn


@pytest.mark.parametrize("warn_only", [True, False])
@pytest.mark.parametrize("by", ["owner", "superuser"])
def test_the_owner_protects_and_everybody_meets_it(own_db, people, by, warn_only):
    """No right of sinkfence is needed to protect one's table, to be counted, and to be refused."""
    owner, app = people
    with as_role(own_db, owner if by == "owner" else "postgres") as conn:
        protect(conn, "shop.orders", job_id="job", warn_only=warn_only)
        protect(conn, "shop.orders", job_id="job", warn_only=warn_only)
    with as_role(own_db, app) as conn:
        if warn_only:
            conn.execute("insert into shop.orders (job) values ('x')")
            [found] = [each for each in doctor(conn).findings if each.name == "table shop.orders"]
            assert misses(found) == 1
        else:
            with pytest.raises(psycopg.Error) as caught:
                conn.execute("insert into shop.orders (job) values ('x')")
            assert caught.value.sqlstate == "SF002"
        with pytest.raises(SchemaMismatch, match="only its owner"):
            protect(conn, "shop.orders")


def test_a_transaction_that_goes_on_as_another_role_is_guarded(own_db, people, token):
    """SET LOCAL ROLE after the guard, to one that may call nothing of sinkfence."""
    _, app = people
    protect(own_db.admin, "shop.orders", job_id="job")
    own_db.arm(token())
    with own_db.connect() as conn, transaction(conn, token()):
        conn.execute(f"set local role {app}")
        conn.execute("insert into shop.orders (job) values (%s)", (token().job_id,))


def test_what_is_not_stopped_is_said(own_db, people):
    """session_replication_role = replica goes round the triggers; doctor tells of that, and of the owner."""
    owner, app = people
    protect(own_db.admin, "shop.orders")
    with own_db.connect(autocommit=True) as conn:
        conn.execute("set session_replication_role = replica")
        conn.execute("insert into shop.orders (job) values ('round it')")
        assert "session_replication_role is replica" in str(doctor(conn))
    own_db.admin.execute(f"grant {owner}, sinkfence_writer to {app}")
    [found] = [each for each in doctor(own_db.admin).findings if "can disable the triggers" in each.says]
    assert (found.grade, found.says) == (
        "broken",
        f"{owner} owns, and can disable the triggers of, shop.orders",
    )
