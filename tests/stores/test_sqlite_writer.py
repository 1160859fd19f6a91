"""One writer: a lone run commits at once, many commit together, and a failed commit fails all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from fencepost.core.errors import Fenced, OperationTaken, StoreFailed, StoreFull, TaskConflict
from fencepost.core.lifecycle import TaskState
from fencepost.ports import Beat, Change, Totals
from fencepost.stores.sqlite import SqliteStore
from fencepost.stores.sqlite.writer import INLINE_STREAK, TURN_SECONDS, Outcome
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import TENANT, Holder, asked, claimed_again, ended, held, started
from tests.stores.faults import Disk, disk

WRITER = "fencepost-writer"
HANG_SECONDS = 20.0
EARLY_SECONDS = 0.05  # how long closing is given to get ahead of a commit


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Disk]:
    with disk(tmp_path) as made:
        yield made


def opened_store(tmp_path: Path, faulty: Disk | None = None) -> tuple[SqliteStore, list[str]]:
    """A store on a disk that is fast unless told, and the threads in which its appends were committed."""
    threads: list[str] = []

    def note(point: str) -> None:
        if point == "append.inside":
            threads.append(threading.current_thread().name)

    vfs, clock = (None, FakeClock()) if faulty is None else (faulty.name, faulty.clock)
    store = SqliteStore(tmp_path / "store.db", hooks=note, vfs=vfs, monotonic=clock.monotonic)
    return store, threads


async def test_a_run_that_is_alone_commits_on_the_loops_own_thread(tmp_path: Path) -> None:
    store, threads = opened_store(tmp_path)
    holder = await held(store)
    for step in range(10):
        await holder.append(asked(step))
    assert threads[:INLINE_STREAK] == [WRITER] * INLINE_STREAK
    assert set(threads[INLINE_STREAK:]) == {threading.current_thread().name}
    await store.close()


async def test_runs_at_once_commit_on_the_writers_thread_until_one_is_alone(tmp_path: Path) -> None:
    store, threads = opened_store(tmp_path)
    first, second = await held(store, "first"), await held(store, "second")
    for step in range(10):
        await asyncio.gather(first.append(asked(step)), second.append(asked(step)))
    assert set(threads) == {WRITER}
    for step in range(10):
        await first.append(asked(step))
    assert threads[-1] == threading.current_thread().name
    await store.close()


async def test_a_slow_disk_is_waited_for_on_the_writers_thread(tmp_path: Path, faulty: Disk) -> None:
    store, threads = opened_store(tmp_path, faulty)
    holder = await held(store)
    for step in range(INLINE_STREAK + 2):
        await holder.append(asked(step))
    assert threads[-1] != WRITER
    faulty.sync_seconds = 0.02
    for step in range(6):
        await holder.append(asked(step))
    assert threads[-1] == WRITER
    faulty.sync_seconds = 0.0
    for step in range(20):
        await holder.append(asked(step))
    assert threads[-1] != WRITER
    await store.close()


@pytest.mark.parametrize(
    ("commit_seconds", "turns_each_20"), [(TURN_SECONDS * 1.1, 20), (TURN_SECONDS / 4, 5)]
)
async def test_others_get_their_turns_between_the_commits_of_a_run_that_is_alone(
    tmp_path: Path, faulty: Disk, commit_seconds: float, turns_each_20: int
) -> None:
    store, threads = opened_store(tmp_path, faulty)
    faulty.sync_seconds = commit_seconds
    holder, turns = await held(store), 0
    for step in range(INLINE_STREAK):
        await holder.append(asked(step))

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    for step in range(20):
        await holder.append(asked(step))
    ticking.cancel()
    assert WRITER not in threads[INLINE_STREAK:]
    assert turns_each_20 - 1 <= turns <= turns_each_20 + 1
    await store.close()


async def test_a_run_that_is_alone_leaves_it_to_the_thread_to_wait_for_another_process(
    tmp_path: Path,
) -> None:
    store, threads = opened_store(tmp_path)
    holder = await held(store)
    for step in range(INLINE_STREAK + 1):
        await holder.append(asked(step))
    assert threads[-1] != WRITER
    other = apsw.Connection(str(tmp_path / "store.db"))
    other.execute("BEGIN IMMEDIATE").fetchall()
    writing = asyncio.create_task(holder.append(asked(9)))
    for _ in range(3):  # this loop has turns although the file is locked
        await asyncio.sleep(0)
    assert not writing.done()
    other.execute("ROLLBACK").fetchall()
    await writing
    assert threads[-1] == WRITER
    other.close()
    await store.close()


async def test_a_loop_that_was_closed_does_not_stop_the_writer(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "append.inside":
            inside.set()
            assert go_on.wait(HANG_SECONDS)

    store = SqliteStore(tmp_path / "store.db", hooks=hold)
    holder = await held(store)

    def leave() -> None:
        loop = asyncio.new_event_loop()
        writing = loop.create_task(holder.append(asked()))
        loop.call_soon(loop.call_soon, loop.call_soon, loop.stop)  # two turns: the append is handed over
        loop.run_forever()
        inside.wait(HANG_SECONDS)
        writing._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    await asyncio.to_thread(leave)
    go_on.set()
    again = await claimed_again(store, take_over=True)
    assert (await again.append(asked())).seq == 3
    await store.close()


async def test_appends_at_once_share_their_fsyncs(tmp_path: Path, faulty: Disk) -> None:
    store, _ = opened_store(tmp_path, faulty)
    holders = [await held(store, f"t-{number}") for number in range(32)]
    faulty.syncs = 0
    await asyncio.gather(*(holder.append(asked()) for holder in holders))
    assert 1 <= faulty.syncs <= 4
    assert {(await store.row(TENANT, f"t-{number}")).seq for number in range(32)} == {2}
    await store.close()


async def test_a_bad_member_does_not_hurt_the_others_of_its_group(tmp_path: Path) -> None:
    store, _ = opened_store(tmp_path)
    good, stale, taken = [await held(store, task) for task in ("good", "stale", "taken")]
    await good.append(started(), operations=(("op", 1, 0),))

    def refuse(*_: object) -> Change | None:
        raise TaskConflict("not now")

    outcomes = await asyncio.gather(
        store.append(stale.commit([asked()], epoch=9)),
        good.append(ended()),
        taken.append(started(), started(position=1), operations=(("new", 1, 0), ("op", 1, 1))),
        store.intervene(TENANT, "stale", "ada", refuse),
        stale.append(asked()),
        store.append(stale.commit([], TaskState.RUNNING)),
        return_exceptions=True,
    )
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["Fenced", "Receipt", "OperationTaken", "TaskConflict", "Receipt", "ValueError"]
    assert isinstance(outcomes[0], Fenced)
    assert isinstance(outcomes[2], OperationTaken)
    assert await store.operation(TENANT, "new") is None
    assert [len(await store.entries(TENANT, task)) for task in ("good", "stale", "taken")] == [3, 2, 1]
    for task in ("good", "stale", "taken"):
        assert await store.verify(TENANT, task) is None
    await store.close()


@pytest.mark.parametrize(("fault", "kind"), [("sync_fails", StoreFailed), ("full", StoreFull)])
async def test_a_failed_commit_fails_every_member_of_its_group_and_none_is_fenced(
    tmp_path: Path, faulty: Disk, fault: str, kind: type[StoreFailed]
) -> None:
    store, _ = opened_store(tmp_path, faulty)
    holders = [await held(store, f"t-{number}") for number in range(8)]
    commits = [holder.commit([started(), ended()]) for holder in holders]
    stale = holders[0].commit([asked()], epoch=9, commit_id="stale")
    setattr(faulty, fault, True)
    outcomes = await asyncio.gather(*map(store.append, [*commits, stale]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [kind] * 9
    assert len({id(outcome) for outcome in outcomes}) == 9
    assert all("store.db" in str(outcome) for outcome in outcomes)
    assert [(await store.row(TENANT, f"t-{number}")).seq for number in range(8)] == [1] * 8
    setattr(faulty, fault, False)
    receipts = await asyncio.gather(*map(store.append, commits))
    assert {receipt.seq for receipt in receipts} == {3}
    with pytest.raises(Fenced):
        await store.append(stale)
    await store.close()


@pytest.mark.parametrize(("fault", "kind"), [("sync_fails", StoreFailed), ("full", StoreFull)])
async def test_a_failed_commit_of_a_run_that_is_alone_loses_nothing_earlier(
    tmp_path: Path, faulty: Disk, fault: str, kind: type[StoreFailed]
) -> None:
    store, threads = opened_store(tmp_path, faulty)
    holder = await held(store)
    for step in range(8):
        await holder.append(asked(step), ended(step))
    setattr(faulty, fault, True)
    lost = holder.commit([asked(9)])
    with pytest.raises(kind) as failed:
        await store.append(lost)
    assert type(failed.value) is kind
    assert threads[-1] != WRITER
    setattr(faulty, fault, False)
    await store.close()
    store = SqliteStore(tmp_path / "store.db")
    assert (await store.row(TENANT, "t-1")).seq == 17
    assert await store.verify(TENANT, "t-1") is None
    assert (await store.append(lost)).seq == 18
    await store.close()


async def test_a_full_disk_refuses_heartbeats_with_the_same_words(tmp_path: Path, faulty: Disk) -> None:
    store, _ = opened_store(tmp_path, faulty)
    await held(store)
    faulty.full = True
    with pytest.raises(StoreFull, match="free some space"):
        store.beat([Beat(TENANT, "t-1", 1, 1.0)], lease_seconds=9)
    faulty.full = False
    assert store.beat([Beat(TENANT, "t-1", 1, 1.0)], lease_seconds=9) == frozenset()
    await store.close()


async def test_cancelling_a_commit_in_flight_waits_for_its_outcome(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "append.inside":
            inside.set()
            assert go_on.wait(HANG_SECONDS)

    store = SqliteStore(tmp_path / "store.db", hooks=hold)
    holder = await held(store)
    writing = asyncio.create_task(holder.append(asked()))
    await asyncio.to_thread(inside.wait, HANG_SECONDS)
    for _ in range(3):
        writing.cancel()
        await asyncio.sleep(0)
    assert not writing.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (await store.row(TENANT, "t-1")).seq == 2
    await store.close()


async def test_an_outcome_cannot_be_cancelled() -> None:
    outcome = Outcome(loop=asyncio.get_running_loop())
    assert outcome.cancel() is False
    assert not outcome.done()


async def test_what_a_hook_raises_after_a_commit_is_heard_and_the_commit_stays(tmp_path: Path) -> None:
    def lose(point: str) -> None:
        if point == "append.after":
            raise ConnectionResetError("the answer was lost")

    store = SqliteStore(tmp_path / "store.db", hooks=lose, monotonic=FakeClock().monotonic)
    holder = await held(store)
    for step in range(INLINE_STREAK + 3):  # through the thread first, then at once
        with pytest.raises(ConnectionResetError):
            await store.append(holder.commit([asked(step)]))
        holder.seq += 1
        assert (await store.row(TENANT, "t-1")).seq == holder.seq
    await store.close()


async def test_closing_waits_for_the_writes_that_were_begun(tmp_path: Path) -> None:
    store, _ = opened_store(tmp_path)
    holders = [await held(store, f"t-{number}") for number in range(4)]
    writing = [asyncio.create_task(holder.append(asked())) for holder in holders]
    await asyncio.sleep(0)
    await store.close()
    assert [receipt.seq for receipt in await asyncio.gather(*writing)] == [2] * 4


async def test_closing_waits_for_a_commit_that_another_loop_makes_by_itself(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "append.inside" and threading.current_thread().name == "other":
            inside.set()
            assert go_on.wait(HANG_SECONDS)

    store = SqliteStore(tmp_path / "store.db", hooks=hold, monotonic=FakeClock().monotonic)
    holder = await held(store)
    for step in range(INLINE_STREAK):
        await holder.append(asked(step))

    other = threading.Thread(target=lambda: asyncio.run(holder.append(asked(9))), name="other")
    other.start()
    assert await asyncio.to_thread(inside.wait, HANG_SECONDS)
    closing = asyncio.create_task(asyncio.to_thread(asyncio.run, store.close()))
    early, _ = await asyncio.wait([closing], timeout=EARLY_SECONDS)
    assert not early
    go_on.set()
    await closing
    await asyncio.to_thread(other.join, HANG_SECONDS)
    store = SqliteStore(tmp_path / "store.db")
    assert (await store.row(TENANT, "t-1")).seq == INLINE_STREAK + 2
    await store.close()


async def test_a_write_that_began_while_another_loop_closed_the_store_hears_of_it(tmp_path: Path) -> None:
    store, _ = opened_store(tmp_path)
    holder = await held(store)
    await store.close()
    store._writer._closed = False  # as that loop had found it, a moment before
    for _ in range(INLINE_STREAK + 2):  # through the thread, and at once
        with pytest.raises(StoreFailed, match="closed by this program"):
            await asyncio.wait_for(holder.append(asked()), HANG_SECONDS)


async def test_two_loops_may_write_to_one_store(tmp_path: Path) -> None:
    store, _ = opened_store(tmp_path)
    mine, other = await held(store, "mine"), await held(store, "other")

    async def run(holder: Holder) -> None:
        for step in range(30):
            await holder.append(asked(step), totals=Totals(steps=step))

    thread = threading.Thread(target=lambda: asyncio.run(run(other)))
    thread.start()
    await run(mine)
    await asyncio.to_thread(thread.join, HANG_SECONDS)
    assert [(await store.row(TENANT, task)).seq for task in ("mine", "other")] == [31, 31]
    await store.close()
