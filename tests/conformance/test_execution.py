"""Rows B, L31 to L35 and L41 to L43: what the bodies of tools may do to a run, which is nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fencepost import (
    CallContext,
    FunctionModel,
    Limits,
    ModelFailed,
    ModelRequest,
    Reply,
    StopReason,
    TaskState,
    Tool,
    ToolMessage,
    tool,
)
from fencepost.core.entries import Replied
from fencepost.models.scripted import call, calls, say, streamed
from fencepost.ports import Sink
from fencepost.service import tasks
from tests.conformance.stage import TINY_SECONDS, Stage, forever, held, said, starts

QUICK = Limits(steps=10, tool_seconds=TINY_SECONDS, grace_seconds=TINY_SECONDS)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what is wrong")


RAISED = [
    ValueError("no"),
    RecursionError("deep"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    StopIteration(),
    StopAsyncIteration(),
    BaseExceptionGroup("two", [ValueError("one"), SystemExit(2)]),
    Unspeakable(),
]
KINDS = ["read", "idempotent", "write"]


def threaded(
    stage: Stage, then: Callable[[CallContext], Any], *, effect: Any = "write", parallel: bool = False
) -> Tool:
    """A sync tool `act`, which runs in a thread."""

    def body(context: CallContext, n: int = 0) -> Any:
        stage.note("act", context, n)
        return then(context)

    return tool(name="act", effect=effect, parallel=parallel, description="does it")(body)


# --- L31, L32: what a body raises or returns ------------------------------------------------------------


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["alone", "parallel", "thread"])
async def test_l31_whatever_a_tool_raises_is_one_failed_call(
    stage: Stage, raised: BaseException, how: str
) -> None:
    def fail(*_: Any) -> Any:
        raise raised

    act = threaded(stage, fail) if how == "thread" else stage.act(then=fail, parallel=how == "parallel")
    script = [calls(call("act", n=1), call("look", n=2)), say("done")]
    result = await stage.play(script, act, stage.look(parallel=how == "parallel"))
    assert result.reason is StopReason.COMPLETED
    assert sorted(stage.ran()) == ["act 1", "look 2"]
    assert said(result) == [("failed", "tool_error"), ("ok", "")]


async def test_l31_a_tool_that_recurses_without_end_is_one_failed_call(stage: Stage) -> None:
    def deeper(*_: Any) -> Any:
        return deeper()

    result = await stage.play([calls(call("act")), say("done")], stage.act(then=deeper))
    assert (result.reason, said(result)) == (StopReason.COMPLETED, [("failed", "tool_error")])


async def test_l31_a_tool_that_times_itself_out_is_one_failed_call(stage: Stage) -> None:
    async def waits(*_: Any) -> None:
        async with asyncio.timeout(0):
            await forever()

    result = await stage.play([calls(call("act")), say("done")], stage.act(then=waits))
    assert (result.reason, said(result)) == (StopReason.COMPLETED, [("failed", "tool_error")])


async def test_l31_what_a_tool_raises_is_told_without_instructions_to_try_again(stage: Stage) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("the disk is\0 on \ud800 fire")

    result = await stage.play([calls(call("act")), say("done")], stage.act(then=fail))
    (text,) = [m.content for m in result.messages if isinstance(m, ToolMessage)]
    assert "on fire" not in text
    assert "\0" not in text
    text.encode()


RETURNED: dict[str, Callable[[], Any]] = {
    "object": object,
    "50-MB": lambda: "x" * 50_000_000,
    "bytes": lambda: b"\x00\xff" * 10,
    "none": lambda: None,
    "generator": lambda: (i for i in range(3)),
    "lone-surrogate": lambda: {"a\ud800": "b\udc00\0"},
    "nan": lambda: [float("nan"), float("inf")],
    "huge-integer": lambda: 10**5000,
    "deep": lambda: _nested(5000),
    "cyclic": lambda: _cyclic(),  # noqa: PLW0108 - defined below
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l32_whatever_a_tool_returns_is_stored_in_one_bounded_form(
    stage: Stage, kind: str, parallel: bool
) -> None:
    act = stage.act(then=lambda *_: RETURNED[kind](), parallel=parallel)
    result = await stage.play([calls(call("act", n=1)), say("done")], act)
    assert result.reason is StopReason.COMPLETED
    assert stage.ran() == ["act 1"]
    (body,) = [e.body for e in result.entries if type(e.body).__name__ == "CallEnded"]
    assert said(result) == [("ok", "")]
    stored = msgspec.to_builtins(body)
    assert len(stored["content"].encode()) <= 64 * 1024
    if kind == "50-MB":
        assert stored["cut"]
        assert stored["size_bytes"] == 50_000_000
        whole = await stage.store.artifact("local", stored["artifact"])
        assert len(whole) == 50_000_000


# --- L33: a tool that does not end in time --------------------------------------------------------------


class Slow:
    """Bodies that do not end in time: they behave, swallow the cancel, or sit in a thread."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.begun, self.go = asyncio.Event(), asyncio.Event()  # `begun` is set when `wanted` bodies began
        self.go_thread = threading.Event()
        self.wanted, self.count = 1, 0

    def release(self) -> None:
        self.go.set()
        self.go_thread.set()

    def begins(self) -> None:
        self.count += 1
        if self.count == self.wanted:
            self.begun.set()

    async def _behaves(self, *_: Any) -> str:
        self.begins()
        await self.go.wait()
        return "late news"

    async def _swallows(self, *_: Any) -> str:
        self.begins()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                continue
        return "late news"

    def tool(self, kind: str, effect: Any, *, parallel: bool) -> Tool:
        if kind == "thread":
            loop = asyncio.get_running_loop()

            def sits(_: CallContext) -> str:
                loop.call_soon_threadsafe(self.begins)
                assert self.go_thread.wait(20)
                return "late news"

            return threaded(self.stage, sits, effect=effect, parallel=parallel)
        then = self._behaves if kind == "behaves" else self._swallows
        return self.stage.act(then=then, effect=effect, parallel=parallel)

    async def is_late(self, kind: str, task: str) -> None:
        """Let the body end: what it brings now is kept beside the journal, once, and nowhere else."""
        before = await self.stage.store.entries("local", task)
        self.release()
        if kind == "behaves":
            assert await self.stage.store.late("local", task) == ()
            return
        (record,) = await self.stage.late(task)
        assert (record.step, record.position, record.start) == (1, 0, 1)
        assert (record.status, record.content) == ("ok", "late news")
        assert await self.stage.store.entries("local", task) == before
        assert (await self.stage.store.row("local", task)).late == 1
        assert b"late news" not in b"".join(msgspec.json.encode(e.body) for e in before)


@pytest.fixture
def slow(stage: Stage) -> Any:
    slow = Slow(stage)
    yield slow
    slow.release()


@pytest.mark.parametrize("kind", ["behaves", "swallows", "thread"])
@pytest.mark.parametrize("effect", KINDS)
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l33_a_call_that_does_not_end_in_time_is_left(
    stage: Stage, slow: Slow, kind: str, effect: str, parallel: bool
) -> None:
    act = slow.tool(kind, effect, parallel=parallel)
    script = [calls(call("act", n=1)), say("done")]
    result = await stage.play(script, act, limits=QUICK)
    if effect == "write":
        assert (result.outcome, result.state) == ("waiting", TaskState.WAITING_APPROVAL)
        assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "timeout")]
    else:
        assert result.reason is StopReason.COMPLETED
        assert said(result) == [("timeout", "timeout")]
    await slow.is_late(kind, result.task)
    assert stage.ran() == ["act 1"]


async def test_l33_a_late_result_within_the_grace_period_is_late_all_the_same(stage: Stage) -> None:
    async def tidies_up(*_: Any) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return "late news"
        return ""

    limits = Limits(steps=3, tool_seconds=TINY_SECONDS, grace_seconds=20.0)
    script = [calls(call("look")), say("done")]
    result = await stage.play(script, stage.look(then=tidies_up), limits=limits)
    assert said(result) == [("timeout", "timeout")]
    assert [record.content for record in await stage.late(result.task)] == ["late news"]


async def test_l33_a_tools_own_timeout_is_the_one_that_counts(stage: Stage) -> None:
    limits = Limits(steps=3, tool_seconds=20, grace_seconds=TINY_SECONDS)
    look = stage.look(then=forever, timeout=TINY_SECONDS)
    result = await stage.play([calls(call("look")), say("done")], look, limits=limits)
    assert said(result) == [("timeout", "timeout")]


# --- L34, L35: the same on cancel and on a lost lease -----------------------------------------------------


@pytest.mark.parametrize("kind", ["behaves", "swallows", "thread"])
@pytest.mark.parametrize("effect", KINDS)
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l34_a_cancel_closes_a_call_in_flight_and_its_end_is_late(
    stage: Stage, slow: Slow, kind: str, effect: str, parallel: bool
) -> None:
    act = slow.tool(kind, effect, parallel=parallel)
    agent = stage.agent([calls(call("act", n=1), call("act", n=2))], act)
    slow.wanted = 2 if parallel else 1
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(slow.begun)
    row = await stage.cancel("task-1")
    assert row.state is TaskState.CANCELLED
    result = await running
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    started = ("unknown" if effect == "write" else "cancelled", "CANCELLED")
    second = started if parallel else ("cancelled", "CANCELLED")
    assert said(result) == [started, second]
    entries = await stage.store.entries("local", "task-1")
    slow.release()
    late = () if kind == "behaves" else await stage.late("task-1")
    assert {record.content for record in late} <= {"late news"}
    assert await stage.store.entries("local", "task-1") == entries
    assert sorted(stage.ran()) == (["act 1", "act 2"] if parallel else ["act 1"])


@pytest.mark.parametrize("kind", ["behaves", "swallows", "thread"])
@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l35_a_run_that_lost_its_lease_writes_nothing_and_its_result_is_late(
    stage: Stage, slow: Slow, kind: str, effect: str, parallel: bool
) -> None:
    act = slow.tool(kind, effect, parallel=parallel)
    agent = stage.agent([calls(call("act", n=1))], act)
    running = asyncio.create_task(stage.run(agent, task="task-1", lease_seconds=1.5))
    await held(slow.begun)
    taken = await stage.store.claim(
        "thief", lease_seconds=None, tenant="local", task="task-1", take_over=True
    )
    assert taken is not None
    result = await running  # its next heartbeat is refused
    assert result.outcome == "fenced"
    assert said(result) == []
    await slow.is_late(kind, "task-1")
    assert stage.ran() == ["act 1"]
    await tasks.cancel(stage.store, "task-1")


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l35_a_result_whose_commit_is_refused_is_kept_as_late(stage: Stage, parallel: bool) -> None:
    async def robbed(context: CallContext, n: int) -> str:
        await stage.store.claim("thief", lease_seconds=None, tenant="local", task="task-1", take_over=True)
        return "late news"

    agent = stage.agent([calls(call("act", n=1))], stage.act(then=robbed, parallel=parallel))
    result = await stage.run(agent, task="task-1")
    assert (result.outcome, said(result)) == ("fenced", [])
    assert [record.content for record in await stage.late("task-1")] == ["late news"]
    assert (await stage.store.row("local", "task-1")).late == 1


# --- L41 to L43: groups, barriers, and providers that break off -------------------------------------------


class Gauge:
    """How many bodies are in flight, how many were at most, and the order of begins and ends."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.story: list[str] = []
        self._both = asyncio.Event()

    def measured(self, name: str, wanted: int, fails: tuple[int, ...] = ()) -> Callable[..., Any]:
        """A body that ends once `wanted` bodies were in flight together."""

        async def body(context: CallContext, n: int) -> str:
            self.story.append(f"+{name}{n}")
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now >= wanted:
                self._both.set()
            await held(self._both)
            self.now -= 1
            self.story.append(f"-{name}{n}")
            if n in fails:
                raise ValueError(f"{name}{n} fails")
            return f"{name}{n}"

        return body


async def test_l41_one_failure_in_a_group_costs_no_sibling_its_result(stage: Stage) -> None:
    gauge = Gauge()
    act = stage.act(then=gauge.measured("a", 2, fails=(1,)), parallel=True)
    limits = Limits(steps=5, parallel_calls=2)
    script = [calls(*(call("act", n=i) for i in range(5))), say("done")]
    result = await stage.play(script, act, limits=limits)
    assert result.reason is StopReason.COMPLETED
    assert said(result) == [("ok", ""), ("failed", "tool_error"), ("ok", ""), ("ok", ""), ("ok", "")]
    assert gauge.most == 2
    told = [m.content for m in result.messages if isinstance(m, ToolMessage)]
    assert [text for text in told if "fails" not in text] == ["a0", "a2", "a3", "a4"]
    assert "a1 fails" in told[1]


async def test_l41_each_result_is_committed_when_its_call_ends(stage: Stage) -> None:
    first_is_in = asyncio.Event()

    async def body(context: CallContext, n: int) -> str:
        if n == 1:
            await held(first_is_in)
        return "in"

    async def look(number: int) -> None:
        ended = [b for b in await stage.bodies("task-1") if type(b).__name__ == "CallEnded"]
        if ended:
            first_is_in.set()

    stage.store.after = look
    act = stage.act(then=body, parallel=True)
    agent = stage.agent([calls(call("act", n=1), call("act", n=0)), say("done")], act)
    result = await stage.run(agent, task="task-1")
    assert said(result) == [("ok", ""), ("ok", "")]


async def test_l42_a_call_that_is_not_parallel_is_a_barrier(stage: Stage) -> None:
    gauge = Gauge()
    side = stage.act("side", gauge.measured("s", 1), parallel=True)
    alone = stage.act("alone", gauge.measured("a", 1))
    order = [call("side", n=1), call("side", n=2), call("alone", n=3), call("side", n=4), call("side", n=5)]
    result = await stage.play([calls(*order), say("done")], side, alone)
    assert result.reason is StopReason.COMPLETED
    at = gauge.story.index("+a3")
    assert sorted(gauge.story[:at]) == ["+s1", "+s2", "-s1", "-s2"]
    assert gauge.story[at + 1] == "-a3"
    assert sorted(gauge.story[at + 2 :]) == ["+s4", "+s5", "-s4", "-s5"]


async def test_l42_a_barrier_waits_for_the_last_of_the_group_before_it(stage: Stage) -> None:
    go, overlaps = asyncio.Event(), list[int]()
    inside: set[int] = set()

    async def side(context: CallContext, n: int) -> str:
        inside.add(n)
        if n == 2:
            await held(go)
        inside.discard(n)
        return "seen"

    def alone(context: CallContext, n: int) -> str:
        overlaps.extend(inside)
        go.set()
        return "seen"

    async def lets_go(number: int) -> None:
        bodies = await stage.bodies("task-1")
        if any(type(b).__name__ == "CallEnded" for b in bodies) and (1, 2, 1) not in starts(bodies):
            go.set()

    stage.store.after = lets_go
    tools = stage.act("side", side, parallel=True), stage.act("alone", alone)
    script = [calls(call("side", n=1), call("side", n=2), call("alone", n=3)), say("done")]
    result = await stage.run(stage.agent(script, *tools), task="task-1")
    assert result.reason is StopReason.COMPLETED
    assert overlaps == []


async def test_l43_a_provider_that_fails_after_a_complete_call_runs_nothing(stage: Stage) -> None:
    class BreaksOff:
        profile = FunctionModel(lambda request: say("")).profile

        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            assert sink is not None
            streamed(calls(call("act", n=1)), sink)
            raise ModelFailed("the connection broke", kind="protocol")

    result = await stage.play([], stage.act(), model=BreaksOff())
    assert result.reason is StopReason.LLM_ERROR
    assert stage.ran() == []
    assert not any(isinstance(e.body, Replied) for e in result.entries)
    assert any(event.delta is not None for event in stage.events)
