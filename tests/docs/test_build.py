"""The documentation builds, and every command on its pages is one that exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sinkfence.cli import make_app

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None,
    reason="needs the docs extra; `python3 run.py docs` builds the pages as well",
)
def test_builds_without_warnings(tmp_path: Path) -> None:
    """Sphinx takes every page without a warning: no dead reference, no page outside the tree."""
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "-n",
            "-q",
            "--keep-going",
            "-d",
            tmp_path / "d",
            "docs",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "index.html").exists()


def run_py() -> Any:
    """The module run.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("run", ROOT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def typed(program: str) -> set[tuple[str, ...]]:
    """What the pages have a reader type after a program's name: in console blocks and in running text."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    commands = re.findall(rf"(?:^ *\$ |`){re.escape(program)} ([^`\n]+)", text, re.MULTILINE)
    return {tuple(re.split(r" [|#>] ", command)[0].split()) for command in commands}


def test_verbs_of_run_py_exist() -> None:
    """Every `python3 run.py VERB` on a page is a verb."""
    assert {verb for verb, *_ in typed("python3 run.py")} <= run_py().EXTRAS.keys()


def test_commands_of_sinkfence_exist() -> None:
    """Every `sinkfence COMMAND` on a page is a command with these options, and each has its section."""
    root: Any = typer.main.get_command(make_app())
    handed_on = {words for words in typed("python3 run.py") if words[0] == "demo"}
    for words in typed("sinkfence") | handed_on:
        command, known = root, {"--help"}
        for word in words:
            within = getattr(command, "commands", {})
            if word in within:
                command = within[word]
            else:  # an option, its value, or what the command is about
                assert not within or word.startswith("-") or command.invoke_without_command, words
            known |= {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("-")} <= known, words
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [name for name in root.commands if f"## sinkfence {name}\n" not in page] == []
