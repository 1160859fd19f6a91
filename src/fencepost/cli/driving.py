"""Driving a task from a terminal: signals, progress, and how it ended.

Rule 1: Ctrl-C once cancels the task through the store, as any other terminal would; the journal stays. Ctrl-C
twice leaves at once with 130, whatever still runs.
Rule 2: SIGTERM and SIGHUP give the task back unharmed (READY_TO_RESUME).
Rule 3: what a tool prints never mixes with the result on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from fencepost.cli.answers import questions
from fencepost.cli.command import Desk
from fencepost.cli.documents import (
    answer_document,
    question_document,
    task_document,
)
from fencepost.cli.exits import Exit, exit_of_state
from fencepost.cli.progress import Printed, Progress, lively
from fencepost.cli.reports import ending_lines
from fencepost.core.entries import Entry, Stopped
from fencepost.core.errors import FencepostError, StoreFailed, TaskNotFound
from fencepost.core.limits import Limits
from fencepost.service.surface import Live, Result, Store, TaskRow, Totals
from fencepost.service.tasks import cancel

# Results that come after the end are waited for so long, to be kept as late records. Seconds.
LATE_SECONDS = 2.0

Starts = Callable[[Live], Awaitable[Result]]


class Drive(Struct, frozen=True):
    """How a drive ended: the task as the store has it, and the exit code."""

    row: TaskRow
    entries: tuple[Entry, ...]
    code: int


async def drive(
    desk: Desk,
    store: Store,
    task: str,
    *,
    limits: Limits,
    starts: Starts,
    begun: tuple[TaskRow, Sequence[Entry]] | None = None,
    quiet: bool,
) -> Drive:
    """Run the task to the end of this run; whatever ended it, say so with the code that means it."""
    progress = Progress(desk.err, limits, lively=lively(desk.err, desk.app.environment), quiet=quiet)
    if begun is not None:
        row, entries = begun
        progress.recall(entries, Totals(row.tokens, row.cost_nano, row.steps, row.calls), row.seconds)
    live = Live()
    live.listen(progress.heard)
    running = asyncio.ensure_future(starts(live))
    signals = Signals(desk, store, task, live=live, progress=progress, running=running)
    with progress, _printing(progress), signals.caught():
        try:
            result = await running
        except asyncio.CancelledError:
            if signals.ending is None:
                raise
            return await _left(store, task, signals.ending)
        except StoreFailed as why:
            raise _unsaved(why, task, desk) from why
        await _late_ones()
    return Drive(result.row, result.entries, exit_of_state(result.row.state))


async def _left(store: Store, task: str, code: Exit) -> Drive:
    try:
        row = await store.row("local", task)
    except TaskNotFound:
        raise KeyboardInterrupt from None  # stopped before there was a task
    return Drive(row, await store.entries("local", task), code)


def _unsaved(why: StoreFailed, task: str, desk: Desk) -> StoreFailed:
    """The same failure, with what to do about the task; what had been committed is still there."""
    return type(why)(f"{why}; then go on with `{desk.hint('resume', task)}`")


async def _late_ones() -> None:
    """What abandoned calls still bring is kept, if it comes soon."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=LATE_SECONDS)


@contextlib.contextmanager
def _printing(progress: Progress) -> Iterator[None]:
    printed = Printed(progress)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield
    printed.finish()


class Signals:
    """What the signals of a drive do; `ending` is the exit code of the one that ends it."""

    def __init__(
        self,
        desk: Desk,
        store: Store,
        task: str,
        *,
        live: Live,
        progress: Progress,
        running: asyncio.Future[Result],
    ) -> None:
        self._desk, self._store, self._task = desk, store, task
        self._live, self._progress, self._running = live, progress, running
        self._loop = asyncio.get_running_loop()
        self._presses = 0
        self._cancelling: asyncio.Task[None] | None = None
        self.ending: Exit | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them; handlers of our own, because the loop's would wait for a tool that blocks it."""
        catching = {signal.SIGINT: self._pressed, signal.SIGTERM: self._ended, signal.SIGHUP: self._ended}
        before = {
            number: signal.signal(number, handler)
            for number, handler in catching.items()
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a job in the background
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pressed(self, *_: Any) -> None:
        self._presses += 1
        if self._presses > 1:
            self._out(Exit.INTERRUPTED)
        self._loop.call_soon_threadsafe(self._cancel_soon)

    def _ended(self, number: int, _: Any) -> None:
        code = Exit.HANGUP if number == signal.SIGHUP else Exit.TERMINATED
        if self.ending is not None:
            self._out(code)
        self.ending = code
        self._loop.call_soon_threadsafe(self._running.cancel)

    def _out(self, code: Exit) -> None:
        """Leave at once: nothing that hangs keeps us. A commit in flight is whole or not there."""
        told = f"fencepost: left at once; see {self._desk.hint('show', self._task)}\n"
        with contextlib.suppress(
            OSError
        ):  # not through any stream: this may have interrupted one of its writes
            os.write(2, (self._progress.parting + told).encode())
        os._exit(code)

    def _cancel_soon(self) -> None:
        self._cancelling = self._loop.create_task(self._cancel())

    async def _cancel(self) -> None:
        self._progress.say(("Cancelling the task; its journal stays. Ctrl-C again leaves at once.", "warn"))
        try:
            row = await cancel(self._store, self._task, by=self._desk.app.principal, live=self._live)
            self._progress.say(f"It is {row.state.value}; nothing of it starts from now on.")
        except FencepostError as why:
            self._progress.say(("It cannot be cancelled: ", "bad"), str(why))
            self._running.cancel()
            self.ending = self.ending or Exit.INTERRUPTED


def tell_ending(desk: Desk, drive: Drive) -> None:
    """Print how it ended: the document with `--json`, else the answer, the questions and what to do next."""
    row, entries = drive.row, drive.entries
    if not desk.json:
        desk.out.put(ending_lines(row, entries, hint=desk.hint))
        return
    desk.show(ending_document(row, entries, desk))


def ending_document(row: TaskRow, entries: Sequence[Entry], desk: Desk) -> dict[str, Any]:
    """How a run left its task, with the commands that come next."""
    last = entries[-1].body if entries else None
    stopped = last if isinstance(last, Stopped) else None
    asked = questions(entries) if row.waiting_for else ()
    return {
        "task": task_document(row),
        "answer": answer_document(None if stopped is None else stopped.answer),
        "partial": stopped is not None and stopped.partial,
        "detail": (stopped.detail or None) if stopped is not None else None,
        "questions": [question_document(row.id, one) for one in asked],
        "show": desk.hint("show", row.id),
    }
