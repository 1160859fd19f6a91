"""Rules are live: the stricter of decision time and execution time wins (contract 11)."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import (
    Agent,
    CallContext,
    Limits,
    MemoryStore,
    ScriptedModel,
    TaskState,
    resume_task,
    run_task,
    tool,
)
from fencepost.core.entries import ApprovalAsked, CallStarted
from fencepost.core.messages import Effect
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Authorization
from fencepost.run.agent import DefaultBoundary
from fencepost.service import tasks
from fencepost.testing import FakeClock
from tests.conformance.stage import Says, Stage, said
from tests.run.conftest import contents


async def test_without_rules_reading_is_allowed_and_everything_else_asks(stage: Stage) -> None:
    boundary = DefaultBoundary()
    verdicts = {
        effect: boundary.authorize("ada", stage.act(effect=effect).definition, "{}").verdict
        for effect in Effect
    }
    assert verdicts == {Effect.READ: "allow", Effect.IDEMPOTENT: "ask", Effect.WRITE: "ask"}
    assert boundary.version == "default"


async def waiting(stage: Stage, *, version: str = "rules-1", word: str = "ask") -> None:
    """Leave task t waiting for an approval that was given."""
    agent = stage.agent([calls(call("act")), say("done")], stage.act(), boundary=Says(version, act=word))
    assert (await stage.run(agent, task="t")).outcome == "waiting"
    await stage.decide("t", "1.0")


@pytest.mark.parametrize(
    ("version", "word", "outcome"),
    [
        ("rules-1", "ask", "runs"),
        ("rules-1", "allow", "runs"),
        ("rules-1", "deny", "denied"),
        ("rules-2", "ask", "asked again"),
        ("rules-2", "allow", "runs"),
        ("rules-2", "deny", "denied"),
    ],
)
async def test_an_approved_call_meets_the_rules_of_its_start(
    stage: Stage, version: str, word: str, outcome: str
) -> None:
    await waiting(stage)
    agent = stage.agent([], stage.act(), model=stage.models[0], boundary=Says(version, act=word))
    result = await stage.resume(agent, "t")
    if outcome == "asked again":
        assert [(ask.about, ask.rules) for ask in result.asks] == [("approval", "rules-2")]
        assert stage.ran() == []
        await stage.decide("t", "1.0")
        result = await stage.resume(agent, "t")
        outcome = "runs"
    assert result.text == "done"
    assert said(result) == ([("ok", "")] if outcome == "runs" else [("denied", "denied")])
    assert stage.ran() == (["act 0"] if outcome == "runs" else [])


@pytest.mark.parametrize(("late", "outcome"), [(3599, "stopped"), (3600, "waiting")])
async def test_an_approval_that_expired_before_the_start_is_asked_again(
    stage: Stage, clock: FakeClock, late: float, outcome: str
) -> None:
    agent = stage.agent([calls(call("act")), say("done")], stage.act(), boundary=Says(act="ask"))
    await stage.run(agent, task="t", approval_seconds=3600.0, clock=clock)
    await stage.decide("t", "1.0")
    clock.advance(late)
    result = await stage.resume(agent, "t", approval_seconds=3600.0, clock=clock)
    assert result.outcome == outcome
    if outcome == "waiting":
        now = clock.wall()
        assert [ask.expires_at for ask in result.asks] == [now + 3600.0]
        assert (await stage.store.row("local", "t")).expires_at == now + 3600.0
        stage.models.clear()


async def test_an_approval_that_runs_out_while_the_start_is_committed_is_asked_again(
    clock: FakeClock,
) -> None:
    """Contract 11.1: the clock that counts is the store's, in the commit that writes the start."""
    slow = False
    ran: list[str] = []

    def hook(name: str) -> None:
        nonlocal slow
        if slow and name == "append.before":
            slow = False
            clock.advance(2)

    @tool(effect="write")
    async def pay() -> str:
        ran.append("pay")
        return "paid"

    store = MemoryStore(now=clock.wall, hooks=hook)
    model = ScriptedModel([calls(call("pay")), say("done")])
    agent = Agent("payer", model, Limits(steps=3), tools=(pay,), boundary=Says(pay="ask"))
    await run_task(agent, "pay", store=store, task="t", approval_seconds=10.0, clock=clock)
    await tasks.decide_approval(store, "t", "1.0", approve=True)
    clock.advance(9)
    slow = True
    result = await resume_task(agent, "t", store=store, approval_seconds=10.0, clock=clock)
    assert (result.outcome, ran) == ("waiting", [])
    assert [ask.expires_at for ask in result.asks] == [clock.wall() + 10.0]
    await tasks.decide_approval(store, "t", "1.0", approve=True)
    result = await resume_task(agent, "t", store=store, clock=clock)
    assert (result.text, ran) == ("done", ["pay"])


async def test_an_approval_is_used_once(stage: Stage) -> None:
    await waiting(stage)
    agent = stage.agent([], stage.act(), model=stage.models[0], boundary=Says(act="ask"))
    result = await stage.resume(agent, "t")
    started = [e for e in result.entries if isinstance(e.body, CallStarted)]
    assert (len(started), stage.ran()) == (1, ["act 0"])


async def test_rules_that_change_between_two_calls_of_a_reply_ask_about_the_second(stage: Stage) -> None:
    boundary = Says()

    async def changes(_: CallContext, n: int) -> str:
        boundary.version, boundary.words = "rules-2", {"act": "ask"}
        return f"act {n}"

    agent = stage.agent(
        [calls(call("act", n=1), call("act", n=2)), say("done")], stage.act(then=changes), boundary=boundary
    )
    result = await stage.run(agent, task="t")
    assert [(ask.position, ask.about, ask.rules) for ask in result.asks] == [(1, "approval", "rules-2")]
    assert stage.ran() == ["act 1"]
    await stage.decide("t", "1.1")
    assert (await stage.resume(agent, "t")).text == "done"
    assert stage.ran() == ["act 1", "act 2"]


async def test_people_are_asked_with_nothing_in_flight(stage: Stage) -> None:
    boundary, go = Says(), asyncio.Event()
    order: list[str] = []

    async def body(_: CallContext, n: int) -> str:
        if n == 1:  # ends first and changes the rules for the third, while the second is in flight
            boundary.version, boundary.words = "rules-2", {"act": "ask"}
            asyncio.get_running_loop().call_later(0.02, go.set)
            return "first"
        await go.wait()
        order.append("second ended")
        return "second"

    script = [calls(*(call("act", n=n) for n in (1, 2, 3))), say("done")]
    limits = Limits(5, parallel_calls=2)
    agent = stage.agent(script, stage.act(then=body, parallel=True), boundary=boundary, limits=limits)
    result = await stage.run(agent, task="t")
    assert (order, result.outcome) == (["second ended"], "waiting")
    assert [(ask.position, ask.about) for ask in result.asks] == [(2, "approval")]
    asked = [e.seq for e in result.entries if isinstance(e.body, ApprovalAsked)]
    assert asked == [result.entries[-1].seq]
    await tasks.cancel(stage.store, "t")
    stage.models.clear()


async def test_rules_that_now_deny_one_of_a_group_let_the_others_run(stage: Stage) -> None:
    boundary = Says()

    async def changes(_: CallContext, n: int) -> str:
        boundary.version, boundary.words = "rules-2", {"put": "deny"}
        return f"look {n}"

    tools = stage.look(then=changes), stage.act("put", parallel=True), stage.look("see", parallel=True)
    script = [calls(call("look"), call("see", n=1), call("put", n=2), call("see", n=3)), say("done")]
    result = await stage.play(script, *tools, boundary=boundary)
    assert said(result) == [("ok", ""), ("ok", ""), ("denied", "denied"), ("ok", "")]
    assert "the rules say deny" in contents(result)[2]


async def test_a_denial_without_a_reason_still_says_what_it_is(stage: Stage) -> None:
    class Silent(Says):
        def authorize(self, principal, definition, arguments, /):  # type: ignore[no-untyped-def]
            return Authorization(self.words["act"], "", self.version)

    boundary = Silent(act="ask")
    agent = stage.agent([calls(call("act")), say("done")], stage.act(), boundary=boundary)
    await stage.run(agent, task="t")
    await stage.decide("t", "1.0")
    boundary.words["act"] = "deny"
    result = await stage.resume(agent, "t")
    assert contents(result) == ["denied: the rules no longer allow this call"]
    assert (await stage.store.row("local", "t")).state is TaskState.SUCCEEDED
