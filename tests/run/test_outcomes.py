"""Lost starts, what tools say became of them, and operation keys (contract 8.2, 8.3)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from fencepost import CallContext, Limits, Reconciled, Recovery, StopReason
from fencepost.core.entries import CallEnded, CallStarted, OutcomeResolved
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.core.recovery import OnUnknown
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Authorization
from fencepost.service import tasks
from fencepost.testing import Crashed, Pauses, Place
from fencepost.testing.pauses import crash
from tests.conformance.stage import Says, Stage, forever, said
from tests.run.conftest import Switch, contents

TINY = 0.02
QUICK = Limits(steps=5, tool_seconds=TINY, grace_seconds=TINY)


# --- reconcile


@pytest.mark.parametrize(
    ("word", "outcome", "ran"),
    [
        (Reconciled("happened", {"id": 7}), "ok", ["act 0"]),
        ("did_not_happen", "ok", ["act 0", "act 0"]),
        ("cannot_tell", "asked", ["act 0"]),
        (Reconciled("perhaps"), "asked", ["act 0"]),
        (ValueError("no idea"), "asked", ["act 0"]),
        ("hangs", "asked", ["act 0"]),
    ],
    ids=["happened", "did_not_happen", "cannot_tell", "another word", "raises", "hangs"],
)
async def test_a_lost_write_is_what_its_tool_says_it_is(
    stage: Stage, word: Any, outcome: str, ran: list[str]
) -> None:
    asked: list[str] = []

    async def became(key: str) -> Any:
        asked.append(key)
        if word == "hangs":
            await forever()
        if isinstance(word, Exception):
            raise word
        return word

    async def first(context: CallContext, _: int) -> str:
        if context.start == 1:
            await forever()
        return "second time"

    act = stage.act(then=first, reconcile=became)
    result = await stage.run(stage.agent([calls(call("act")), say("done")], act, limits=QUICK), task="t")
    assert (asked, stage.ran()) == (["t:1.0"], ran)
    resolved = [e.body for e in result.entries if isinstance(e.body, OutcomeResolved)]
    if outcome == "asked":
        assert [(ask.about, ask.position) for ask in result.asks] == [("outcome", 0)]
        await tasks.cancel(stage.store, "t")
        stage.models.clear()
        return
    assert result.text == "done"
    assert resolved[0].source == "reconcile"
    assert contents(result)[0] == ('{"id":7}' if ran == ["act 0"] else "second time")


async def test_a_tool_that_never_says_what_happened_is_asked_once(stage: Stage) -> None:
    go, asked = asyncio.Event(), []

    async def stubborn(key: str) -> str:
        asked.append(key)
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
        return "happened"

    act = stage.act(then=forever, reconcile=stubborn)
    result = await stage.run(stage.agent([calls(call("act"))], act, limits=QUICK), task="t")
    assert (asked, [ask.about for ask in result.asks]) == (["t:1.0"], ["outcome"])
    go.set()
    await asyncio.sleep(0)


async def test_recovery_may_tell_the_model_or_stop_instead_of_asking(stage: Stage) -> None:
    act = stage.act(then=forever)
    told = await stage.play(
        [calls(call("act")), say("done")],
        act,
        limits=QUICK,
        recovery=Recovery(unknown_outcome=OnUnknown.TELL_MODEL),
    )
    assert (said(told), told.text) == ([("unknown", "outcome_unknown")], "done")
    stopped = await stage.play(
        [calls(call("act"))], act, limits=QUICK, recovery=Recovery(unknown_outcome=OnUnknown.STOP)
    )
    assert stopped.reason is StopReason.TOOL_OUTCOME_UNKNOWN


# --- calls found started


async def test_a_lost_read_and_a_lost_idempotent_call_run_again_under_their_keys(
    stage: Stage, switch: Switch
) -> None:
    tools = stage.look(parallel=True), stage.act("put", effect="idempotent", parallel=True)
    agent = stage.agent([calls(call("look"), call("put")), say("done")], *tools)
    switch.hooks = Pauses(Place("append.after", 2), crash)
    with pytest.raises(Crashed):
        await stage.run(agent, task="t")
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    assert (said(result), result.text) == ([("ok", ""), ("ok", "")], "done")
    starts = [(b.position, b.start, b.key) for e in result.entries if isinstance(b := e.body, CallStarted)]
    assert starts == [(0, 1, "t:1.0"), (1, 1, "t:1.1"), (0, 2, "t:1.0"), (1, 2, "t:1.1")]


async def test_an_approved_call_whose_tool_was_dropped_fails_and_runs_nothing(stage: Stage) -> None:
    agent = stage.agent([calls(call("act")), say("done")], stage.act(), boundary=Says(act="ask"))
    await stage.run(agent, task="t")
    await stage.decide("t", "1.0")
    without = stage.agent([], stage.look(), model=agent.model)
    await tasks.accept_definition(stage.store, "t", without)
    result = await stage.resume(without, "t")
    ended = [e.body for e in result.entries if isinstance(e.body, CallEnded)]
    assert [(b.status.value, b.failure) for b in ended] == [("failed", "unknown_tool")]
    assert "the tool act is no longer part of this task" in ended[0].content
    assert (result.text, stage.ran()) == ("done", [])


async def test_a_call_whose_tool_an_operator_changed_is_asked_about_by_the_rules_again(stage: Stage) -> None:
    class Reads(Says):
        def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
            word = "allow" if definition.effect is Effect.READ else "ask"
            return Authorization(word, "", self.version)

    async def leaves(context: CallContext, _: int) -> str:
        if context.start == 1:
            stage.live.running["local", "t"].release()  # type: ignore[attr-defined]
        return "looked"

    script = [calls(call("look"), call("act"), call("scan")), say("done")]
    tools = stage.look(then=leaves), stage.look("act"), stage.look("scan")
    agent = stage.agent(script, *tools, boundary=Reads())
    assert (await stage.run(agent, task="t")).outcome == "released"
    writes = stage.agent([], tools[0], stage.act(), tools[2], model=agent.model, boundary=Reads())
    await tasks.accept_definition(stage.store, "t", writes)
    waiting = await stage.resume(writes, "t")
    assert [(ask.tool, ask.about) for ask in waiting.asks] == [("act", "approval")]
    assert stage.ran() == ["look 0", "look 0"]
    await stage.decide("t", "1.1")
    assert (await stage.resume(writes, "t")).text == "done"
    assert stage.ran() == ["look 0", "look 0", "act 0", "scan 0"]


async def test_a_lost_write_whose_tool_was_dropped_can_still_be_resolved_and_is_not_run(
    stage: Stage, switch: Switch
) -> None:
    agent = stage.agent([calls(call("act")), say("done")], stage.act())
    switch.hooks = Pauses(Place("append.after", 2), crash)
    with pytest.raises(Crashed):
        await stage.run(agent, task="t")
    switch.hooks = None
    without = stage.agent([], stage.look(), model=agent.model)
    await tasks.accept_definition(stage.store, "t", without)
    assert [a.about for a in (await stage.resume(without, "t", take_over=True)).asks] == ["outcome"]
    await tasks.resolve_outcome(stage.store, "t", "1.0", "did_not_happen")
    result = await stage.resume(without, "t")
    assert (said(result), result.text, stage.ran()) == ([("failed", "unknown_tool")], "done", [])


# --- operation keys


def keyed(stage: Stage, name: str = "act", **options: Any) -> Any:
    return stage.act(name, operation_key=lambda arguments: f"op-{arguments.get('n', 0)}", **options)


async def test_an_operation_that_succeeded_is_not_run_again_and_gives_its_earlier_result(
    stage: Stage,
) -> None:
    act = keyed(stage)
    first = await stage.play([calls(call("act", n=1)), say("done")], act)
    second = await stage.play([calls(call("act", n=1)), say("done")], act)
    assert stage.ran() == ["act 1"]
    assert contents(second)[0] == contents(first)[0] == "act 1"
    assert said(second) == [("ok", "")]
    assert await stage.store.operation("local", "op-1") == ("succeeded", "act 1")


async def test_an_operation_that_failed_may_be_run_again(stage: Stage) -> None:
    tries: list[int] = []

    async def fails_once(_: CallContext, n: int) -> str:
        tries.append(n)
        if len(tries) == 1:
            raise ValueError("no")
        return "yes"

    act = keyed(stage, then=fails_once)
    await stage.play([calls(call("act", n=1)), say("done")], act)
    assert (await stage.store.operation("local", "op-1") or ("",))[0] == "failed"
    again = await stage.play([calls(call("act", n=1)), say("done")], act)
    assert said(again) == [("ok", "")]


async def test_an_operation_nobody_knows_the_outcome_of_is_not_run_again(stage: Stage) -> None:
    act = keyed(stage, then=forever)
    waiting = await stage.play([calls(call("act", n=1))], act, limits=QUICK)
    await tasks.cancel(stage.store, waiting.task)
    assert await stage.store.operation("local", "op-1") == ("unknown", "")
    second = await stage.play([calls(call("act", n=1)), say("done")], act)
    assert said(second) == [("failed", "operation_taken")]
    assert "not run again" in contents(second)[0]
    assert stage.ran() == ["act 1"]


async def test_a_taken_operation_beside_others_is_said_of_its_own_call(stage: Stage) -> None:
    act = keyed(stage, parallel=True)
    await stage.play([calls(call("act", n=2)), say("done")], act)
    group = calls(call("act", n=1), call("act", n=2), call("act", n=3))
    result = await stage.play([group, say("done")], act)
    assert contents(result) == ["act 1", "act 2", "act 3"]
    assert stage.ran(result.task) == ["act 1", "act 3"]


async def test_an_operation_among_other_calls_of_a_group_is_started_by_itself(stage: Stage) -> None:
    tools = keyed(stage, parallel=True), stage.look(parallel=True)
    for taken in (False, True):
        group = calls(call("look", n=1), call("act", n=2), call("look", n=3))
        result = await stage.play([group, say("done")], *tools)
        assert (said(result), contents(result)) == ([("ok", "")] * 3, ["look 1", "act 2", "look 3"])
        acted = [] if taken else ["act 2"]
        assert sorted(stage.ran(result.task)) == [*acted, "look 1", "look 3"]


async def test_two_calls_of_one_group_with_one_operation_are_one_effect(stage: Stage) -> None:
    act = keyed(stage, parallel=True)
    result = await stage.play([calls(call("act", n=1), call("act", n=1)), say("done")], act)
    assert stage.ran() == ["act 1"]
    assert said(result) == [("ok", ""), ("failed", "operation_taken")]
    assert result.text == "done"


async def test_calls_with_operations_still_run_side_by_side(stage: Stage) -> None:
    both = asyncio.Barrier(2)

    async def meets(*_: Any) -> str:
        async with asyncio.timeout(20):
            await both.wait()
        return "met"

    act = keyed(stage, then=meets, parallel=True)
    result = await stage.play([calls(call("act", n=1), call("act", n=2)), say("done")], act)
    assert said(result) == [("ok", "")] * 2


@pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "cannot_tell"])
async def test_what_a_tool_says_became_of_an_operation_settles_it(stage: Stage, verdict: str) -> None:
    async def became(_: str) -> Reconciled:
        return Reconciled(verdict, "as it was")

    async def first(context: CallContext, _: int) -> str:
        if context.start == 1:
            await forever()
        return "second time"

    act = keyed(stage, then=first, reconcile=became)
    result = await stage.play([calls(call("act", n=1)), say("done")], act, limits=QUICK)
    held = await stage.store.operation("local", "op-1")
    if verdict == "cannot_tell":
        assert result.outcome == "waiting"
        stage.models.clear()
        assert held is not None
        assert held[0] in ("started", "unknown")
    else:
        assert held == ("succeeded", "as it was" if verdict == "happened" else "second time")
