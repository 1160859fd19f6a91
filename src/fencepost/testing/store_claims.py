"""The part of the store contract about who may run a task, and until when."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fencepost.core.errors import Fenced
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import Beat, Store
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import (
    TENANT,
    asked,
    cancelled,
    claimed_again,
    held,
    new_task,
    opened,
)
from fencepost.testing.store_commits import MakeStore, task_in


class ClaimContract:
    """Claims, leases, heartbeats, takeovers and attempts."""

    async def test_there_is_nothing_to_claim_in_an_empty_store(self, make_store: MakeStore) -> None:
        assert await make_store().claim("w", lease_seconds=30) is None

    async def test_the_oldest_runnable_task_is_claimed_first(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        for task in ("b", "c", "a"):
            await store.open_task(new_task(task))
            clock.advance(1)
        clock.set_wall(clock.wall() - 100)
        await store.open_task(new_task("oldest by its time"))
        clock.set_wall(clock.wall() + 100)
        holder = await claimed_again(store, "b")
        await store.release(holder.lease, seconds=0)
        claimed = [await claim_any(store) for _ in range(5)]
        assert claimed == ["oldest by its time", "b", "c", "a", None]

    async def test_tasks_of_the_same_moment_are_claimed_in_the_order_of_opening(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        for task in ("z", "y", "x"):
            await store.open_task(new_task(task))
        assert [await claim_any(store) for _ in range(4)] == ["z", "y", "x", None]

    async def test_a_claim_gives_the_lease_the_row_and_the_whole_journal(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(asked())
        await store.release(holder.lease, seconds=3)
        clock.advance(10)
        claimed = await store.claim("worker-7", lease_seconds=30)
        assert claimed is not None
        assert claimed.row == await store.row(TENANT, "t-1")
        assert claimed.entries == await store.entries(TENANT, "t-1")
        assert (claimed.row.state, claimed.row.worker) == (TaskState.RUNNING, "worker-7")
        assert claimed.row.updated_at == clock.wall()
        lease = claimed.lease
        assert (lease.tenant, lease.task, lease.epoch, lease.attempt) == (TENANT, "t-1", 2, 1)
        assert lease.worker == "worker-7"
        assert lease.until == claimed.row.lease_until == clock.wall() + 30

    async def test_a_claim_can_ask_for_definitions_a_tenant_or_a_task(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open_task(new_task("one", body=opened(definition="def-1")))
        await store.open_task(new_task("two", body=opened(definition="def-2")))
        await store.open_task(new_task("three", tenant="other"))

        async def claim(**wanted: object) -> str | None:
            claimed = await store.claim("w", lease_seconds=None, **wanted)  # type: ignore[arg-type]
            return None if claimed is None else claimed.lease.task

        assert await claim(definitions=()) is None
        assert await claim(definitions={"def-3"}) is None
        assert await claim(tenant="other", task="one") is None
        assert await claim(tenant="nobody") is None
        assert await claim(definitions=["def-3", "def-2"]) == "two"
        assert await claim(tenant="other") == "three"
        assert await claim(task="one") == "one"
        assert await claim() is None

    async def test_a_task_that_is_not_due_is_not_claimed(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        await store.release(holder.lease, seconds=0, not_before=clock.wall() + 60)
        assert (await store.row(TENANT, "t-1")).not_before == clock.wall() + 60
        assert await claim_any(store) is None
        clock.advance(60)
        assert await claim_any(store) == "t-1"
        assert (await store.row(TENANT, "t-1")).not_before is None

    @pytest.mark.parametrize(
        "state",
        [TaskState.WAITING_APPROVAL, TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED],
    )
    async def test_a_task_that_waits_for_people_or_is_over_is_never_claimed(
        self, make_store: MakeStore, clock: FakeClock, state: TaskState
    ) -> None:
        store = make_store()
        await task_in(store, "t-1", state)
        before = await store.row(TENANT, "t-1")
        clock.advance(1e6)
        assert await claim_any(store) is None
        assert await store.claim("w", lease_seconds=1, tenant=TENANT, task="t-1", take_over=True) is None
        assert await store.row(TENANT, "t-1") == before

    async def test_a_lease_keeps_others_away_until_it_runs_out(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        first = await held(store, lease_seconds=30)
        clock.advance(29.9)
        assert await claim_any(store) is None
        clock.advance(0.1)
        second = await claimed_again(store)
        assert (second.lease.epoch, second.lease.attempt) == (2, 2)
        with pytest.raises(Fenced, match="epoch"):
            await first.append(asked())
        await second.append(asked())

    async def test_a_run_whose_lease_ran_out_may_write_until_somebody_takes_it(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store, lease_seconds=30)
        clock.advance(1000)
        await holder.append(asked())

    async def test_a_lease_for_ever_never_runs_out(self, make_store: MakeStore, clock: FakeClock) -> None:
        store = make_store()
        holder = await held(store, lease_seconds=None)
        assert holder.lease.until is None
        clock.advance(1e9)
        assert await claim_any(store) is None
        assert not store.beat([Beat(TENANT, "t-1", 1, 5.0)], lease_seconds=1)
        clock.advance(1e9)
        row = await store.row(TENANT, "t-1")
        assert (row.lease_until, row.seconds) == (None, 5.0)
        assert await claim_any(store) is None

    async def test_a_takeover_takes_a_live_lease_of_one_named_task(self, make_store: MakeStore) -> None:
        store = make_store()
        first = await held(store, lease_seconds=None)
        second = await claimed_again(store, take_over=True)
        assert (second.lease.epoch, second.lease.attempt) == (2, 2)
        with pytest.raises(Fenced):
            await first.append(asked())
        with pytest.raises(ValueError, match="take_over"):
            await store.claim("w", lease_seconds=1, take_over=True)

    async def test_a_takeover_from_a_worker_that_ended_does_not_rob_the_one_that_came_after_it(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        await held(store, lease_seconds=None)
        ask: dict[str, Any] = {"lease_seconds": None, "tenant": TENANT, "task": "t-1", "take_over": True}
        assert await store.claim("next", holder="another", **ask) is None
        taken = await store.claim("next", holder="w", **ask)
        assert taken is not None
        before = await store.row(TENANT, "t-1")
        assert await store.claim("slower", holder="w", **ask) is None
        assert await store.row(TENANT, "t-1") == before
        with pytest.raises(ValueError, match="holder"):
            await store.claim("w", lease_seconds=1, tenant=TENANT, task="t-1", holder="w")
        await store.release(taken.lease, seconds=0)
        assert await store.claim("w", holder="long gone", **ask) is not None

    async def test_claims_at_once_never_share_a_task(self, make_store: MakeStore) -> None:
        store, peer = make_store(), make_store()
        for number in range(5):
            await store.open_task(new_task(f"t-{number}"))
        claims = [one.claim("w", lease_seconds=30) for one in (store, peer) * 5]
        claimed = [claim.lease.task for claim in await asyncio.gather(*claims) if claim is not None]
        assert sorted(claimed) == [f"t-{number}" for number in range(5)]

    async def test_a_release_gives_a_task_back_unharmed(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(asked(), seconds=2.0)
        clock.advance(1)
        await store.release(holder.lease, seconds=4.5)
        row = await store.row(TENANT, "t-1")
        assert (row.state, row.attempts, row.seconds) == (TaskState.READY_TO_RESUME, 0, 4.5)
        assert (row.worker, row.lease_until, row.epoch, row.seq) == ("", None, 1, 2)
        assert row.updated_at == clock.wall()

    async def test_only_the_holder_of_a_task_may_release_it(self, make_store: MakeStore) -> None:
        store = make_store()
        first = await held(store)
        second = await claimed_again(store, take_over=True)
        before = await store.row(TENANT, "t-1")
        with pytest.raises(Fenced):
            await store.release(first.lease, seconds=0)
        assert await store.row(TENANT, "t-1") == before
        await store.release(second.lease, seconds=0)
        with pytest.raises(Fenced):
            await store.release(second.lease, seconds=0)
        await store.intervene(TENANT, "t-1", "ada", lambda _row, _entries, _now: cancelled())
        with pytest.raises(Fenced):
            await store.release(second.lease, seconds=0)

    async def test_five_lost_runs_are_five_attempts(self, make_store: MakeStore, clock: FakeClock) -> None:
        store = make_store()
        await store.open_task(new_task())
        for lost in range(1, 6):
            holder = await claimed_again(store, lease_seconds=10)
            assert holder.lease.attempt == lost
            await holder.append(asked())
            clock.advance(10)
        row = await store.row(TENANT, "t-1")
        assert (row.attempts, row.epoch) == (5, 5)

    async def test_ten_waits_and_ten_releases_are_no_attempts(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open_task(new_task())
        for _ in range(10):
            holder = await claimed_again(store)
            assert holder.lease.attempt == 1
            await store.release(holder.lease, seconds=0)
            holder = await claimed_again(store)
            assert holder.lease.attempt == 1
            await holder.append(asked(), to=TaskState.READY_TO_RESUME)
        assert (await store.row(TENANT, "t-1")).attempts == 0

    async def test_a_heartbeat_renews_the_lease(self, make_store: MakeStore, clock: FakeClock) -> None:
        store = make_store()
        await held(store, lease_seconds=30)
        before = await store.row(TENANT, "t-1")
        clock.advance(20)
        assert store.beat([Beat(TENANT, "t-1", 1, 20.0)], lease_seconds=30) == frozenset()
        row = await store.row(TENANT, "t-1")
        assert (row.lease_until, row.seconds) == (clock.wall() + 30, 20.0)
        assert (row.updated_at, row.seq, row.chain) == (before.updated_at, before.seq, before.chain)
        clock.advance(20)
        assert await claim_any(store) is None

    async def test_a_lost_run_is_charged_to_its_last_heartbeat(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store, lease_seconds=30)
        await holder.append(asked(), seconds=1.0)
        store.beat([Beat(TENANT, "t-1", 1, 12.0)], lease_seconds=30)
        clock.advance(500)
        again = await store.claim("w", lease_seconds=30)
        assert again is not None
        assert again.row.seconds == 12.0

    async def test_heartbeats_of_runs_that_are_over_are_refused_and_the_others_count(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        await held(store, "mine")
        await held(store, "taken")
        await claimed_again(store, "taken", take_over=True)
        await held(store, "cancelled")
        await store.intervene(TENANT, "cancelled", "ada", lambda _row, _entries, _now: cancelled())
        done = await held(store, "done")
        await done.stop(StopReason.COMPLETED)
        before = {task: await store.row(TENANT, task) for task in ("taken", "cancelled", "done")}
        clock.advance(1)
        beats = [Beat(TENANT, task, 1, 9.0) for task in ("taken", "cancelled", "missing", "mine", "done")]
        refused = store.beat([*beats, Beat("other", "mine", 1, 99.0)], lease_seconds=30)
        assert refused == {("taken", 1), ("cancelled", 1), ("missing", 1), ("done", 1), ("mine", 1)}
        row = await store.row(TENANT, "mine")
        assert (row.lease_until, row.seconds) == (clock.wall() + 30, 9.0)
        assert {task: await store.row(TENANT, task) for task in before} == before

    async def test_a_heartbeat_may_come_from_any_thread_at_any_time(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        refused: list[frozenset[tuple[str, int]]] = []

        def beat() -> None:
            refused.extend(
                store.beat([Beat(TENANT, "t-1", 1, float(second))], lease_seconds=30) for second in range(30)
            )

        threads = [threading.Thread(target=beat) for _ in range(2)]
        for thread in threads:
            thread.start()
        for step in range(30):
            await holder.append(asked(step))
        for thread in threads:
            thread.join()
        assert refused == [frozenset()] * 60
        row = await store.row(TENANT, "t-1")
        assert (row.seq, row.seconds) == (31, 29.0)


async def claim_any(store: Store) -> str | None:
    """The id of whatever is claimed next."""
    claimed = await store.claim("w", lease_seconds=30)
    return None if claimed is None else claimed.lease.task
