"""Where a conformance row is played: a real loop, a real store, scripted replies, effects that are counted.

Rule 1: what really ran is read from a file outside the store, never from the journal under test.
Rule 2: `Stage.verify` runs after every row (conftest.py), so that no row can forget the invariants.
Rule 3: nothing waits for time to pass: a body waits for an event, a deadline is a few milliseconds.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost import (
    Agent,
    CallContext,
    Event,
    Finish,
    Limits,
    Live,
    Recovery,
    Reply,
    Result,
    ScriptedModel,
    Store,
    Tool,
    ToolCall,
    Usage,
    resume_task,
    run_task,
    tool,
)
from fencepost.core.entries import Body, CallEnded, CallStarted, EntryBody
from fencepost.core.messages import ToolDefinition
from fencepost.ports import Authorization, LateRecord, TaskRow
from fencepost.run.live import TERMINAL_KINDS
from fencepost.service import tasks
from tests.conformance.invariants import EffectLine, check_task

TENANT = "local"
TENANTS = (TENANT, "other")
# Long enough for a commit on a slow disk, short enough that nobody notices.
TINY_SECONDS = 0.03
# A body that waits this long has hung: the row is wrong, not slow.
HUNG_SECONDS = float(os.environ.get("FENCEPOST_HUNG_SECONDS", "20"))

Script = Sequence[Any]


class Says:
    """A boundary that allows everything it has no other word for; `words` may change, with `version`."""

    self_approval = True

    def __init__(self, version: str = "rules-1", /, **words: str) -> None:
        self.version, self.words = version, words

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        verdict = self.words.get(definition.name, "allow")
        return Authorization(verdict, f"the rules say {verdict}", self.version)


class Effects:
    """A file outside the store; a line is appended when the body of a tool begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.touch()

    def append(self, line: EffectLine) -> None:
        with self._lock, self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def lines(self) -> list[EffectLine]:
        return [msgspec.json.decode(line, type=EffectLine) for line in self.path.read_bytes().splitlines()]


class Stage:
    """One row's store, effects and watchers."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store: Any = Between(store)
        self.effects = Effects(folder / "effects.jsonl")
        self.live = Live()
        self.events: list[Event] = []
        self.live.listen(self.events.append)
        self.models: list[ScriptedModel] = []
        self._runs = 0

    # -- what runs

    def act(
        self,
        name: str = "act",
        then: Callable[..., Any] | None = None,
        *,
        effect: Any = "write",
        **options: Any,
    ) -> Tool:
        """An async tool that writes its line, then does `then(context, n)` or returns "<name> <n>"."""

        async def body(context: CallContext, n: int = 0) -> Any:
            await self._begin(name, context, n)
            if then is None:
                return f"{name} {n}"
            said = then(context, n)
            return await said if inspect.isawaitable(said) else said

        return tool(name=name, effect=effect, description="does it", **options)(body)

    def look(self, name: str = "look", then: Callable[..., Any] | None = None, **options: Any) -> Tool:
        """The same, declared as a read."""
        return self.act(name, then, effect="read", **options)

    async def _begin(self, name: str, context: CallContext, n: int) -> None:
        entries = await self.store.entries(context.tenant, context.task)
        committed = any(
            isinstance(e.body, CallStarted)
            and (e.body.step, e.body.position, e.body.start)
            == (context.step, context.position, context.start)
            for e in entries
        )
        self.note(name, context, n, committed=committed)

    def note(self, name: str, context: CallContext, n: int = 0, *, committed: bool = True) -> None:
        """Write the line of a body; a thread cannot read the store: there `committed` is taken on trust."""
        self.effects.append(
            EffectLine(
                context.task, name, context.step, context.position, context.start, context.key, n, committed
            )
        )

    def agent(
        self,
        script: Script,
        *tools: Tool,
        limits: Limits | None = None,
        recovery: Recovery | None = None,
        answer: Any = "text",
        boundary: Any = None,
        instructions: str = "",
        model: Any = None,
        **profile: Any,
    ) -> Agent:
        """An agent whose model says the script; all it asks for is allowed unless `boundary` says else."""
        if model is None:
            model = ScriptedModel(script, **profile)
            self.models.append(model)
        return Agent(
            "actor",
            model,
            limits or Limits(steps=10, grace_seconds=TINY_SECONDS),
            tools=tools,
            instructions=instructions,
            recovery=recovery or Recovery.default(),
            answer=answer,
            boundary=boundary or Says(),
        )

    async def play(
        self, script: Script, *tools: Tool, options: dict[str, Any] | None = None, **agent: Any
    ) -> Result:
        """Run a new task of a scripted agent to where it stops, waits or is left."""
        return await self.run(self.agent(script, *tools, **agent), **(options or {}))

    async def run(self, agent: Agent, prompt: str = "do it", **options: Any) -> Result:
        self._runs += 1
        return await run_task(agent, prompt, store=self.store, live=self.live, **options)

    async def resume(self, agent: Agent, task: str, **options: Any) -> Result:
        self._runs += 1
        return await resume_task(agent, task, store=self.store, live=self.live, **options)

    async def cancel(self, task: str) -> TaskRow:
        return await tasks.cancel(self.store, task, live=self.live)

    async def decide(self, task: str, call: str, *, approve: bool = True, **options: Any) -> TaskRow:
        return await tasks.decide_approval(self.store, task, call, approve=approve, live=self.live, **options)

    # -- what is read

    def ran(self, task: str | None = None) -> list[str]:
        """What really began, as "<tool> <n>", in order."""
        return [f"{line.tool} {line.n}" for line in self.effects.lines() if task in (None, line.task)]

    async def late(self, task: str) -> tuple[LateRecord, ...]:
        """The late records of a task, after at least one was kept."""
        await held(self.store.late_kept)
        found: tuple[LateRecord, ...] = await self.store.late(TENANT, task)
        return found

    async def bodies(self, task: str) -> list[EntryBody]:
        return [e.body for e in await self.store.entries(TENANT, task)]

    async def verify(self) -> None:
        """The invariants of every task there is; the script's end; one terminal event per run."""
        rows = [row for tenant in TENANTS for row in await self.store.tasks(tenant, limit=1000)]
        effects = self.effects.lines()
        assert {line.task for line in effects} <= {row.id for row in rows}
        for row in rows:
            await check_task(self.store, row, effects)
        starts = sum(event.kind == "start" for event in self.events)
        ends = sum(event.kind in TERMINAL_KINDS for event in self.events)
        assert (starts, ends) == (self._runs, self._runs), "every run tells its start and one end"


def results(bodies: Sequence[Body]) -> list[CallEnded]:
    """The results in a journal, in the order they were committed."""
    return [body for body in bodies if isinstance(body, CallEnded)]


def said(result: Result) -> list[tuple[str, str]]:
    """(status, failure) of every call of a task, in the order of the calls."""
    found = sorted(results([e.body for e in result.entries]), key=lambda b: (b.step, b.position))
    return [(body.status.value, body.failure) for body in found]


def starts(bodies: Sequence[Body]) -> list[tuple[int, int, int]]:
    """(step, position, start) of every start in a journal."""
    return [(b.step, b.position, b.start) for b in bodies if isinstance(b, CallStarted)]


def raw(name: str, arguments: str, call_id: Any = "c1") -> ToolCall:
    """A call whose arguments are exactly this text."""
    return ToolCall(call_id, name, arguments)


def reply(*asked: Any, text: str = "", finish: Any = "tool_calls", **more: Any) -> Reply:
    """A reply as a provider's adapter hands it over."""
    more.setdefault("usage", Usage(input_tokens=10, output_tokens=5))
    return Reply(text, asked, Finish(finish), **more)


async def held(event: asyncio.Event) -> None:
    """Wait for an event, and fail instead of hanging."""
    async with asyncio.timeout(HUNG_SECONDS):
        await event.wait()


async def forever(*_: Any) -> Any:
    """Never ends by itself."""
    await asyncio.Event().wait()


class Crash(BaseException):
    """The process is gone, as far as the run can tell."""


class Between:
    """A Store that calls `before` and `after` around each commit of a run, numbered from 1; the rest passes.

    What `before` raises is a crash before the commit, what `after` raises one after it. `late_kept` is set
    when a late record was kept.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.before: Callable[[int], Any] | None = None
        self.after: Callable[[int], Any] | None = None
        self.commits = 0
        self.late_kept = asyncio.Event()

    async def append(self, commit: Any, /) -> Any:
        self.commits += 1
        number = self.commits
        await _called(self.before, number)
        receipt = await self.store.append(commit)
        await _called(self.after, number)
        return receipt

    async def record_late(self, record: Any, /) -> None:
        await self.store.record_late(record)
        self.late_kept.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


async def _called(function: Callable[[int], Any] | None, number: int) -> None:
    if function is not None:
        done = function(number)
        if inspect.isawaitable(done):
            await done


def crash_at(number: int) -> Callable[[int], None]:
    """Crash at the commit of that number."""

    def crash(reached: int) -> None:
        if reached == number:
            raise Crash(f"at commit {number}")

    return crash
