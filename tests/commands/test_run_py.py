"""run.py: it makes an environment out of nothing, keeps it as long as it is good, and says what is wrong."""

from __future__ import annotations

import ast
import fcntl
import gc
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "run.py"
LOCK = """\
# a comment with a==1
a==1.0 \\
    --hash=sha256:00
    # via c==3
b==2.0 ; python_version < '3.13' \\
    --hash=sha256:00
"""

EXTRAS = ("demo", "test", "lint", "docs", "bench")


@pytest.fixture
def run_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """run.py in a checkout of its own: the environments are real, and `installed` lists the installations."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "requirements.lock").write_text(LOCK)
    script = tmp_path / "run.py"
    script.write_bytes(SCRIPT.read_bytes())
    spec = importlib.util.spec_from_file_location("run_py", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.installed, module.really_install, module.really_works = [], module.install, module.works
    monkeypatch.setattr(module, "works", lambda command: False)  # no ensurepip: quicker
    monkeypatch.setattr(module, "install", module.installed.append)
    return module


def script(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the checkout's run.py as a user does."""
    return subprocess.run(
        [sys.executable, "run.py", *arguments],
        cwd=cwd,
        env={"PATH": os.defpath, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_old_pythons_can_read_it() -> None:
    """Its syntax is of Python 2 and 3 alike, so that one that is too old can say so."""
    source = SCRIPT.read_bytes()
    assert source.isascii()
    for node in ast.walk(ast.parse(source, feature_version=(3, 7))):
        assert not isinstance(
            node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr | ast.Nonlocal | ast.Starred
        )
        if isinstance(node, ast.FunctionDef):
            assert not node.args.kwonlyargs
            assert node.returns is None
        if isinstance(node, ast.Raise):
            assert node.cause is None
        if isinstance(node, ast.ClassDef | ast.Call):
            assert all(keyword.arg != "metaclass" for keyword in node.keywords)


def test_a_python_that_is_too_old_says_so(run_py, monkeypatch) -> None:
    """Where no newer one is on the PATH, one line tells which is needed."""
    monkeypatch.setattr(run_py.sys, "version_info", (3, 8, 1))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(run_py.Stop, match=r"Python 3\.8 is too old: sinkfence needs 3\.11 or later"):
        run_py.main(["test"])


def test_a_python_that_is_too_old_hands_over(run_py, tmp_path, monkeypatch) -> None:
    """A newer one from the PATH is started in its place; a shim with nothing behind it is passed over."""
    monkeypatch.setattr(run_py, "works", run_py.really_works)
    monkeypatch.setattr(run_py.sys, "version_info", (3, 8, 1))
    for name, code in (
        ("python3.14", "exit 127"),
        ("python3.12", '[ "$1" = -c ] || { echo "$@" >&2; exit 7; }'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert run_py.main(["test", "-k", "x"]) == 7


def test_help_and_an_unknown_verb(run_py, tmp_path) -> None:
    """Neither makes an environment."""
    assert script("--help", cwd=tmp_path).stdout.startswith("usage: python3 run.py VERB")
    for arguments in (["tset"], []):
        unknown = script(*arguments, cwd=tmp_path)
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert unknown.stderr.startswith("usage: ")
    assert not (tmp_path / ".venv").exists()


def test_installs_once(run_py) -> None:
    """The second run finds everything, and what the tests have is enough for the demo."""
    for extra in ("test", "test", "demo", "docs"):
        run_py.prepare(extra)
    assert run_py.installed == ["test"]
    assert Path(run_py.PYTHON).exists()


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("file", ["pyproject.toml", "requirements.lock"])
def test_installs_again_when_what_it_depends_on_has_changed(run_py, tmp_path, extra, file) -> None:
    """A change is noticed by every verb."""
    run_py.prepare("lint")
    (tmp_path / file).write_text("# changed")
    run_py.prepare(extra)
    assert run_py.installed == ["lint", extra]


def test_an_interrupted_installation_is_not_trusted(run_py, monkeypatch) -> None:
    """pip takes a package that it was killed in the middle of for whole: the environment is made anew."""
    run_py.prepare("demo")
    leftover = Path(run_py.VENV, "half a package")
    leftover.touch()

    def interrupted(extra: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_py, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_py.prepare("test")
    run_py.prepare("test")
    assert run_py.installed == ["demo", "test"]
    assert not leftover.exists()


def test_a_failed_installation_keeps_what_was_there(run_py, monkeypatch) -> None:
    """Without a network, what was installed before still runs."""
    run_py.prepare("demo")

    def failed(extra: str) -> None:
        raise run_py.Stop("no network")

    with monkeypatch.context() as patch:
        patch.setattr(run_py, "install", failed)
        with pytest.raises(run_py.Stop):
            run_py.prepare("test")
    run_py.prepare("demo")
    assert run_py.installed == ["demo"]


@pytest.mark.parametrize("state", ["", "{}", '{"whole": true, "made for": "/elsewhere", "installed": {}}'])
def test_an_environment_of_no_use_is_made_anew(run_py, state) -> None:
    """A state file that is cut off, or of a checkout that was moved, is no reason to stop."""
    run_py.prepare("demo")
    Path(run_py.STATE).write_text(state)
    run_py.prepare("demo")
    assert run_py.installed == ["demo", "demo"]


def test_an_environment_of_another_python_is_made_anew(run_py, monkeypatch) -> None:
    """The verbs run on the Python that run.py was started with."""
    run_py.prepare("demo")
    monkeypatch.setattr(run_py, "MADE_FOR", run_py.MADE_FOR.replace("Python 3.", "Python 3.9"))
    run_py.prepare("demo")
    assert run_py.installed == ["demo", "demo"]


def test_somebody_elses_environment_is_left_alone(run_py, tmp_path) -> None:
    """A .venv that run.py has not made is neither used nor touched."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    done = script("test", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "run.py: .venv was not made by run.py: move it away or remove it, and try again\n"
    assert [path.name for path in (tmp_path / ".venv").iterdir()] == ["pyvenv.cfg"]


def test_a_checkout_that_cannot_be_written_is_said(run_py, tmp_path) -> None:
    """An error of the file system is one line."""
    (tmp_path / ".venv").symlink_to("/proc/none")
    done = script("test", cwd=tmp_path)
    assert done.returncode == 1
    assert f"run.py: No such file or directory: {tmp_path} must be writable" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_at_once_take_turns(run_py, tmp_path) -> None:
    """While one prepares the environment the other waits, and says so."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "foreign").touch()
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with subprocess.Popen(
        [sys.executable, "run.py", "test"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as other:
        assert other.stderr is not None
        assert (
            other.stderr.readline() == "run.py: waiting for another run.py, which prepares the environment\n"
        )
        os.close(holder)
        assert "not made by run.py" in other.stderr.read()
        assert other.wait() == 1


def test_versions_are_those_of_the_lock(run_py) -> None:
    """pip is given each version that is locked, with its condition and without hashes."""
    os.mkdir(run_py.VENV)
    assert Path(run_py.pins()).read_text() == "a==1.0\nb==2.0 ; python_version < '3.13'\n"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Retrying ... after connection broken by 'NewConnectionError(...)", "registry is out of reach"),
        ("ERROR: ResolutionImpossible", "what pip said last is above"),
    ],
)
def test_why_an_installation_failed_is_said_in_one_line(run_py, monkeypatch, said, advice) -> None:
    """What pip says at length is summed up by what to do."""
    os.mkdir(run_py.VENV)
    monkeypatch.setattr(run_py, "pip_command", lambda: ["sh", "-c", 'echo "$0"; exit 1', said])
    with pytest.raises(run_py.Stop, match=advice):
        run_py.really_install("demo")


def test_ctrl_c_while_pip_speaks_is_no_traceback(run_py, monkeypatch) -> None:
    """Interrupted while pip's words are read, which closes what they are read from: no thread fails."""
    os.mkdir(run_py.VENV)
    pip = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; done; exit 130"]
    monkeypatch.setattr(run_py, "pip_command", lambda: pip)
    listen = run_py.listen

    def interrupted(output, said) -> None:
        said.append(next(output))
        os.kill(os.getpid(), signal.SIGINT)
        listen(output, said)

    monkeypatch.setattr(run_py, "listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_py.really_install("demo")
    gc.collect()  # a thread that has failed is told of when it is collected


def test_a_command_that_is_not_there_is_said(run_py, monkeypatch) -> None:
    """What `sh` cannot find is no traceback."""
    monkeypatch.setattr(run_py.os, "chdir", lambda folder: None)
    with pytest.raises(run_py.Stop, match="there is no command 'nonesuch'"):
        run_py.run("sh", ["nonesuch"])


@pytest.mark.parametrize(
    ("verb", "ends"), [("demo", ["demo", "-v"]), ("test", ["-m", "pytest", "-v"]), ("sh", ["-v"])]
)
def test_arguments_are_handed_on_and_the_command_takes_over(run_py, monkeypatch, verb, ends) -> None:
    """The verb's command replaces run.py, so that signals and exit codes are its own."""
    taken: list[list[str]] = []
    monkeypatch.setattr(run_py.shutil, "which", lambda name, path: name)
    monkeypatch.setattr(run_py.os, "execvpe", lambda name, command, environment: taken.append(command))
    monkeypatch.setattr(run_py.os, "chdir", lambda folder: None)
    run_py.run(verb, ["-v"])
    assert taken[0][-len(ends) :] == ends


@pytest.mark.parametrize(("arguments", "processes"), [([], True), (["tests/core"], False)])
def test_all_tests_are_run_side_by_side(run_py, monkeypatch, arguments, processes) -> None:
    """Where tests are picked, it is by who wants to look at them, one after the other."""
    taken: list[list[str]] = []
    monkeypatch.setattr(run_py.shutil, "which", lambda name, path: name)
    monkeypatch.setattr(run_py.os, "execvpe", lambda name, command, environment: taken.append(command))
    monkeypatch.setattr(run_py.os, "chdir", lambda folder: None)
    run_py.run("test", arguments)
    assert ("-n" in taken[0]) == processes


def test_an_empty_home_is_none(run_py, monkeypatch) -> None:
    """With HOME="" caches would go to the root folder; and nobody's PYTHONPATH gets in between."""
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert {"HOME", "PYTHONPATH"}.isdisjoint(run_py.environment())


def test_checks_run_side_by_side(run_py, tmp_path, capfd) -> None:
    """The first one waits for the second, whose output is shown after its own; each is told with its code."""
    os.mkfifo(tmp_path / "between")
    (tmp_path / "text").write_text("handed over\n")
    commands = [f"cat {tmp_path}/between", f"cp {tmp_path}/text {tmp_path}/between", f"cat {tmp_path}/none"]
    told = list(run_py.side_by_side(commands, run_py.environment()))
    assert told == [(commands[0], 0), (commands[1], 0), (commands[2], 1)]
    said = capfd.readouterr().out.splitlines()
    assert said[:3] == [f"$ {commands[0]}", "handed over", f"$ {commands[1]}"]
    assert "none" in said[-1]
