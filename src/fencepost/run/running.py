"""Running a task: open or claim it, drive it, and say how that ended.

`run` opens a task and drives it; `resume` drives one that exists. Both return a `Result` that holds everything:
the journal, the transcript, the spend and the reason, whatever the end was (contract 2.4).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence

from msgspec import Struct

from fencepost.core.closing import closing, lost_operations
from fencepost.core.entries import Answer, Ask, Entry, Opened, Stopped
from fencepost.core.errors import (
    DefinitionInvalid,
    Fenced,
    FencepostError,
    StoreFailed,
    TaskConflict,
    TaskNotFound,
)
from fencepost.core.history import Log
from fencepost.core.lifecycle import TERMINAL, StopReason, TaskState, state_after
from fencepost.core.messages import Message
from fencepost.core.state import State, fold, resumed
from fencepost.ports import Change, Claimed, Clock, Lease, NewTask, Store, TaskRow, Totals
from fencepost.run.agent import Agent
from fencepost.run.clock import SystemClock
from fencepost.run.foreign import describe
from fencepost.run.heart import Heart
from fencepost.run.live import Event, Live
from fencepost.run.loop import Run, World

# Contract 7.5: claims since the last clean release or wait.
ATTEMPTS_MOST = 5
# Contract 12.3: what a task may be asked, in Unicode code points; the service has its own, smaller, bound.
PROMPT_CHARS_MOST = 100_000


class Result(Struct, frozen=True):
    """How a run left its task. `outcome` is "stopped", "waiting", "released" or "fenced"."""

    outcome: str
    row: TaskRow
    entries: tuple[Entry, ...]
    messages: Log[Message]
    asks: tuple[Ask, ...] = ()

    @property
    def task(self) -> str:
        """The task's id."""
        return self.row.id

    @property
    def state(self) -> TaskState:
        """The task's state."""
        return self.row.state

    @property
    def reason(self) -> StopReason | None:
        """Why the task ended, None while it has not."""
        return self.row.reason

    @property
    def answer(self) -> Answer | None:
        """The answer, if there is one; a partial one comes with state FAILED."""
        return final_answer(self.entries)

    @property
    def text(self) -> str:
        """The answer's words, "" without an answer."""
        answer = self.answer
        return "" if answer is None else answer.summary


def final_answer(entries: Sequence[Entry]) -> Answer | None:
    """The answer in a journal's terminal entry."""
    if not entries:
        return None
    last = entries[-1].body
    return last.answer if isinstance(last, Stopped) else None


def new_task_id() -> str:
    """An id nobody has used."""
    return f"task-{secrets.token_hex(8)}"


def worker_name() -> str:
    """The name of this process as a worker."""
    return f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(3)}"


async def run(
    agent: Agent,
    prompt: str,
    *,
    store: Store,
    tenant: str = "local",
    principal: str = "local/user",
    task: str | None = None,
    labels: tuple[tuple[str, str], ...] = (),
    live: Live | None = None,
    clock: Clock | None = None,
    worker: str | None = None,
    lease_seconds: float | None = None,
    approval_seconds: float = 24 * 3600.0,
) -> Result:
    """Open a task for `prompt` and run it until it stops, waits for people or is given back.

    `lease_seconds` None is a lease that never runs out: right for one
    process; give seconds where another may take over. Raises DefinitionInvalid when the agent cannot be run.
    """
    live = live or Live()
    task = task or new_task_id()
    _begin(live, tenant, task)
    try:
        await open_task(
            agent, prompt, store=store, tenant=tenant, principal=principal, task=task, labels=labels
        )
    except BaseException as why:
        live.publish(Event("refused", tenant, task, live.newest(tenant, task), detail=str(why)))
        raise
    return await resume(
        agent,
        task,
        store=store,
        tenant=tenant,
        live=live,
        clock=clock,
        worker=worker,
        lease_seconds=lease_seconds,
        approval_seconds=approval_seconds,
        _started=True,
    )


def _begin(live: Live, tenant: str, task: str) -> None:
    if live.listening:
        live.publish(Event("start", tenant, task, live.newest(tenant, task)))


async def open_task(
    agent: Agent,
    prompt: str,
    *,
    store: Store,
    tenant: str = "local",
    principal: str = "local/user",
    task: str | None = None,
    labels: tuple[tuple[str, str], ...] = (),
) -> TaskRow:
    """Create the task PENDING; returns its row. Raises DefinitionInvalid when it could never run.

    The same request with the same `task` again is that task; another one raises TaskConflict.
    """
    agent.check()
    if not prompt.strip():
        raise DefinitionInvalid("the prompt is empty; say what the task is")
    if len(prompt) > PROMPT_CHARS_MOST:
        raise DefinitionInvalid(
            f"the prompt has {len(prompt)} characters, at most {PROMPT_CHARS_MOST} are taken"
        )
    if "\0" in prompt or any("\ud800" <= c <= "\udfff" for c in prompt):
        raise DefinitionInvalid("the prompt holds NUL, or bytes that are not UTF-8, which no store can keep")
    task = task or new_task_id()
    opened = agent.opened(prompt, principal, labels)
    asked = hashlib.sha256(f"{principal}\0{opened.definition}\0{prompt}".encode()).hexdigest()
    return await store.open_task(NewTask(tenant, task, principal, f"open/{asked}", opened))


async def resume(
    agent: Agent,
    task: str,
    *,
    store: Store,
    tenant: str = "local",
    live: Live | None = None,
    clock: Clock | None = None,
    worker: str | None = None,
    lease_seconds: float | None = None,
    approval_seconds: float = 24 * 3600.0,
    take_over: bool = False,
    holder: str | None = None,
    _started: bool = False,
) -> Result:
    """Run a task on from where its journal ends; a task that is over or waits comes back as it is.

    `take_over` takes it from whoever runs it, with `holder` only from the worker of that name.
    Raises TaskNotFound, TaskConflict when another worker holds it, DefinitionInvalid when the agent changed.
    """
    live, clock = live or Live(), clock or SystemClock()
    if not _started:
        _begin(live, tenant, task)
    began = clock.monotonic()
    worker = worker or worker_name()
    try:
        agent.check()
        claimed = await store.claim(
            worker,
            lease_seconds=lease_seconds,
            definitions=frozenset({agent.definition}),
            tenant=tenant,
            task=task,
            take_over=take_over,
            holder=holder,
        )
        result = None if claimed is not None else await _not_claimed(agent, store, tenant, task)
    except BaseException as why:
        if isinstance(why, asyncio.CancelledError):
            await _give_back(store, tenant, task, worker, live=live)
        live.publish(Event("refused", tenant, task, live.newest(tenant, task), detail=str(why)))
        raise
    if claimed is None:
        assert result is not None
        live.publish(Event(result.outcome, tenant, task, result.row.epoch, state=result.state))
        return result
    world = World(store, agent.model, agent.tools_in(store), agent.boundary, clock, live, approval_seconds)
    lease_until = None if lease_seconds is None else began + lease_seconds
    return await _drive(world, claimed, lease_seconds=lease_seconds, lease_until=lease_until)


async def _give_back(store: Store, tenant: str, task: str, worker: str, *, live: Live) -> None:
    """Release what a claim took that was cancelled in flight: a write in flight may have landed."""
    with contextlib.suppress(TaskNotFound, Fenced, StoreFailed):
        row = await store.row(tenant, task)
        run = live.running.get((tenant, task))
        if run is not None and run.lease.epoch == row.epoch:
            return  # another run of this worker has it; the claim found nothing to take
        if row.state is TaskState.RUNNING and row.worker == worker:
            lease = Lease(tenant, task, row.epoch, row.attempts, worker, row.lease_until)
            await store.release(lease, seconds=row.seconds)


async def _drive(
    world: World, claimed: Claimed, *, lease_seconds: float | None, lease_until: float | None
) -> Result:
    """Run a claimed task and tell how that ended; exactly one terminal event on every path."""
    tenant, task, store, live = claimed.lease.tenant, claimed.lease.task, world.store, world.live
    live.fence(tenant, task, claimed.lease.epoch)  # an older run in this process hears of it at once
    running, heart = None, None
    try:
        if claimed.lease.attempt > ATTEMPTS_MOST:
            await _too_many_attempts(store, claimed)
            outcome = "stopped"
        else:
            state = resumed(fold(entry.body for entry in claimed.entries), world.model.profile)
            running = Run(world, claimed, state)
            running.lease_until = lease_until
            if lease_seconds is not None:
                heart = Heart(store, running, world.clock, lease_seconds)
            running.start()
            outcome = await _outcome(running)
        result = await _result(outcome, store, tenant, task, running)
    except Fenced as why:
        _tell(live, claimed, "fenced", str(why))
        return await _result("fenced", store, tenant, task)
    except asyncio.CancelledError:
        _tell(live, claimed, _left_as(running), "cancelled from outside")
        raise
    except BaseException as why:
        if isinstance(why, Exception) and not isinstance(why, FencepostError):
            await _stop_for_bug(store, claimed, why)
        _tell(live, claimed, "failed", f"{type(why).__name__}: {why}")
        raise
    finally:
        if heart is not None:
            heart.stop()
    _tell(live, claimed, outcome, result.reason.value if result.reason else "", result.row)
    return result


async def _outcome(running: Run) -> str:
    """What the run ended with; a cancel of the caller gives the task back first, then goes on (contract 7.4)."""
    try:
        return await asyncio.shield(running.done)
    except asyncio.CancelledError:
        running.release()
        while not running.done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((running.done,))
        raise


def _left_as(running: Run | None) -> str:
    """How a run ended whose caller was cancelled, as the kind of its last event."""
    if running is None or running.done.cancelled():
        return "failed"
    why = running.done.exception()
    if why is None:
        return running.done.result()
    return "fenced" if isinstance(why, Fenced) else "failed"


def _tell(live: Live, claimed: Claimed, kind: str, detail: str, row: TaskRow | None = None) -> None:
    """Tell how a run ended, under the newest epoch: a run that was fenced has an end to tell too (contract 1)."""
    if not live.listening:
        return
    lease = claimed.lease
    state = None if row is None else row.state
    totals = None if row is None else Totals(row.tokens, row.cost_nano, row.steps, row.calls)
    seconds = 0.0 if row is None else row.seconds
    live.publish(
        Event(
            kind,
            lease.tenant,
            lease.task,
            max(lease.epoch, live.newest(lease.tenant, lease.task)),
            detail=detail,
            state=state,
            totals=totals,
            seconds=seconds,
        )
    )


async def _result(outcome: str, store: Store, tenant: str, task: str, ran: Run | None = None) -> Result:
    row = await store.row(tenant, task, chain=False)
    entries = await store.entries(tenant, task, limit=row.seq)  # of that very moment: a journal only grows
    known = ran is not None and ran.seq == row.seq  # otherwise somebody else wrote after the run did
    state = ran.state if ran is not None and known else fold(entry.body for entry in entries)
    return Result(outcome, row, entries, state.messages, state.open_asks)


async def _not_claimed(agent: Agent, store: Store, tenant: str, task: str) -> Result:
    row = await store.row(tenant, task)
    if row.state in TERMINAL or row.state is TaskState.WAITING_APPROVAL:
        outcome = "waiting" if row.state is TaskState.WAITING_APPROVAL else "stopped"
        return await _result(outcome, store, tenant, task)
    if row.definition != agent.definition:
        (first,) = await store.entries(tenant, task, limit=1)
        assert isinstance(first.body, Opened)
        changed = ", ".join(agent.changes_from(first.body)) or "a change that was accepted since"
        raise DefinitionInvalid(
            f"task {task} was opened with another definition of agent {row.agent!r} (changed: {changed});"
            " resume it with that definition, or accept the change"
        )
    if row.not_before is not None:
        seconds = row.not_before - await store.now()
        raise TaskConflict(f"task {task} is {row.state.value}: it may run again in {seconds:.0f} s")
    # Without a worker it became free after the claim had looked: a decision or a release came in between.
    held = (
        f"worker {row.worker} holds it until its lease ends" if row.worker else "it is free now; resume again"
    )
    raise TaskConflict(f"task {task} is {row.state.value}: {held}")


async def _stop_for_bug(store: Store, claimed: Claimed, bug: Exception) -> None:
    """End the task INTERNAL_ERROR: a bug of ours would meet the next claim too. The caller still gets the bug."""

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        if row.state in TERMINAL or row.epoch != claimed.lease.epoch:
            return None
        state = fold(entry.body for entry in entries)
        return stop_change(state, StopReason.INTERNAL_ERROR, detail=describe(bug), by="runtime")

    with contextlib.suppress(Exception):  # the journal itself may be what cannot be read
        await store.intervene(claimed.lease.tenant, claimed.lease.task, "runtime", act)


async def _too_many_attempts(store: Store, claimed: Claimed) -> None:
    tenant, task = claimed.lease.tenant, claimed.lease.task

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        if row.epoch != claimed.lease.epoch:
            raise Fenced(f"task {task} was cancelled or taken over since epoch {claimed.lease.epoch}")
        return stop_change(fold(e.body for e in entries), StopReason.TOO_MANY_ATTEMPTS, by="runtime")

    await store.intervene(tenant, task, "runtime", act)


def stop_change(state: State, reason: StopReason, *, detail: str = "", by: str = "") -> Change:
    """The change that ends a task from outside its run, through the one closing routine (contract 7.1)."""
    bodies = closing(state, reason, detail=detail, by=by)
    after = fold(bodies, state)
    totals = Totals(after.tokens, after.cost_nano, after.steps, after.calls)
    return Change(bodies, state_after(reason), totals, settle=lost_operations(state))
