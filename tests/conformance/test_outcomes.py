"""Rows E, L75, L78 and L79: effects that must not happen twice, and effects nobody knows of (contract 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fencepost import (
    CallContext,
    Limits,
    OutcomeUnknown,
    Reconciled,
    Recovery,
    Result,
    StopReason,
    TaskState,
    Tool,
    ToolMessage,
)
from fencepost.core.entries import OutcomeResolved
from fencepost.core.errors import DecisionRefused
from fencepost.core.recovery import OnUnknown
from fencepost.models.scripted import answer, call, calls, say
from fencepost.service import tasks
from tests.conformance.stage import (
    TINY_SECONDS,
    Crash,
    Stage,
    crash_at,
    forever,
    held,
    said,
    starts,
)

QUICK = Limits(steps=10, tool_seconds=TINY_SECONDS, grace_seconds=TINY_SECONDS)


# --- L75: one effect for one operation key ---


def pays(stage: Stage, then: Callable[..., Any] | None = None) -> Tool:
    """A write whose effect is named by what is paid, whoever pays and whenever."""
    return stage.act("pay", then, operation_key=lambda arguments: f"invoice-{arguments['n'] % 10}")


async def test_l75_two_calls_with_one_operation_key_are_one_effect(stage: Stage) -> None:
    script = [calls(call("pay", n=1), call("pay", n=11)), calls(call("pay", n=21)), say("done")]
    result = await stage.play(script, pays(stage))
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["pay 1"])
    told = [m.content for m in result.messages if isinstance(m, ToolMessage)]
    assert told == ["pay 1"] * 3  # the earlier outcome
    assert len(starts([e.body for e in result.entries])) == 1


async def test_l75_two_tasks_with_one_operation_key_are_one_effect(stage: Stage) -> None:
    for n in (1, 11):
        result = await stage.play([calls(call("pay", n=n)), say("done")], pays(stage))
        assert result.reason is StopReason.COMPLETED
        assert said(result) == [("ok", "")]
    assert stage.ran() == ["pay 1"]


async def test_l75_a_key_in_flight_in_another_task_is_not_started_again(stage: Stage) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(context: CallContext, n: int) -> str:
        begun.set()
        await held(go)
        return "paid"

    pay = pays(stage, waits)
    first = asyncio.create_task(stage.play([calls(call("pay", n=1)), say("done")], pay))
    await held(begun)
    second = await stage.play([calls(call("pay", n=11)), say("done")], pay)
    assert said(second) == [("failed", "operation_taken")]
    go.set()
    assert said(await first) == [("ok", "")]
    assert stage.ran() == ["pay 1"]


async def test_l75_a_key_that_failed_may_be_tried_again_and_another_key_is_free(stage: Stage) -> None:
    def fails_first(context: CallContext, n: int) -> str:
        if n == 1:
            raise ValueError("declined")
        return "paid"

    script = [calls(call("pay", n=1)), calls(call("pay", n=11), call("pay", n=2)), say("done")]
    result = await stage.play(script, pays(stage, fails_first))
    assert said(result) == [("failed", "tool_error"), ("ok", ""), ("ok", "")]
    assert stage.ran() == ["pay 1", "pay 11", "pay 2"]


async def test_l75_a_key_of_unknown_outcome_is_not_run_again(stage: Stage) -> None:
    recovery = Recovery(unknown_outcome=OnUnknown.TELL_MODEL)
    script = [calls(call("pay", n=1)), say("done")]
    await stage.play(script, pays(stage, forever), limits=QUICK, recovery=recovery)
    result = await stage.play([calls(call("pay", n=11)), say("done")], pays(stage))
    assert stage.ran() == ["pay 1"]
    assert said(result)[0][0] != "ok"


async def test_l75_a_key_whose_call_was_cancelled_is_of_unknown_outcome(stage: Stage) -> None:
    async def cancels(context: CallContext, n: int) -> None:
        await stage.cancel(context.task)

    await stage.play([calls(call("pay", n=1))], pays(stage, cancels))
    assert await stage.store.operation("local", "invoice-1") == ("unknown", "")
    result = await stage.play([calls(call("pay", n=11)), say("done")], pays(stage))
    assert (said(result)[0][0] != "ok", stage.ran()) == (True, ["pay 1"])


async def test_l75_tenants_do_not_share_operation_keys(stage: Stage) -> None:
    for tenant in ("local", "other"):
        agent = stage.agent([calls(call("pay", n=1)), say("done")], pays(stage))
        result = await stage.run(agent, tenant=tenant)
        assert result.reason is StopReason.COMPLETED
    assert stage.ran() == ["pay 1", "pay 1"]


# --- L78: six ways to lose an outcome, one answer ---

Loss = Callable[[Stage], Awaitable[None]]


def script() -> list[Any]:
    return [calls(call("act", n=1)), say("done")]


async def timeout(stage: Stage) -> None:
    await stage.run(stage.agent(script(), stage.act(then=forever), limits=QUICK), task="task-1")


async def drain(stage: Stage) -> None:
    begun = asyncio.Event()

    async def waits(context: CallContext, n: int) -> None:
        begun.set()
        await forever()

    agent = stage.agent(script(), stage.act(then=waits), limits=QUICK)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def lost_connection(stage: Stage) -> None:
    def breaks(context: CallContext, n: int) -> None:
        raise OutcomeUnknown("the connection broke after the request was sent")

    await stage.run(stage.agent(script(), stage.act(then=breaks)), task="task-1")


async def killed(stage: Stage) -> None:
    """The effect happened, and the process died before it could say so."""
    stage.store.before = crash_at(3)
    with pytest.raises(Crash):
        await stage.run(stage.agent(script(), stage.act()), task="task-1")
    stage.store.before = None


async def crash(stage: Stage) -> None:
    """The start is durable, and the process died before the effect."""
    stage.store.after = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(stage.agent(script(), stage.act()), task="task-1")
    stage.store.after = None


LOSSES: dict[str, Loss] = {
    "timeout": timeout,
    "drain": drain,
    "lost-connection": lost_connection,
    "kill": killed,
    "crash": crash,
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_l78_a_write_of_unknown_outcome_waits_for_a_person_and_never_runs_again(
    stage: Stage, loss: str
) -> None:
    await LOSSES[loss](stage)
    ran = stage.ran()
    assert len(ran) == (0 if loss == "crash" else 1)
    agent = stage.agent([say("done")], stage.act(), limits=await limits_of(stage))
    result = await stage.resume(agent, "task-1", take_over=True)
    assert (result.outcome, result.row.waiting_for) == ("waiting", "outcome")
    assert [(a.step, a.position, a.about) for a in result.asks] == [(1, 0, "outcome")]
    assert result.asks[0].expires_at is None
    await tasks.resolve_outcome(stage.store, "task-1", "1.0", "cannot_tell", live=stage.live)
    result = await stage.resume(agent, "task-1")
    assert result.reason is StopReason.COMPLETED
    assert said(result) == [("unknown", "outcome_unknown")]
    assert stage.ran() == ran


async def limits_of(stage: Stage) -> Limits:
    (first, *_) = await stage.bodies("task-1")
    limits = getattr(first, "limits", None)
    assert isinstance(limits, Limits)
    return limits


async def test_l78_a_cancelled_write_is_closed_as_unknown(stage: Stage) -> None:
    async def cancels(context: CallContext, n: int) -> None:
        await stage.cancel(context.task)

    result = await stage.play(script(), stage.act(then=cancels))
    assert said(result) == [("unknown", "CANCELLED")]
    again = await stage.resume(stage.agent(script(), stage.act()), result.task)
    assert (again.reason, stage.ran()) == (StopReason.CANCELLED, ["act 1"])


@pytest.mark.parametrize("loss", ["timeout", "lost-connection"])
@pytest.mark.parametrize("on_unknown", [OnUnknown.TELL_MODEL, OnUnknown.STOP])
async def test_l78_by_recovery_the_model_is_told_or_the_task_stops(
    stage: Stage, loss: str, on_unknown: OnUnknown
) -> None:
    def breaks(context: CallContext, n: int) -> None:
        raise OutcomeUnknown("the connection broke")

    act = stage.act(then=breaks if loss == "lost-connection" else forever)
    recovery = Recovery(unknown_outcome=on_unknown)
    result = await stage.play(script(), act, limits=QUICK, recovery=recovery)
    if on_unknown is OnUnknown.STOP:
        assert result.reason is StopReason.TOOL_OUTCOME_UNKNOWN
    else:
        assert result.reason is StopReason.COMPLETED
        assert any("do not repeat" in getattr(m, "content", "") for m in result.messages)
    assert said(result)[0][0] == "unknown"
    assert stage.ran() == ["act 1"]


@pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "cannot_tell"])
async def test_l78_a_persons_word_is_taken(stage: Stage, verdict: str) -> None:
    await crash(stage)
    agent = stage.agent([say("done")], stage.act())
    await stage.resume(agent, "task-1", take_over=True)
    await tasks.resolve_outcome(
        stage.store, "task-1", "1.0", verdict, content="receipt 7" if verdict == "happened" else ""
    )
    result = await stage.resume(agent, "task-1")
    assert result.reason is StopReason.COMPLETED
    expected = {"happened": "ok", "did_not_happen": "ok", "cannot_tell": "unknown"}[verdict]
    assert said(result)[0][0] == expected
    assert stage.ran() == (["act 1"] if verdict == "did_not_happen" else [])
    with pytest.raises(DecisionRefused):
        await tasks.resolve_outcome(stage.store, "task-1", "1.0", "happened")


async def test_l78_reads_and_idempotent_calls_run_again_with_the_same_key(stage: Stage) -> None:
    for effect in ("read", "idempotent"):
        agent = stage.agent(script(), stage.act(effect=effect))
        stage.store.commits, stage.store.before = 0, crash_at(3)
        with pytest.raises(Crash):
            await stage.run(agent, task=f"task-{effect}")
        stage.store.before = None
        again = stage.agent([say("done")], stage.act(effect=effect))
        result = await stage.resume(again, f"task-{effect}", take_over=True)
        assert result.reason is StopReason.COMPLETED
        lines = [line for line in stage.effects.lines() if line.task == f"task-{effect}"]
        assert [line.start for line in lines] == [1, 2]
        assert len({line.key for line in lines}) == 1


# --- L79: the tool's own word ---


class Bank:
    """What a tool's `reconcile` asks: it knows keys, and refuses the ones it has said no to."""

    def __init__(self, says: Any) -> None:
        self.says, self.asked, self.refused = says, list[str](), set[str]()

    async def reconcile(self, key: str) -> Any:
        self.asked.append(key)
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is forever:
            await forever()
        if self.says == "did_not_happen":
            self.refused.add(key)
        return self.says


async def reconciled(stage: Stage, bank: Bank, *, cited: bool = False) -> Result:
    """A write whose first start was lost in a crash, resumed."""

    def act() -> Tool:
        return stage.act(reconcile=bank.reconcile)

    answers = [
        answer("It was paid.", {"text": "paid", "evidence_id": "ev-1.0", "quote": "receipt 7 of 9"})
        if cited
        else say("done")
    ]
    mode = "cited" if cited else "text"
    stage.store.after = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(stage.agent(script(), act(), answer=mode, limits=QUICK), task="task-1")
    stage.store.after = None
    agent = stage.agent(answers, act(), answer=mode, limits=QUICK)
    return await stage.resume(agent, "task-1", take_over=True)


async def test_l79_a_tool_that_says_it_happened_gives_the_result(stage: Stage) -> None:
    bank = Bank(Reconciled("happened", "receipt 7 of 9"))
    result = await reconciled(stage, bank)
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, [])
    assert said(result) == [("ok", "")]
    assert bank.asked == ["task-1:1.0"]
    assert "receipt 7 of 9" in [getattr(m, "content", "") for m in result.messages]


async def test_l79_the_tools_own_word_may_be_cited(stage: Stage) -> None:
    result = await reconciled(stage, Bank(Reconciled("happened", "receipt 7 of 9")), cited=True)
    assert (result.reason, result.text) == (StopReason.COMPLETED, "It was paid.")


async def test_l79_a_tool_that_says_it_did_not_happen_runs_again_with_the_same_key(stage: Stage) -> None:
    bank = Bank("did_not_happen")
    result = await reconciled(stage, bank)
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1"])
    (line,) = stage.effects.lines()
    assert (line.start, line.key) == (2, "task-1:1.0")
    assert bank.refused == {"task-1:1.0"}
    verdicts = [b for b in await stage.bodies("task-1") if isinstance(b, OutcomeResolved)]
    assert [(b.verdict, b.source) for b in verdicts] == [("did_not_happen", "reconcile")]


@pytest.mark.parametrize(
    "says",
    ["cannot_tell", ValueError("no idea"), "perhaps", None, forever],
    ids=["cannot-tell", "raises", "unknown-word", "nothing", "hangs"],
)
async def test_l79_a_tool_that_cannot_tell_waits_for_a_person(stage: Stage, says: Any) -> None:
    bank = Bank(says)
    result = await reconciled(stage, bank)
    assert (result.outcome, result.state) == ("waiting", TaskState.WAITING_APPROVAL)
    assert [a.about for a in result.asks] == ["outcome"]
    assert stage.ran() == []
    assert len(bank.asked) == 1
