"""What SQLite says when it cannot, as the one sentence and class of ours that tells the reader what to do.

Rule: nothing of apsw leaves the store; whatever is raised here means that nothing was committed.
"""

from __future__ import annotations

import errno

import apsw

from fencepost.core.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreReadOnly,
)

# A file-size limit and a quota look like I/O errors to SQLite; to the operator they are a full disk.
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


def store_failed(why: apsw.Error, path: str, *, system_errno: int = 0) -> StoreFailed:
    """The StoreFailed that says what is wrong with the store at `path` and what to do about it."""
    match why:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path} was locked by another process for too long ({why}); try again")
        case apsw.FullError():
            return StoreFull(_full(path))
        case apsw.IOError() if system_errno in NO_ROOM:
            return StoreFull(_full(path))
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(f"{path} cannot be written ({why}); make the file and its folder writable")
        case apsw.CorruptError():
            return StoreCorrupt(f"{path} is damaged ({why}); restore a backup and keep this file")
        case apsw.NotADBError():
            return StoreForeign(f"{path} is not a Fencepost store ({why}); give another path")
        case apsw.CantOpenError():
            return StoreFailed(f"{path} cannot be opened ({why}); look at the path and its permissions")
        case _:
            return StoreFailed(f"{path}: the commit failed ({type(why).__name__}: {why}), nothing written")


def _full(path: str) -> str:
    return f"there is no room left to write {path}; free some space and run again, nothing was lost"
