"""Row L68 again, over made-up histories: whatever tools, crashes, cancels and people do, the invariants hold.

A history is a script of replies, what each body does, and one interruption for each run of the task. The loop
is real; Hypothesis makes histories up and shrinks the one that breaks an invariant.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost import (
    CallContext,
    FunctionModel,
    Limits,
    MemoryStore,
    ModelRequest,
    OutcomeUnknown,
    Recovery,
    Reply,
    ToolFailed,
)
from fencepost.core.entries import CallStarted
from fencepost.core.errors import DecisionRefused
from fencepost.core.lifecycle import TERMINAL, TaskState
from fencepost.core.recovery import OnUnknown
from fencepost.models.scripted import SCRIPTED_USAGE, call, calls, say
from fencepost.service import tasks
from tests.conformance.stage import Crash, Says, Stage, forever, reply

# More runs than this no history needs; one that does has not come to an end.
RUNS_MOST = 30
TOOLS = ("look", "side", "pay", "save")


class Deed(msgspec.Struct, frozen=True):
    """One call and what its body does when it runs: "ok", "raise", "hang", "unknown" or "refuse"."""

    tool: str
    does: str


class Cut(msgspec.Struct, frozen=True):
    """What happens to a run at one of its commits, before or after it."""

    kind: str
    side: str
    commit: int


class History(msgspec.Struct, frozen=True):
    """A script by steps and finishes, budgets and policy, one cut for each run, and what people say."""

    steps: list[list[Deed]]
    finishes: list[str]
    limits: Limits
    recovery: Recovery
    cuts: list[Cut]
    words: list[str]


deeds = st.builds(
    Deed, st.sampled_from(TOOLS), st.sampled_from(["ok", "ok", "ok", "raise", "hang", "unknown", "refuse"])
)
steps = st.lists(deeds, min_size=1, max_size=5)
finishes = st.sampled_from(["tool_calls"] * 6 + ["length", "unknown"])
cuts = st.builds(
    Cut,
    st.sampled_from(["crash"] * 4 + ["cancel", "outer", "steal", "none"]),
    st.sampled_from(["before", "after"]),
    st.integers(1, 8),
)
policies = st.builds(
    Recovery,
    unknown_outcome=st.sampled_from(OnUnknown),
    repeats=st.sampled_from([2, 3]),
)
budgets = st.builds(
    Limits,
    steps=st.integers(1, 8),
    tool_calls=st.integers(2, 20),
    parallel_calls=st.integers(1, 3),
    tool_seconds=st.just(0.003),
    grace_seconds=st.just(0.003),
)
people = st.lists(
    st.sampled_from(["approve", "reject", "happened", "did_not_happen", "cannot_tell"]),
    min_size=4,
    max_size=8,
)


histories = st.builds(
    History,
    steps=st.lists(steps, min_size=1, max_size=3),
    finishes=st.lists(finishes, min_size=3, max_size=3),
    limits=budgets,
    recovery=policies,
    cuts=st.lists(cuts, max_size=4),
    words=people,
)


def body(stage: Stage, plan: dict[int, str]) -> Any:
    """What the body of call number `n` does."""

    async def does(context: CallContext, n: int) -> str:
        match plan.get(n, "ok"):
            case "raise":
                raise ValueError(f"call {n} fails")
            case "refuse":
                raise ToolFailed(f"call {n} is not possible")
            case "unknown":
                raise OutcomeUnknown(f"call {n} was cut off")
            case "hang":
                await forever()
        await asyncio.sleep(0)
        return f"result {n}"

    return does


def scripted(history: list[list[Deed]], ends: list[str]) -> tuple[list[Reply], dict[int, str]]:
    """The replies of a history, and what the body of each numbered call does."""
    plan: dict[int, str] = {}
    replies = []
    for step, finish in zip(history, ends, strict=False):
        asked = []
        for deed in step:
            plan[len(plan)] = deed.does
            asked.append(call(deed.tool, n=len(plan) - 1))
        replies.append(calls(*asked) if finish == "tool_calls" else reply(*asked, finish=finish))
    return [*replies, say("done", usage=SCRIPTED_USAGE)], plan


def agent_of(
    stage: Stage, script: list[Reply], plan: dict[int, str], limits: Limits, recovery: Recovery
) -> Any:
    async def answers(request: ModelRequest) -> Reply:
        return script[min(request.step, len(script)) - 1]

    does = body(stage, plan)
    tools = (
        stage.look("look", does),
        stage.look("side", does, parallel=True),
        stage.act("pay", does, operation_key=lambda arguments: f"invoice-{arguments['n'] % 4}"),
        stage.act("save", does, effect="idempotent", parallel=True),
    )
    return stage.agent(
        [], *tools, model=FunctionModel(answers), limits=limits, recovery=recovery, boundary=Says(pay="ask")
    )


async def one_run(stage: Stage, agent: Any, cut: Cut, first: bool) -> None:
    """Run the task once, with its interruption, whatever comes of it."""
    stage.store.commits, stage.store.before, stage.store.after = 0, None, None
    running: asyncio.Task[Any] | None = None

    async def interrupt(number: int) -> None:
        if number != cut.commit:
            return
        if cut.kind == "crash":
            raise Crash(f"at commit {number}")
        if cut.kind == "cancel":
            await stage.cancel("task-1")
        if cut.kind == "steal":
            await stage.store.claim(
                "thief", lease_seconds=None, tenant="local", task="task-1", take_over=True
            )
        if cut.kind == "outer" and running is not None:
            running.cancel()

    setattr(stage.store, cut.side, interrupt)
    start = stage.run(agent, task="task-1") if first else stage.resume(agent, "task-1", take_over=True)
    running = asyncio.create_task(start)
    with contextlib.suppress(Crash, asyncio.CancelledError):
        await running
    stage.store.before = stage.store.after = None


async def people_speak(stage: Stage, words: list[str], turn: int) -> None:
    """Answer every open question; whoever is asked too often cannot tell."""
    result = await stage.resume(stage.agent([]), "task-1")
    for ask in result.asks:
        where = f"{ask.step}.{ask.position}"
        word = words[(turn + ask.position) % len(words)] if turn < len(words) else "cannot_tell"
        with contextlib.suppress(DecisionRefused):
            if ask.about == "approval":
                await stage.decide("task-1", where, approve=word != "reject")
            else:
                verdict = word if word in ("happened", "did_not_happen") else "cannot_tell"
                await tasks.resolve_outcome(stage.store, "task-1", where, verdict, live=stage.live)


async def play(history: History, folder: Path) -> None:
    stage = Stage(MemoryStore(), folder)
    script, plan = scripted(history.steps, history.finishes)
    agent = agent_of(stage, script, plan, history.limits, history.recovery)
    for number in range(RUNS_MOST):
        cuts_ = history.cuts
        cut = cuts_[number] if number < len(cuts_) else Cut("none", "before", 0)
        await one_run(stage, agent, cut, first=number == 0)
        await stage.verify()
        state = (await stage.store.row("local", "task-1")).state
        if state in TERMINAL:
            break
        if state is TaskState.WAITING_APPROVAL:
            await people_speak(stage, history.words, number)
            await stage.verify()
    else:
        raise AssertionError(f"the task did not come to its end in {RUNS_MOST} runs")
    begun = {(line.step, line.position, line.start) for line in stage.effects.lines()}
    started = {
        (b.step, b.position, b.start) for b in await stage.bodies("task-1") if isinstance(b, CallStarted)
    }
    assert begun <= started


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(history=histories)
def test_l68_any_history_comes_to_its_end_with_every_invariant_kept(history: History) -> None:
    with tempfile.TemporaryDirectory(prefix="fencepost-history-") as folder:
        asyncio.run(play(history, Path(folder)))
