"""The wheel in an empty environment, on each Python that can be had here, and its bill of materials."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MISSING = {
    "sinkfence.stores.sql": "sql",
    "sinkfence.stores.sql.aio": "sql",
    "sinkfence_s3": "s3",
    "sinkfence_http.requests_adapter": "requests",
    "sinkfence_http.httpx_transport": "httpx",
    "sinkfence_http.httpx2_transport": "httpx2",
}
"""What can't be imported without an extra, which its message names."""

BARE = """
import importlib, pkgutil, sys
import sinkfence, sinkfence.aio, sinkfence.testing, sinkfence_postgres, sinkfence_postgres.aio
import sinkfence_http, sinkfence_http.aio, sinkfence_http.asgi, sinkfence_http.wsgi, sinkfence_http.frameworks
from sinkfence.stores.memory import MemoryStore

with sinkfence.Leases(MemoryStore()) as leases, leases.hold("job") as lease:
    assert lease.generation == 1
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""
WHOLE = """
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore

store = SqlStore("sqlite:///leases.db")
store.create_schema()
with Leases(store) as leases, leases.hold("job") as lease:
    lease.complete({"generation": lease.generation})
    print(leases.get("job").result)
"""


def interpreter(version: str) -> str | None:
    """A Python of this version: on the PATH, or where pyenv keeps them."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    for python in (shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")):
        if python:
            says = subprocess.run([python, "-VV"], capture_output=True, text=True, check=False).stdout
            if says.startswith(f"Python {version}."):  # a shim of that name may have no Python behind it
                return str(python)
    return None


def install(python: Path, *what: str) -> bool:
    """Install into an environment that has no pip of its own; whether that could be done."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    command = [*pip, "install", "-q", "--no-compile", *what]  # most of it is never imported here
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment in which the wheel is installed, and nothing else."""
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"not run: no Python {request.param} here")
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    subprocess.run([found, "-m", "venv", "--without-pip", folder], check=True)
    [wheel] = built.glob("*.whl")
    assert install(folder / "bin/python", "--no-deps", str(wheel))
    return folder / "bin/python"


def run(python: Path, program: str, *arguments: str, cwd: Path) -> str:
    """What a program prints, in isolated mode, with warnings as errors."""
    command = [python, "-I", "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nothing_is_needed_for_leases_in_memory_and_the_door(python: Path, tmp_path: Path) -> None:
    """The core and the middleware work without any extra; what needs one says which, in one line."""
    said = dict(line.split(" ", 1) for line in run(python, BARE, *MISSING, cwd=tmp_path).splitlines())
    assert said.keys() == MISSING.keys()
    for name, extra in MISSING.items():
        assert said[name].endswith(f"pip install 'sinkfence[{extra}]'"), said[name]
    command = subprocess.run(
        [python.parent / "sinkfence", "demo"], capture_output=True, text=True, check=False
    )
    assert command.returncode == 3
    assert "pip install 'sinkfence[cli]'" in command.stderr
    assert "Traceback" not in command.stderr


def test_leases_in_sqlite_by_the_extra_alone(python: Path, tmp_path: Path) -> None:
    """What the extra `sql` installs is enough to start with."""
    [sql] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["sql"]
    if not install(python, sql):
        pytest.skip("not run: SQLAlchemy can't be had for this Python")
    assert run(python, WHOLE, cwd=tmp_path) == "{'generation': 1}\n"


def test_the_bill_of_materials(built: Path) -> None:
    """It names this version and what a user's extras bring, each once, and leads to no address."""
    subprocess.run([sys.executable, ROOT / "tests/packaging/sbom.py", built], check=True)
    [path] = built.glob("*.cdx.json")
    bill = json.loads(path.read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bill["metadata"]["component"]["version"] == project["version"]
    refs = [component["bom-ref"] for component in bill["components"]]
    assert len(refs) == len(set(refs))
    assert {name for ref in refs for name in [ref.partition("@")[0]]} >= {
        f"pkg:pypi/{name}"
        for name in ("sqlalchemy", "psycopg", "boto3", "requests", "httpx", "pyjwt", "typer")
    }
    itself = bill["metadata"]["component"]["bom-ref"]
    assert [entry["ref"] for entry in bill["dependencies"]] == [itself, *refs]
    assert all(set(entry["dependsOn"]) <= set(refs) for entry in bill["dependencies"])
    assert "://" not in path.read_text()


def test_the_wheel_says_what_it_runs_on(built: Path) -> None:
    """Its metadata is complete, and the README is what an index shows."""
    [archive] = built.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        [name] = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        metadata = wheel.read(name).decode()
    for version in VERSIONS:
        assert f"Classifier: Programming Language :: Python :: {version}\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "# sinkfence\n" in metadata


def test_the_changelog_tells_of_this_version() -> None:
    """Its first heading is of the version that is built, with the day, or says that there is none yet."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    [heading] = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    if ".dev" in version:
        assert heading == f"{version.partition('.dev')[0]} (unreleased)"
    else:
        assert re.fullmatch(rf"{re.escape(version)} - 20\d\d-\d\d-\d\d", heading)
