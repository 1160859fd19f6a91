"""What foreign code does to the process it runs in: the event loop's pauses, threads and children it leaves.

Rule: what is measured is the machine's real time and the kernel's own list of processes, because that is what
foreign code blocks and leaves behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

# How often the loop should get a turn while it is watched. Seconds.
TICK_SECONDS = 0.005
# Names in one sentence.
SHOWN_MOST = 3
# Below this a pause of the event loop is the machine's as likely as its subject's; a health check still answers.
# Seconds.
LOOP_PAUSE_MOST = 0.25
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37


class LoopWatch:
    """Measures the longest time for which the event loop got no turn; `longest` is in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = 0.0

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Measure while the block runs."""
        self._last = time.monotonic()
        self._turn()
        try:
            yield
        finally:
            self._next.cancel()
            self._measure()

    def _turn(self) -> None:
        self._measure()
        self._next = asyncio.get_running_loop().call_later(TICK_SECONDS, self._turn)

    def _measure(self) -> None:
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now


class Process(Struct, frozen=True, order=True):
    """One process below ours; `began` tells it from a later one with the same number."""

    pid: int
    began: int
    name: str


def children() -> frozenset[Process] | None:
    """Every live process that descends from this one, None where the system has no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    parents: dict[int, tuple[int, Process]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (found := _process(place)) is not None:
            parents[found[1].pid] = found
    ours = os.getpid()
    return frozenset(found for _, found in parents.values() if _descends(found.pid, ours, parents))


def _process(place: Path) -> tuple[int, Process] | None:
    try:
        text = (place / "stat").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return None
    name, _, rest = text.rpartition(")")
    fields = rest.split()
    if fields[0] in ("Z", "X"):  # over; only its parent has not looked
        return None
    return int(fields[1]), Process(int(place.name), int(fields[19]), name.partition("(")[2])


def _descends(pid: int, ancestor: int, parents: dict[int, tuple[int, Process]]) -> bool:
    for _ in range(len(parents)):
        if pid not in parents:
            return False
        pid = parents[pid][0]
        if pid == ancestor:
            return True
    return False


class Left(Struct, frozen=True):
    """What goes on in this process at one moment; `children` is None where the system does not list processes."""

    tasks: frozenset[asyncio.Task[Any]]
    threads: frozenset[threading.Thread]
    children: frozenset[Process] | None

    @classmethod
    def now(cls) -> Left:
        """The asyncio tasks, threads and processes there are now."""
        return cls(frozenset(asyncio.all_tasks()), frozenset(threading.enumerate()), children())

    def more_than(self, earlier: Left) -> str | None:
        """What there is more of than at an earlier moment, in words; None when nothing has added up.

        One more thread may be a pool that has grown.
        """
        if len(self.tasks) > len(earlier.tasks):
            return f"asyncio tasks: {_few(task.get_name() for task in self.tasks - earlier.tasks)}"
        if len(self.threads) > len(earlier.threads) + 1:
            return f"threads: {_few(thread.name for thread in self.threads - earlier.threads)}"
        if self.children is None or earlier.children is None:
            return None
        if len(self.children) > len(earlier.children):
            return f"processes: {_few(f'{p.name} ({p.pid})' for p in self.children - earlier.children)}"
        return None


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN_MOST]) + (", …" if len(ordered) > SHOWN_MOST else "")


@contextlib.contextmanager
def keeping_orphans() -> Iterator[None]:
    """In the block, a process whose parent ends becomes ours, so that a daemon is seen too; Linux only."""
    call = _prctl()
    if call is None:
        yield
        return
    before = ctypes.c_int(0)
    call(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    call(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        call(_SET_SUBREAPER, before.value, 0, 0, 0)


def _prctl() -> Callable[..., Any] | None:
    try:
        found: Any = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return found  # type: ignore[no-any-return]


def end(left: frozenset[Process]) -> None:
    """End processes that a subject left behind, each only if it is still the one that was seen."""
    now = children() or frozenset()
    for process in left & now:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
