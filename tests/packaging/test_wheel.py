"""What is published: a wheel of the three roots, complete, and standard library alone where it has to be."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http", "sinkfence_trials")


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel."""
    [archive] = built.glob("*.whl")
    with zipfile.ZipFile(archive) as file:
        yield file


def test_the_wheel_has_what_the_checkout_has(wheel: zipfile.ZipFile) -> None:
    """Every file of the three roots is in the wheel, at its import path, and nothing else but metadata."""
    there = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert there == {
        str(path.relative_to(root))
        for root in (ROOT / "src", ROOT / "adapters", ROOT / "trials")
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_each_package_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    """Type checkers find py.typed in each package, and lawyers the licence."""
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_sources_can_be_tested(built: Path) -> None:
    """The source distribution has the tests and the command that runs them."""
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {
        "run.py",
        "requirements.lock",
        "pyproject.toml",
        "README.md",
        "tests/conftest.py",
        "tests/packaging/test_wheel.py",
    } <= names


def test_tokens_and_the_door_need_nothing_but_the_standard_library(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """A service that only mounts the middleware installs nothing: no other module is loaded."""
    venv.create(tmp_path / "bare")
    [packages] = (tmp_path / "bare").glob("lib/python*/site-packages")
    wheel.extractall(packages)
    modules = "sinkfence, sinkfence_http, sinkfence_http.aio, sinkfence_http.asgi, sinkfence_http.wsgi"
    program = f"""
import sys
before = set(sys.modules)
import {modules}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - set(sys.stdlib_module_names)))
print(sinkfence.__file__)
"""
    done = subprocess.run(
        [tmp_path / "bare/bin/python", "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    loaded, where = done.stdout.splitlines()
    assert loaded.split() == ["sinkfence", "sinkfence_http"]
    assert Path(where).is_relative_to(packages)


def test_importing_is_quiet() -> None:
    """Importing starts no thread, connects to nothing, and reads no environment variable."""
    program = """
import os, socket, sys, threading
import psycopg, sqlalchemy, boto3, requests, httpx, httpx2  # their own doings are theirs
class Watched(type(os.environ)):
    def __getitem__(self, key):
        frame = sys._getframe(1)
        while frame:
            assert "/sinkfence" not in frame.f_globals.get("__file__", ""), key
            frame = frame.f_back
        return super().__getitem__(key)
os.environ.__class__ = Watched
def refuse(*args, **kwargs): raise AssertionError("a socket")
socket.socket.connect = refuse
import sinkfence, sinkfence.stores.sql, sinkfence.stores.memory
import sinkfence_postgres, sinkfence_postgres.aio, sinkfence_s3
import sinkfence_http, sinkfence_http.requests_adapter
import sinkfence_http.httpx_transport, sinkfence_http.httpx2_transport, sinkfence_http.frameworks
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
