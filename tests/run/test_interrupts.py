"""Cancel, release, fence and shutdown inside every kind of effect (contract 7.4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost import (
    CallContext,
    FunctionModel,
    Limits,
    Live,
    ModelFailed,
    ModelRequest,
    Reply,
    SqliteStore,
    StopReason,
    StoreFailed,
    TaskState,
)
from fencepost.core.entries import AttemptFailed, CallStarted, Replied
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Commit, Receipt
from fencepost.run import running
from fencepost.service import tasks
from fencepost.testing import FakeClock, Pauses, Place
from tests.conformance.stage import Stage, forever, held, said
from tests.run.conftest import Switch

TINY = 0.02
QUICK = Limits(steps=5, grace_seconds=TINY)
PATIENT = Limits(steps=5, grace_seconds=20.0)


async def cancelled(running_: asyncio.Task[Any], times: int = 1) -> None:
    """Cancel the caller of a run and wait until it has gone."""
    for _ in range(times):
        running_.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running_


async def until(holds: Callable[[], bool]) -> None:
    """Give the loop turns until something that no event tells of holds."""
    while not holds():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


# --- a cancel of the caller gives the task back


@pytest.mark.parametrize("effect", ["read", "idempotent", "write"])
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_a_cancelled_caller_gives_the_task_back_and_another_run_carries_it_on(
    stage: Stage, effect: str, parallel: bool
) -> None:
    begun = asyncio.Event()

    async def first(context: CallContext, _: int) -> str:
        begun.set()
        if context.start == 1:
            await forever()
        return "second time"

    act = stage.act(then=first, effect=effect, parallel=parallel)
    agent = stage.agent([calls(call("act")), say("done")], act, limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    await cancelled(caller)
    row = await stage.store.row("local", "t")
    assert (row.state, row.attempts) == (TaskState.READY_TO_RESUME, 0)
    result = await stage.resume(agent, "t")
    if effect == "write":
        assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "crash")]
        assert stage.ran() == ["act 0"]
    else:
        assert (said(result), result.text) == ([("ok", "")], "done")
        keys = {line.key for line in stage.effects.lines()}
        assert (len(stage.effects.lines()), keys) == (2, {"t:1.0"})


async def test_a_caller_that_is_cancelled_again_and_again_waits_for_the_release_all_the_same(
    stage: Stage,
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def stubborn(*_: Any) -> None:
        begun.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    agent = stage.agent([calls(call("look"))], stage.look(then=stubborn), limits=QUICK)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    await cancelled(caller, times=5)
    assert (await stage.store.row("local", "t")).state is TaskState.READY_TO_RESUME
    go.set()
    assert len(await stage.late("t")) == 1


async def test_a_cancel_while_the_model_thinks_costs_no_attempt(stage: Stage) -> None:
    begun = asyncio.Event()

    async def thinks(request: ModelRequest) -> Reply:
        if not begun.is_set():
            begun.set()
            await forever()
        return say(f"attempt {request.attempt}")

    agent = stage.agent([], model=FunctionModel(thinks), limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    await cancelled(caller)
    result = await stage.resume(agent, "t")
    assert (result.state, result.text) == (TaskState.SUCCEEDED, "attempt 2")
    assert [e.body.kind for e in result.entries if isinstance(e.body, AttemptFailed)] == ["released"]


async def test_a_cancel_during_a_pause_gives_the_task_back_and_the_pause_is_made_again(stage: Stage) -> None:
    clock = FakeClock(jumping=False)
    busy = ModelFailed("busy", kind="status", retriable=True, retry_after=30.0)
    agent = stage.agent([busy, say("done")])
    caller = asyncio.create_task(stage.run(agent, task="t", clock=clock))
    await until(lambda: clock.sleepers > 0)
    await cancelled(caller)
    assert (await stage.store.row("local", "t")).state is TaskState.READY_TO_RESUME
    again = asyncio.create_task(stage.resume(agent, "t", clock=clock))
    await until(lambda: clock.sleepers > 0)
    clock.advance(30)
    assert (await again).text == "done"


async def test_a_cancel_while_a_tool_is_asked_what_happened_gives_the_task_back(stage: Stage) -> None:
    begun = asyncio.Event()

    async def asks(_: str) -> str:
        begun.set()
        await forever()
        return ""

    limits = Limits(steps=5, tool_seconds=TINY, grace_seconds=TINY)
    act = stage.act(then=forever, reconcile=asks)
    agent = stage.agent([calls(call("act"))], act, limits=limits)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    await cancelled(caller)
    assert (await stage.store.row("local", "t")).state is TaskState.READY_TO_RESUME


async def test_a_run_that_ends_before_the_cancel_of_its_caller_is_heard_tells_how_it_ended(
    stage: Stage,
) -> None:
    caller = asyncio.create_task(stage.run(stage.agent([say("done")]), task="t"))
    await asyncio.sleep(0)  # the run exists, and is about to go to its end in one turn of the loop
    await cancelled(caller)
    assert (await stage.store.row("local", "t")).state is TaskState.SUCCEEDED
    assert stage.events[-1].kind == "stopped"


# --- the process goes down: asyncio tasks are cancelled from outside


class Before:
    """The asyncio tasks there were when a test began; `others` are those a shutdown of the run would find."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()

    def others(self) -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task not in self._tasks]


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_everything_cancelled_at_once_gives_the_task_back(stage: Stage, parallel: bool) -> None:
    before, begun = Before(), asyncio.Event()

    async def waits(*_: Any) -> None:
        begun.set()
        await forever()

    act = stage.act(then=waits, parallel=parallel)
    agent = stage.agent([calls(call("act", n=1), call("act", n=2))], act, limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    for task in before.others():
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    row = await stage.store.row("local", "t")
    assert row.state is TaskState.READY_TO_RESUME
    assert said(await stage.resume(agent, "t")) == []


async def test_a_driver_cancelled_before_its_first_step_gives_the_task_back(
    stage: Stage, switch: Switch
) -> None:
    before = Before()
    agent = stage.agent([say("done")])
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await until(lambda: len(before.others()) >= 2)
    for task in before.others():
        if task is not caller:
            task.cancel()
    result = await caller
    assert (result.outcome, result.state) == ("released", TaskState.READY_TO_RESUME)


async def test_a_group_cancelled_from_outside_is_lost_and_the_task_given_back(stage: Stage) -> None:
    before, begun = Before(), asyncio.Event()

    async def waits(*_: Any) -> None:
        begun.set()
        await forever()

    act = stage.act(then=waits, parallel=True)
    agent = stage.agent([calls(call("act", n=1), call("act", n=2))], act, limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    flight = next(t for t in before.others() if "_fly" in repr(t.get_coro()))
    flight.cancel()
    assert (await caller).outcome == "released"
    assert [ask.about for ask in (await stage.resume(agent, "t")).asks] == ["outcome", "outcome"]


class Parked:
    """A store in which a commit is made, or a release is not made yet, and waits to be let go.

    `numbers` are those of the commits; none of them parks the releases.
    """

    def __init__(self, store: Any, *numbers: int) -> None:
        self._store, self._numbers = store, numbers
        self.commits: list[Commit] = []
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def append(self, commit: Commit, /) -> Receipt:
        self.commits.append(commit)
        receipt: Receipt = await self._store.append(commit)
        if len(self.commits) in self._numbers:
            await self._park()
        return receipt

    async def release(self, *given: Any, **named: Any) -> None:
        if not self._numbers:
            await self._park()
        await self._store.release(*given, **named)

    async def _park(self) -> None:
        self.reached.set()
        await self.go.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_commit_cancelled_from_outside_is_asked_for_by_its_id_and_the_task_given_back(
    stage: Stage, times: int
) -> None:
    before, parked = Before(), Parked(stage.store, *range(2, 2 + times))
    stage.store = parked
    agent = stage.agent([calls(call("act")), say("done")], stage.act())
    caller = asyncio.create_task(stage.run(agent, task="t"))
    for _ in range(times):
        await held(parked.reached)
        parked.reached.clear()
        for task in before.others():
            if task is not caller:
                task.cancel()
    result = await caller
    assert (result.outcome, result.state) == ("released", TaskState.READY_TO_RESUME)
    asked = parked.commits[1 : 2 + times]
    assert len(asked) == 1 + times
    assert len({(commit.commit_id, commit.bodies) for commit in asked}) == 1
    assert sum(isinstance(e.body, Replied) for e in result.entries) == 1


async def test_a_release_in_flight_is_not_cancelled(stage: Stage) -> None:
    parked = Parked(stage.store)
    stage.store = parked
    before, begun = Before(), asyncio.Event()

    async def waits(*_: Any) -> None:
        begun.set()
        await forever()

    agent = stage.agent([calls(call("look"))], stage.look(then=waits), limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    caller.cancel()
    await held(parked.reached)
    for task in before.others():
        if "_drive" in repr(task.get_coro()) and task is not caller:
            task.cancel()
    await asyncio.sleep(0)
    parked.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await stage.store.row("local", "t")).state is TaskState.READY_TO_RESUME


async def test_a_store_that_cancels_a_write_by_itself_ends_the_run_and_leaves_the_task(stage: Stage) -> None:
    class Broken(Parked):
        async def append(self, commit: Commit, /) -> Receipt:
            raise asyncio.CancelledError

    kept, stage.store = stage.store, Broken(stage.store)
    agent = stage.agent([say("done")])
    with pytest.raises(asyncio.CancelledError):
        await stage.run(agent, task="t")
    assert stage.events[-1].kind == "failed"
    stage.store = kept
    assert (await stage.resume(agent, "t", take_over=True)).text == "done"


# --- fences: cancel by somebody, and taking over


async def test_a_tool_that_cancels_its_own_task_ends_its_run(tmp_path: Path) -> None:
    store, live = SqliteStore(tmp_path / "tasks.db"), Live()
    stage = Stage(store, tmp_path)
    stage.live = live

    async def ends_it_all(context: CallContext, _: int) -> str:
        await tasks.cancel(store, context.task, live=live)
        return "and came back"

    result = await stage.run(stage.agent([calls(call("act"))], stage.act(then=ends_it_all)), task="t")
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    assert said(result) == [("unknown", "CANCELLED")]
    assert [r.content for r in await store.late("local", "t")] == ["and came back"]
    await store.close()


async def test_a_run_taken_over_in_its_own_process_hears_of_it_at_once(stage: Stage) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def first(context: CallContext, _: int) -> str:
        if context.start == 1:
            begun.set()
            try:
                await forever()
            finally:
                ended.set()
        return "second time"

    agent = stage.agent([calls(call("look")), say("done")], stage.look(then=first), limits=PATIENT)
    older = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    newer = await stage.resume(agent, "t", take_over=True)
    assert newer.text == "done"
    await held(ended)  # long before its deadline
    assert (await older).outcome == "fenced"


async def test_a_group_whose_commit_is_refused_is_cancelled_with_its_run(stage: Stage) -> None:
    ended = asyncio.Event()

    async def first(_: CallContext, n: int) -> str:
        if n == 1:
            await stage.store.claim("thief", lease_seconds=None, tenant="local", task="t", take_over=True)
            return "robbed"
        try:
            await forever()
        finally:
            ended.set()
        return ""

    act = stage.act(then=first, parallel=True)
    result = await stage.run(stage.agent([calls(call("act", n=1), call("act", n=2))], act), task="t")
    assert result.outcome == "fenced"
    await held(ended)
    assert [r.content for r in await stage.store.late("local", "t")] == ["robbed"]
    await tasks.cancel(stage.store, "t")


async def test_a_fence_after_a_release_wins(stage: Stage) -> None:
    begun, tidy = asyncio.Event(), asyncio.Event()

    async def tidies(*_: Any) -> None:
        begun.set()
        try:
            await forever()
        finally:
            await tidy.wait()

    agent = stage.agent([calls(call("look"))], stage.look(then=tidies), limits=PATIENT)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    caller.cancel()
    await asyncio.sleep(0)
    await stage.cancel("t")
    tidy.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await stage.store.row("local", "t")).state is TaskState.CANCELLED
    assert stage.events[-1].kind == "fenced"


async def test_a_deadline_that_passes_during_the_grace_of_a_release_changes_nothing(stage: Stage) -> None:
    begun, tidy = asyncio.Event(), asyncio.Event()

    async def tidies(*_: Any) -> None:
        begun.set()
        try:
            await forever()
        finally:
            await asyncio.sleep(TINY * 2)  # ends after the deadline of the call, inside the grace period
            tidy.set()

    limits = Limits(steps=5, tool_seconds=TINY, grace_seconds=20.0)
    agent = stage.agent([calls(call("look")), say("done")], stage.look(then=tidies), limits=limits)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    await cancelled(caller)
    assert tidy.is_set()
    entries = await stage.store.entries("local", "t")
    assert isinstance(entries[-1].body, CallStarted)  # neither timed out nor ended: it will run again


# --- bodies that cancel themselves


async def self_cancelling(*_: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def leftover(*_: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return "came back"


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_a_body_that_cancels_the_task_it_runs_in_is_taken_for_a_shutdown(
    stage: Stage, parallel: bool
) -> None:
    act = stage.look(then=self_cancelling, parallel=parallel)
    result = await stage.play([calls(call("look", n=1), call("look", n=2))], act)
    assert (result.outcome, result.state) == ("released", TaskState.READY_TO_RESUME)


async def test_a_cancel_that_a_body_took_back_badly_is_forgotten(stage: Stage) -> None:
    async def own_cancel(*_: Any) -> None:
        raise asyncio.CancelledError

    bad, worse = stage.look("bad", then=leftover), stage.look("worse", then=own_cancel)
    result = await stage.play([calls(call("bad")), calls(call("worse")), say("done")], bad, worse)
    assert said(result) == [("ok", ""), ("failed", "tool_error")]
    assert result.text == "done"


# --- stores that fail


@pytest.mark.parametrize("point", ["append.before", "append.inside"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_commit_that_fails_reaches_the_caller_and_the_task_can_be_carried_on(
    stage: Stage, switch: Switch, point: str, number: int
) -> None:
    def fails() -> None:
        raise StoreFailed("the disk is gone")

    agent = stage.agent([calls(call("look", n=1)), calls(call("look", n=2)), say("done")], stage.look())
    switch.hooks = Pauses(Place(point, number), fails)
    with pytest.raises(StoreFailed, match="the disk is gone"):
        await stage.run(agent, task="t")
    assert stage.events[-1].kind == "failed"
    switch.hooks = None
    model = FunctionModel(lambda request: _third(request.step))
    agent = stage.agent([], stage.look(), model=model)
    stage.models.clear()
    result = await stage.resume(agent, "t", take_over=True)
    assert (result.text, said(result)) == ("done", [("ok", ""), ("ok", "")])


def _third(step: int) -> Reply:
    return say("done") if step == 3 else calls(call("look", id=f"resumed-{step}", n=step))


async def test_a_failed_commit_stops_the_siblings_that_are_in_flight(stage: Stage, switch: Switch) -> None:
    ended = asyncio.Event()

    async def body(_: CallContext, n: int) -> str:
        if n == 1:
            return "first"
        try:
            await forever()
        finally:
            ended.set()
        return ""

    def fails() -> None:
        raise StoreFailed("the disk is gone")

    switch.hooks = Pauses(Place("append.before", 3), fails)
    look = stage.look(then=body, parallel=True)
    with pytest.raises(StoreFailed):
        await stage.play([calls(call("look", n=1), call("look", n=2))], look)
    await held(ended)
    switch.hooks = None


async def test_a_late_result_that_cannot_be_kept_troubles_nobody(stage: Stage, switch: Switch) -> None:
    go, tried = asyncio.Event(), asyncio.Event()

    async def stubborn(*_: Any) -> str:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
        return "late news"

    async def lets_go(*_: Any) -> str:
        go.set()
        await held(tried)
        return "the run goes on"

    def fails() -> None:
        tried.set()
        raise StoreFailed("the disk is gone")

    switch.hooks = Pauses(Place("record_late.before", 1), fails)
    limits = Limits(steps=5, tool_seconds=TINY, grace_seconds=TINY)
    tools = stage.look("slow", then=stubborn), stage.look("next", then=lets_go, timeout=20.0)
    result = await stage.play([calls(call("slow")), calls(call("next")), say("done")], *tools, limits=limits)
    assert (said(result), result.text) == ([("timeout", "timeout"), ("ok", "")], "done")


async def test_whatever_an_abandoned_body_ends_with_the_run_that_went_on_does_not_hear_of_it(
    stage: Stage, switch: Switch
) -> None:
    go, tried = asyncio.Event(), asyncio.Event()

    async def stubborn(*_: Any) -> str:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
        return "late news"

    async def lets_go(*_: Any) -> str:
        go.set()
        await held(tried)
        for _turn in range(3):
            await asyncio.sleep(0)
        return "the run goes on"

    def breaks() -> None:
        tried.set()
        raise RuntimeError("a bug in the store")

    switch.hooks = Pauses(Place("record_late.before", 1), breaks)
    limits = Limits(steps=5, tool_seconds=TINY, grace_seconds=TINY)
    tools = stage.look("slow", then=stubborn), stage.look("next", then=lets_go, timeout=20.0)
    result = await stage.play([calls(call("slow")), calls(call("next")), say("done")], *tools, limits=limits)
    assert (said(result), result.text) == ([("timeout", "timeout"), ("ok", "")], "done")


# --- claims


async def test_a_claim_that_is_cancelled_after_it_landed_is_given_back(stage: Stage) -> None:
    class LostAnswer(Parked):
        async def claim(self, *given: Any, **named: Any) -> Any:
            await self._store.claim(*given, **named)
            await self._park()

    parked = LostAnswer(stage.store, 0)
    agent = stage.agent([say("done")])
    kept, stage.store = stage.store, parked
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(parked.reached)
    await cancelled(caller)
    assert (await kept.row("local", "t")).state is TaskState.READY_TO_RESUME
    stage.store = kept
    assert (await stage.resume(agent, "t")).text == "done"


async def test_a_claim_cancelled_for_a_task_that_is_not_there_says_so_by_its_cancel(stage: Stage) -> None:
    class Never(Parked):
        async def claim(self, *_: Any, **__: Any) -> Any:
            await self._park()

    parked = Never(stage.store, 0)
    caller = asyncio.create_task(running.resume(stage.agent([]), "nobody", store=parked))
    await held(parked.reached)
    await cancelled(caller)


async def test_a_claim_cancelled_while_another_run_of_its_worker_has_the_task_leaves_it_to_that(
    stage: Stage,
) -> None:
    class Late(Parked):
        async def claim(self, *given: Any, **named: Any) -> Any:
            assert await self._store.claim(*given, **named) is None
            await self._park()

    begun, go_on = asyncio.Event(), asyncio.Event()

    async def looks(*_: Any) -> str:
        begun.set()
        await held(go_on)
        return "seen"

    agent = stage.agent([calls(call("look")), say("done")], stage.look(then=looks))
    first = asyncio.create_task(stage.run(agent, task="t", worker="w"))
    await held(begun)
    kept, stage.store = stage.store, Late(stage.store, 0)
    second = asyncio.create_task(stage.resume(agent, "t", worker="w"))
    await held(stage.store.reached)
    await cancelled(second)
    stage.store = kept
    row = await stage.store.row("local", "t")
    assert (row.state, row.epoch) == (TaskState.RUNNING, 1)
    go_on.set()
    assert (await first).text == "done"


async def test_a_claim_cancelled_while_another_worker_has_the_task_leaves_it_to_them(stage: Stage) -> None:
    agent = stage.agent([say("done")])
    await running.open_task(agent, "do it", store=stage.store, task="t")

    class Robbed(Parked):
        async def claim(self, *given: Any, **named: Any) -> Any:
            await self._store.claim("somebody else", lease_seconds=None, tenant="local", task="t")
            await self._park()

    parked = Robbed(stage.store, 0)
    caller = asyncio.create_task(running.resume(agent, "t", store=parked))
    await held(parked.reached)
    await cancelled(caller)
    row = await stage.store.row("local", "t")
    assert (row.state, row.worker) == (TaskState.RUNNING, "somebody else")
    assert (await stage.resume(agent, "t", take_over=True)).text == "done"
