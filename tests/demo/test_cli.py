"""The command line: what it says of itself, of what is missing, and of what is wrong here."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from contextlib import contextmanager

import pytest
from rich.console import Console

from sinkfence_trials.demo import show as show_module
from sinkfence_trials.servers.supervised import ServerError

WITHOUT = """
import sys
sys.modules[{name!r}] = None  # as if it were not installed
sys.argv = ["sinkfence", "demo"]
from sinkfence.cli import main
main()
"""


@pytest.mark.parametrize(
    ("name", "extra"), [("typer", "cli"), ("rich", "cli"), ("psycopg", "demo"), ("uvicorn", "demo")]
)
def test_a_missing_extra_is_one_line(name, extra):
    """Without a module of an extra the command says in one line what to install, and exits 3."""
    program = [sys.executable, "-c", WITHOUT.format(name=name)]
    ran = subprocess.run(program, check=False, capture_output=True, text=True)
    assert ran.returncode == 3
    assert ran.stderr == f"sinkfence: {name} is not installed: pip install 'sinkfence[{extra}]'\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ServerError("no S3 server was found: install one"), "no S3 server was found: install one"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_is_wrong_here_is_one_line(monkeypatch, capsys, error, line):
    """Without a server, or with a full disk, the demo says so on standard error and exits 3."""

    @contextmanager
    def stage(*_args, **_kwargs):
        raise error
        yield

    monkeypatch.setattr(show_module, "stage", stage)
    assert show_module.show(Console(file=io.StringIO())) == 3
    assert capsys.readouterr().err == f"sinkfence demo: {line}\n"


def test_the_version_and_a_wrong_usage(sinkfence):
    """`--version` says the version; an unknown option exits 2."""
    version, wrong = sinkfence("--version"), sinkfence("demo", "--fast")
    assert version.communicate()[0].startswith("sinkfence 0.")
    assert "No such option" in wrong.communicate()[1]
    assert (version.returncode, wrong.returncode) == (0, 2)
