"""Cases O-42 to O-57: cancels and ends that race, timeouts and blocking, loops and limits.

A test is named by the number of its case. `not_applicable.md` lists the cases, or parts of one, that nothing in this
release can meet, with the rule that says so.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost import (
    CallContext,
    Finish,
    FunctionModel,
    Limits,
    ModelFailed,
    ModelRequest,
    Recovery,
    Reply,
    Result,
    StopReason,
    TaskState,
    ToolMessage,
    tool,
)
from fencepost.core.entries import AttemptFailed, ModelAsked, Stopped
from fencepost.models.scripted import call, calls, say
from fencepost.ports import TaskRow
from fencepost.testing.clock import FakeClock
from fencepost.tools.process import ProcessTool
from tests.cases import commands
from tests.conformance.stage import (
    HUNG_SECONDS,
    TENANT,
    TINY_SECONDS,
    Stage,
    forever,
    held,
    raw,
    reply,
    results,
    said,
)

# How long a command may go on, and what O-49 gives for ending it. Seconds.
COMMAND_SECONDS, ENDING_SECONDS = 0.5, 3.0
RACES = 100
SIDES = ("before", "after")


def cited(result: Result) -> list[str]:
    """The evidence ids the model was given, in order."""
    return [m.evidence_id for m in result.messages if isinstance(m, ToolMessage) and m.evidence_id]


def requests(result: Result) -> int:
    """How many times the model was asked."""
    return sum(isinstance(entry.body, ModelAsked) for entry in result.entries)


def stop(result: Result) -> Stopped:
    """The one terminal entry."""
    (body,) = (entry.body for entry in result.entries if isinstance(entry.body, Stopped))
    return body


class Commands:
    """Runs shell commands in a tool of its own process, and hears when nothing of one is left."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.port = stage, 0
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(5) == b"begun"
        self.begun.set()
        assert await reader.read() == b""
        writer.close()
        self.over.set()

    async def tool(self) -> ProcessTool:
        """A read, so that a command that was ended asks nobody; its child is warm."""
        made = tool(name="run", effect="read", description="runs", isolation="process")(commands.runs)
        assert isinstance(made, ProcessTool)
        async with asyncio.timeout(HUNG_SECONDS):
            await made.warm()
        return made

    def asks(self, command: str) -> Reply:
        effects = str(self.stage.effects.path)
        return calls(call("run", command=command, port=self.port, effects=effects))


@pytest.fixture
async def shell(stage: Stage) -> AsyncIterator[Commands]:
    shell = Commands(stage)
    server = await asyncio.start_server(shell.met, "127.0.0.1", 0)
    async with server:
        shell.port = server.sockets[0].getsockname()[1]
        yield shell


# --- K08: cancels and ends that race -----------------------------------------------------------------------


async def test_o42_a_cancel_ends_the_command_a_tool_runs(stage: Stage, shell: Commands) -> None:
    agent = stage.agent([shell.asks("sleep 60")], await shell.tool(), limits=Limits(steps=3))
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(shell.begun)
    row = await stage.cancel("task-1")
    assert row.state is TaskState.CANCELLED
    result = await running
    await held(shell.over)
    assert (result.outcome, said(result)) == ("fenced", [("cancelled", "CANCELLED")])
    assert await stage.store.entries(TENANT, "task-1") == result.entries


async def test_o43_after_a_cancel_no_request_and_no_call_starts(stage: Stage) -> None:
    asked: list[int] = []

    async def says(request: ModelRequest) -> Reply:
        asked.append(request.step)
        if request.step == 2:
            await stage.cancel("task-1")
        return calls(call("act", n=request.step))

    agent = stage.agent([], stage.act(), model=FunctionModel(says))
    result = await stage.run(agent, task="task-1")
    assert (result.reason, asked, stage.ran()) == (StopReason.CANCELLED, [1, 2], ["act 1"])


async def test_o44_of_a_cancel_and_an_end_the_first_commit_wins(stage: Stage) -> None:
    chance = random.Random(44)
    ends: set[TaskState] = set()
    for number in range(RACES):
        ends.add(await race(stage, f"task-{number}", at=chance.randint(1, 4), side=chance.choice(SIDES)))
    assert ends == {TaskState.CANCELLED, TaskState.SUCCEEDED}


async def race(stage: Stage, task: str, *, at: int, side: str) -> TaskState:
    """How a task of four commits ends beside a cancel that sets out at one of them, and is not waited for."""
    cancels: list[asyncio.Task[TaskRow]] = []

    def set_out(reached: int) -> None:
        if reached == at:
            cancels.append(asyncio.create_task(stage.cancel(task)))

    stage.store.commits, stage.store.before, stage.store.after = 0, None, None
    setattr(stage.store, side, set_out)
    act = stage.act(then=lambda context, n: asyncio.sleep(0, "done"))  # where the loop has its turn
    agent = stage.agent([calls(call("act", n=1)), say("done")], act)
    result = await stage.run(agent, task=task)
    (row,) = await asyncio.gather(*cancels)
    again = await stage.cancel(task)  # after the end: an answer and never a change
    assert row.state is again.state is (await stage.store.row(TENANT, task)).state
    entries = await stage.store.entries(TENANT, task)
    assert [e.body for e in entries if isinstance(e.body, Stopped)] == [entries[-1].body]
    assert result.entries == entries
    return again.state


@pytest.mark.parametrize("side", SIDES)
async def test_o44_both_orders_of_the_last_commit_and_a_cancel(stage: Stage, side: str) -> None:
    async def cancel(reached: int) -> None:
        if reached == 2:  # the commit that holds the end
            await stage.cancel("task-1")

    setattr(stage.store, side, cancel)
    result = await stage.run(stage.agent([say("done")]), task="task-1")
    first = StopReason.CANCELLED if side == "before" else StopReason.COMPLETED
    assert (stop(result).reason, result.reason) == (first, first)


async def test_o45_a_tool_that_raises_a_cancel_of_its_own_has_failed_and_the_run_goes_on(
    stage: Stage,
) -> None:
    def raises(context: CallContext, n: int) -> None:
        raise asyncio.CancelledError

    result = await stage.play([calls(call("look")), say("done")], stage.look(then=raises))
    assert (result.reason, said(result)) == (StopReason.COMPLETED, [("failed", "tool_error")])


async def test_o45_a_cancel_is_not_hidden_by_a_tool_that_raises_one_too(stage: Stage) -> None:
    async def raises(context: CallContext, n: int) -> None:
        await stage.cancel(context.task)
        raise asyncio.CancelledError

    result = await stage.play([calls(call("look")), say("done")], stage.look(then=raises))
    assert (result.state, stop(result).reason) == (TaskState.CANCELLED, StopReason.CANCELLED)


async def test_o46_what_was_done_before_a_cancel_stays_readable(stage: Stage) -> None:
    async def fifth(context: CallContext, n: int) -> str:
        if n == 4:
            await stage.cancel(context.task)
        return f"found {n}"

    script = [calls(*(call("look", n=n) for n in range(6)))]
    result = await stage.play(script, stage.look(then=fifth), answer="cited")
    assert (result.state, said(result)) == (
        TaskState.CANCELLED,
        [("ok", "")] * 4 + [("cancelled", "CANCELLED")] * 2,
    )
    assert cited(result) == [f"ev-1.{position}" for position in range(4)]
    assert (result.row.tokens, result.row.calls) == (15, 6)


# --- K09: timeouts and blocking ----------------------------------------------------------------------------


async def test_o47_a_sync_tool_that_blocks_keeps_no_other_task_waiting(stage: Stage) -> None:
    begun, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool(name="sits", effect="read")
    def sits(context: CallContext) -> str:
        """Block until the other task is over."""
        stage.note("sits", context)
        loop.call_soon_threadsafe(begun.set)
        assert release.wait(HUNG_SECONDS), "the event loop was blocked"
        return "at last"

    slow = asyncio.create_task(stage.play([calls(call("sits")), say("slow")], sits))
    await held(begun)
    other = await stage.play([calls(call("look")), say("quick")], stage.look())
    assert (other.text, slow.done()) == ("quick", False)
    release.set()
    assert (await slow).text == "slow"


async def test_o48_what_a_thread_brings_after_its_time_changes_nothing(stage: Stage) -> None:
    release = threading.Event()

    @tool(name="sits", effect="read")
    def sits(context: CallContext) -> str:
        """Block for longer than there is."""
        stage.note("sits", context)
        release.wait(HUNG_SECONDS)
        return "late"

    limits = Limits(steps=3, tool_seconds=TINY_SECONDS, grace_seconds=TINY_SECONDS)
    result = await stage.play([calls(call("sits")), say("done")], sits, limits=limits)
    assert said(result) == [("timeout", "timeout")]
    before = await stage.store.row(TENANT, result.task)
    release.set()
    assert [record.content for record in await stage.late(result.task)] == ["late"]
    after = await stage.store.row(TENANT, result.task)
    assert (after.chain, after.seq, after.late) == (before.chain, before.seq, 1)
    assert await stage.store.entries(TENANT, result.task) == result.entries


async def test_o49_a_command_that_ignores_its_end_is_ended_with_its_children(
    stage: Stage, shell: Commands
) -> None:
    limits = Limits(steps=3, tool_seconds=COMMAND_SECONDS, grace_seconds=ENDING_SECONDS)
    script = [shell.asks("trap '' TERM; sleep 300 & sleep 300"), say("done")]
    result = await stage.play(script, await shell.tool(), limits=limits)
    await held(shell.over)
    assert (result.reason, said(result)) == (StopReason.COMPLETED, [("timeout", "timeout")])
    assert result.row.seconds < COMMAND_SECONDS + ENDING_SECONDS


async def test_o49_a_command_that_leaves_a_child_does_not_hold_its_call(
    stage: Stage, shell: Commands
) -> None:
    script = [shell.asks("sleep 300 & echo done"), say("done")]
    result = await stage.play(script, await shell.tool(), limits=Limits(steps=3))
    await held(shell.over)
    assert [ended.content for ended in results([e.body for e in result.entries])] == ["ended with 0"]


async def test_o50_a_request_that_is_never_answered_ends_after_its_own_time_once(stage: Stage) -> None:
    limits = Limits(steps=3, model_seconds=TINY_SECONDS, task_seconds=60.0, grace_seconds=TINY_SECONDS)
    result = await stage.run(stage.agent([], model=FunctionModel(forever), limits=limits))
    (failed,) = (e.body for e in result.entries if isinstance(e.body, AttemptFailed))
    (asked,) = (e.body for e in result.entries if isinstance(e.body, ModelAsked))
    assert (result.reason, failed.kind) == (StopReason.LLM_TIMEOUT, "timeout")
    assert (
        failed.charged_tokens == asked.reserved_tokens
    )  # what it used is not known, and not taken for nothing


async def test_o50_all_attempts_together_have_no_more_time_than_the_task(stage: Stage) -> None:
    clock = FakeClock()
    busy = ModelFailed("busy", kind="status", status=429, retriable=True, retry_after=30.0)
    limits = Limits(steps=3, task_seconds=50.0, attempts_per_step=3)
    result = await stage.play([busy, busy, say("late")], limits=limits, options={"clock": clock})
    assert result.state is TaskState.FAILED
    assert result.row.seconds <= 50.0


# --- K10: loops, limits, stop reasons ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "Let me check…"], ids=["o51", "o52"])
async def test_o51_a_limit_keeps_what_was_found_and_is_no_success(stage: Stage, text: str) -> None:
    script = [calls(call("look", n=n), text=text) for n in range(5)]
    result = await stage.play(script, stage.look(), answer="cited", limits=Limits(steps=3))
    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.MAX_STEPS_EXHAUSTED)
    assert (requests(result), said(result)) == (3, [("ok", "")] * 3)
    assert cited(result) == ["ev-1.0", "ev-2.0", "ev-3.0"]
    assert result.answer is None


async def test_o51_the_last_permitted_step_may_answer(stage: Stage) -> None:
    result = await stage.play([say("at once")], limits=Limits(steps=1))
    assert (result.reason, requests(result)) == (StopReason.COMPLETED, 1)


async def test_o52_words_beside_the_last_calls_are_no_answer(stage: Stage) -> None:
    script = [calls(call("look", n=n), text="Let me check…") for n in range(3)]
    result = await stage.play(script, stage.look(), limits=Limits(steps=2))
    assert (result.reason, result.text) == (StopReason.MAX_STEPS_EXHAUSTED, "")


def pairs(stage: Stage, found: Callable[[], Any]) -> Any:
    """A read of two arguments."""

    @tool(name="read_x", effect="read")
    async def read_x(context: CallContext, a: int, b: int) -> Any:
        """Read."""
        stage.note("read_x", context)
        return found()

    return read_x


def turned(times: int) -> list[Reply]:
    """The same call so often, its members in turn in one order and in the other."""
    texts = ['{"a":1,"b":2}', '{"b":2,"a":1}']
    return [reply(raw("read_x", texts[n % 2], f"c{n}")) for n in range(times)]


async def test_o53_the_order_of_members_makes_no_other_call(stage: Stage) -> None:
    read_x = pairs(stage, lambda: "the same")
    result = await stage.play(turned(6), read_x, recovery=Recovery(repeats=4))
    assert result.reason is StopReason.REPEATED_TOOL_CALL
    assert said(result) == [("ok", "")] * 3 + [("not_executed", "REPEATED_TOOL_CALL")]
    assert len(stage.ran()) == 3


async def test_o53_another_result_starts_the_count_anew(stage: Stage) -> None:
    news = iter("aabaabaa")
    read_x = pairs(stage, lambda: next(news))
    result = await stage.play([*turned(8), say("done")], read_x, recovery=Recovery(repeats=4))
    assert (result.reason, len(stage.ran())) == (StopReason.COMPLETED, 8)


async def test_o54_each_call_of_a_tool_that_is_not_there_is_told_which_there_are(stage: Stage) -> None:
    script = [calls(call("generic_command", x=1)) for _ in range(5)]
    result = await stage.play([*script, calls(call("look", n=1)), say("done")], stage.look())
    told = [m.content for m in result.messages if isinstance(m, ToolMessage)]
    assert all("there is no tool 'generic_command'; tools: look" in each for each in told[:5])
    assert (result.reason, result.asks, stage.ran()) == (StopReason.COMPLETED, (), ["look 1"])


async def test_o54_a_policy_may_stop_at_the_first(stage: Stage) -> None:
    script = [calls(call("generic_command", x=1))]
    result = await stage.play(script, stage.look(), recovery=Recovery.strict())
    assert (result.reason, stage.ran()) == (StopReason.TOOL_DENIED, [])
    assert "generic_command" in stop(result).detail


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_o55_never_more_calls_run_than_are_left(stage: Stage, parallel: bool) -> None:
    script = [calls(*(call("look", n=n) for n in range(8)))]
    look = stage.look(parallel=parallel)
    result = await stage.play(script, look, limits=Limits(steps=3, tool_calls=6, parallel_calls=3))
    assert result.reason is StopReason.MAX_TOOL_CALLS_EXHAUSTED
    assert sorted(stage.ran()) == [f"look {n}" for n in range(6)]
    assert [status for status, _ in said(result)] == ["ok"] * 6 + ["not_executed"] * 2


async def test_o56_a_cycle_of_two_is_found_before_the_steps_are_used_up(stage: Stage) -> None:
    script = [calls(call("look", n=n % 2)) for n in range(6)]
    result = await stage.play(script, stage.look(), limits=Limits(steps=20))
    assert (result.reason, stage.ran()) == (
        StopReason.REPEATED_TOOL_CALL,
        ["look 0", "look 1", "look 0", "look 1"],
    )
    assert "look" in stop(result).detail


@pytest.mark.parametrize(
    ("script", "limits", "reason", "detail"),
    [
        ([calls(call("look"))], Limits(steps=1), StopReason.MAX_STEPS_EXHAUSTED, "1 steps were used"),
        (
            [calls(call("look", n=n)) for n in range(2)],
            Limits(steps=3, tool_calls=1),
            StopReason.MAX_TOOL_CALLS_EXHAUSTED,
            "1 tool calls were used",
        ),
        ([say("cut", finish=Finish.LENGTH)], Limits(steps=3), StopReason.TRUNCATED_REPLY, "cut off"),
        (
            [ModelFailed("no key", kind="auth", status=401)],
            Limits(steps=3),
            StopReason.LLM_ERROR,
            "step 1, attempt 1: auth",
        ),
    ],
    ids=lambda value: value.value if isinstance(value, StopReason) else "",
)
async def test_o57_the_end_says_which_limit_or_what_failed_without_the_transcript(
    stage: Stage, script: Any, limits: Limits, reason: StopReason, detail: str
) -> None:
    result = await stage.play(script, stage.look(), limits=limits)
    assert (result.row.reason, stop(result).reason) == (reason, reason)
    assert detail in stop(result).detail
