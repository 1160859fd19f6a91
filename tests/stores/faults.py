"""A SQLite VFS whose disk fails when told to: an fsync error, no room, or a slow fsync (by a fake clock)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from fencepost.testing.clock import FakeClock

LOG = "-wal"


class Disk(apsw.VFS):
    """The machine's own disk until a fault is set; faults count only for the write-ahead log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sync_fails = False
        self.full = False
        self.sync_seconds = 0.0
        self.syncs = 0
        self.clock = FakeClock()
        super().__init__(name, base="")

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        self.disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.is_log = bool(path) and str(path).endswith(LOG)
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self.is_log:
            self.disk.syncs += 1
            if self.disk.sync_seconds:
                self.disk.clock.advance(self.disk.sync_seconds)
            if self.disk.sync_fails:
                raise apsw.IOError("the disk did not take it")
        super().xSync(flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        if self.is_log and self.disk.full:
            raise apsw.FullError("no room")
        super().xWrite(data, offset)


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A disk for one test, named after its folder."""
    made = Disk(f"faulty-{folder.name}")
    try:
        yield made
    finally:
        made.unregister()
