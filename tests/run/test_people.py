"""What people do to tasks, beside the conformance rows: odd words, unreadable neighbours, tasks nobody began."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from fencepost import SqliteStore, StopReason, TaskNotFound, TaskState
from fencepost.core.entries import ApprovalDecided, OutcomeResolved
from fencepost.core.errors import DecisionRefused
from fencepost.models.scripted import call, calls, say
from fencepost.ports import TaskRow
from fencepost.run.running import open_task
from fencepost.service import tasks
from fencepost.service.reading import read_task
from fencepost.testing.clock import FakeClock
from tests.conformance.stage import Says, Stage, forever

ASKS = Says(act="ask")


async def waiting(stage: Stage, task: str = "t") -> str:
    """The digest of what a task asks about its only call."""
    agent = stage.agent([calls(call("act", n=1))], stage.act(), boundary=ASKS)
    result = await stage.run(agent, task=task, principal="ada")
    assert result.outcome == "waiting"
    return result.asks[0].digest


async def test_the_same_decision_about_other_arguments_is_not_the_same_decision(stage: Stage) -> None:
    shown = await waiting(stage)
    first = await stage.decide("t", "1.0", by="bob", digest=shown)
    assert await stage.decide("t", "1.0", by="bob", digest=shown) == first
    with pytest.raises(DecisionRefused, match="already approved by bob"):
        await stage.decide("t", "1.0", by="bob", digest="f" * 64)
    assert [record.outcome for record in await stage.store.audited("local")] == ["refused"]


async def test_requesters_who_may_not_approve_their_calls_may_still_reject_them(stage: Stage) -> None:
    await waiting(stage)
    with pytest.raises(DecisionRefused, match="may not approve"):
        await stage.decide("t", "1.0", by="ada", self_approval=False)
    row = await stage.decide("t", "1.0", by="ada", self_approval=False, approve=False)
    assert row.state is TaskState.READY_TO_RESUME


async def test_a_persons_words_are_kept_as_every_store_can_hold_them(stage: Stage) -> None:
    await waiting(stage)
    await stage.decide("t", "1.0", approve=False, reason="not \0 now \udcff" + "x" * 5000)
    (said,) = [body.reason for body in await stage.bodies("t") if isinstance(body, ApprovalDecided)]
    assert said.startswith("not \ufffd now \ufffdxxx")
    assert len(said) == tasks.REASON_CHARS_MOST


async def test_a_persons_word_about_an_outcome_is_bounded_like_a_result(stage: Stage) -> None:
    began = asyncio.Event()

    async def hangs(*_: object) -> None:
        began.set()
        await forever()

    agent = stage.agent([calls(call("act")), say("done")], stage.act(then=hangs))
    running = asyncio.create_task(stage.run(agent, task="t"))
    await began.wait()
    running.cancel()
    await asyncio.wait([running])
    assert (await stage.resume(agent, "t")).outcome == "waiting"
    await tasks.resolve_outcome(stage.store, "t", "1.0", "happened", content="\udcff" + "y" * 1_000_000)
    (word,) = [body for body in await stage.bodies("t") if isinstance(body, OutcomeResolved)]
    assert word.content.startswith("\ufffdyyy")
    assert len(word.content.encode()) <= agent.limits.result_bytes
    assert (await stage.resume(agent, "t")).text == "done"


@pytest.mark.parametrize("name", ["1" * 5000 + ".0", "1.", ".0", "1.0.0", "one.0", "\udcff", "²"])
async def test_what_names_no_call_is_refused(stage: Stage, name: str) -> None:
    await waiting(stage)
    with pytest.raises(DecisionRefused, match="a call is named"):
        await stage.decide("t", name)


async def test_a_decision_about_a_task_that_cannot_be_is_audited(stage: Stage) -> None:
    with pytest.raises(TaskNotFound):
        await stage.decide("\udcff", "1.0")
    assert [record.task for record in await stage.store.audited("local")] == ["\ufffd"]


async def test_what_is_read_of_a_task_is_of_one_moment(stage: Stage) -> None:
    class Overtaken:
        """A store in which somebody cancels each task as soon as its row was read."""

        def __init__(self, store: Any) -> None:
            self._store = store

        async def row(self, tenant: str, task: str, **options: Any) -> TaskRow:
            row: TaskRow = await self._store.row(tenant, task, **options)
            await tasks.cancel(self._store, task)
            return row

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    await waiting(stage)
    reading = await read_task(Overtaken(stage.store), "t")
    assert (reading.row.state, reading.stopped) == (TaskState.WAITING_APPROVAL, None)
    stage.store = Overtaken(stage.store)
    agent = stage.agent([calls(call("act", n=1))], stage.act(), boundary=ASKS)
    result = await stage.run(agent, task="u")
    assert (result.state, len(result.asks)) == (TaskState.WAITING_APPROVAL, 1)
    assert len(result.entries) == result.row.seq


async def test_a_changed_definition_can_be_accepted_before_anybody_began_the_task(stage: Stage) -> None:
    await open_task(stage.agent([]), "do it", store=stage.store, task="t")
    changed = stage.agent([say("done")], instructions="be quick")
    row = await tasks.accept_definition(stage.store, "t", changed)
    assert (row.state, row.definition) == (TaskState.PENDING, changed.definition)
    assert (await stage.resume(changed, "t")).reason is StopReason.COMPLETED


async def test_a_journal_that_cannot_be_read_keeps_no_other_question_open(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "tasks.db"
    stage = Stage(SqliteStore(path, now=clock.wall), tmp_path)
    for task in ("damaged", "newer", "sound"):
        await stage.run(
            stage.agent([calls(call("act"))], stage.act(), boundary=ASKS),
            task=task, clock=clock, approval_seconds=60,
        )  # fmt: skip
    db = apsw.Connection(str(path))
    of = "(SELECT number FROM tasks WHERE id = ?) AND seq = 2"
    db.execute(f"UPDATE entries SET body = x'00' WHERE task = {of}", ("damaged",)).fetchall()
    db.execute(f"UPDATE entries SET v = 9 WHERE task = {of}", ("newer",)).fetchall()
    db.close()
    clock.advance(61)
    assert await tasks.expire(stage.store, tenant="local") == 1
    assert (await stage.store.row("local", "sound")).state is TaskState.READY_TO_RESUME
    await stage.store.close()
