"""Rows D, L56 to L61 and L70: what people allow, and what a guard may stop (contract 11 and 4.6).

L55 (arguments in the body of an approval) is about HTTP: here a decision has no place for arguments at all.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from fencepost import Agent, CallContext, StopReason, TaskNotFound, TaskState
from fencepost.core.entries import ApprovalAsked, ApprovalDecided, DefinitionAccepted
from fencepost.core.errors import DecisionRefused, DefinitionInvalid, TaskConflict
from fencepost.core.messages import ToolDefinition
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Authorization
from fencepost.service import tasks
from fencepost.testing.clock import FakeClock
from tests.conformance.conftest import OpenStore
from tests.conformance.stage import Crash, Says, Stage, crash_at, said

ASKS = Says(act="ask")


async def waiting(stage: Stage, *calls_: Any, **options: Any) -> Agent:
    """An agent whose task "task-1" waits for a decision about its first reply."""
    script = [calls(*(calls_ or (call("act", n=1),))), say("done")]
    agent = stage.agent(script, stage.act(), boundary=ASKS)
    result = await stage.run(agent, task="task-1", **options)
    assert (result.outcome, result.state) == ("waiting", TaskState.WAITING_APPROVAL)
    assert stage.ran() == []
    return agent


async def refusals(stage: Stage, tenant: str = "local") -> list[tuple[str, str]]:
    return [(r.act, r.outcome) for r in await stage.store.audited(tenant)]


def decided(bodies: list[Any]) -> list[str]:
    return [body.decision for body in bodies if isinstance(body, ApprovalDecided)]


def test_l55_a_decision_has_no_place_for_arguments() -> None:
    assert "arguments" not in inspect.signature(tasks.decide_approval).parameters


# --- L56: once ---


async def test_l56_all_questions_of_a_reply_are_asked_in_one_commit_before_anything_runs(
    stage: Stage,
) -> None:
    agent = await waiting(stage, call("act", n=1), call("act", n=2))
    bodies = await stage.bodies("task-1")
    (asked,) = [b for b in bodies if isinstance(b, ApprovalAsked)]
    assert [ask.position for ask in asked.asks] == [0, 1]
    await stage.decide("task-1", "1.1")  # an approved second waits for the first
    assert (await stage.resume(agent, "task-1")).outcome == "waiting"
    assert stage.ran() == []
    await stage.decide("task-1", "1.0")
    result = await stage.resume(agent, "task-1")
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1", "act 2"])


async def test_l56_approved_twice_by_one_person_is_one_decision_and_one_execution(stage: Stage) -> None:
    agent = await waiting(stage)
    first = await stage.decide("task-1", "1.0", by="ada")
    assert await stage.decide("task-1", "1.0", by="ada") == first
    result = await stage.resume(agent, "task-1")
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1"])
    assert decided(await stage.bodies("task-1")) == ["approved"]


async def test_l56_fifty_approvals_and_five_workers_at_once_are_one_execution(stage: Stage) -> None:
    agent = await waiting(stage)
    await asyncio.gather(*(stage.decide("task-1", "1.0", by="ada") for _ in range(50)))
    assert decided(await stage.bodies("task-1")) == ["approved"]
    runs = [stage.resume(agent, "task-1") for _ in range(5)]
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(o, TaskConflict) for o in outcomes if isinstance(o, BaseException))
    assert stage.ran() == ["act 1"]
    assert (await stage.store.row("local", "task-1")).state is TaskState.SUCCEEDED


async def test_l56_of_fifty_people_at_once_one_decides(stage: Stage) -> None:
    agent = await waiting(stage)
    outcomes = await asyncio.gather(
        *(stage.decide("task-1", "1.0", by=f"person-{i}", approve=i % 2 == 0) for i in range(50)),
        return_exceptions=True,
    )
    assert sum(not isinstance(o, BaseException) for o in outcomes) == 1
    assert sum(isinstance(o, DecisionRefused) for o in outcomes) == 49
    assert len(await refusals(stage)) == 49
    await stage.resume(agent, "task-1")
    assert len(decided(await stage.bodies("task-1"))) == 1


# --- L57, L58: refused and audited ---


async def test_l57_a_decision_after_expiry_is_refused_and_audited(
    open_store: OpenStore, tmp_path: Any
) -> None:
    clock = FakeClock()
    stage = Stage(open_store(now=clock.wall), tmp_path)
    agent = await waiting(stage, clock=clock, approval_seconds=60)
    clock.advance(60)
    with pytest.raises(DecisionRefused, match="expired; resume the task, which goes on without that call"):
        await stage.decide("task-1", "1.0")
    assert await refusals(stage) == [("approved", "refused")]
    assert await tasks.expire(stage.store, live=stage.live) == 1
    with pytest.raises(DecisionRefused):
        await stage.decide("task-1", "1.0")
    result = await stage.resume(agent, "task-1", clock=clock)
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, [])
    assert said(result) == [("denied", "expired")]
    await stage.verify()
    await stage.store.close()


async def test_l57_an_approval_that_expired_before_its_use_asks_again(
    open_store: OpenStore, tmp_path: Any
) -> None:
    clock = FakeClock()
    stage = Stage(open_store(now=clock.wall), tmp_path)
    agent = await waiting(stage, clock=clock, approval_seconds=60)
    await stage.decide("task-1", "1.0")
    clock.advance(61)
    result = await stage.resume(agent, "task-1", clock=clock)
    assert (result.outcome, stage.ran()) == ("waiting", [])
    await stage.verify()
    await stage.store.close()


async def test_l57_a_decision_after_cancel_is_refused_and_audited(stage: Stage) -> None:
    await waiting(stage)
    row = await stage.cancel("task-1")
    assert row.state is TaskState.CANCELLED
    with pytest.raises(DecisionRefused, match="CANCELLED"):
        await stage.decide("task-1", "1.0")
    assert await refusals(stage) == [("approved", "refused")]
    assert decided(await stage.bodies("task-1")) == ["void"]


async def test_l57_a_decision_from_another_tenant_is_not_found_and_audited_there(stage: Stage) -> None:
    await waiting(stage)
    with pytest.raises(TaskNotFound):
        await stage.decide("task-1", "1.0", tenant="other")
    assert await refusals(stage, "other") == [("approved", "refused")]
    assert await refusals(stage) == []
    assert decided(await stage.bodies("task-1")) == []


async def test_l57_the_requester_may_not_approve_their_own_call_where_rules_say_so(stage: Stage) -> None:
    await waiting(stage)
    with pytest.raises(DecisionRefused, match="may not approve"):
        await stage.decide("task-1", "1.0", by="local/user", self_approval=False)
    assert await refusals(stage) == [("approved", "refused")]
    await stage.decide("task-1", "1.0", by="local/other", self_approval=False)


@pytest.mark.parametrize("wrong", ["2.0", "1.1", "0.0"])
async def test_l57_a_decision_about_a_call_that_asks_nothing_is_refused_and_audited(
    stage: Stage, wrong: str
) -> None:
    await waiting(stage)
    other = stage.agent([say("done")])
    assert (await stage.run(other, task="task-2")).reason is StopReason.COMPLETED
    for task, where in (("task-1", wrong), ("task-2", "1.0")):
        with pytest.raises(DecisionRefused):
            await stage.decide(task, where)
    assert await refusals(stage) == [("approved", "refused")] * 2


async def test_l58_what_was_rejected_cannot_be_approved(stage: Stage) -> None:
    agent = await waiting(stage)
    await stage.decide("task-1", "1.0", approve=False, by="ada")
    for who in ("ada", "bob"):
        with pytest.raises(DecisionRefused, match="already rejected"):
            await stage.decide("task-1", "1.0", by=who)
    result = await stage.resume(agent, "task-1")
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, [])
    assert said(result) == [("denied", "rejected")]
    assert await refusals(stage) == [("approved", "refused")] * 2


async def test_l58_what_was_approved_cannot_be_rejected(stage: Stage) -> None:
    agent = await waiting(stage)
    await stage.decide("task-1", "1.0")
    with pytest.raises(DecisionRefused, match="already approved"):
        await stage.decide("task-1", "1.0", approve=False)
    assert (await stage.resume(agent, "task-1")).reason is StopReason.COMPLETED
    assert stage.ran() == ["act 1"]


# --- L59 to L61: what changed meanwhile ---


async def test_l59_rules_that_now_deny_stop_an_approved_call(stage: Stage) -> None:
    agent = await waiting(stage)
    await stage.decide("task-1", "1.0")
    stricter = stage.agent([say("done")], *agent.tools, boundary=Says("rules-2", act="deny"))
    result = await stage.resume(stricter, "task-1")
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, [])
    assert said(result) == [("denied", "denied")]


async def test_l59_rules_that_now_allow_do_not_undo_a_rejection(stage: Stage) -> None:
    agent = await waiting(stage)
    await stage.decide("task-1", "1.0", approve=False)
    looser = stage.agent([say("done")], *agent.tools, boundary=Says("rules-2"))
    result = await stage.resume(looser, "task-1")
    assert (said(result), stage.ran()) == ([("denied", "rejected")], [])


async def test_l59_an_approval_under_other_rules_is_asked_again(stage: Stage) -> None:
    agent = await waiting(stage)
    await stage.decide("task-1", "1.0")
    other = stage.agent([say("done")], *agent.tools, boundary=Says("rules-2", act="ask"))
    result = await stage.resume(other, "task-1")
    assert (result.outcome, stage.ran()) == ("waiting", [])
    await stage.decide("task-1", "1.0")
    assert (await stage.resume(other, "task-1")).reason is StopReason.COMPLETED
    assert stage.ran() == ["act 1"]


@pytest.mark.parametrize(
    ("then", "now", "runs", "outcome"),
    [
        ("allow", "deny", [], "stopped"),
        ("allow", "ask", [], "waiting"),
        ("deny", "allow", [], "stopped"),
        ("allow", "allow", ["act 1"], "stopped"),
    ],
)
async def test_l59_the_stricter_of_decision_and_execution_wins(
    stage: Stage, then: str, now: str, runs: list[str], outcome: str
) -> None:
    act, look = stage.act(), stage.look()
    script = [calls(call("look", n=1), call("act", n=1)), say("done")]
    agent = stage.agent(script, act, look, boundary=Says(act=then))
    stage.store.after = crash_at(2)  # the reply is durable, the write has not begun
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    stage.store.after = None
    other = stage.agent([say("done")], act, look, boundary=Says("rules-2", act=now))
    result = await stage.resume(other, "task-1", take_over=True)
    assert result.outcome == outcome
    assert [line for line in stage.ran() if line.startswith("act")] == runs


async def test_l60_an_approval_of_other_arguments_than_were_shown_is_refused(stage: Stage) -> None:
    agent = await waiting(stage)
    shown = (await stage.resume(agent, "task-1")).asks[0].digest
    edited = stage.act().prepare('{"n": 2}').digest
    with pytest.raises(DecisionRefused, match="other arguments"):
        await stage.decide("task-1", "1.0", digest=edited)
    assert await refusals(stage) == [("approved", "refused")]
    await stage.decide("task-1", "1.0", digest=shown)
    assert (await stage.resume(agent, "task-1")).reason is StopReason.COMPLETED


async def test_l60_the_same_call_with_other_arguments_asks_again(stage: Stage) -> None:
    script = [calls(call("act", n=1)), calls(call("act", n=2)), say("done")]
    agent = stage.agent(script, stage.act(), boundary=ASKS)
    await stage.run(agent, task="task-1")
    await stage.decide("task-1", "1.0")
    result = await stage.resume(agent, "task-1")
    assert (result.outcome, stage.ran()) == ("waiting", ["act 1"])
    assert [(ask.step, ask.position) for ask in result.asks] == [(2, 0)]


async def test_l61_a_changed_tool_definition_voids_the_approval(stage: Stage) -> None:
    await waiting(stage)
    await stage.decide("task-1", "1.0")
    changed = stage.agent([say("done")], stage.act(version="2"), boundary=ASKS)
    with pytest.raises(DefinitionInvalid):
        await stage.resume(changed, "task-1")
    await tasks.accept_definition(stage.store, "task-1", changed)
    result = await stage.resume(changed, "task-1")
    assert (result.outcome, stage.ran()) == ("waiting", [])
    assert any(isinstance(b, DefinitionAccepted) for b in await stage.bodies("task-1"))
    await stage.decide("task-1", "1.0")
    assert (await stage.resume(changed, "task-1")).reason is StopReason.COMPLETED
    assert stage.ran() == ["act 1"]


# --- L70: a guard that may veto ---


async def test_l70_every_call_of_a_reply_is_authorized_before_the_first_effect_of_it(stage: Stage) -> None:
    story: list[str] = []

    class Guard:
        version, self_approval = "rules-1", True

        def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
            story.append(f"asked {arguments}")
            verdict = "deny" if "2" in arguments else "allow"
            return Authorization(verdict, "never 2", "rules-1")

    def acts(context: CallContext, n: int) -> str:
        story.append(f"ran {n}")
        return "ok"

    script = [calls(call("act", n=1), call("act", n=2), call("act", n=3)), say("done")]
    result = await stage.play(script, stage.act(then=acts), boundary=Guard())
    assert story[:3] == ['asked {"n":1}', 'asked {"n":2}', 'asked {"n":3}']
    assert stage.ran() == ["act 1", "act 3"]
    assert said(result)[1] == ("denied", "denied")
