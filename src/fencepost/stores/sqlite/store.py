"""SqliteStore: the Store port over one file. What a transaction does is in transactions.py.

Rule 1: three connections: one for the writer, one for reads, one for heartbeats; each with a lock of its own,
because a connection serves one thread at a time.
Rule 2: SQLite has no server and so no clock: `now` is the host's, and every process that opens a file must
run on that host. A test passes its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from fencepost.core.entries import Entry
from fencepost.core.errors import StoreCorrupt, StoreFailed, TaskNotFound
from fencepost.core.lifecycle import TaskState
from fencepost.ports import (
    PRUNED_AT_ONCE,
    Act,
    AuditRecord,
    Beat,
    Claimed,
    Commit,
    LateRecord,
    Lease,
    NewTask,
    Receipt,
    TaskRow,
    Tombstone,
)
from fencepost.stores import rules
from fencepost.stores.hooks import Hooks
from fencepost.stores.retention import BATCH_BYTES, Bounds
from fencepost.stores.sqlite import pruning, transactions
from fencepost.stores.sqlite import statements as sql
from fencepost.stores.sqlite.connection import BUSY_SECONDS, Opener
from fencepost.stores.sqlite.failures import store_failed
from fencepost.stores.sqlite.statements import fetch
from fencepost.stores.sqlite.transactions import ALL, Wanted, encode
from fencepost.stores.sqlite.writer import Writer

T = TypeVar("T")


class SqliteStore:
    """A Store in one local file, which any number of local processes may have open.

    Opening creates the file or brings its schema up to date; the StoreFailed it raises says why it cannot.
    `hooks` is called at the points of `stores.hooks`, in whichever thread commits. `vfs` names a SQLite VFS,
    `monotonic` measures how fast commits are.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        now: Callable[[], float] = time.time,
        hooks: Hooks | None = None,
        busy_seconds: float = BUSY_SECONDS,
        vfs: str | None = None,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = Path(path).absolute()
        self._now, self._hooks = now, hooks
        self._opener = Opener(self.path, busy_seconds=busy_seconds, vfs=vfs)
        self._writer = Writer(
            self._opener.first(now=now), str(self.path), hooks=hooks, monotonic=monotonic,
            patience=self._opener.patience,
        )  # fmt: skip
        self._reading, self._beating = threading.Lock(), threading.Lock()
        self._reader: apsw.Connection | None = None
        self._pulse: apsw.Connection | None = None
        self._closed = False

    # --- writes ------------------------------------------------------------------------------------------

    async def open_task(self, new: NewTask, /) -> TaskRow:
        """Create the task PENDING with entry 1; the same id and commit id again returns the row unchanged."""
        opened = rules.check_opened(new)
        (encoded,) = encode((opened,))
        return await self._writer.write(
            "open_task",
            lambda db: transactions.open_task(db, new, opened=opened, encoded=encoded, at=self._now()),
        )

    async def claim(
        self,
        worker: str,
        *,
        lease_seconds: float | None,
        definitions: Collection[str] | None = None,
        tenant: str | None = None,
        task: str | None = None,
        take_over: bool = False,
        holder: str | None = None,
    ) -> Claimed | None:
        """Take the oldest runnable task, bump its epoch, count the attempt; None without one."""
        rules.check_claim(task, take_over=take_over, holder=holder)
        wanted = Wanted(worker, lease_seconds, definitions, tenant, task, take_over, holder)
        return await self._writer.write("claim", lambda db: transactions.claim(db, wanted, at=self._now()))

    async def append(self, commit: Commit, /) -> Receipt:
        """Write the commit, or raise `Fenced`. The same commit id at the expected seq is success.

        Cancelled while it is in flight, it is cancelled once it is settled: read the journal to know how.
        """
        stopped = rules.check_bodies(commit.bodies, commit.to)
        encoded = encode(commit.bodies)
        return await self._writer.write(
            "append",
            lambda db: transactions.append(db, commit, encoded=encoded, stopped=stopped, at=self._now()),
            run=(commit.tenant, commit.task),
        )

    async def release(self, lease: Lease, /, *, seconds: float, not_before: float | None = None) -> None:
        """Give a task back unharmed: READY_TO_RESUME, attempts 0. Raises `Fenced` when it is not ours."""
        await self._writer.write(
            "release",
            lambda db: transactions.release(
                db, lease, seconds=seconds, not_before=not_before, at=self._now()
            ),
        )

    def beat(self, beats: Sequence[Beat], /, *, lease_seconds: float) -> frozenset[tuple[str, int]]:
        """Renew leases from any thread; returns (task, epoch) of those refused.

        On a connection that does not wait for the disk: a beat lost in a power cut only shortens a lease.
        """
        self._pause("beat.before")
        with self._beating:
            db = self._pulse = self._pulse or self._open_pulse()
            with self._writer.lock:
                try:
                    refused = self._beat(db, beats, lease_seconds)
                except apsw.Error as why:
                    failure = store_failed(why, str(self.path), system_errno=db.system_errno)
                    raise failure from why
                finally:
                    if db.in_transaction:
                        fetch(db, "ROLLBACK")
        self._pause("beat.after")
        return refused

    async def intervene(self, tenant: str, task: str, by: str, act: Act, /) -> tuple[TaskRow, bool]:
        """Give `act` the journal and write its change in one transaction; what it raises undoes all."""
        return await self._writer.write(
            "intervene", lambda db: transactions.intervene(db, tenant, task, by=by, act=act, at=self._now())
        )

    async def record_late(self, record: LateRecord, /) -> None:
        """Keep a late result; needs no fence, because it is never part of the journal."""
        await self._writer.write(
            "record_late", lambda db: transactions.record_late(db, record, at=self._now())
        )

    async def audit(self, record: AuditRecord, /) -> None:
        """Keep an act of the tenant."""
        of = (record.tenant, record.by, record.act, record.task, record.outcome, record.detail)

        def keep(db: apsw.Connection) -> None:
            fetch(db, sql.AUDIT, (*of, self._now()))

        await self._writer.write("audit", keep)

    # --- reads -------------------------------------------------------------------------------------------

    async def row(self, tenant: str, task: str, /, *, chain: bool = True) -> TaskRow:
        """The task's row, or `TaskNotFound`."""
        return self._read(lambda db: transactions.read_row(db, tenant, task))

    async def entries(
        self, tenant: str, task: str, /, *, after: int = 0, limit: int | None = None
    ) -> tuple[Entry, ...]:
        """The journal after a seq, in order."""
        most = ALL if limit is None else max(limit, 0)

        def read(db: apsw.Connection) -> tuple[Entry, ...]:
            found = transactions.read_entries(db, tenant, task, after=after, limit=most)
            if not found:
                transactions.read_row(db, tenant, task)
            return found

        return self._read(read)

    async def tasks(
        self,
        tenant: str,
        /,
        *,
        states: Collection[TaskState] | None = None,
        agent: str | None = None,
        limit: int = 100,
        before: float | None = None,
    ) -> tuple[TaskRow, ...]:
        """Rows newest first."""
        facts = {
            "tenant": tenant, "agent": agent, "before": before, "limit": max(limit, 0),
            "states": None if states is None else json.dumps([str(state) for state in states]),
        }  # fmt: skip
        return self._read(lambda db: tuple(map(transactions.task_row, fetch(db, sql.NEWEST, facts))))

    async def expired(self, tenant: str | None, /, *, limit: int = 100) -> tuple[TaskRow, ...]:
        """Tasks waiting for people past their `expires_at`, the longest expired first."""
        facts = {"tenant": tenant, "now": self._now(), "limit": max(limit, 0)}
        return self._read(lambda db: tuple(map(transactions.task_row, fetch(db, sql.EXPIRED, facts))))

    async def operation(self, tenant: str, key: str, /) -> tuple[str, str] | None:
        """How an operation key of the tenant went: (status, content)."""
        found = self._read(lambda db: fetch(db, sql.OPERATION, (tenant, key)))
        return (found[0][0], found[0][1]) if found else None

    async def artifact(self, tenant: str, digest: str, /, *, task: str | None = None) -> bytes:
        """The whole of a value that was cut, or `TaskNotFound`; with `task` only if that task names it."""
        if task is None:
            found = self._read(lambda db: fetch(db, sql.ARTIFACT, (tenant, digest)))
        else:
            found = self._read(lambda db: fetch(db, sql.ARTIFACT_OF, (tenant, task, digest)))
        if not found:
            raise TaskNotFound(f"there is no artifact {digest} here; look it up under the task that made it")
        if found[0][0] is None:
            raise StoreCorrupt(
                f"artifact {digest} is missing, though task {task} names it; the rest can be read, and a"
                " backup holds it"
            )
        return bytes(found[0][0])

    async def late(self, tenant: str, task: str, /) -> tuple[LateRecord, ...]:
        """The late records of a task, oldest first."""

        def read(db: apsw.Connection) -> tuple[LateRecord, ...]:
            transactions.read_row(db, tenant, task)
            return tuple(LateRecord(tenant, task, *values) for values in fetch(db, sql.LATE, (tenant, task)))

        return self._read(read)

    async def audited(self, tenant: str, /, *, limit: int = 100) -> tuple[AuditRecord, ...]:
        """The tenant's acts, newest first."""
        most = max(limit, 0)
        return self._read(
            lambda db: tuple(AuditRecord(*values) for values in fetch(db, sql.AUDITED, (tenant, most)))
        )

    async def verify(self, tenant: str, task: str, /) -> str | None:
        """The first place where the row is not what the journal says, or None."""

        def read(db: apsw.Connection) -> str | None:
            row = transactions.read_row(db, tenant, task)
            late = len(fetch(db, sql.LATE, (tenant, task)))
            stored = (
                rules.StoredEntry(seq, epoch, kind, version, data)
                for seq, epoch, _, _, _, _, _, kind, version, data in fetch(
                    db, sql.ENTRIES, (tenant, task, 0, ALL)
                )
            )
            return rules.first_difference(row, stored, late)

        return self._read(read, together=True)

    async def check(self) -> tuple[str, ...]:
        """What SQLite finds wrong with the file, if anything; may take seconds on a large cold file."""
        try:
            found = self._read(lambda db: fetch(db, "PRAGMA quick_check"))
        except StoreFailed as why:  # a damaged file may also raise instead of answering
            return (str(why),)
        return tuple(line for (line,) in found if line != "ok")

    async def prune(
        self,
        tenant: str | None,
        /,
        *,
        older_than: float | None = None,
        keep_bytes: int | None = None,
        limit: int = PRUNED_AT_ONCE,
        dry_run: bool = False,
    ) -> tuple[Tombstone, ...]:
        """Drop tasks that are over, longest over first, and keep a tombstone of each.

        What is freed is used again by the file, which does not shrink; `compact` makes it smaller.
        """
        bounds = Bounds(tenant, older_than, keep_bytes, max(limit, 0), None if dry_run else BATCH_BYTES)
        if dry_run:
            return self._read(
                lambda db: tuple(one for _, one in pruning.due(db, bounds, at=self._now())), together=True
            )
        return await self._writer.write("prune", lambda db: pruning.prune(db, bounds, at=self._now()))

    async def tombstone(self, tenant: str, task: str, /) -> Tombstone:
        """What is left of a pruned task, or `TaskNotFound`."""
        return self._read(lambda db: pruning.read_tombstone(db, tenant, task))

    async def stored_bytes(self, tenant: str | None, /) -> int:
        """How many bytes of entries, late records and artifacts are kept."""
        return self._read(lambda db: pruning.stored_bytes(db, tenant))

    async def compact(self) -> None:
        """Rewrite the file without what is free in it; needs as much room again for a while.

        Raises StoreBusy while another process writes or reads.
        """
        await asyncio.to_thread(self._compact)

    async def now(self) -> float:
        """The host's time, seconds since 1970."""
        return self._now()

    async def close(self) -> None:
        """Every write in flight is settled, and files and threads are released; safe to call twice."""
        self._closed = True
        await self._writer.close()
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        with self._beating:
            if self._pulse is not None:
                self._pulse.close()
                self._pulse = None

    # --- parts -------------------------------------------------------------------------------------------

    def _pause(self, point: str) -> None:
        if self._hooks is not None:
            self._hooks(point)

    def _read(self, read: Callable[[apsw.Connection], T], *, together: bool = False) -> T:
        """What `read` finds; `together` lets all its statements see one moment."""
        with self._reading:
            self._check_open()
            db = self._reader = self._reader or self._opener.another()
            try:
                if together:
                    fetch(db, "BEGIN")
                return read(db)
            except UnicodeEncodeError:  # half a surrogate pair: nothing in a store is called so
                raise TaskNotFound("a name with half a surrogate pair in it names nothing here") from None
            except apsw.Error as why:
                raise store_failed(why, str(self.path), system_errno=db.system_errno) from why
            finally:
                if db.in_transaction:
                    fetch(db, "ROLLBACK")

    def _beat(
        self, db: apsw.Connection, beats: Sequence[Beat], lease_seconds: float
    ) -> frozenset[tuple[str, int]]:
        refused = set()
        fetch(db, "BEGIN IMMEDIATE")
        until = self._now() + lease_seconds
        for beat in beats:
            fetch(db, sql.BEAT, (until, beat.seconds, beat.tenant, beat.task, beat.epoch))
            if db.changes() != 1:
                refused.add((beat.task, beat.epoch))
        self._pause("beat.inside")
        fetch(db, "COMMIT")
        return frozenset(refused)

    def _compact(self) -> None:
        self._check_open()
        db = self._opener.another()
        try:
            with self._writer.lock:
                fetch(db, "PRAGMA temp_store = FILE")  # in memory the whole file would be there twice
                fetch(db, "VACUUM")
                fetch(db, "PRAGMA wal_checkpoint(TRUNCATE)")
        except apsw.Error as why:
            raise store_failed(why, str(self.path), system_errno=db.system_errno) from why
        finally:
            db.close()

    def _open_pulse(self) -> apsw.Connection:
        self._check_open()
        db = self._opener.another()
        fetch(db, "PRAGMA synchronous = NORMAL")
        return db

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed(f"{self.path} was closed by this program; open it again")
