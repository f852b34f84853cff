"""The pages on a database that is installed, protected, examined and restored: their examples run."""

from __future__ import annotations

import io
import re
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from sinkfence import Leases, NotArmed, StaleToken, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, doctor, installation, marks, transaction
from sinkfence_trials.servers.postgres import postgres

ROOT = Path(__file__).parents[2]
RunPage = Callable[..., dict[str, Any]]


@pytest.fixture
def leases(engine: Engine) -> Iterator[Leases]:
    """A manager of leases in the page's database."""
    with Leases(SqlStore(engine), ttl=30) as leases:
        yield leases


def test_protect_tables(run_page: RunPage, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The unguarded row is refused, the job's own is written, another job's is not."""
    run_page("docs/how-to/protect-tables.md")
    assert capsys.readouterr().out.splitlines() == [
        "sinkfence: INSERT on public.orders without a fencing token",
        "orders/3",
    ]
    page = (ROOT / "docs/how-to/protect-tables.md").read_text()
    with engine.begin() as conn:
        assert conn.execute(text("SELECT job_id FROM orders")).scalars().all() == ["orders/2"]
        repair, drop = (block.partition("```")[0] for block in page.split("```sql\n")[1:])
        conn.exec_driver_sql(repair.replace("BEGIN;", "").replace("COMMIT;", ""))
        assert [each for each in doctor(conn).findings if each.grade == "broken"] == []
        conn.exec_driver_sql(drop)
        assert "no table is protected" in str(doctor(conn))


def test_move_a_mixed_fleet(run_page: RunPage, capsys: pytest.CaptureFixture[str]) -> None:
    """The old client is counted, and refused in the end."""
    names = run_page("docs/how-to/move-a-mixed-fleet.md")
    counted = "counts only (job_id='job_id'): 1 transactions would have been refused\n"
    assert capsys.readouterr().out == counted
    with pytest.raises(Exception, match="without a fencing token"):
        names["old_client"]()


def test_install_with_alembic(url: str, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The revision installs; the next autogeneration proposes to drop nothing of sinkfence."""
    page = (ROOT / "docs/how-to/install-with-alembic.md").read_text()
    revision, include = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    role, scripts = f"shop_{secrets.token_hex(6)}", tmp_path / "migrations"
    command.init(Config(tmp_path / "alembic.ini", stdout=io.StringIO()), str(scripts))
    (scripts / "versions/fence.py").write_text(revision.replace('"shop"', f'"{role}"'))
    env = (scripts / "env.py").read_text()
    for old, new in (
        ("target_metadata = None", f"import sqlalchemy\ntarget_metadata = sqlalchemy.MetaData()\n{include}"),
        ("connection=connection,", "connection=connection, include_name=include_name,"),
    ):
        assert old in env
        env = env.replace(old, new)
    (scripts / "env.py").write_text(env)
    config = Config(stdout=io.StringIO())  # without its file, which would set up logging for all of us
    config.set_main_option("script_location", str(scripts))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create role {role}")
        try:
            command.upgrade(config, "head")
            with caplog.at_level("INFO", logger="alembic"):
                command.revision(config, "next", autogenerate=True)
            proposed = [record.getMessage() for record in caplog.records]
            assert [line for line in proposed if "removed" in line] == ["Detected removed table 'orders'"]
            report = doctor(admin)
            assert [each for each in report.findings if each.grade == "broken"] == []
            assert "table public.orders: protected (job_id='job_id')" in str(report)
            granted = admin.execute("select pg_has_role(%s, 'sinkfence_writer', 'member')", (role,))
            assert granted.fetchone() == (True,)
        finally:
            admin.execute(f"drop owned by {role}; drop role {role}")


def test_the_script_that_the_command_line_prints(dsn: str) -> None:
    """`sinkfence schema postgres` prints what `install` runs, ready for psql."""
    program = [sys.executable, "-c", "from sinkfence.cli import main; main()", "schema", "postgres"]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert printed == installation.schema()
    assert printed.endswith("end $install$;\n")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(printed)
        assert [each for each in doctor(conn).findings if each.grade == "broken"] == []


def test_check_a_database(
    run_page: RunPage, engine: Engine, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fenced database passes, its report is like the page's, and the marks are listed."""
    PostgresSink(engine).arm(Token("invoice-42", 8, "worker-b:99ab"))
    with engine.begin() as conn:
        role = urlsplit(application).username
        conn.exec_driver_sql(f"GRANT sinkfence_writer TO {role}; GRANT SELECT ON sinkfence.mark TO {role}")
    own = application.replace("postgresql://", "postgresql+psycopg://", 1)
    names = run_page(
        "docs/how-to/check-a-database.md", replace={"postgresql+psycopg://app@db.example/shop": own}
    )
    names["engine"].dispose()
    shown = capsys.readouterr().out
    page = (
        (ROOT / "docs/how-to/check-a-database.md").read_text().partition("```text\n")[2].partition("```")[0]
    )
    same = [line for line in page.splitlines() if line in shown.splitlines()]
    assert len([line for line in same if line.startswith("  ok ")]) == 4
    assert "\ninvoice-42 8 worker-b:99ab 20" in shown


def test_set_up_the_roles() -> None:
    """Typed from top to bottom on a new server, it ends as the page says; so does what helps afterwards."""
    page = (ROOT / "docs/how-to/set-up-the-roles.md").read_text()
    blocks = re.findall(r"^```(sql|console|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sql", "console", "sql", "console", "sql", "console", "text"]
    created, install, granted, leases, tables, asked, answer = (block for _, block in blocks)
    program = [sys.executable, "-c", "from sinkfence.cli import main; main()"]

    def printed(line: str) -> str:
        words = line.removeprefix("$ sinkfence ").partition(" |")[0].split()
        return subprocess.run([*program, *words], check=True, capture_output=True, text=True).stdout

    with postgres(durable=True) as server, psycopg.connect(server.dsn, autocommit=True) as admin:
        for statement in created.splitlines():  # CREATE DATABASE stands alone
            admin.execute(statement)
        admin.execute("alter role deployment password 'pw'; alter role application password 'pw'")
        shop = urlsplit(server.dsn)._replace(path="/shop")

        def login(role: str) -> str:
            return shop._replace(netloc=f"{role}:pw@{shop.netloc.rpartition('@')[2]}").geturl()

        with psycopg.connect(shop.geturl(), autocommit=True) as conn:
            conn.execute(printed(install))
            conn.execute(granted)
        with psycopg.connect(login("deployment"), autocommit=True) as conn:
            conn.execute(printed(leases))
            conn.execute(tables)
        assert asked.endswith(" postgresql://application@/shop\n")
        shown = printed(asked.replace("postgresql://application@/shop", login("application")))
        assert shown.partition("\n")[2] == answer
        worker = login("application")
        with (
            Leases(SqlStore(worker)) as made,
            made.hold("invoice-42", arm=[PostgresSink(worker)]) as lease,
        ):
            with psycopg.connect(login("application")) as conn, transaction(conn, lease):
                conn.execute("insert into invoice values (42, 100)")
        owner = "pg_database_owner owns schema public, and can drop and make anew,"
        public = [owner] if admin.info.server_version >= 150000 else []
        with psycopg.connect(login("application")) as conn:
            for given, named, helps in (
                (
                    "grant sinkfence_owner, sinkfence_writer to deployment",
                    [
                        "deployment can act as sinkfence_owner",
                        "deployment owns, and can disable the triggers of,",
                        *public,
                    ],
                    "REVOKE sinkfence_writer FROM deployment",
                ),
                (
                    "alter table invoice owner to application",
                    ["application owns"],
                    "ALTER TABLE invoice OWNER TO deployment",
                ),
                (
                    "alter database shop owner to application",
                    public,
                    "ALTER DATABASE shop OWNER TO deployment; GRANT CONNECT ON DATABASE shop TO application",
                ),
            ):
                assert all(f"`{name}" in page for name in named)
                assert f"| `{helps}` |" in page
                with psycopg.connect(shop.geturl(), autocommit=True) as operator:
                    operator.execute(given)
                    broken = [each.says for each in doctor(conn).findings if each.grade == "broken"]
                    assert len(broken) == len(named)
                    assert all(
                        says.startswith(name) for says, name in zip(sorted(broken), named, strict=True)
                    )
                    operator.execute(helps)
                    assert doctor(conn).fenced
            weak = [each.says for each in doctor(conn).findings if each.grade == "weak"]
            assert weak == ["deployment can act as sinkfence_owner, and change the marks"]
            admin.execute("REVOKE sinkfence_owner FROM deployment CASCADE")
            assert {each.grade for each in doctor(conn).findings} == {"ok"}


def test_restore_a_destination(run_page: RunPage, engine: Engine, leases: Leases) -> None:
    """After it the stale owner is refused, whom the restored marks had let in; who holds the job goes on."""
    with leases.hold("report") as stale:
        old = stale.token
    with leases.hold("report") as lease, leases.hold("never armed"):
        PostgresSink(engine).arm(old)  # the restored database knows no more than this
        with engine.connect() as conn, transaction(conn, old):
            pass
        with engine.connect() as conn, pytest.raises(NotArmed), transaction(conn, lease):
            pass
        run_page("docs/how-to/restore-a-destination.md")
        with engine.connect() as conn, transaction(conn, lease):
            pass
        with engine.connect() as conn, pytest.raises(StaleToken), transaction(conn, old):
            pass
    with engine.connect() as conn:
        assert [mark.job_id for mark in marks(conn)] == ["never armed", "report"]


def test_what_the_handbook_asks_a_database(engine: Engine) -> None:
    """Every query in the operations handbook is one that a prepared database answers."""
    pages = sorted((ROOT / "docs/operations").glob("*.md"))
    text_of_pages = "\n".join(textwrap.dedent(page.read_text()) for page in pages)
    queries = re.findall(r"^ *```sql\n(.*?)^ *```", text_of_pages, re.MULTILINE | re.DOTALL)
    assert len(queries) >= 3
    with engine.connect() as conn:
        for query in queries:
            conn.exec_driver_sql(query.replace("%", "%%")).all()
