"""Room that is kept for the day the disk is full: a deletion is written to the log before anything is free.

Rule 1: the reserve is a file beside the store, made only where there is plenty of room, and never grown.
Rule 2: it is given up once, by whoever prunes a store that has no room left; it is made again when there is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from fencepost.stores.sqlite.connection import OWNER_ONLY

# What the log of some prunings takes; their pages go back into the file, not to the disk.
RESERVE_BYTES = 8 * 1024 * 1024
# Whoever has less room than this needs it more than we do. Bytes.
ROOM_LEAST = 64 * 1024 * 1024


def reserve_of(path: Path) -> Path:
    """Where the reserve of a store is."""
    return path.with_name(path.name + "-reserve")


def keep_reserve(path: Path, *, room_least: int = ROOM_LEAST) -> bool:
    """Whether the store has its reserve now; none is made where fewer bytes than `room_least` are free."""
    reserve = reserve_of(path)
    with contextlib.suppress(OSError):  # a store without a reserve is still a store
        if reserve.exists():
            return True
        if shutil.disk_usage(path.parent).free < room_least:
            return False
        descriptor = os.open(reserve, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        except OSError:
            reserve.unlink()
            return False
        finally:
            os.close(descriptor)
        return True
    return False


def give_up_reserve(path: Path) -> bool:
    """Whether there was a reserve, whose room is free now."""
    try:
        reserve_of(path).unlink()
    except OSError:
        return False
    return True
