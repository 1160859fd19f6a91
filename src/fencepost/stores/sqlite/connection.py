"""Opening the file: what is refused before it is touched, and the settings every connection has.

Rule 1: one pragma a statement, every row fetched: a pragma that is not stepped to its end is not set.
Rule 2: the file is looked at through SQLite only; opening and closing it in any other way inside this process
would drop the locks SQLite holds on it. A new one is made before that, empty, and for its owner alone.
Rule 3: we wait for another process with random sleeps of our own, because with SQLite's fixed ones two busy
processes starve each other.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from fencepost.core.errors import StoreFailed, StoreForeign, StoreReadOnly
from fencepost.stores.sqlite.failures import store_failed
from fencepost.stores.sqlite.migrations import bundled, migrate
from fencepost.stores.sqlite.mounts import mounts_of_this_machine, network_filesystem
from fencepost.stores.sqlite.statements import fetch

BUSY_SECONDS = 10.0  # longer than any commit of ours; a lock held for longer is a stopped process
BUSY_SLEEP = (0.0002, 0.003)  # around one commit: shorter burns a core, longer leaves the file idle
WAL_BYTES_KEPT = 64 * 1024 * 1024  # a burst may grow the log beyond this, but it does not stay so
OWNER_ONLY = 0o600  # journals hold prompts and what tools read; SQLite gives the log the file's own mode
_making = threading.Lock()  # whoever finds the file there knows that its maker has closed it (rule 2)

# What is set on every connection, and what SQLite answers when asked for it.
PRAGMAS: dict[str, int | str] = {
    "synchronous": 2,  # FULL: an acknowledged commit survives a power cut
    "foreign_keys": 1,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "mmap_size": 0,  # a damaged page is an error, never a SIGBUS
    "temp_store": 2,  # MEMORY: a full disk does not break reads
    "journal_size_limit": WAL_BYTES_KEPT,
}


def check_place(path: Path, *, mounts: str | None = None) -> None:
    """Raise the StoreFailed that says why no store can be at this absolute path, if none can."""
    if path.is_dir():
        raise StoreForeign(f"{path} is a folder, not a store; name a file in it")
    folder = path.parent
    if not folder.is_dir():
        raise StoreFailed(f"the folder {folder} does not exist; create it or give another path")
    if not _may(folder, os.W_OK | os.X_OK):
        raise StoreReadOnly(f"the folder {folder} cannot be written, and a store keeps its log beside it")
    if path.exists() and not _may(path, os.W_OK | os.R_OK):
        raise StoreReadOnly(f"{path} cannot be written; make it writable or copy it")
    networked = network_filesystem(path.resolve(), mounts_of_this_machine() if mounts is None else mounts)
    if networked is not None:
        raise StoreFailed(
            f"{path} is on a network filesystem ({networked}), where file locks do not hold; use a local disk"
        )


def make_private(path: Path) -> None:
    """There is a file; one that was not there before is empty, and only its owner may read it."""
    with _making:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
        except FileExistsError:
            return  # whoever made it chose who may read it
        except OSError as why:
            raise StoreFailed(
                f"{path} cannot be made ({why.strerror}); free some space or give another path"
            ) from why


def _may(path: Path, mode: int) -> bool:
    """Whether this process may; asked for the user it acts as, not for the one who started it."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


class Patience:
    """A busy handler that sleeps a random moment and says whether to go on, for at most `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        """Whether SQLite should try again; `tries` counts from 0 for each lock that is waited for."""
        if tries == 0:
            self._began = time.monotonic()
        if time.monotonic() - self._began >= self.seconds:
            return False
        time.sleep(random.uniform(*BUSY_SLEEP))  # noqa: S311 - spread, not a secret
        return True


class Opener:
    """Opens connections to one store file, all with the same settings."""

    def __init__(self, path: Path, *, busy_seconds: float, vfs: str | None) -> None:
        self.path, self.vfs = path, vfs
        self.busy_seconds = busy_seconds
        self.patience = Patience(busy_seconds)  # of the first connection, which is the writer's

    def first(self, *, now: Callable[[], float]) -> apsw.Connection:
        """A connection to a store that is ours and up to date; creates the file if there is none."""
        check_place(self.path)
        make_private(self.path)
        db = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, self.patience)
        try:
            if db.readonly("main"):
                raise StoreReadOnly(f"{self.path} cannot be written; make it writable or copy it")
            # The first schema is written without a log, so that the file's own header says whose it is.
            migrate(db, str(self.path), migrations=bundled(), now=now())
            self._configure(db)
        except apsw.Error as why:
            failure = store_failed(why, str(self.path), system_errno=db.system_errno)
            db.close()
            raise failure from why
        except BaseException:
            db.close()
            raise
        return db

    def another(self) -> apsw.Connection:
        """One more connection to a store that `first` has opened."""
        db = self._connect(apsw.SQLITE_OPEN_READWRITE, Patience(self.busy_seconds))
        try:
            self._configure(db)
        except apsw.Error as why:
            failure = store_failed(why, str(self.path), system_errno=db.system_errno)
            db.close()
            raise failure from why
        return db

    def _connect(self, flags: int, patience: Patience) -> apsw.Connection:
        try:
            db = apsw.Connection(str(self.path), flags=flags, vfs=self.vfs)
        except apsw.Error as why:
            raise store_failed(why, str(self.path)) from why
        db.set_busy_handler(patience)
        return db

    def _configure(self, db: apsw.Connection) -> None:
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        for name, value in PRAGMAS.items():
            fetch(db, f"PRAGMA {name} = {value}")
        self._use_log(db)

    def _use_log(self, db: apsw.Connection) -> None:
        """The file has a write-ahead log; the switch does not call the busy handler, so we wait here."""
        waits = Patience(self.busy_seconds)
        for tries in itertools.count():
            try:
                answer = fetch(db, "PRAGMA journal_mode = WAL")
            except apsw.BusyError:
                if not waits(tries):
                    raise
                continue
            if answer != [("wal",)]:
                raise StoreFailed(f"{self.path}: SQLite cannot keep a write-ahead log here ({answer[0][0]})")
            return
