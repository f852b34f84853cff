"""What kind of file system a folder is on: locks and marks are worth something on a local disk only."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Final

from sinkfence.errors import NotEnforced

LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "xfs", "zfs"}
)
"""Those whose flock() and fsync() are known to do what they say, among all processes of the host."""

log: Final = logging.getLogger("sinkfence.http")


def refuse_unfit(folder: Path) -> None:
    """Raise NotEnforced unless the folder is on a local disk; where the system doesn't tell, log that.

    On a network file system flock() may hold on one host only, or not at all; what is in memory is gone after
    a restart of the host, and with it the marks.
    """
    try:
        table = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        log.warning("%s must be on a local disk, which this system doesn't tell", folder)
        return
    kind = file_system(os.path.realpath(folder), table)
    if kind not in LOCAL:
        raise NotEnforced(
            f"{folder} is on a file system of type {kind}, which is not known to keep locks and marks for "
            f"all processes of this host: choose a folder on a local disk ({', '.join(sorted(LOCAL))})"
        )


def file_system(path: str, table: str) -> str | None:
    """Return the type of the file system that a path is on, by a table as in proc_pid_mountinfo(5)."""
    longest: int = -1
    kind: str | None = None
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])
        # The longest mount point that the path is below; of several mounts on one place the last one shows.
        if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= longest:
            longest, kind = len(mount), after.split(" ")[0]
    return kind
