"""The tutorials, typed into a terminal as they stand: files, commands, Ctrl-Z, and what is answered."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
pytestmark = pytest.mark.timeout(300)  # it waits for those that are played at the same time
READERS_OWN = ("pip", "export", "createdb")  # what the reader's machine needs, and the test's has


@dataclass
class Terminal:
    """One terminal: a folder, an environment, a job that may be stopped, and services in the background."""

    folder: Path
    environment: dict[str, str]
    stopped: subprocess.Popen[str] | None = None
    stopped_by: str = ""
    listener: socket.socket | None = None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def save(self, text: str) -> None:
        """Save a block under the name in its first line."""
        name = re.match(r"# (\w+\.py)\n", text)
        assert name, f"a tutorial's Python block says which file it is: {text[:60]!r}"
        (self.folder / name[1]).write_text(text)

    def type(self, text: str) -> None:
        """Type a block's commands, and compare what is answered."""
        for typed in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, answer = typed.partition("\n")
            arguments = shlex.split(command)
            match arguments:
                case [program, *_] if program in READERS_OWN:
                    assert not answer
                case ["openssl", *_]:
                    assert not answer
                    subprocess.run(arguments, cwd=self.folder, check=True)
                case ["fg"]:
                    assert self.stopped is not None
                    self.stopped.send_signal(signal.SIGCONT)
                    out, _ = self.stopped.communicate("\n")
                    # The shell says which command it brings back.
                    assert (f"{self.stopped_by}\n{out}", self.stopped.returncode) == (answer, 0)
                    self.stopped = None
                case ["python", "-m", "sinkfence_trials.servers", *_]:
                    self.export(self.run(arguments[1:]), answer)
                case ["python", *rest] if answer.endswith("^Z\n"):
                    self.stopped = self.run(["-u", *rest])
                    self.expect(self.stopped, answer.removesuffix("^Z\n"))
                    self.stopped.send_signal(signal.SIGSTOP)
                    self.stopped_by = command
                case ["python", *rest]:
                    process = self.run(rest)
                    out, _ = process.communicate()
                    assert (out, process.returncode) == (answer, 0)
                case ["uvicorn", app, "--port", "8000", *rest, "&"]:
                    assert self.listener is not None
                    assert not answer
                    descriptor = self.listener.fileno()
                    self.run(["-m", "uvicorn", app, "--fd", str(descriptor), *rest], pass_fds=(descriptor,))
                case ["gunicorn", app, *rest, "&"]:
                    assert self.listener is not None
                    assert not answer
                    descriptor = self.listener.fileno()
                    rest = [f"fd://{descriptor}" if ":" in word else word for word in rest]
                    self.run(["-m", "gunicorn", app, *rest], pass_fds=(descriptor,))
                case _:
                    pytest.fail(f"nobody knows how to type {command!r}")

    def run(self, arguments: list[str], pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        """Start a Python program of the tutorial."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=pass_fds,
        )
        self.started.append(process)
        return process

    def export(self, servers: subprocess.Popen[str], answer: str) -> None:
        """Export what servers say that is to be exported; the page has a … for what varies in it."""
        assert servers.stdout is not None
        for line in answer.splitlines():
            said = servers.stdout.readline().rstrip("\n")
            assert re.fullmatch(re.escape(line).replace("…", r"\S+"), said), said
            if said.startswith("export "):
                name, _, value = said.removeprefix("export ").partition("=")
                self.environment[name] = shlex.split(value)[0]

    def expect(self, process: subprocess.Popen[str], answer: str) -> None:
        """Read as many lines as are expected from a program that goes on."""
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in answer.splitlines()]
        assert "".join(lines) == answer

    def close(self) -> None:
        """End what still runs."""
        for process in self.started:
            process.kill()
            process.communicate()


def play(page: str, folder: Path) -> None:
    """Follow a tutorial from top to bottom, in an empty folder."""
    path = os.pathsep.join(str(ROOT / root) for root in ("src", "adapters", "trials"))
    text = (ROOT / "docs" / "tutorial" / f"{page}.md").read_text()
    # A reader's three seconds are too short for a heartbeat on a machine that does much else.
    text = text.replace("ttl=3)", "ttl=10)")
    with closing(Terminal(folder, {**os.environ, "PYTHONPATH": path})) as terminal, ExitStack() as stack:
        if "127.0.0.1:8000" in text:
            listener = stack.enter_context(
                socket.create_server(("127.0.0.1", 0))
            )  # calls wait until it is up
            terminal.listener = listener
            text = text.replace("127.0.0.1:8000", f"127.0.0.1:{listener.getsockname()[1]}")
        for language, block in BLOCK.findall(text):
            if language == "python":
                terminal.save(block)
            else:
                terminal.type(block)
        assert terminal.stopped is None


@pytest.fixture(scope="module")
def playing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The tutorials that are wanted, each in a terminal of its own, three at a time: they mostly wait."""
    wanted = [item.callspec.params["page"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(3) as pool:
        yield {page: pool.submit(play, page, tmp_path_factory.mktemp(page)) for page in wanted}


@pytest.mark.parametrize("page", [page.stem for page in PAGES])
def test_tutorial(page: str, playing: dict[str, Future[None]]) -> None:
    """It does what it says, from the first file to the stopped worker that is refused."""
    playing[page].result()
