"""Opening, claiming and carrying on a task, and what is refused with which words (run/running.py)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import (
    Agent,
    DefinitionInvalid,
    Limits,
    MemoryStore,
    ScriptedModel,
    StopReason,
    TaskNotFound,
    TaskState,
)
from fencepost.core.entries import AttemptFailed, Stopped
from fencepost.core.errors import TaskConflict
from fencepost.models.scripted import call, calls, say
from fencepost.run.running import final_answer, new_task_id, open_task, worker_name
from fencepost.testing import Crashed, FakeClock, Pauses, Place
from fencepost.testing.pauses import crash
from tests.conformance.stage import Says, Stage
from tests.run.conftest import Switch

TEXTS: list[tuple[Any, str]] = [
    ("", "the prompt is empty"),
    (" \n", "the prompt is empty"),
    ("x" * 100_001, "has 100001 characters, at most 100000"),
    ("nul \0", "NUL, or bytes that are not UTF-8"),
    ("half \ud800", "NUL, or bytes that are not UTF-8"),
]


@pytest.mark.parametrize(("prompt", "said"), TEXTS)
async def test_a_prompt_that_is_none_is_refused_and_nothing_is_stored(
    stage: Stage, prompt: str, said: str
) -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        await stage.run(stage.agent([]), prompt, task="t")
    assert said in str(caught.value)
    with pytest.raises(TaskNotFound):
        await stage.store.row("local", "t")
    assert [e.kind for e in stage.events] == ["start", "refused"]
    assert said in stage.events[-1].detail


async def test_a_prompt_of_the_longest_length_is_taken(stage: Stage) -> None:
    result = await stage.run(stage.agent([say("long")], limits=Limits(1)), "x" * 100_000)
    assert result.text == "long"


async def test_the_same_request_again_is_the_same_task(stage: Stage) -> None:
    agent = stage.agent([say("done")])
    first = await stage.run(agent, "do it", task="t")
    again = await stage.run(agent, "do it", task="t")
    assert again.entries == first.entries


@pytest.mark.parametrize("changes", [{"prompt": "do that"}, {"principal": "local/somebody"}])
async def test_another_request_under_the_id_of_a_task_is_a_conflict(
    stage: Stage, changes: dict[str, Any]
) -> None:
    agent = stage.agent([say("done")])
    await stage.run(agent, "do it", task="t")
    with pytest.raises(TaskConflict, match="another request"):
        await stage.run(agent, **{"prompt": "do it", "task": "t", **changes})


async def test_tasks_and_workers_get_names_of_their_own() -> None:
    assert new_task_id() != new_task_id()
    assert worker_name() != worker_name()
    row = await open_task(Agent("a", ScriptedModel([]), Limits(1)), "do it", store=MemoryStore())
    assert row.id.startswith("task-")
    assert row.state is TaskState.PENDING


async def test_a_result_holds_everything_whatever_the_end_was(stage: Stage) -> None:
    failed = await stage.play([calls(call("look"))], stage.look(), limits=Limits(1))
    assert (failed.outcome, failed.state) == ("stopped", TaskState.FAILED)
    assert (failed.reason, failed.answer, failed.text) == (StopReason.MAX_STEPS_EXHAUSTED, None, "")
    assert isinstance(failed.entries[-1].body, Stopped)
    assert len(failed.messages) == 3
    assert failed.task == failed.row.id
    done = await stage.play([say("done")])
    assert done.answer is not None
    assert (done.answer.summary, done.text) == ("done", "done")
    assert final_answer(()) is None
    assert final_answer(done.entries[:-1]) is None


# --- carrying on


async def test_a_task_that_is_over_or_waits_comes_back_as_it_is(stage: Stage) -> None:
    over = await stage.play([say("done")])
    again = await stage.resume(stage.agent([]), over.task)
    assert (again.outcome, again.entries) == ("stopped", over.entries)
    agent = stage.agent([calls(call("act")), say("never")], stage.act(), boundary=Says(act="ask"))
    waits = await stage.run(agent)
    again = await stage.resume(agent, waits.task)
    assert (again.outcome, again.asks) == ("waiting", waits.asks)
    assert again.entries == waits.entries
    stage.models.clear()


async def test_a_task_that_is_not_there_cannot_be_carried_on(stage: Stage) -> None:
    with pytest.raises(TaskNotFound):
        await stage.resume(stage.agent([]), "nobody")
    assert [e.kind for e in stage.events] == ["start", "refused"]


async def test_a_task_that_somebody_holds_is_a_conflict_until_the_lease_ends(
    stage: Stage, clock: FakeClock
) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    await stage.store.claim("other", lease_seconds=30.0, tenant="local", task="t")
    with pytest.raises(TaskConflict, match="is RUNNING: worker other holds it until its lease ends"):
        await stage.resume(agent, "t")
    clock.advance(30)
    assert (await stage.resume(agent, "t")).text == "done"


async def test_a_task_that_rests_says_for_how_long(stage: Stage, clock: FakeClock) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    claimed = await stage.store.claim("other", lease_seconds=None, tenant="local", task="t")
    assert claimed is not None
    await stage.store.release(claimed.lease, seconds=1.0, not_before=clock.wall() + 90)
    with pytest.raises(TaskConflict, match="READY_TO_RESUME: it may run again in 90 s"):
        await stage.resume(agent, "t")
    clock.advance(90)
    assert (await stage.resume(agent, "t")).text == "done"


async def test_a_task_of_another_definition_is_refused_by_what_changed(stage: Stage) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    with pytest.raises(DefinitionInvalid, match="changed: instructions"):
        await stage.resume(stage.agent([], instructions="be quick"), "t")
    assert (await stage.resume(agent, "t")).text == "done"


async def test_a_request_that_a_crash_left_open_is_charged_and_made_again(
    stage: Stage, switch: Switch
) -> None:
    agent = stage.agent([say("done")])
    switch.hooks = Pauses(Place("append.after", 1), crash)
    with pytest.raises(Crashed):
        await stage.run(agent, task="t")
    switch.hooks = None
    result = await stage.resume(agent, "t", take_over=True)
    failed = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert [(f.kind, f.charged_tokens > 0) for f in failed] == [("crash", True)]
    assert result.text == "done"


async def test_a_takeover_from_a_worker_that_ended_leaves_the_one_that_was_faster_alone(stage: Stage) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    ask: dict[str, Any] = {"lease_seconds": None, "tenant": "local", "task": "t"}
    await stage.store.claim("ended", **ask)
    faster = await stage.store.claim("faster", take_over=True, holder="ended", **ask)
    assert faster is not None
    with pytest.raises(TaskConflict, match="worker faster holds it"):
        await stage.resume(agent, "t", take_over=True, holder="ended")
    assert (await stage.store.row("local", "t")).epoch == faster.lease.epoch
    assert (await stage.resume(agent, "t", take_over=True, holder="faster")).text == "done"


# --- attempts


async def test_the_sixth_claim_in_a_row_ends_the_task(stage: Stage) -> None:
    agent = stage.agent([])
    await open_task(agent, "do it", store=stage.store, task="t")
    for _ in range(5):
        await stage.store.claim("dies", lease_seconds=None, tenant="local", task="t", take_over=True)
    result = await stage.resume(agent, "t", take_over=True)
    assert (result.outcome, result.reason) == ("stopped", StopReason.TOO_MANY_ATTEMPTS)
    assert result.entries[-1].by == "runtime"
    assert [(e.kind, e.detail) for e in stage.events] == [("start", ""), ("stopped", "TOO_MANY_ATTEMPTS")]


async def test_the_fifth_claim_in_a_row_still_runs_it(stage: Stage) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    for _ in range(4):
        await stage.store.claim("dies", lease_seconds=None, tenant="local", task="t", take_over=True)
    assert (await stage.resume(agent, "t", take_over=True)).text == "done"


async def test_a_task_taken_over_while_its_attempts_are_counted_is_left_to_the_other(
    stage: Stage, switch: Switch
) -> None:
    agent = stage.agent([say("done")])
    await open_task(agent, "do it", store=stage.store, task="t")
    for _ in range(5):
        await stage.store.claim("dies", lease_seconds=None, tenant="local", task="t", take_over=True)

    class Robbed:
        """A store in which somebody takes the task over just before an intervention."""

        def __init__(self, store: Any) -> None:
            self._store = store

        async def intervene(self, tenant: str, task: str, by: str, act: Any, /) -> Any:
            await self._store.claim("thief", lease_seconds=None, tenant=tenant, task=task, take_over=True)
            return await self._store.intervene(tenant, task, by, act)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    kept, stage.store = stage.store, Robbed(stage.store)
    result = await stage.resume(agent, "t", take_over=True)
    stage.store = kept
    assert (result.outcome, result.state) == ("fenced", TaskState.RUNNING)
    assert "taken over" in stage.events[-1].detail
    await stage.cancel("t")
    stage.models.clear()


async def test_a_bug_that_is_met_after_the_end_changes_no_end(stage: Stage) -> None:
    class Odd:
        """A store that breaks, in a way no store may, when it is read."""

        def __init__(self, store: Any) -> None:
            self._store = store

        async def entries(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("a bug in the store")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    kept, stage.store = stage.store, Odd(stage.store)
    with pytest.raises(RuntimeError, match="a bug in the store"):
        await stage.play([say("done")], options={"task": "t"})
    stage.store = kept
    row = await stage.store.row("local", "t")
    assert (row.state, row.reason) == (TaskState.SUCCEEDED, StopReason.COMPLETED)
    assert stage.events[-1].kind == "failed"
