"""One writer inside a process: every write of a store is one `BEGIN IMMEDIATE` transaction, or part of one.

Rule 1: while a single run writes and commits are fast, its commits happen at once on the loop's own thread,
which costs no thread switch; otherwise they gather, and one thread commits them together, one fsync for all.
Rule 2: in a gathered transaction every member has its own savepoint; what one member raises undoes that
member alone. If the transaction itself fails, every member gets StoreFailed, also one that had been
refused: it had looked at rows that do not exist.
Rule 3: a write in flight cannot be cancelled: whoever awaits it is cancelled once its outcome is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from fencepost.core.errors import StoreFailed
from fencepost.stores.hooks import Hooks
from fencepost.stores.sqlite.connection import Patience
from fencepost.stores.sqlite.failures import store_failed
from fencepost.stores.sqlite.statements import fetch

T = TypeVar("T")
Run = tuple[str, str]  # (tenant, task)

GROUP_MEMBERS = 256  # bounds how long one transaction keeps other processes waiting
INLINE_SECONDS = 0.005  # a loop may stand still for so long; a disk slower than this gets the thread
TURN_SECONDS = 0.001  # a turn of the loop costs a tenth of a commit: all others get one this often
INLINE_STREAK = 3  # so many writes of one run with none of another between: it is alone
PACE_WEIGHT = 0.2  # of the newest commit in the moving average: about ten commits of memory


class Outcome(asyncio.Future[Any]):
    """A future that cancellation does not end: the task that awaits it is cancelled when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse; asyncio then cancels the awaiting task as soon as the outcome is there."""
        return False


class _Member:
    """One write on its way: what to do, and what became of it."""

    __slots__ = ("error", "name", "outcome", "result", "work")

    def __init__(self, name: str, work: Callable[[apsw.Connection], Any], outcome: Outcome) -> None:
        self.name, self.work, self.outcome = name, work, outcome
        self.result: Any = None
        self.error: BaseException | None = None


class _Occupied(Exception):
    """Somebody else is writing, and the loop's thread is not the one to wait for it."""


class Writer:
    """Runs closures in transactions on the store's one writing connection."""

    def __init__(
        self,
        db: apsw.Connection,
        path: str,
        *,
        hooks: Hooks | None,
        monotonic: Callable[[], float],
        patience: Patience,
    ) -> None:
        self._db, self._path, self._hooks, self._monotonic = db, path, hooks, monotonic
        self._patience = patience
        self.lock = threading.Lock()  # held for every transaction of this process, heartbeats included
        self._counting = threading.Lock()
        self._in_flight = 0
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Member]] = {}
        self._handed: queue.SimpleQueue[list[_Member] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pace = 0.0
        self._last: Run | None = None
        self._streak = 0
        self._turned = 0.0  # when the loop last had a turn because of us
        self._closed = self._ended = False  # no more writes begin; no more are handed over

    async def write(self, name: str, work: Callable[[apsw.Connection], T], *, run: Run | None = None) -> T:
        """What `work` returns, durable; what it raises, with nothing written; or StoreFailed.

        `run` names the run that makes a step, so that a run that is alone can be told from many.
        """
        if self._hooks is not None:
            self._hooks(f"{name}.before")
        if self._closed:
            raise self._was_closed()
        if self._is_alone(run):
            with contextlib.suppress(_Occupied):  # the thread waits for others, not the loop
                result = self._commit_alone(name, work)
                if run is None or self._turn_is_due():
                    await asyncio.sleep(0)  # without it one run would hold the loop from its start to its end
                return result
        loop = asyncio.get_running_loop()
        member = _Member(name, work, Outcome(loop=loop))
        self._gather(loop, member)
        return await member.outcome  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Every write that was begun has its outcome, and the connection is closed."""
        if self._closed:
            return
        self._closed = True
        for loop in list(self._gathered):
            self._hand_over(loop)
        with self._counting:
            self._ended = True
            self._handed.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        with self.lock:  # another loop may be in a commit of its own
            self._db.close()

    def _was_closed(self) -> StoreFailed:
        return StoreFailed(f"{self._path} was closed by this program; open it again")

    # --- which way ---------------------------------------------------------------------------------------

    def _is_alone(self, run: Run | None) -> bool:
        if run is not None:
            self._streak = self._streak + 1 if run == self._last else 0
            self._last = run
        if self._in_flight or self._pace > INLINE_SECONDS:
            return False
        return run is None or self._streak >= INLINE_STREAK

    def _turn_is_due(self) -> bool:
        now = self._monotonic()
        if now - self._turned < TURN_SECONDS:
            return False
        self._turned = now
        return True

    def _measured(self, seconds: float) -> None:
        self._pace += PACE_WEIGHT * (seconds - self._pace)

    # --- at once -----------------------------------------------------------------------------------------

    def _commit_alone(self, name: str, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` returned, committed in this thread; _Occupied with nothing done if it would wait."""
        db, hooks = self._db, self._hooks
        if not self.lock.acquire(timeout=INLINE_SECONDS):
            raise _Occupied
        try:
            if self._ended:
                raise self._was_closed()
            began = self._monotonic()
            self._begin_at_once()
            try:
                result = work(db)
                if hooks is not None:
                    hooks(f"{name}.inside")
                fetch(db, "COMMIT")
            except apsw.Error as why:
                raise self._undone(why) from why
            except BaseException:
                self._undo()
                raise
            self._measured(self._monotonic() - began)
        finally:
            self.lock.release()
        if hooks is not None:
            hooks(f"{name}.after")
        return result

    def _begin_at_once(self) -> None:
        patient = self._patience.seconds
        self._patience.seconds = min(patient, INLINE_SECONDS)
        try:
            fetch(self._db, "BEGIN IMMEDIATE")
        except apsw.BusyError:
            raise _Occupied from None
        except apsw.Error as why:
            raise self._undone(why) from why
        finally:
            self._patience.seconds = patient

    def _undo(self) -> None:
        if self._db.in_transaction:  # a full disk has already rolled it back
            fetch(self._db, "ROLLBACK")

    def _undone(self, why: apsw.Error) -> StoreFailed:
        failure = store_failed(why, self._path, system_errno=self._db.system_errno)
        self._undo()
        return failure

    # --- together ----------------------------------------------------------------------------------------

    def _gather(self, loop: asyncio.AbstractEventLoop, member: _Member) -> None:
        """The member goes to the thread with all others that are ready in this turn of the loop."""
        with self._counting:
            self._in_flight += 1
        members = self._gathered.get(loop)
        if members is not None:
            members.append(member)
            return
        self._gathered[loop] = [member]
        loop.call_soon(self._hand_over, loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        members = self._gathered.pop(loop, None)
        if not members:
            return
        with self._counting:
            if not self._ended:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="fencepost-writer", daemon=True)
                    self._thread.start()
                self._handed.put(members)
                return
        for member in members:  # begun in another loop while the store was closed
            member.error = self._was_closed()
        _settle(members)

    def _serve(self) -> None:
        while True:
            members = self._handed.get()
            if members is None:
                return
            last = False
            while len(members) < GROUP_MEMBERS and not last:
                try:
                    more = self._handed.get_nowait()
                except queue.Empty:
                    break
                last = more is None
                members += more or []
            for start in range(0, len(members), GROUP_MEMBERS):
                self._commit_together(members[start : start + GROUP_MEMBERS])
            if last:
                return

    def _commit_together(self, members: list[_Member]) -> None:
        with self.lock:
            began = self._monotonic()
            try:
                fetch(self._db, "BEGIN IMMEDIATE")
                for member in members:
                    self._take_part(member)
                fetch(self._db, "COMMIT")
            except BaseException as why:  # noqa: BLE001 - the thread must live, and every member must hear
                self._fail_all(members, why)
            self._measured(self._monotonic() - began)
        if self._hooks is not None:
            self._tell_hooks(members, self._hooks)
        with self._counting:
            self._in_flight -= len(members)
        _wake(members)

    def _take_part(self, member: _Member) -> None:
        db = self._db
        fetch(db, "SAVEPOINT member")
        try:
            member.result = member.work(db)
            if self._hooks is not None:
                self._hooks(f"{member.name}.inside")
        except BaseException as why:
            if not db.in_transaction:  # SQLite gave the whole transaction up
                raise
            if isinstance(why, apsw.Error):
                member.error = store_failed(why, self._path, system_errno=db.system_errno)
            else:
                member.error = why
            fetch(db, "ROLLBACK TO member")
        fetch(db, "RELEASE member")

    def _fail_all(self, members: list[_Member], why: BaseException) -> None:
        """Each member has a StoreFailed of its own; a shared one would collect the tracebacks of all."""
        errno = self._db.system_errno
        with contextlib.suppress(apsw.Error):  # if it cannot even roll back, the next BEGIN will say so
            self._undo()
        for member in members:
            if isinstance(why, apsw.Error):
                member.error = store_failed(why, self._path, system_errno=errno)
            else:
                member.error = StoreFailed(f"{self._path}: the commit failed ({why!r}); nothing was written")
            member.error.__cause__ = why

    def _tell_hooks(self, members: list[_Member], hooks: Hooks) -> None:
        for member in members:
            if member.error is None:
                try:
                    hooks(f"{member.name}.after")
                except BaseException as why:  # noqa: BLE001 - what a test raises reaches the writer it is for
                    member.error = why


def _wake(members: list[_Member]) -> None:
    """Every loop is woken once for all of its members."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Member]] = {}
    for member in members:
        by_loop.setdefault(member.outcome.get_loop(), []).append(member)
    for loop, of_loop in by_loop.items():
        with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left who waits
            loop.call_soon_threadsafe(_settle, of_loop)


def _settle(members: list[_Member]) -> None:
    for member in members:
        if member.error is None:
            member.outcome.set_result(member.result)
        else:
            member.outcome.set_exception(member.error)
