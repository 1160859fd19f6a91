"""Named places where a test can die, stop, fail or look: the store's commits, and where a tool calls `reach`.

Rule 1: a place that nobody armed costs one comparison and does nothing.
Rule 2: places are counted in the order in which they are reached, from 1; heartbeats are not counted among
the commits, because how many there are depends on time.
Rule 3: dying is SIGKILL, never an exception: no `finally` runs, nothing is flushed, nobody says goodbye.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from fencepost.stores import sqlite
from fencepost.stores.hooks import POINTS, WRITES, Hooks

# The writes that are commit points of a run or of a person's act (rule 2).
COMMITS = frozenset(WRITES) - {"beat"}

_armed: Hooks | None = None


class Crashed(BaseException):
    """The process died here, as far as a caller inside the same process can tell."""


class Place(Struct, frozen=True):
    """The `nth` time that `point` is reached.

    `point` is "before", "inside" or "after" for any commit, or a full name: "append.after", or what a tool
    gave to `reach`. `action` is "kill" (SIGKILL) or "stop" (SIGSTOP) of this very process.
    """

    point: str
    nth: int
    action: str = "kill"

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that `[stop@]POINT:N` names, or ValueError that says how to write one."""
        action, given, rest = text.rpartition("@")
        point, _, number = rest.rpartition(":")
        if not point or not number.isascii() or not number.isdigit() or int(number) < 1:
            raise ValueError(f"a place is written POINT:N, as in before:3 or append.after:1; got {text!r}")
        if given and action not in ("kill", "stop"):
            raise ValueError(f"what happens at a place is kill or stop; got {action!r}")
        return cls(point, int(number), action or "kill")

    def __str__(self) -> str:
        return (
            f"{self.point}:{self.nth}" if self.action == "kill" else f"{self.action}@{self.point}:{self.nth}"
        )


class Pauses:
    """Hooks that count every place and do at one of them what was planned; safe in any thread.

    `reached` lists the names in order. `then` is called, in the thread that reached it, at the place; a test
    inside one process raises `Crashed` there, or changes the world between two statements of the runtime.
    """

    def __init__(self, place: Place | None = None, then: Callable[[], None] | None = None) -> None:
        self._place, self._then = place, then
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.reached: list[str] = []

    def __call__(self, point: str) -> None:
        """Count this point, and do what was planned if it is the place."""
        write, _, when = point.rpartition(".")
        with self._lock:
            self.reached.append(point)
            self._counts[point] += 1
            if write in COMMITS:
                self._counts[when] += 1
            place = self._place
            here = place is not None and self._counts[place.point] == place.nth
            if here and place is not None:
                here = place.point == point or (write in COMMITS and place.point == when)
        if here:
            self._happen()

    def count(self, point: str) -> int:
        """How often a place was reached: a full name, or "before", "inside", "after" of any commit."""
        with self._lock:
            return self._counts[point]

    def places(self) -> tuple[Place, ...]:
        """Every place there was, to be armed one after the other in later runs."""
        with self._lock:
            commits = [Place(when, n + 1) for when in POINTS for n in range(self._counts[when])]
            others = [
                Place(name, n + 1)
                for name, times in self._counts.items()
                if name not in POINTS and name.rpartition(".")[0] not in WRITES
                for n in range(times)
            ]
        return tuple(commits + others)

    def _happen(self) -> None:
        if self._then is not None:
            self._then()
            return
        assert self._place is not None
        match self._place.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case other:
                raise AssertionError(other)


def crash() -> None:
    """Raise Crashed: a plan for `Pauses(place, crash)`, where a real kill would take the test along."""
    raise Crashed


def arm(hooks: Hooks | None) -> None:
    """From now on `reach`, and every SqliteStore that is opened, tells these hooks; None disarms."""
    global _armed  # noqa: PLW0603 - one process dies once: the plan is the process's
    _armed = hooks
    sqlite.SqliteStore = ArmedStore  # type: ignore[misc]


def reach(point: str) -> None:
    """Say that this place was reached; does nothing when no test armed it."""
    if _armed is not None:
        _armed(point)


_Plain = sqlite.SqliteStore


class ArmedStore(_Plain):
    """The SQLite store of this process, with the armed hooks beside its own."""

    def __init__(self, path: str | os.PathLike[str], *, hooks: Hooks | None = None, **options: Any) -> None:
        super().__init__(path, hooks=_both(hooks, reach), **options)


def _both(first: Hooks | None, second: Hooks) -> Hooks:
    if first is None:
        return second

    def tell(point: str) -> None:
        first(point)
        second(point)

    return tell
