"""A journal as a script: its segments, where the replay is in it, and what comes next for whom.

Rule 1: a *segment* is what one claim wrote; a crash, a release or a takeover ends it without a word.
Rule 2: what people and operators wrote lies between segments and is played as it is; a closing is made again.
Rule 3: nothing here looks beyond the end of the present segment: a run cannot know what came after it.
"""

from __future__ import annotations

import asyncio
import bisect
import re
from collections.abc import Iterator

from msgspec import Struct

from fencepost.core.entries import (
    ApprovalAsked,
    CallEnded,
    CallStarted,
    Entry,
    EntryBody,
    ModelAsked,
    OutcomeResolved,
    Replied,
    Stopped,
    kind_of,
)
from fencepost.core.errors import StoreCorrupt
from fencepost.core.state import State, apply

# As `stores.rules.act_id` names what was not written by a run.
_ACT = re.compile(r"act-\d+-\d+\Z")


class Part(Struct, frozen=True):
    """Consecutive entries [start, end) of a journal: one claim's, or one act of somebody else."""

    start: int
    end: int
    act: bool


def parts_of(entries: tuple[Entry, ...]) -> tuple[Part, ...]:
    """The journal after entry 1, cut where another claim or somebody else wrote."""
    parts: list[Part] = []
    for at, entry in enumerate(entries[1:], 1):
        act = _ACT.match(entry.commit_id) is not None
        last = parts[-1] if parts else None
        before = entries[at - 1]
        same = entry.commit_id == before.commit_id if act else entry.epoch == before.epoch
        if last is not None and last.act == act and same:
            parts[-1] = Part(last.start, at + 1, act)
        else:
            parts.append(Part(at, at + 1, act))
    return tuple(parts)


class Script:
    """A recorded journal and a place in it. `states[i]` is the state before entry i (from 0)."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.parts = parts_of(entries)
        self.start = self.at = self.end = 1
        self.states: list[State] = [State()]
        for entry in entries:
            try:
                self.states.append(apply(self.states[-1], entry.body))
            except (LookupError, AssertionError):
                raise StoreCorrupt(
                    f"journal entry {entry.seq} ({kind_of(entry.body)}) cannot follow the entries before it"
                ) from None
        self._ended: dict[int, asyncio.Event] = {}
        self._about: dict[tuple[int, int], list[int]] = {}
        self.replies: dict[int, Replied] = {}
        self.digests: dict[tuple[str, str], str] = {}
        for at, entry in enumerate(entries):
            self._index(at, entry.body)

    def _index(self, at: int, body: EntryBody) -> None:
        match body:
            case CallStarted() | CallEnded() | OutcomeResolved():
                self._about.setdefault((body.step, body.position), []).append(at)
            case ApprovalAsked():
                for ask in body.asks:
                    self._about.setdefault((ask.step, ask.position), []).append(at)
            case Replied():
                self.replies[body.step] = body
                for call in body.calls:
                    self.digests[call.name, call.arguments] = call.digest
            case _:
                pass

    def enter(self, part: Part) -> None:
        """Play this part."""
        self.start = self.at = part.start
        self.end = part.end
        self._ended = {}

    @property
    def next(self) -> Entry | None:
        """The entry that comes next, None at the end of the segment."""
        return self.entries[self.at] if self.at < self.end else None

    def rest(self) -> Iterator[EntryBody]:
        """What is still to come in this segment."""
        for at in range(self.at, self.end):
            yield self.entries[at].body

    def asked(self, step: int, attempt: int) -> int | None:
        """The index of the request for this attempt, in this journal before the present place."""
        for at in range(self.at - 1, 0, -1):
            body = self.entries[at].body
            if isinstance(body, ModelAsked) and (body.step, body.attempt) == (step, attempt):
                return at
        return None

    def about(self, step: int, position: int) -> Iterator[tuple[int, EntryBody]]:
        """What is still to come about one call, with its index; the end of the task is about every call."""
        known = self._about.get((step, position), [])
        for at in known[bisect.bisect_left(known, self.at) : bisect.bisect_left(known, self.end)]:
            yield at, self.entries[at].body
        last = self.entries[self.end - 1].body
        if isinstance(last, Stopped) and self.at < self.end:
            yield self.end - 1, last

    def start_of(self, step: int, position: int) -> EntryBody | None:
        """What comes of the next attempt to start a call: its start, or what came instead."""
        for _, body in self.about(step, position):
            if not isinstance(body, OutcomeResolved):  # noted, perhaps, and not committed yet
                return body
        return None

    def ended(self, at: int) -> asyncio.Event:
        """Set when the call whose end is entry `at` has ended in the replay."""
        return self._ended.setdefault(at, asyncio.Event())

    async def turn(self, at: int) -> None:
        """Return when every call that was in flight and ended before entry `at` has ended."""
        for earlier in range(self.at, at):
            body = self.entries[earlier].body
            if isinstance(body, CallEnded) and self._began(body, before=at):
                await self.ended(earlier).wait()

    def _began(self, end: CallEnded, *, before: int) -> bool:
        """Whether this segment has a start of the call that ended."""
        known = self._about[end.step, end.position]
        began = known[bisect.bisect_left(known, self.start) : bisect.bisect_left(known, before)]
        return any(isinstance(self.entries[at].body, CallStarted) for at in began)
