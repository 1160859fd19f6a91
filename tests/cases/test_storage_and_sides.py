"""Cases O-100 to O-107: how a store grows, ages and shares its file, and what happens side by side in one task.

A test is named by the number of its case. `not_applicable.md` lists the cases, or parts of one, that nothing in this
release can meet, with the rule that says so.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from fencepost import (
    AssistantMessage,
    CallContext,
    FunctionModel,
    Limits,
    MemoryStore,
    ModelRequest,
    Recovery,
    Reply,
    Result,
    SqliteStore,
    StopReason,
    Store,
    TaskState,
    ToolMessage,
)
from fencepost.core.entries import Opened, Stopped, decode_body, encode_body, kind_of
from fencepost.core.errors import Fenced, StoreCorrupt, StoreNewer, TaskConflict
from fencepost.core.recovery import Reaction
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Claimed, Receipt
from fencepost.service.replay.files import read_journal, readable_part, write_journal
from fencepost.testing import facts
from fencepost.testing.facts import asked, claimed_again, ended, held
from tests.conformance.stage import TENANT, Says, Stage, said
from tests.stores.test_sqlite_processes import HANG_SECONDS, victim

KILOBYTE = 1024
# What twice the turns may take of the bytes of half of them, by O-100.
GROWTH_MOST = 2.2
RACES = 50
KILLS = 10
# O-104: what a file system may leave at the end of a file that was being written.
ZEROS = bytes(1206)


def bodies_of(store: Path) -> list[bytes]:
    """The bodies of every entry in the file, as they are stored."""
    db = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [bytes(body) for (body,) in db.execute("SELECT body FROM entries ORDER BY task, seq")]
    finally:
        db.close()


def changed(store: Path, statement: str) -> None:
    """The file after somebody else wrote to it."""
    db = apsw.Connection(str(store))
    db.execute(statement).fetchall()
    db.close()


# --- K18: storage ------------------------------------------------------------------------------------------

INSTRUCTIONS = "be exact about the marzipan; " * 1000


async def grown(stage: Stage, turns: int) -> Result:
    """A task of so many turns, each with a result of 1 KB."""
    script = [calls(call("look", n=n)) for n in range(turns)]
    look = stage.look(then=lambda context, n: f"{n:04}" + "x" * (KILOBYTE - 4))
    limits = Limits(steps=turns + 1, tool_calls=turns, tokens=10**9)
    return await stage.play([*script, say("done")], look, limits=limits, instructions=INSTRUCTIONS)


async def test_o100_twice_the_turns_take_twice_the_bytes(tmp_path: Path) -> None:
    sizes: list[int] = []
    for turns in (100, 200):
        folder = tmp_path / str(turns)
        folder.mkdir()
        store = SqliteStore(folder / "tasks.db")
        result = await grown(Stage(store, folder), turns)
        assert result.reason is StopReason.COMPLETED
        await store.compact()
        await store.close()
        sizes.append((folder / "tasks.db").stat().st_size)
    assert sizes[0] > 100 * KILOBYTE
    assert sizes[1] / sizes[0] <= GROWTH_MOST


async def test_o100_what_never_changes_in_a_task_is_stored_once(stage: Stage) -> None:
    result = await grown(stage, 3)
    found = [encode_body(entry.body).count(b"marzipan") for entry in result.entries]
    assert (found[0], sum(found[1:])) == (1000, 0)


async def test_o101_no_lock_is_held_while_a_model_or_a_tool_works(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    store = SqliteStore(path)
    stage = Stage(store, tmp_path)
    waiting = [asyncio.Event(), asyncio.Event()]

    def writes() -> None:
        db = apsw.Connection(str(path))
        db.set_busy_timeout(0)
        db.execute("BEGIN IMMEDIATE; COMMIT").fetchall()
        db.close()

    async def says(request: ModelRequest) -> Reply:
        waiting[0].set()
        writes()
        return calls(call("look")) if request.step == 1 else say("done")

    def looks(context: CallContext, n: int) -> str:
        waiting[1].set()
        writes()
        return "seen"

    tasks = [stage.run(stage.agent([], stage.look(then=looks), model=FunctionModel(says))) for _ in range(3)]
    results = await asyncio.gather(*tasks)
    assert [(r.reason, said(r)) for r in results] == [(StopReason.COMPLETED, [("ok", "")])] * 3
    assert all(event.is_set() for event in waiting)
    await stage.verify()
    await store.close()


async def test_o102_an_entry_of_a_version_that_is_not_known_is_refused_and_the_task_left_as_it_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tasks.db"
    store = SqliteStore(path)
    stage = Stage(store, tmp_path)
    agent = stage.agent([calls(call("act"))], stage.act(), boundary=Says(act="ask"))
    result = await stage.run(agent)
    assert result.state is TaskState.WAITING_APPROVAL
    changed(path, "UPDATE entries SET v = 99 WHERE seq = 2")
    before = bodies_of(path)
    with pytest.raises(StoreNewer, match="version 99 is not known"):
        await stage.decide(result.task, "1.0")
    with pytest.raises(StoreNewer, match="version 99 is not known"):
        await store.entries(TENANT, result.task)
    assert (bodies_of(path), await store.row(TENANT, result.task), stage.ran()) == (before, result.row, [])
    await store.close()


def test_o102_an_entry_with_a_field_that_is_not_known_loads() -> None:
    body = facts.opened()
    stored = {**json.loads(encode_body(body)), "of_another_time": {"x": 1}}
    assert decode_body(kind_of(body), 1, json.dumps(stored).encode()) == body


async def test_o102_what_is_stored_is_json_and_names_nothing_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    store = SqliteStore(path)
    stage = Stage(store, tmp_path)
    await stage.play([calls(call("look"), call("act")), say("done")], stage.look(), stage.act())
    await store.close()
    bodies = bodies_of(path)
    assert len(bodies) > 5
    assert all(isinstance(json.loads(body), dict) for body in bodies)
    assert Opened.__module__.encode() not in path.read_bytes()


THREADS, TURNS = 10, 50


def test_o103_many_writers_of_one_file_never_meet_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    failures: list[BaseException] = []
    begin = threading.Barrier(THREADS, timeout=HANG_SECONDS)

    async def writes(task: str) -> None:
        store = SqliteStore(path)  # the first of all brings the schema up to date, the process or a thread
        await store.open_task(facts.new_task(task))
        for turn in range(TURNS):
            holder = await claimed_again(store, task, take_over=True)
            await holder.append(asked(turn + 1))
        await store.close()

    def thread(task: str) -> None:
        begin.wait()
        try:
            asyncio.run(writes(task))
        except BaseException as failure:  # noqa: BLE001 - a thread's failure is told by the test
            failures.append(failure)

    threads = [threading.Thread(target=thread, args=(f"t-{n}",)) for n in range(THREADS)]
    other = victim(path, f"run:other:{TURNS}")
    for one in threads:
        one.start()
    for one in threads:
        one.join(HANG_SECONDS)
    words = other.communicate(timeout=HANG_SECONDS)[0].splitlines()
    assert (failures, other.returncode, words[-1]) == ([], 0, f"appended {2 * TURNS + 1}")
    asyncio.run(whole(path, {**{f"t-{n}": TURNS + 1 for n in range(THREADS)}, "other": 2 * TURNS + 1}))


async def whole(path: Path, tasks: dict[str, int]) -> None:
    """Each of the tasks is at this seq, and its journal is the one its row says."""
    store = SqliteStore(path)
    assert await store.check() == ()
    for task, seq in tasks.items():
        assert (await store.row(facts.TENANT, task)).seq == seq
        assert await store.verify(facts.TENANT, task) is None
    await store.close()


async def test_o104_a_store_whose_writer_is_killed_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    chance = random.Random(104)
    for number in range(KILLS):
        process = victim(path, f"run:t-{number}:1000000")
        assert process.stdout is not None
        for _ in range(chance.randint(1, 60)):
            told = process.stdout.readline()
        process.kill()
        rest = process.stdout.read()
        process.stdout.close()
        assert process.wait(HANG_SECONDS) == -signal.SIGKILL
        told = (told + rest).rpartition("\n")[0].splitlines()[-1]
        with path.with_name("store.db-wal").open("ab") as file:
            file.write(ZEROS)
        store = SqliteStore(path)
        assert await store.check() == ()
        row = await store.row(facts.TENANT, f"t-{number}")
        acknowledged = int(told.split()[1])
        assert row.seq in (acknowledged, acknowledged + 2), "at most the commit that was not acknowledged"
        assert await store.verify(facts.TENANT, f"t-{number}") is None
        await store.close()


async def test_o104_a_journal_file_cut_or_ended_with_zeros_says_so_and_keeps_its_whole_lines() -> None:
    store = MemoryStore()
    holder = await held(store)
    for step in range(1, 9):
        await holder.append(asked(step), ended(step))
    entries = await store.entries(facts.TENANT, "t-1")
    data = write_journal("t-1", entries)
    ends = data.splitlines(keepends=True)
    chance = random.Random(104)
    for at in (chance.randrange(len(ends[0]), len(data)) for _ in range(50)):
        with pytest.raises(StoreCorrupt, match=r"cut off|ends after entry"):
            read_journal(data[:at])
        lost = data[:at].count(b"\n") - 1
        assert readable_part(data[:at])[:lost] == entries[:lost]
        assert len(readable_part(data[:at])) <= lost + 1
    with pytest.raises(StoreCorrupt, match="cut off"):
        read_journal(data + ZEROS)
    assert readable_part(data + ZEROS) == entries
    assert readable_part(ZEROS) == ()


# --- K19: concurrency inside one task ----------------------------------------------------------------------


async def test_o105_of_two_that_resume_a_task_at_once_one_runs_it(stage: Stage) -> None:
    for number in range(RACES):
        agent, task = await waits(stage, number)
        await stage.decide(task, "1.0")
        ends = await asyncio.gather(
            stage.resume(agent, task), stage.resume(agent, task), return_exceptions=True
        )
        assert sum(isinstance(end, Result) and end.outcome == "stopped" for end in ends) >= 1
        assert all(isinstance(end, (Result, TaskConflict)) for end in ends), ends
        await ran_once(stage, task)


async def test_o105_a_resume_beside_an_approval_finds_it_or_waits_for_it(stage: Stage) -> None:
    for number in range(RACES):
        agent, task = await waits(stage, number)
        both = [stage.resume(agent, task), stage.decide(task, "1.0")]
        if number % 2:
            both.reverse()
        ends = await asyncio.gather(*both, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, BaseException)]
        assert all(isinstance(end, TaskConflict) for end in refused), refused
        if (await stage.store.row(TENANT, task)).state is not TaskState.SUCCEEDED:
            await stage.resume(agent, task)
        await ran_once(stage, task)


async def test_o105_a_resume_that_came_just_before_the_approval_is_told_to_try_again(stage: Stage) -> None:
    agent, task = await waits(stage, 1)
    claim = stage.store.claim

    async def then_decided(*args: Any, **options: Any) -> Any:
        claimed = await claim(*args, **options)
        await stage.decide(task, "1.0")
        return claimed

    stage.store.claim = then_decided
    with pytest.raises(TaskConflict, match="is READY_TO_RESUME: it is free now; resume again"):
        await stage.resume(agent, task)
    stage.store.claim = claim
    await stage.resume(agent, task)
    await ran_once(stage, task)


async def waits(stage: Stage, number: int) -> tuple[Any, str]:
    """A task that waits for a person's word on its one call, and its agent."""
    task = f"task-{number}"
    agent = stage.agent([calls(call("act", n=number)), say("done")], stage.act(), boundary=Says(act="ask"))
    assert (await stage.run(agent, task=task)).outcome == "waiting"
    return agent, task


async def ran_once(stage: Stage, task: str) -> None:
    """The task is done, its call ran once, and its journal is one story."""
    assert (await stage.store.row(TENANT, task)).state is TaskState.SUCCEEDED
    assert len(stage.ran(task)) == 1
    entries = await stage.store.entries(TENANT, task)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.epoch for entry in entries] == sorted(entry.epoch for entry in entries)


async def test_o106_of_two_connections_that_append_at_one_place_one_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    stores: list[Store] = [SqliteStore(path, now=lambda: 1000.0) for _ in range(2)]  # times say nothing
    first = await held(stores[0])
    second = facts.Holder(stores[1], Claimed(first.lease, await stores[1].row(facts.TENANT, "t-1"), ()))
    for turn in range(RACES):
        ends = await asyncio.gather(
            first.append(asked(turn + 1), commit_id=f"first-{turn}"),
            second.append(asked(turn + 1), commit_id=f"second-{turn}"),
            return_exceptions=True,
        )
        assert sorted(type(end).__name__ for end in ends) == [Fenced.__name__, Receipt.__name__]
        first.seq = second.seq = turn + 2
        assert (await stores[turn % 2].row(facts.TENANT, "t-1")).seq == turn + 2
    assert await stores[0].verify(facts.TENANT, "t-1") is None
    for store in stores:
        await store.close()


class Siblings:
    """Three reads at once that end in the order 3, 1, 2; those of `bad` raise an exception without words."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.over = {n: asyncio.Event() for n in (1, 2, 3)}
        self.order: list[int] = []

    async def __call__(self, context: CallContext, n: int) -> str:
        before = {3: None, 1: 3, 2: 1}[n]
        if before is not None:
            async with asyncio.timeout(HANG_SECONDS):
                await self.over[before].wait()
        self.order.append(n)
        self.over[n].set()
        if n in self.bad:
            raise Exception  # noqa: TRY002 - the case is the one without a name or words
        return f"found {n}"


async def test_o107_results_stand_in_the_order_of_the_calls_and_a_failure_without_words_says_something(
    stage: Stage,
) -> None:
    siblings = Siblings(2)
    script = [calls(*(call("look", n=n) for n in (1, 2, 3))), say("done")]
    result = await stage.play(script, stage.look(then=siblings, parallel=True))
    assert siblings.order == [3, 1, 2]
    assert said(result) == [("ok", ""), ("failed", "tool_error"), ("ok", "")]
    told = [m for m in result.messages if isinstance(m, ToolMessage)]
    asked_for = [m for m in result.messages if isinstance(m, AssistantMessage) and m.calls]
    ids = [c.id for c in asked_for[0].calls]
    assert [(m.call_id, m.name, m.failed) for m in told] == [
        (call_id, "look", failed) for call_id, failed in zip(ids, (False, True, False), strict=True)
    ]
    assert told[1].content.strip()
    assert sorted(stage.ran()) == ["look 1", "look 2", "look 3"]


async def test_o107_of_two_failures_the_first_call_names_the_end(stage: Stage) -> None:
    siblings = Siblings(1, 3)
    looks = [stage.look(f"look_{n}", then=siblings, parallel=True) for n in (1, 2, 3)]
    script = [calls(*(call(f"look_{n}", n=n) for n in (1, 2, 3)))]
    result = await stage.play(script, *looks, recovery=Recovery(tool_error=Reaction.STOP))
    assert siblings.order[0] == 3, "the last call failed first"
    (stopped,) = [e.body for e in result.entries if isinstance(e.body, Stopped)]
    assert stopped.reason is StopReason.TOOL_ERROR
    assert "look_1" in stopped.detail
    assert "look_3" not in stopped.detail
