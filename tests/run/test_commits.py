"""What is committed when, and what happens when it cannot be (contract 2.5, 7.3, 8.1)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fencepost import (
    CallContext,
    Limits,
    MemoryStore,
    OutcomeUnknown,
    StopReason,
    StoreFailed,
    TaskNotFound,
    TaskState,
    tool,
)
from fencepost.core.entries import CallEnded, CallStarted, ModelAsked, Replied, Stopped
from fencepost.core.lifecycle import TERMINAL
from fencepost.models.scripted import call, calls, say
from fencepost.run import running
from fencepost.testing import Crashed, Pauses, Place
from fencepost.testing.pauses import crash
from tests.conformance.stage import Stage, forever, held, said
from tests.run.conftest import Switch

TINY = 0.02


def kinds_by_commit(result: running.Result) -> list[list[str]]:
    """The kinds of the entries of each commit, in order."""
    by_commit: dict[str, list[str]] = {}
    for entry in result.entries:
        by_commit.setdefault(entry.commit_id, []).append(type(entry.body).__name__)
    return list(by_commit.values())


@pytest.mark.parametrize(("replies", "each"), [(1, 0), (2, 1), (3, 2), (4, 5)])
async def test_k_replies_and_m_calls_in_sequence_cost_k_plus_m_plus_one_commits(
    stage: Stage, switch: Switch, replies: int, each: int
) -> None:
    hooks = switch.hooks = Pauses()
    script = [calls(*(call("look", n=10 * k + m) for m in range(each))) for k in range(replies - 1)]
    result = await stage.play([*script, say("done")], stage.look(), limits=Limits(10))
    m = each * (replies - 1)
    assert result.text == "done"
    assert hooks.count("append.inside") == replies + m + 1


async def test_the_outcome_of_one_action_and_the_intent_of_the_next_are_one_commit(stage: Stage) -> None:
    script = [calls(call("look", n=1), call("look", n=2)), say("done")]
    result = await stage.play(script, stage.look())
    assert kinds_by_commit(result) == [
        ["Opened"],
        ["ModelAsked"],
        ["Replied", "CallStarted"],
        ["CallEnded", "CallStarted"],
        ["CallEnded", "ModelAsked"],
        ["Replied", "Stopped"],
    ]


async def test_each_of_a_group_is_committed_when_it_ends_and_lost_to_no_sibling(stage: Stage) -> None:
    go = asyncio.Event()

    async def body(_: CallContext, n: int) -> str:
        if n == 2:
            await go.wait()
        return f"look {n}"

    agent = stage.agent(
        [calls(call("look", n=1), call("look", n=2)), say("done")], stage.look(then=body, parallel=True)
    )
    caller = asyncio.create_task(stage.run(agent, task="t"))
    ended: list[Any] = []
    while not ended:
        await asyncio.sleep(0)
        with contextlib.suppress(TaskNotFound):
            ended = [e for e in await stage.store.entries("local", "t") if isinstance(e.body, CallEnded)]
    assert [e.body.position for e in ended] == [0]
    go.set()
    assert (await caller).text == "done"


async def test_a_crash_costs_the_results_that_were_committed_nothing(stage: Stage, switch: Switch) -> None:
    agent = stage.agent([calls(call("act", n=1), call("act", n=2)), say("done")], stage.act())
    switch.hooks = Pauses(Place("append.after", 3), crash)  # the first has ended, the second is started
    with pytest.raises(Crashed):
        await stage.run(agent, task="t")
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    assert [(ask.about, ask.position, ask.cause) for ask in result.asks] == [("outcome", 1, "crash")]
    assert stage.ran() == ["act 1"]
    await stage.cancel("t")
    stage.models.clear()


# --- large results


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_a_result_that_is_cut_is_kept_whole_with_its_entry(
    stage: Stage, switch: Switch, parallel: bool
) -> None:
    whole = "x" * 5000
    look = stage.look(then=lambda *_: whole, parallel=parallel)
    limits = Limits(5, result_bytes=1000)
    result = await stage.play([calls(call("look")), say("done")], look, limits=limits)
    ended = next(e.body for e in result.entries if isinstance(e.body, CallEnded))
    assert (ended.cut, ended.size_bytes > 5000 - 1, len(ended.content) <= 1000) == (True, True, True)
    assert ended.artifact == ended.digest
    assert whole in (await stage.store.artifact("local", ended.artifact)).decode()


async def test_a_cut_result_whose_commit_failed_leaves_no_artifact(stage: Stage, switch: Switch) -> None:
    look = stage.look(then=lambda *_: "x" * 5000)
    digests: list[str] = []

    def fails() -> None:
        raise StoreFailed("no room")

    agent = stage.agent([calls(call("look")), say("done")], look, limits=Limits(5, result_bytes=1000))
    switch.hooks = Pauses(Place("append.inside", 3), fails)
    with pytest.raises(StoreFailed):
        await stage.run(agent, task="t")
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    digests += [b.artifact for e in result.entries if isinstance(b := e.body, CallEnded)]
    assert (result.text, len(digests)) == ("done", 1)
    assert len(stage.effects.lines()) == 2  # a read runs again


# --- groups


async def test_a_group_is_bounded_and_a_call_that_is_not_parallel_is_a_barrier(stage: Stage) -> None:
    now: Counter[str] = Counter()
    most = 0

    async def body(_: CallContext, n: int) -> int:
        nonlocal most
        now["flying"] += 1
        most = max(most, now["flying"])
        await asyncio.sleep(0)
        now["flying"] -= 1
        return n

    tools = stage.look(then=body, parallel=True), stage.look("alone", then=body)
    asked = [*(call("look", n=n) for n in range(5)), call("alone", n=5), call("look", n=6)]
    result = await stage.play([calls(*asked), say("done")], *tools, limits=Limits(5, parallel_calls=3))
    assert (most, result.text) == (3, "done")
    assert stage.ran()[5] == "alone 5"


@pytest.mark.parametrize("cap", [2, 4])
async def test_a_commit_that_fails_with_landings_to_be_noted_ends_the_run_once(
    stage: Stage, switch: Switch, cap: int
) -> None:
    def fails() -> None:
        raise StoreFailed("no room")

    look = stage.look(parallel=True)
    limits = Limits(5, parallel_calls=cap)
    agent = stage.agent([calls(*(call("look", n=n) for n in range(5))), say("done")], look, limits=limits)
    switch.hooks = Pauses(Place("append.before", 3), fails)
    with pytest.raises(StoreFailed):
        await stage.run(agent, task="t")
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    assert (result.text, said(result)) == ("done", [("ok", "")] * 5)


async def test_a_thread_in_flight_when_a_commit_fails_is_left_and_its_end_is_late(
    stage: Stage, switch: Switch
) -> None:
    go, begun = threading.Event(), threading.Event()

    @tool(effect="read", parallel=True)
    def slow(context: CallContext) -> str:
        """Wait."""
        stage.note("slow", context)
        begun.set()
        go.wait()
        return "late news"

    def quick(*_: Any) -> str:
        begun.wait()
        return "quick"

    def fails() -> None:
        raise StoreFailed("no room")

    look = stage.look(then=quick, parallel=True)
    switch.hooks = Pauses(Place("append.before", 3), fails)
    with pytest.raises(StoreFailed):
        await stage.play([calls(call("slow"), call("look"))], slow, look, options={"task": "t"})
    switch.hooks = None
    go.set()
    assert [r.content for r in await stage.late("t")] == ["late news"]


async def test_a_release_while_the_calls_of_a_stopping_task_end_leaves_it_open(stage: Stage) -> None:
    ending, go = asyncio.Event(), asyncio.Event()

    async def tidies(_: CallContext, n: int) -> None:
        try:
            await forever()
        finally:
            if n == 2:
                ending.set()
                await go.wait()

    limits = Limits(5, task_seconds=TINY, grace_seconds=20.0)
    look = stage.look(then=tidies, parallel=True)
    agent = stage.agent([calls(call("look", n=1), call("look", n=2))], look, limits=limits)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(ending)
    for _turn in range(5):  # the first has ended, the task is out of time, and waits for the second
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await stage.store.row("local", "t")).state is TaskState.READY_TO_RESUME
    result = await stage.resume(agent, "t")
    assert (result.reason, said(result)) == (StopReason.TASK_TIMEOUT, [("timeout", "timeout")] * 2)


# --- tools without a verdict


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_tool_that_says_it_does_not_know_has_an_unknown_outcome_if_it_writes(
    stage: Stage, effect: str
) -> None:
    def shrugs(*_: Any) -> None:
        raise OutcomeUnknown("the connection was lost")

    result = await stage.play([calls(call("act")), say("done")], stage.act(then=shrugs, effect=effect))
    if effect == "write":
        assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "unknown")]
        stage.models.clear()
    else:
        assert said(result) == [("failed", "tool_error")]


# --- the end


def test_an_exit_of_the_process_inside_the_store_is_passed_on(tmp_path: Path) -> None:
    def leaves() -> None:
        raise SystemExit(7)

    async def plays() -> None:
        stage = Stage(MemoryStore(hooks=Pauses(Place("append.before", 1), leaves)), tmp_path)
        await stage.play([say("done")])

    with pytest.raises(SystemExit) as caught:
        asyncio.run(plays())
    assert caught.value.code == 7


async def test_totals_and_seconds_are_in_the_row_of_every_commit(stage: Stage, clock: Any) -> None:
    async def slow(*_: Any) -> str:
        clock.advance(7)
        return "slow"

    script = [calls(call("look")), say("done")]
    result = await stage.play(script, stage.look(then=slow), options={"clock": clock})
    assert result.row.seconds == 7
    assert [e.seconds for e in result.entries if isinstance(e.body, (CallStarted, Stopped))] == [0, 7]
    assert (result.row.tokens, result.row.steps, result.row.calls) == (30, 2, 1)
    assert result.row.state in TERMINAL
    assert result.reason is StopReason.COMPLETED
    kinds = [type(e.body) for e in result.entries]
    assert kinds.count(ModelAsked) == kinds.count(Replied) == 2
