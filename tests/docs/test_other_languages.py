"""The page for other languages: its functions are those of the schema, its programs run as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

import sinkfence_postgres

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "postgres-sql.md").read_text()
BLOCK = re.compile(r"^```(?:sql|js)\n(?:--|//) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSIDE = {  # of these the page says that they are the schema's own
    "claim",
    "count_write",
    "counter",
    "hold_mark",
    "lock_key",
    "presence_key",
    "recognise",
    "refuse_write",
    "unprotected",
}


@pytest.fixture
def shop(dsn: str) -> str:
    """A database with two invoices."""
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute("create table invoice (id int primary key, total int not null)")
        conn.execute("insert into invoice values (42, 100), (43, 100)")
    return dsn


def totals(dsn: str) -> list[Any]:
    """What the invoices show."""
    with psycopg.connect(dsn) as conn:
        return [total for (total,) in conn.execute("select total from invoice order by id")]


def follow(program: str, folder: Path, **environment: str) -> None:
    """Save the page's files, type its commands that begin with this program, and compare what is said."""
    for name, text in BLOCK.findall(PAGE):
        comment = "//" if name.endswith(".js") else "--"
        (folder / name).write_text(f"{comment} {name}\n{text}")
    commands = [
        typed.partition("\n")
        for block in CONSOLE.findall(PAGE)
        for typed in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        if typed.startswith(program)
    ]
    assert commands
    for command, _, answer in commands:
        done = subprocess.run(
            command.split(),
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
        # What else psql says at length, of its own and of the functions, is nobody's business.
        assert done.stdout.startswith(answer), done.stdout


def test_the_page_has_every_function_that_can_be_called(shop):
    """What a writer or everybody may call is on the page, or is known to be the schema's own."""
    callable_ = (
        "select distinct p.proname from pg_proc p where p.pronamespace = 'sinkfence'::regnamespace"
        " and has_function_privilege('sinkfence_writer', p.oid, 'execute')"
    )
    with psycopg.connect(shop) as conn:
        found = {name for (name,) in conn.execute(callable_)}
        everything = {name for (name,) in conn.execute(callable_.partition(" and ")[0])}
    named = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    assert found - INSIDE == named - {"clean_ledger"}
    assert named | INSIDE <= everything


def test_psql(shop, tmp_path):
    """A newer owner's session writes, and an older one's is refused with the words of the page."""
    if not shutil.which("psql"):
        pytest.skip("not run: no psql")
    follow("psql", tmp_path, PGSERVICEFILE="/dev/null", **connection(shop))
    assert totals(shop) == [40, 100]


def connection(dsn: str) -> dict[str, str]:
    """The variables by which libpq finds a database."""
    names = {
        "host": "PGHOST",
        "port": "PGPORT",
        "user": "PGUSER",
        "password": "PGPASSWORD",
        "dbname": "PGDATABASE",
    }
    found = psycopg.conninfo.conninfo_to_dict(dsn)
    return {variable: str(found[name]) for name, variable in names.items()}


def test_node(shop, tmp_path):
    """A program in JavaScript writes, and is refused at COMMIT when a successor has armed meanwhile."""
    npm = shutil.which("npm")
    if npm is None or not shutil.which("node"):
        pytest.skip("not run: no node and npm")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "pg@8"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode != 0:
        pytest.skip(f"not run: npm can't install pg: {done.stderr[-200:]}")
    follow("node", tmp_path, DATABASE_URL=shop)
    assert totals(shop) == [100, 90]
