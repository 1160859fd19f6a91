"""One rehearsal: an agent carried to its end through one disturbance, and what of it does not hold.

Rule 1: whoever is needed is there: calls are approved, and about a lost write the truth is told, because the
stage saw it.
Rule 2: a rule of one rehearsal is judged here; what two rehearsals show together is judged in rehearsals.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fencepost.core.entries import (
    ApprovalDecided,
    CallEnded,
    CallStarted,
    CallStatus,
    Entry,
    EntryBody,
    OutcomeResolved,
    Replied,
    Stopped,
)
from fencepost.core.lifecycle import TERMINAL, TaskState
from fencepost.core.messages import Effect
from fencepost.core.recovery import OnUnknown
from fencepost.core.state import fold
from fencepost.ports import Change, TaskRow, Totals
from fencepost.run.agent import Agent
from fencepost.run.running import open_task, resume
from fencepost.testing.chaos.facts import Plan, Ran, Seen, line_of
from fencepost.testing.chaos.script import RehearsedModel
from fencepost.testing.chaos.stage import PERSON, TASK, TENANT, Probe, Stage, WatchedTool, children
from fencepost.testing.clock import FakeClock
from fencepost.testing.pauses import Crashed

# A task that needs more lives or decisions than this does not come to an end.
ROUNDS_MOST = 40
# A model that hangs is left after so long, where the plan makes it hang. Seconds.
HANG_SECONDS = 0.2
# How much later than its grace a body may end: a busy machine is no fault. Seconds.
SLACK_SECONDS = 0.5
# No result a model can use is larger. Bytes.
OUTPUT_BYTES_MOST = 1024 * 1024
# An await every so often keeps heartbeats, timeouts and cancels alive. Seconds.
BLOCK_SECONDS = 0.25
# The faults after which no call of the reply may run.
NOTHING_RUNS = frozenset({"TRUNCATED", "REFUSED", "DUPLICATE_IDS", "repeated"})


async def rehearse(
    agent: Agent, plan: Plan, *, prompt: str, probe: Probe | None, folder: Path, tell: Callable[[str], None]
) -> Seen:
    """Carry the agent through the plan, to the end of its task, and say what was seen."""
    stage = Stage(plan, folder=folder, probe=probe, tell=tell)
    mine, model = _staged(agent, stage)
    clock = FakeClock()
    await open_task(mine, prompt, store=stage.store, task=TASK)
    row = await stage.store.row(TENANT, TASK)
    for _ in range(ROUNDS_MOST):
        try:
            await resume(mine, TASK, store=stage.store, live=stage.live, clock=clock, take_over=True)
        except Crashed:
            stage.revive()
            continue
        await stage.quiet()
        row = await stage.store.row(TENANT, TASK)
        if row.state in TERMINAL:
            break
        if row.state is TaskState.WAITING_APPROVAL:
            await stage.store.intervene(TENANT, TASK, PERSON, _answers(stage))
    await _ended(stage, mine)
    entries = await stage.store.entries(TENANT, TASK)
    judge(stage, mine, entries, row=row, spoilt=model.faults > 0)
    return Seen(
        plan,
        row.state.value,
        row.reason.value if row.reason else "",
        stage.commits,
        row.steps,
        stage.look(),
        _comparable(stage, mine, entries),
        tuple(line_of(entry) for entry in entries),
        _asked(entries),
        _statuses(entries),
        tuple(stage.runs),
        tuple(stage.problems),
    )


def _staged(agent: Agent, stage: Stage) -> tuple[Agent, RehearsedModel]:
    """The agent with watched tools and a rehearsed model; its limits are its own, but for a model that hangs."""
    plan = stage.plan
    fault = plan.fault if plan.kind == "reply" else ""
    model = RehearsedModel(agent.model, quiet=stage.quiet, step=plan.step, fault=fault)
    limits = replace(agent.limits, model_seconds=HANG_SECONDS) if fault == "HANGS" else agent.limits
    tools = tuple(WatchedTool(tool, stage) for tool in agent.tools)
    return dataclasses.replace(agent, model=model, tools=tools, limits=limits), model


def _answers(stage: Stage) -> Callable[[TaskRow, tuple[Entry, ...], float], Change]:
    """The person's act that answers whatever is asked."""

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change:
        state = fold(entry.body for entry in entries)
        bodies: list[EntryBody] = []
        settle: list[tuple[str, str, str]] = []
        for ask in state.open_asks:
            if ask.about == "approval":
                bodies.append(ApprovalDecided(ask.step, ask.position, "approved", ask.digest, by=PERSON))
                continue
            verdict = _truth(stage, f"{ask.step}.{ask.position}")
            bodies.append(OutcomeResolved(ask.step, ask.position, verdict, "person", by=PERSON))
            if operation := state.open[ask.position].operation:
                status = {"happened": "succeeded", "did_not_happen": "failed"}.get(verdict, "unknown")
                settle.append((operation, status, ""))
        after = fold(bodies, state)
        totals = Totals(after.tokens, after.cost_nano, after.steps, after.calls)
        return Change(tuple(bodies), TaskState.READY_TO_RESUME, totals, settle=tuple(settle))

    return act


def _truth(stage: Stage, call: str) -> str:
    """What became of the call, as the stage saw it."""
    runs = [ran for ran in stage.runs if ran.call == call]
    if any(ran.finished or ran.late for ran in runs):
        return "happened"
    return "cannot_tell" if any(ran.had_effect for ran in runs) else "did_not_happen"


async def _ended(stage: Stage, agent: Agent) -> None:
    """Give bodies that were asked to end their grace, and the processes they left a moment."""
    grace = agent.limits.grace_seconds + SLACK_SECONDS
    while any(ran.asked is not None and ran.ended is None for ran in stage.runs):
        asked = max(ran.asked for ran in stage.runs if ran.asked is not None and ran.ended is None)
        if time.monotonic() - asked > grace:
            break
        await asyncio.sleep(0.02)
    left = {number for ran in stage.runs for number in ran.left}
    for _ in range(5):
        if not left & set(children()):
            break
        await asyncio.sleep(0.02)


def _comparable(stage: Stage, agent: Agent, entries: tuple[Entry, ...]) -> bool:
    """Whether this must have led where an undisturbed run leads: only deaths, and nothing left unclear."""
    if not stage.plan.kind.startswith("crash"):
        return False
    if any(
        isinstance(entry.body, OutcomeResolved) and entry.body.verdict == "cannot_tell" for entry in entries
    ):
        return False
    unknown = any(isinstance(e.body, CallEnded) and e.body.status is CallStatus.UNKNOWN for e in entries)
    return agent.recovery.unknown_outcome is OnUnknown.WAIT and not unknown


# -- judging


def judge(stage: Stage, agent: Agent, entries: tuple[Entry, ...], *, row: TaskRow, spoilt: bool) -> None:
    """Everything that does not hold of one rehearsal is in the stage's problems; processes it left are ended.

    `spoilt` says that the planned fault of a reply was met.
    """
    for ran in stage.runs:
        _judge_call(stage, ran, agent)
    _judge_keys(stage)
    _judge_output(stage, entries)
    _judge_journal(stage, entries, row=row)
    if spoilt and stage.plan.fault in NOTHING_RUNS:
        step = f"{stage.plan.step}."
        for ran in stage.runs:
            if ran.call.startswith(step):
                stage.problem("spoilt_reply", ran.tool, f"{ran.tool} ran although {stage.plan.words}")
    for number in {number for ran in stage.runs for number in ran.left} & set(children()):
        os.kill(number, signal.SIGKILL)  # a child of this very process, or of one that it started


def _judge_call(stage: Stage, ran: Ran, agent: Agent) -> None:
    name = ran.tool
    if ran.alone and ran.effect == Effect.READ.value and ran.ended is not None and ran.after != ran.before:
        stage.problem(
            "read",
            name,
            f'{name} is declared effect="read" and changes the world: it runs without approval, and again after each'
            ' crash; declare it "idempotent" or "write"',
        )
    if ran.asked is not None:
        held = None if ran.ended is None else ran.ended - ran.asked
        if held is None or held > agent.limits.grace_seconds + SLACK_SECONDS:
            stage.problem(
                "cancel_swallowed",
                name,
                f"{name} goes on after it was asked to end: it catches CancelledError and does not end within the"
                f" {agent.limits.grace_seconds:g} s of its grace; let CancelledError through",
            )
        elif ran.late or (ran.alone and ran.after not in (ran.asked_world, ran.before)):
            stage.problem(
                "late_effect",
                name,
                f"{name} has its effect after it was asked to end, when its call is long closed: nobody waits for"
                " what it starts in the background; await it, and end it with the call",
            )
    if not ran.cut and (left := set(ran.left) & set(children())):
        named = ", ".join(sorted({ran.left[number] for number in left}))
        stage.problem(
            "leaves_process",
            name,
            f"{name} leaves a process behind ({named}); end it in a finally, and wait for it",
        )


def _judge_keys(stage: Stage) -> None:
    """A call that had done its work and is started again with the same key must change nothing."""
    for again in stage.runs:
        if again.effect != Effect.IDEMPOTENT.value or not again.alone or again.after == again.before:
            continue
        if any(ran.key == again.key and ran.start < again.start and ran.finished for ran in stage.runs):
            stage.problem(
                "idempotency_key",
                again.tool,
                f'{again.tool} is declared effect="idempotent" and had its effect twice for one call: started again'
                " with the same key, it changed the world again; give CallContext.key to what it writes to",
            )


def _judge_output(stage: Stage, entries: tuple[Entry, ...]) -> None:
    names = {ran.call: ran.tool for ran in stage.runs}
    for entry in entries:
        body = entry.body
        if isinstance(body, CallEnded) and body.size_bytes > OUTPUT_BYTES_MOST:
            name = names.get(f"{body.step}.{body.position}", "a tool")
            stage.problem(
                "output",
                name,
                f"{name} returns {body.size_bytes:,} bytes; the model sees a small part of that, and each one"
                " is stored; return what was asked for, at most 1 MiB",
            )


def _judge_journal(stage: Stage, entries: tuple[Entry, ...], *, row: TaskRow) -> None:
    """What must hold of every journal (contract 2.3, 7.1, 8.3, 9.2); a fault here is Fencepost's."""
    if row.state not in TERMINAL:
        stage.problem(
            "ends", "", f"the task does not come to an end: it is {row.state.value} after {ROUNDS_MOST} turns"
        )
        return
    ends = [entry.seq for entry in entries if isinstance(entry.body, Stopped)]
    if ends != [len(entries)] or [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        stage.problem(
            "journal", "", f"the journal of {len(entries)} entries has its ends at {ends}, or a gap"
        )
    open_calls = _open_calls(entries)
    if open_calls:
        stage.problem(
            "journal", "", f"the task is over, and the calls {', '.join(open_calls)} have no result"
        )
    if stage.cancelled and row.state is not TaskState.CANCELLED:
        stage.problem("cancel", "", f"the task was cancelled and is {row.state.value}")
    _judge_writes(stage, entries)


def _asked(entries: tuple[Entry, ...]) -> dict[str, str]:
    """The name of the tool each call asked for, by call."""
    replies = [entry.body for entry in entries if isinstance(entry.body, Replied)]
    return {f"{reply.step}.{at}": call.name for reply in replies for at, call in enumerate(reply.calls)}


def _statuses(entries: tuple[Entry, ...]) -> dict[str, str]:
    ends = [entry.body for entry in entries if isinstance(entry.body, CallEnded)]
    return {f"{end.step}.{end.position}": end.status.value for end in ends}


def _open_calls(entries: tuple[Entry, ...]) -> list[str]:
    asked: dict[str, bool] = {}
    for entry in entries:
        body = entry.body
        if isinstance(body, Replied):
            asked.update({f"{body.step}.{at}": False for at in range(len(body.calls))})
        elif isinstance(body, (CallEnded, OutcomeResolved)):
            asked[f"{body.step}.{body.position}"] = getattr(body, "verdict", "happened") != "did_not_happen"
    return [call for call, has_result in asked.items() if not has_result]


def _judge_writes(stage: Stage, entries: tuple[Entry, ...]) -> None:
    writes = {ran.call: ran.tool for ran in stage.runs if ran.effect == Effect.WRITE.value}
    started: set[str] = set()
    for entry in entries:
        body: Any = entry.body
        call = f"{getattr(body, 'step', '')}.{getattr(body, 'position', '')}"
        if isinstance(body, OutcomeResolved) and body.verdict == "did_not_happen":
            started.discard(call)
        elif isinstance(body, CallStarted) and call in writes:
            if call in started:
                stage.problem("write_twice", writes[call], f"the write {writes[call]} was started twice")
            started.add(call)
