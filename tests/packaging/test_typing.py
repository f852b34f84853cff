"""What a type checker makes of the packages, once they are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "typed"
PACKAGES = ("sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http")
"""The public ones: `sinkfence_trials` is for those who run its commands."""
STRICT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,  # those are mypy's: it names its rules otherwise
    "reportUnnecessaryTypeIgnoreComment": True,
}


def needs(checker: str) -> pytest.MarkDecorator:
    """Skip where the checker isn't installed."""
    there = importlib.util.find_spec(checker) is not None
    return pytest.mark.skipif(not there, reason=f"not run: no {checker} (extra `lint`)")


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it, and whatever else is installed here.

    Where they were installed to be edited, pyright finds no py.typed.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    [archive] = built.glob("*.whl")
    with zipfile.ZipFile(archive) as file:
        file.extractall(site)
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that use the library: `typed`, and the examples of the README as one."""
    folder = tmp_path_factory.mktemp("programs")
    for path in PROGRAMS.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    examples = list(Sybil([PythonCodeBlockParser()]).parse(ROOT / "README.md").examples())
    with (folder / "readme.py").open("a") as file:
        file.writelines(f"{example.parsed}\n" for example in examples)
    assert "with leases.hold(" in (folder / "readme.py").read_text()
    (folder / "pyrightconfig.json").write_text(json.dumps(STRICT))
    return folder


@pytest.fixture(scope="module")
def answers(installed: Path, programs: Path) -> Iterator[dict[str, Future[str]]]:
    """What pyright says, as JSON, of each package and of the programs: two at a time, while tests wait."""
    pyright = [sys.executable, "-m", "pyright", "--outputjson"]
    path = f"{installed / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def run(*arguments: str) -> str:
        return subprocess.run(
            [*pyright, *arguments],
            cwd=programs,
            env={**os.environ, "PATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,  # it fails where there is something to report
        ).stdout

    with ThreadPoolExecutor(2) as pool:
        verify = ("--ignoreexternal", "--verifytypes")
        yield {name: pool.submit(run, *verify, name) for name in PACKAGES} | {"programs": pool.submit(run)}


@needs("pyright")
@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_has_a_known_type(
    answers: dict[str, Future[str]], installed: Path, package: str
) -> None:
    """Nothing that a user can name has a type that is unknown, or that a checker has to infer in its way."""
    completeness = json.loads(answers[package].result())["typeCompleteness"]
    assert Path(completeness["packageRootDirectory"]).is_relative_to(installed)
    exported = [symbol for symbol in completeness["symbols"] if symbol["isExported"]]
    unknown = {
        symbol["name"]: [each["message"] for each in symbol["diagnostics"]]
        for symbol in exported
        if not symbol["isTypeKnown"]
    }
    assert exported
    assert unknown == {}


@needs("pyright")
def test_pyright_takes_programs_for_what_they_are(answers: dict[str, Future[str]]) -> None:
    """pyright, strict, infers what the library returns, and refuses what would fail.

    Of the README's programs alone it says one thing more: boto3's stubs don't know each service of boto3.
    """
    found = json.loads(answers["programs"].result())
    assert found["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py")))
    assert [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"][:300])
        for each in found["generalDiagnostics"]
        if not each["message"].startswith('Type of "client" is partially unknown')
    ] == []


@needs("mypy")
def test_mypy_takes_programs_for_what_they_are(programs: Path) -> None:
    """mypy, strict, does so, too; by the configuration of the checkout, and what it remembers of that."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *sorted(programs.glob("*.py"))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.stdout == f"Success: no issues found in {len(list(PROGRAMS.glob('*.py')))} source files\n"
