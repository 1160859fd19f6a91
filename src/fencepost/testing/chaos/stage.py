"""The stage of one rehearsal: a world that is looked at, tools that are watched, a store that can fail.

Rule 1: nothing of a tool is changed: its body is driven step by step from outside, and between two steps it
may be held, asked to end, or left behind as by a process that died.
Rule 2: after a death nothing reaches the store and no body goes on, until somebody resumes the task.
Rule 3: the world is what the probe says, else the files below the folder of the rehearsal.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fencepost.core.arguments import read_arguments
from fencepost.core.errors import FencepostError
from fencepost.core.lifecycle import TERMINAL, StopReason
from fencepost.core.messages import ToolDefinition
from fencepost.core.state import fold
from fencepost.ports import (
    CallContext,
    Change,
    Commit,
    LateRecord,
    Lease,
    Prepared,
    Receipt,
    Reconciled,
    Tool,
)
from fencepost.run.foreign import describe
from fencepost.run.live import Live
from fencepost.run.running import stop_change
from fencepost.stores.memory import MemoryStore
from fencepost.testing.chaos.facts import JOURNAL, Plan, Problem, Ran, line_of
from fencepost.testing.pauses import Crashed

TASK, TENANT, PERSON = "chaos", "local", "local/chaos"
# A call that is made to time out gets so long. Seconds: enough to reach its await on a busy machine.
TIMEOUT_SECONDS = 0.2
# An effect that comes this long after the end of its call is seen; one that comes later is not. Seconds.
LATE_SECONDS = 0.3
# What is looked at of a folder.
FILES_MOST = 2000
Probe = Callable[[], Any]


def look(folder: Path, probe: Probe | None) -> str:
    """The world as canonical JSON."""
    if probe is not None:
        return json.dumps(probe(), sort_keys=True, default=repr)
    files = sorted(path for path in folder.rglob("*") if path.is_file())[:FILES_MOST]
    seen = {str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace") for path in files}
    return json.dumps(seen, sort_keys=True)


def children() -> dict[int, str]:
    """The processes that this one started, or inherited from one it started, and that have not ended."""
    found: dict[int, str] = {}
    for number in _numbers():
        try:
            stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        name, _, rest = stat.rpartition(")")
        state, parent = rest.split()[:2]
        if parent == str(os.getpid()) and state not in "ZX":
            found[int(number)] = name.partition("(")[2]
    return found


def _numbers() -> list[str]:
    """The processes that may be children: the kernel's own list, else all there are."""
    try:
        return [
            n for each in Path("/proc/self/task").iterdir() for n in (each / "children").read_text().split()
        ]
    except OSError:
        return [path.name for path in Path("/proc").glob("[0-9]*")]


class Stage:
    """What one rehearsal shares: its plan, what was seen of each call, and whether it is dead or cancelled."""

    def __init__(self, plan: Plan, *, folder: Path, probe: Probe | None, tell: Callable[[str], None]) -> None:
        self.plan, self.tell = plan, tell
        self.runs: list[Ran] = []
        self.problems: list[Problem] = []
        self.commits = 0
        self.dead = self.cancelled = self.disturbed = False
        self.life = 1
        self.live = Live()
        self.kept: list[
            object
        ] = []  # bodies that a dead process left; collecting them would run their clean-up
        self._folder, self._probe = folder, probe
        self._flying: list[Ran] = []
        self.store = StageStore(self)

    def look(self) -> str:
        """The world as canonical JSON."""
        return look(self._folder, self._probe)

    def digest(self) -> str:
        """The world, to be compared."""
        return hashlib.sha256(self.look().encode()).hexdigest()

    def problem(self, rule: str, tool: str, says: str) -> None:
        """Keep a rule that does not hold; the first time says all."""
        if not any(known.rule == rule and known.tool == tool for known in self.problems):
            self.problems.append(Problem(rule, tool, says))

    def begin(self, ran: Ran) -> None:
        """A body is about to run."""
        self.runs.append(ran)
        self._flying.append(ran)
        for each in self._flying if len(self._flying) > 1 else ():
            each.alone = False
        if self.cancelled:
            self.problem("cancel", ran.tool, f"{ran.tool} was started after the task had been cancelled")

    def end(self, ran: Ran) -> None:
        """A body has come to an end."""
        self._flying.remove(ran)

    def die(self) -> None:
        """From here on it is as if the process were gone."""
        self.dead = self.disturbed = True

    def revive(self) -> None:
        """A new process takes the task over."""
        self.dead = False
        self.life += 1
        self._flying.clear()

    async def cancel(self) -> None:
        """A person ends the task."""
        self.disturbed = True

        def act(row: Any, entries: Any, now: float) -> Change | None:
            if row.state in TERMINAL:
                return None
            return stop_change(fold(entry.body for entry in entries), StopReason.CANCELLED, by=PERSON)

        row, written = await self.store.intervene(TENANT, TASK, PERSON, act)
        if written:
            self.cancelled = True
            self.live.fence(TENANT, TASK, row.epoch)

    async def quiet(self) -> None:
        """Wait for what calls that were asked to end may still do, and see whether they did it."""
        asked = [ran for ran in self.runs if ran.asked is not None and not ran.waited]
        if not asked:
            return
        await asyncio.sleep(LATE_SECONDS)
        now = self.digest()
        for ran in asked:
            ran.waited = True
            ran.late = ran.ended is not None and ran.alone and ran.after != now

    def planned(self, ran: Ran) -> str:
        """What happens to this call at this await: "crash_in", "cancel_in", "timeout_in" or nothing."""
        plan = self.plan
        here = (ran.call, ran.start, ran.pauses) == (plan.call, 1, plan.pause)
        if ran.asked is not None and plan.kind != "crash_in":
            return ""  # asked to end already: this is the body's clean-up, and nobody asks twice
        return plan.kind if here and not self.disturbed else ""


class StageStore(MemoryStore):
    """The reference store, with the planned death or cancel at one of its commits."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
        self._told = 0  # the entries up to here were told, for the case that the process does not end well

    async def append(self, commit: Commit, /) -> Receipt:
        """Write the commit, unless the process dies before it; die or be cancelled after it."""
        stage, plan = self._stage, self._stage.plan
        self._alive()
        number = stage.commits + 1
        planned = plan.nth == number and not stage.disturbed
        if planned and plan.kind == "crash_before":
            stage.die()
            raise Crashed
        receipt = await super().append(commit)
        stage.commits = number
        for entry in await self.entries(TENANT, TASK, after=self._told):
            self._told = entry.seq
            stage.tell(JOURNAL + line_of(entry))
        stage.tell(f"commit {number} was made")
        if planned and plan.kind == "crash_after":
            stage.die()
            raise Crashed
        if planned and plan.kind == "cancel":
            await stage.cancel()
        return receipt

    async def release(self, lease: Lease, /, *, seconds: float, not_before: float | None = None) -> None:
        """Give the task back, if alive."""
        self._alive()
        await super().release(lease, seconds=seconds, not_before=not_before)

    async def record_late(self, record: LateRecord, /) -> None:
        """Keep a late result, if alive."""
        self._alive()
        await super().record_late(record)

    def _alive(self) -> None:
        if self._stage.dead:
            raise Crashed


class WatchedTool:
    """A tool, watched from around its body."""

    def __init__(self, tool: Tool, stage: Stage) -> None:
        self._tool, self._stage = tool, stage
        self.name = tool.definition.name
        plan = stage.plan
        timed = plan.kind == "timeout_in" and plan.tool == self.name
        self._definition = replace(tool.definition, timeout=TIMEOUT_SECONDS) if timed else tool.definition

    @property
    def definition(self) -> ToolDefinition:
        """That of the tool; where its time is to run out, with less time."""
        return self._definition

    @property
    def threaded(self) -> bool:
        """That of the tool."""
        return self._tool.threaded

    def prepare(self, arguments: str, /) -> Prepared:
        """The tool's word, asked twice."""
        prepared = self._tool.prepare(arguments)
        again = self._tool.prepare(arguments)
        if (prepared.canonical, prepared.digest) != (again.canonical, again.digest):
            self._problem(
                "same_arguments",
                f"{self.name} reads the same arguments {arguments:.80} differently each time: as"
                f" {prepared.canonical:.80} and as {again.canonical:.80}; an approval or a restart would be about"
                " another call",
            )
        try:
            read_arguments(arguments)
        except FencepostError as why:
            self._problem("strict_arguments", f"{self.name} takes arguments that are none ({why})")
        return prepared

    def operation_key(self, prepared: Prepared, /) -> str | None:
        """The tool's word, asked twice."""
        key, again = self._tool.operation_key(prepared), self._tool.operation_key(prepared)
        if key != again:
            self._problem(
                "same_operation",
                f"{self.name} names one operation differently each time ({key!r:.60}, then {again!r:.60}), so the"
                " same effect can be had twice; make the operation key from the arguments alone",
            )
        return key

    async def run(self, prepared: Prepared, context: CallContext, /) -> Any:
        """What the body brings; death, a hold or a cancel may come between."""
        stage, call = self._stage, f"{context.step}.{context.position}"
        await stage.quiet()  # else what a call before this one does late would be seen as this one's
        ran = Ran(
            call, self.name, self._tool.definition.effect.value, context.key, context.start, stage.digest()
        )
        stage.begin(ran)
        if stage.plan.kind == "crash_at" and stage.planned(ran):
            stage.die()
            raise Crashed
        stage.tell(f"call {call} of {self.name} was at work")
        there = children()
        try:
            if self._tool.threaded:
                value = await self._tool.run(prepared, context)
            else:
                value = await Driven(self._tool.run(prepared, context), ran, stage)
        except Crashed:
            ran.cut = True
            raise
        except BaseException as error:
            self._judge_raised(ran, error)
            raise
        else:
            ran.finished = True
            return value
        finally:
            ran.after = stage.digest()
            ran.ended = time.monotonic()
            ran.left = {number: name for number, name in children().items() if number not in there}
            if ran in stage._flying:  # noqa: SLF001 - one part with the stage; a dead run's calls are gone
                stage.end(ran)

    async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
        """The tool's word on a lost start, compared with what was seen of it."""
        try:
            word = await self._tool.reconcile(prepared, context)
        except Exception as error:
            self._problem(
                "reconcile",
                f"the reconcile of {self.name} fails with {describe(error)}, so a person is asked each time; it is"
                " called with the key of the call, and with its arguments if it takes two",
            )
            raise
        earlier = [ran for ran in self._stage.runs if ran.key == context.key]
        happened = any(ran.had_effect for ran in earlier)
        finished = any(ran.finished for ran in earlier)
        said = getattr(word, "verdict", None)
        if said == "happened" and not happened:
            self._problem(
                "reconcile", f"the reconcile of {self.name} says that a call happened whose work never began"
            )
        if said == "did_not_happen" and finished:
            self._problem(
                "reconcile",
                f"the reconcile of {self.name} says that a call did not happen that had done its work; it will"
                " be done a second time",
            )
        return word

    def _judge_raised(self, ran: Ran, error: BaseException) -> None:
        ran.raised = type(error).__name__
        if isinstance(error, (asyncio.CancelledError, Exception)):
            return
        self._problem(
            "raises",
            f"{self.name} raises {ran.raised}, which is no Exception: code around it cannot tell that from the end of"
            " the process; raise ToolFailed",
        )

    def _problem(self, rule: str, says: str) -> None:
        self._stage.problem(rule, self.name, says)


class Driven:
    """A body that is driven one await at a time, so that something can happen between two of them."""

    def __init__(self, body: Awaitable[Any], ran: Ran, stage: Stage) -> None:
        self._body, self._ran, self._stage, self._life = body, ran, stage, stage.life

    def __await__(self) -> Generator[Any, Any, Any]:
        """What the body brings, or Crashed when its process is dead."""
        body: Any = self._body.__await__()
        step: Callable[[], Any] = functools.partial(next, body)
        while True:
            began = time.monotonic()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self._ran.longest = max(self._ran.longest, time.monotonic() - began)
            self._ran.pauses += 1
            try:
                yield from self._happen(waits_for)
                sent = yield waits_for
            except BaseException as why:  # noqa: BLE001 - whatever it is, the body is who hears of it
                self._live_on(body)
                self._asked(why)
                step = functools.partial(body.throw, why)
            else:
                self._live_on(body)
                step = functools.partial(body.send, sent)

    def _happen(self, waits_for: Any) -> Generator[Any, Any, None]:
        """Do what is planned at this await; a call that is to be ended from outside is held until it is."""
        planned = self._stage.planned(self._ran)
        if planned == "crash_in":
            self._stage.die()
            raise Crashed
        if planned not in ("cancel_in", "timeout_in"):
            return
        self._stage.disturbed = True
        loop = asyncio.get_running_loop()
        if planned == "cancel_in":
            self._stage.kept.append(loop.create_task(self._stage.cancel()))
        held: asyncio.Future[None] = loop.create_future()
        try:
            yield from held
        except asyncio.CancelledError:
            if waits_for is None or not waits_for.cancel():
                raise  # else what the body waits for was cancelled, and it hears of it there

    def _live_on(self, body: object) -> None:
        """Raise Crashed when the process of this body is dead; the body stays as it was."""
        if self._stage.dead or self._stage.life != self._life:
            self._stage.kept.append(body)
            raise Crashed

    def _asked(self, why: BaseException) -> None:
        if isinstance(why, asyncio.CancelledError) and self._ran.asked is None:
            self._ran.asked, self._ran.asked_world = time.monotonic(), self._stage.digest()
