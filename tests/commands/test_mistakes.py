"""What a user gets wrong is said in a line, with an exit code, and never with a password or a traceback."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from command_line import COMMAND, PLAIN, Sinkfence, terminal

from sinkfence import Leases
from sinkfence.cli.masking import Place
from sinkfence.stores.sql import SqlStore

WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # as if it were not installed
from sinkfence.cli import main
main()
"""
PASSWORD = "pA55-wort"


@pytest.fixture
def port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def no_tables(tmp_path: Path) -> str:
    """An SQLite file that is no lease store."""
    (tmp_path / "empty.db").write_bytes(b"")
    return f"sqlite:///{tmp_path}/empty.db"


def test_a_store_that_is_none(sinkfence: Sinkfence, tmp_path: Path, port: int) -> None:
    """No URL, a wrong one, no server, no file, no tables, no database: each has its line."""
    (tmp_path / "text.db").write_text("this is no database " * 100)
    for url, code, says in [
        (None, 2, "which lease store?"),
        ("", 2, "which lease store?"),
        ("nonsense", 2, "that is no database URL"),
        (f"mysql://u:{PASSWORD}@h/d", 2, "not in mysql"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d", 3, "Connection refused"),
        (f"postgresql+asyncpg://u:{PASSWORD}@127.0.0.1:{port}/d", 2, "is asynchronous"),
        (f"postgresql://u:{PASSWORD}@@127.0.0.1/d", 2, "write %40 for @"),
        (f"postgresql://u:pa@ss/{PASSWORD}@127.0.0.1/d", 2, "%2F for /"),
        (f"postgresql://u:4711/{PASSWORD}@127.0.0.1:{port}/d", 3, f"//u:***@127.0.0.1:{port}/d: "),
        (f"postgresql://u:4711?{PASSWORD}@127.0.0.1:{port}/d", 3, f"//u:***@127.0.0.1:{port}/d: "),
        (f"postgresql://u:/{PASSWORD}@127.0.0.1:{port}/d", 3, f"//u:***@127.0.0.1:{port}/d: "),
        (
            f"postgresql:///?host=127.0.0.1&port={port}&dbname=d&password={PASSWORD}",
            3,
            'at "127.0.0.1", port',
        ),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{PASSWORD}/d", 2, "that is no database URL"),
        (f"sqlite+pysqlcipher://:{PASSWORD}@/{tmp_path}/absent.db", 3, "there is no such file"),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d?nonsense=1", 2, ""),
        (f"sqlite:///{tmp_path}/absent.db", 3, "there is no such file"),
        ("sqlite://", 2, "needs an SQLite file"),
        (f"sqlite:///{tmp_path}/text.db", 3, "not a database"),
        (no_tables(tmp_path), 3, "`sinkfence schema leases --dialect sqlite` prints it as SQL"),
    ]:
        ran = sinkfence("leases", "list", *([] if url is None else ["--store", url]))
        assert (ran.code, ran.out) == (code, ""), (url, ran)
        a_line(ran.err, says)
    assert not (tmp_path / "absent.db").exists()


def a_line(said: str, says: str) -> None:
    """Make sure that this is one line, and harmless."""
    assert said.startswith("sinkfence: "), said
    assert said.count("\n") == 1, said
    assert says in said, said
    assert PASSWORD not in said, said


def test_a_wrong_password_is_not_repeated(sinkfence: Sinkfence, dsn: str) -> None:
    """The server's refusal is told; the password is not, as it is written nor as it is meant."""
    user = "ops-of-" + dsn.rpartition("/")[2]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"create role \"{user}\" login password 'another'")
        info = conn.info
        try:
            for written in (PASSWORD, PASSWORD.replace("-", "%2D")):
                url = f"postgresql://{user}:{written}@{info.host}:{info.port}/{info.dbname}"
                for command in (
                    ("leases", "list", "--store", url),
                    ("marks", "list", "--postgres", url),
                    ("doctor", "postgres", url),
                ):
                    ran = sinkfence(*command)
                    assert ran.code == 3, ran
                    a_line(ran.err, "password authentication failed")
                    assert written not in ran.err
            words = f"host={info.host} port={info.port} user={user} dbname={info.dbname} password={PASSWORD}"
            ran = sinkfence("doctor", "postgres", words)
            assert ran.code == 3
            a_line(ran.err, "password authentication failed")
        finally:
            conn.execute(f'drop role "{user}"')


@pytest.mark.parametrize(
    ("dsn", "code", "says"),
    [
        (f"u:{PASSWORD}@h/d", 2, "that is no connection string"),
        (f"password={PASSWORD} host", 2, "that is no connection string"),
        (f"hots=h password={PASSWORD}", 2, "that is no connection string"),
        (f"postgresql://u:{PASSWORD}@h:x/d", 2, "that URL can't be read"),
        (f"postgresql://u:4711/{PASSWORD}@127.0.0.1:1/d", 2, "that URL can't be read"),
        (f"postgresql://u:{PASSWORD}@nowhere.invalid/d", 3, "nowhere.invalid"),
        ("", 2, "which database?"),
    ],
)
def test_a_connection_string_that_is_none(sinkfence: Sinkfence, dsn: str, code: int, says: str) -> None:
    """It is not repeated: whatever is wrong with it may be a password."""
    ran = sinkfence("doctor", "postgres", dsn)
    assert (ran.code, ran.out) == (code, "")
    a_line(ran.err, says)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b[2J"])
def test_an_address_with_a_line_break_in_it_is_refused(sinkfence: Sinkfence, port: int, end: str) -> None:
    """Read from a file with its line's end, say: it is named, in place of a database of that name."""
    at = f"127.0.0.1:{port}"
    for command in (
        ("doctor", "postgres", f"postgresql://u:{PASSWORD}@{at}/shop{end}"),
        ("marks", "list", "--postgres", f"host='127.0.0.1{end}' password={PASSWORD}"),
        ("leases", "list", "--store", f"postgresql+psycopg://u:{PASSWORD}@{at}/shop{end}"),
        ("doctor", "s3", "--bucket", "b", "--endpoint", f"http://{at}{end}"),
        ("doctor", "http", f"http://{at}/{end}"),
    ):
        ran = sinkfence(*command)
        assert (ran.code, ran.out) == (2, ""), ran
        a_line(ran.err, "control character")
    # Between the words of a connection string it is a blank.
    ran = sinkfence("doctor", "postgres", f"host=127.0.0.1\nport={port}\nuser=u password={PASSWORD}\n")
    assert ran.code == 3, ran
    a_line(ran.err, "database host=127.0.0.1")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("doctor", "{url}"), "comes a command: postgres."),
        (("doctor", "https://u:{password}@h/"), "comes a command: http."),
        (("doctor", "host=h password='{password} x'"), "comes a command: postgres, s3, http."),
        (("leases", "{url}"), "comes a command: list, show, release, reopen, raise."),
        (("marks", "{url}"), "comes a command: list, show."),
        (("schema", "{url}"), "comes a command: "),
        (("torture", "{url}"), "comes a command: "),
        (("{url}",), "comes a command: demo, doctor, "),
        (("--{url}",), "No such option: ***"),
        (("leases", "--{url}"), "No such option: ***"),
        (("demo", "{url}"), "unexpected extra argument"),
        (("doctor", "postgres", "{url}", "{url}?x y"), "unexpected extra argument"),
        (("schema", "leases", "--dialect", "{url}"), "'***' is not one of"),
        (("schema", "leases", "--dialect={url}"), "'***' is not one of"),
        (("leases", "raise", "job", "--above", "{url}"), "--above"),
        (("torture", "--scenario", "{url}"), "there is no scenario ***"),
        (("torture", "--seconds", "{url}"), "--seconds"),
    ],
    ids=" ".join,
)
def test_a_place_in_the_wrong_place_is_not_repeated(
    sinkfence: Sinkfence, typed: tuple[str, ...], says: str
) -> None:
    """A word that was forgotten makes a command of the place: its password stays where it was typed."""
    url = f"postgresql://u:{PASSWORD}@db.example/shop"
    ran = sinkfence(*(word.format(url=url, password=PASSWORD) for word in typed))
    assert (ran.code, ran.out) == (2, ""), ran
    assert says in ran.err
    assert PASSWORD not in ran.err


def test_a_mistyped_command_is_repeated(sinkfence: Sinkfence) -> None:
    """What can be no place is told, with what comes near it."""
    assert "No such command 'postgress'. Did you mean 'postgres'?" in sinkfence("doctor", "postgress").err


def test_a_short_password_is_masked_in_no_other_word(sinkfence: Sinkfence, port: int, tmp_path: Path) -> None:
    """It is hidden where it stands by itself: taken out of other words it would be spelt by the gaps."""
    for command, says in [
        (("doctor", "postgres", f"postgresql://u:a@127.0.0.1:{port}/data"), "database host=127.0.0.1 port="),
        (("leases", "list", "--store", f"postgresql://u:a@127.0.0.1:{port}/data"), "lease store postgresql"),
        (
            ("leases", "list", "--store", f"sqlite+pysqlcipher://:a@/{tmp_path}/absent.db"),
            "lease store: SQLite ",
        ),
    ]:
        ran = sinkfence(*command)
        assert ran.code == 3, ran
        a_line(ran.err, says)
        assert ":a@" not in ran.err
    place = Place("database dbname=a", ("a",))
    masked = place.masked("database dbname=a: a password=a failed; at data, a-b")
    assert masked == "database dbname=a: *** password=*** failed; at data, ***-b"


@pytest.mark.parametrize(
    "endpoint", [f"http://u:{PASSWORD}@127.0.0.1:1", f"http://u:4711/{PASSWORD}@h", f"http://h/?k={PASSWORD}"]
)
@pytest.mark.parametrize("variable", [False, True])
def test_an_endpoint_has_no_password(process: Sinkfence, endpoint: str, variable: bool) -> None:
    """A login in it is no use to S3: refused as a wrong usage, and not repeated."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
    option = [] if variable else ["--endpoint", endpoint]
    if variable:
        keys["AWS_ENDPOINT_URL_S3"] = endpoint
    ran = process("doctor", "s3", "--bucket", "b", *option, **keys)
    assert (ran.code, ran.out) == (2, "")
    a_line(ran.err, "endpoint")


@pytest.mark.parametrize(
    ("proxy", "code"),
    [
        (f"http://u:{PASSWORD}@127.0.0.1:1", 3),
        (f"socks5://u:{PASSWORD}@127.0.0.1:1", None),
        (f"u:{PASSWORD}@127.0.0.1:1", None),
        (f"http://u:{PASSWORD}/x@127.0.0.1:1", 2),
        (f"http://u:{PASSWORD}#x@127.0.0.1:1", 2),
        (f"http://127.0.0.1:{PASSWORD}", 2),
        (f"http://u:{PASSWORD}@", 2),
        (f"http://u:{PASSWORD}@127.0.0.1:1\n", 2),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "http", "http://h.invalid/"),
        ("marks", "show", "x", "--bucket", "b", "--endpoint", "http://h.invalid/"),
    ],
)
def test_a_proxy_has_its_password_to_itself(
    process: Sinkfence, proxy: str, code: int | None, command: tuple[str, ...]
) -> None:
    """The clients find it in the environment, and some of their errors show it, or a part of it as a host."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
    ran = process(*command, http_proxy=proxy, HTTP_PROXY=proxy, **keys)
    assert ran.code in ({2, 3} if code is None else {code}), ran
    assert ran.out == ""
    a_line(ran.err, "http_proxy" if code == 2 else "")


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_line_break_in_a_key_of_s3_shows_no_key(process: Sinkfence, port: int, name: str) -> None:
    """Read from a file with its line's end, say: the client would show the header that it can't send."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
    at = ("--bucket", "b", "--endpoint", f"http://127.0.0.1:{port}")
    ran = process("doctor", "s3", *at, **{**keys, name: f"{PASSWORD}\n"})
    assert (ran.code, ran.out) == (2, "")
    a_line(ran.err, "control character in the keys")


@pytest.mark.parametrize(
    ("option", "place", "says"),
    [
        ("--service", f"http://u:{PASSWORD}@127.0.0.1:1", "--service takes no user and no password"),
        ("--postgres", f"postgresql://u:{PASSWORD}/x@127.0.0.1:1/d", "that URL can't be read"),
    ],
)
def test_a_run_keeps_no_password(
    sinkfence: Sinkfence, tmp_path: Path, option: str, place: str, says: str
) -> None:
    """What is left behind at a place is told, and kept in a folder that others may be sent."""
    ran = sinkfence("torture", option, place, "--seconds", "1", "--into", str(tmp_path / "run"))
    assert (ran.code, ran.out) == (2, "")
    a_line(ran.err, says)
    assert not (tmp_path / "run").exists()


def test_a_run_in_a_bucket_that_is_not_there(
    sinkfence: Sinkfence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """A place that can't be had is told at once, and is no inconclusive run."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    at = ("--bucket", "absent", "--endpoint", f"http://127.0.0.1:{port}")
    ran = sinkfence("torture", *at, "--seconds", "1", "--into", str(tmp_path / "run"))
    assert (ran.code, ran.out) == (3, "")
    a_line(ran.err, f"bucket 'absent' at http://127.0.0.1:{port}: ")


def test_a_letter_that_no_header_takes_is_not_shown(sinkfence: Sinkfence, port: int) -> None:
    """Basic authentication is sent in Latin-1: of a password nothing is told, nor where in it that stands."""
    ran = sinkfence("doctor", "http", f"http://u:{PASSWORD}\u20ac@127.0.0.1:{port}/")
    assert (ran.code, ran.out) == (2, "")
    a_line(ran.err, "has a letter that can't be sent")
    assert "20ac" not in ran.err


@pytest.mark.parametrize("name", ["", "Not a name"])
def test_a_name_that_no_bucket_has_is_a_wrong_usage(
    sinkfence: Sinkfence, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a variable that is not set, say."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    ran = sinkfence("doctor", "s3", "--bucket", name)
    assert (ran.code, ran.err) == (2, f"sinkfence: {name!r} can't be the name of a bucket\n")


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("leases raise job --above 7", "0<&-", 2),
        ("leases raise job --above 7", "0<&- 1>&- 2>&-", 2),
        ("leases raise job --above 7", "2>/dev/full", 2),
        ("leases raise job --above 7 --yes --json", "2>&-", 0),
        ("leases raise job --above 7 --yes --json", "2>/dev/full", 0),
        ("leases list --json", "0<&- 2>&-", 0),
        ("leases list --json", "1>&-", 3),
        ("leases list", ">/dev/full", 3),
        ("leases show nope", "1>&-", 1),
        ("--version", ">/dev/full", 3),
    ],
)
def test_streams_that_are_closed(tmp_path: Path, words: str, streams: str, code: int) -> None:
    """Closed or full, a stream is no traceback: the exit code tells, and JSON stands by itself."""
    url = f"sqlite:///{tmp_path}/leases.db"
    store = SqlStore(url)
    store.create_schema()
    with Leases(store) as leases:
        leases.acquire("held")
    ran = subprocess.run(
        ["bash", "-c", f'"$@" {streams}', "bash", *COMMAND, *words.split()],
        env={**PLAIN, "SINKFENCE_STORE": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran
    assert "Traceback" not in ran.stderr + ran.stdout, ran
    if ran.stdout:
        json.loads(ran.stdout)


def test_a_result_forges_no_line(sinkfence: Sinkfence, tmp_path: Path) -> None:
    """Ends of lines and controls of direction in a result are spelt out, so that each line is ours."""
    url = f"sqlite:///{tmp_path}/leases.db"
    store = SqlStore(url)
    store.create_schema()
    with Leases(store) as leases:
        leases.acquire("job").complete("x\nowner:       eve\u202e\u2028y")
    ran = sinkfence("leases", "show", "job", "--store", url)
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 7, ran.out
    assert "x\\nowner" in ran.out
    assert "\\u202e\\u2028y" in ran.out


def test_a_role_without_rights_is_told_what_to_grant(sinkfence: Sinkfence, dsn: str) -> None:
    """Who may not read the marks, or the lease tables, hears of it in a line."""
    from sinkfence_postgres import install

    user = "guest-of-" + dsn.rpartition("/")[2]
    with psycopg.connect(dsn, autocommit=True) as conn:
        install(conn)
        store = SqlStore(dsn)
        store.create_schema()
        store.close()
        conn.execute(f"create role \"{user}\" login password 'guest'")
        url = f"postgresql://{user}:guest@{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
        try:
            marks, leases = (
                sinkfence("marks", "list", "--postgres", url),
                sinkfence("leases", "list", "--store", url),
            )
        finally:
            conn.execute(f'drop role "{user}"')
    assert (marks.code, leases.code) == (3, 3)
    a_line(marks.err, "GRANT SELECT ON sinkfence.mark")
    a_line(leases.err, "permission denied for table")
    assert "prints it as SQL" not in leases.err  # to run that again gives nobody a right


def test_a_locked_record_is_told(sinkfence: Sinkfence, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody's open transaction has the row: in a line, after two seconds and not for ever."""
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    store = SqlStore(url)
    store.create_schema()
    with Leases(store) as leases, psycopg.connect(dsn) as other:
        leases.acquire("job")
        other.execute("select from sinkfence_lease for update")
        ran = sinkfence("leases", "reopen", "job", "--store", dsn, "--yes")
        other.rollback()
    assert ran.code == 1
    assert "somebody's open transaction has the record locked" in ran.err.splitlines()[-1]
    assert ": not done (" in caplog.text


@pytest.mark.parametrize(
    ("command", "lacking", "extra"),
    [
        (("leases", "list", "--store", "postgresql://h/d"), "sqlalchemy,psycopg", "postgres"),
        (("leases", "list", "--store", "sqlite:///x.db"), "sqlalchemy", "sql"),
        (("marks", "list", "--postgres", "x"), "psycopg,sqlalchemy", "postgres"),
        (("doctor", "postgres", "x"), "psycopg", "postgres"),
        (("doctor", "s3", "--bucket", "b"), "boto3", "s3"),
        (("doctor", "http", "http://h"), "requests", "requests"),
        (
            ("doctor", "http", "http://h", "--sign-key", "workers.pem"),
            "requests,jwt,cryptography",
            "requests,jwt",
        ),
        (("schema", "leases"), "sqlalchemy", "sql"),
        (("demo",), "psycopg,starlette,uvicorn", "demo"),
    ],
)
def test_all_that_is_missing_is_named_at_once(command: tuple[str, ...], lacking: str, extra: str) -> None:
    """One line with every package that isn't there, and the command that installs them; 3."""
    program = [sys.executable, "-c", WITHOUT, lacking, *command]
    ran = subprocess.run(program, check=False, capture_output=True, text=True, env=PLAIN)
    names = lacking.replace(",", ", ")
    are = "are" if "," in lacking else "is"
    assert ran.stderr == f"sinkfence: {names} {are} not installed: pip install 'sinkfence[{extra}]'\n"
    assert (ran.returncode, ran.stdout) == (3, "")


@pytest.mark.parametrize(
    "command", [("leases", "list", "--store", "postgresql://h/d"), ("doctor", "postgres", "x")]
)
def test_a_driver_without_its_library(process: Sinkfence, command: tuple[str, ...]) -> None:
    """psycopg that was installed without libpq: what to install, and 3."""
    ran = process(*command, PSYCOPG_IMPL="c")
    assert (ran.code, ran.out) == (3, "")
    a_line(ran.err, "'psycopg[binary]'")


def test_a_bug_is_a_traceback(monkeypatch: pytest.MonkeyPatch, sinkfence: Sinkfence) -> None:
    """A ValueError that is nobody's input is not told as a wrong usage."""
    from sinkfence_postgres import installation

    def broken() -> str:
        raise ValueError("a bug")

    monkeypatch.setattr(installation, "schema", broken)
    with pytest.raises(ValueError, match="a bug"):
        sinkfence("schema", "postgres")


def test_a_reader_who_has_gone(leases: Leases, store_url: str) -> None:
    """A closed pipe ends the command with 1, and in silence."""
    for number in range(50):
        leases.acquire(f"job-{number}").release()
    ours, theirs = os.pipe()
    os.close(ours)
    with subprocess.Popen(
        [*COMMAND, "leases", "list", "--json", "--store", store_url],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=PLAIN,
    ) as running:
        os.close(theirs)
        said = running.communicate()[1]
    assert (running.returncode, said) == (1, b"")


WHILE_LOADING = f"""import signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
{COMMAND[-1]}"""


def test_ctrl_c_while_it_loads() -> None:
    """Half a second goes by before a command begins, more on a busy host: a line and 130 then as well."""
    ran = subprocess.run(
        [sys.executable, "-c", WHILE_LOADING, "leases", "list"],
        env=PLAIN,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (130, "")
    a_line(ran.stderr, "interrupted")


def test_letters_that_the_terminal_lacks(process: Sinkfence, leases: Leases, store_url: str) -> None:
    """An id in letters that stdout can't write is spelt out."""
    leases.acquire("отчёт").release()
    ran = process("leases", "list", "--store", store_url, PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert "\\u043e" in ran.out


def test_what_a_terminal_would_obey_is_spelt_out(sinkfence: Sinkfence, tmp_path: Path) -> None:
    """Names from a database that somebody wrote to by hand clear no screen."""
    import sqlite3

    url = f"sqlite:///{tmp_path}/leases.db"
    store = SqlStore(url)
    store.create_schema()
    store.close()
    with sqlite3.connect(tmp_path / "leases.db") as conn:
        conn.execute(
            "insert into sinkfence_lease (job_id, generation, owner, lease_until)"
            " values ('job' || char(27) || '[2J', 1, 'x' || char(155) || 'y', 9e9)"
        )
    conn.close()
    ran = sinkfence("leases", "list", "--store", url)
    assert ran.code == 0
    assert "job\\x1b[2J" in ran.out
    assert "\x1b" not in ran.out
    assert "\x9b" not in ran.out


def test_nonsense_is_no_traceback(sinkfence: Sinkfence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words thrown together, of any kind and length: 0 to 3, and no traceback."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else boto3 waits for an answer of a cloud's
    chance = random.Random(9)
    pool = [
        *("leases", "marks", "doctor", "schema", "list", "show", "release", "reopen", "raise", "postgres"),
        *("s3", "http", "--above", "--store", "--json", "--yes", "--bucket", "--path", "--", "-x", ""),
        *("0", "-1", "99999999999999999999", "job", "\x00", "\x1b[2J", "\udcff", "a" * 300, "ä" * 101, "%s"),
        *(
            "sqlite:///x",
            "sqlite:///\x00",
            "sqlite:////etc/passwd",
            "http://[",
            "://",
            "postgresql://",
            "http://h:x",
        ),
        *(
            "{x}",
            "'",
            '"',
            "\n",
            "--dialect",
            "oracle",
            "--sign-key",
            "/",
            "--endpoint",
            "--postgres",
            "host=/x",
        ),
    ]
    for _ in range(200):
        words = [chance.choice(pool) for _ in range(chance.randrange(1, 7))]
        ran = sinkfence(*words)
        assert ran.code in {0, 1, 2, 3}, (words, ran)
        assert "Traceback" not in ran.err, (words, ran)


def test_ids_that_are_none(process: Sinkfence, sinkfence: Sinkfence, store_url: str) -> None:
    """Control characters, half surrogates, too long, empty, bytes that are no text: a wrong usage."""
    for job in ("\x00", "\x1b", "\udcff", "a" * 201, "ä" * 101, ""):
        for command in ("show", "release", "reopen", "raise"):
            more = ["--above", "7"] if command == "raise" else []
            ran = sinkfence("leases", command, "--store", store_url, *more, "--", job)
            assert (ran.code, ran.out) == (2, ""), (job, command, ran)
            a_line(ran.err, "job_id")
    ran = process("leases", "show", b"\xff\xfe", "--store", store_url)
    assert ran.code == 2
    a_line(ran.err, "job_id")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed(shell: str, tmp_path: Path) -> None:
    """`--install-completion`, asked from a shell, writes that shell's file in the home folder."""
    import shlex
    import shutil

    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    code = "$status" if shell == "fish" else "$?"  # with it the shell stays, and can be found
    command = f"{shlex.quote(sys.executable)} -c '{COMMAND[-1]}' --install-completion; exit {code}"
    done = subprocess.run(
        [shell, "-c", command],
        env={**PLAIN, "HOME": str(tmp_path), "SHELL": shutil.which(shell) or ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "completion installed" in done.stdout
    assert any("_SINKFENCE_COMPLETE" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sinkfence le", {"leases"}),
        ("sinkfence leases r", {"release", "reopen", "raise"}),
        ("sinkfence doctor ", {"postgres", "s3", "http"}),
        ("sinkfence schema leases --dialect ", {"postgresql", "sqlite"}),
    ],
)
def test_completion_offers(process: Sinkfence, typed: str, offered: set[str]) -> None:
    """What a shell asks with is answered with the commands there are."""
    ran = process(
        _SINKFENCE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(typed.split(" ")) - 1)
    )
    assert set(ran.out.split()) == offered


def test_help_teaches(sinkfence: Sinkfence) -> None:
    """Every command has an example and the exit codes in its help."""
    import typer.main

    from sinkfence.cli import make_app

    def commands(group: object, *words: str) -> list[tuple[str, ...]]:
        found = getattr(group, "commands", {})
        return [words, *(each for name, part in found.items() for each in commands(part, *words, name))]

    for words in commands(typer.main.get_command(make_app())):
        ran = sinkfence(*words, "--help")
        assert ran.code == 0
        assert "Exit codes" in ran.out, words
        if words and len(words) > 1:
            assert "Example" in ran.out, words


def test_nothing_typed_is_help(sinkfence: Sinkfence) -> None:
    """A group by itself shows its commands, and is a wrong usage."""
    for words in ((), ("leases",), ("doctor",)):
        ran = sinkfence(*words)
        assert ran.code == 2
        assert "Commands:" in ran.out + ran.err


def test_a_terminal_gets_a_coloured_report(dsn: str) -> None:
    """A doctor's grades have colours there, and the exit code is the same."""
    with terminal("doctor", "postgres", dsn) as screen:
        assert screen.close() == 1
    assert b"\x1b[1;31m  broken" in screen.text
