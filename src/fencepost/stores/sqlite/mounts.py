"""Which filesystem a path is on: SQLite's locks and shared memory do not hold over a network.

Rule: a filesystem is refused by name; where the system does not tell (no /proc), nothing is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORKED = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs2",
     "ocfs2", "beegfs", "gpfs", "pvfs2", "orangefs", "ncpfs", "coda", "davfs", "fuse", "nfsd"}
)  # fmt: skip
# These are local although a user-space program serves them.
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.lxcfs"})


def network_filesystem(path: Path, mounts: str) -> str | None:
    """The type of the filesystem under an absolute path if it is a networked one, else None.

    `mounts` is text in the form of Linux's mountinfo; the longest mount point wins, and the later of equals.
    """
    best, found = -1, ""
    wanted = os.fspath(path)
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if not dash or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), kind
    if found in NETWORKED or (found.startswith("fuse.") and found not in LOCAL_FUSE):
        return found
    return None


def mounts_of_this_machine() -> str:
    """The system's mount table, empty where it has none."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
