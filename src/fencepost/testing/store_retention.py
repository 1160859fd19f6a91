"""The part of the store contract about pruning: what goes, what stays, and what is left of it (contract 12.1)."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fencepost.core.entries import ChildOpened, EntryBody, encode_body
from fencepost.core.errors import Fenced, TaskConflict, TaskNotFound
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import AuditRecord, LateRecord, Store, Tombstone
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import TENANT, asked, cancelled, ended, held, new_task, opened, started
from fencepost.testing.store_commits import MakeStore

DAY = 86_400.0


async def over(store: Store, task: str, *, tenant: str = TENANT, data: bytes = b"") -> None:
    """A task that is over, with an artifact when there is data."""
    holder = await held(store, task, tenant=tenant)
    if data:
        await holder.append(ended(), artifacts=((f"d-{data[:1].decode()}", data),))
    await holder.stop()


def names(stones: tuple[Tombstone, ...]) -> list[str]:
    """The ids of what was pruned, in order."""
    return [stone.id for stone in stones]


class RetentionContract:
    """Tasks that are over can be dropped, and nothing else is."""

    async def test_a_task_that_ended_long_enough_ago_goes_and_leaves_a_tombstone(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store, began = make_store(), clock.wall()
        holder = await held(store)
        clock.advance(5)
        await holder.stop(StopReason.LLM_ERROR)
        row, size = await store.row(TENANT, "t-1"), await store.stored_bytes(TENANT)
        clock.advance(DAY - 1)
        assert await store.prune(TENANT, older_than=DAY) == ()
        clock.advance(1)
        stones = await store.prune(TENANT, older_than=DAY)
        assert stones == (
            Tombstone(
                TENANT, "t-1", "incident", TaskState.FAILED, StopReason.LLM_ERROR, row.seq, row.chain,
                began, began + 5, clock.wall(), size,
            ),
        )  # fmt: skip
        assert await store.tombstone(TENANT, "t-1") == stones[0]
        assert await store.stored_bytes(TENANT) == 0
        for read in (store.row(TENANT, "t-1"), store.entries(TENANT, "t-1"), store.late(TENANT, "t-1")):
            with pytest.raises(TaskNotFound):
                await read
        assert await store.tasks(TENANT) == ()
        assert await store.prune(TENANT, older_than=DAY) == ()

    async def test_tasks_that_are_not_over_stay_however_old(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        await store.open_task(new_task("pending"))
        await held(store, "running")
        waiting, released = await held(store, "waiting"), await held(store, "released")
        await waiting.wait()
        await store.release(released.lease, seconds=0)
        clock.advance(400 * DAY)
        assert await store.prune(None, older_than=0.0, keep_bytes=0) == ()
        assert len(await store.tasks(TENANT)) == 4

    async def test_without_a_bound_nothing_goes(self, make_store: MakeStore, clock: FakeClock) -> None:
        store = make_store()
        await over(store, "t-1")
        clock.advance(400 * DAY)
        assert await store.prune(TENANT) == ()
        assert await store.prune(TENANT, older_than=0.0, limit=0) == ()

    async def test_the_longest_over_goes_first_and_a_batch_has_a_limit(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        late = await held(store, "opened-first")
        for task in ("a", "b"):
            await over(store, task)
            clock.advance(1)
        await late.stop()
        assert names(await store.prune(TENANT, older_than=0.0, limit=2)) == ["a", "b"]
        assert names(await store.prune(TENANT, older_than=0.0, limit=2)) == ["opened-first"]

    async def test_a_bound_of_bytes_drops_the_oldest_until_it_is_met(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        for task in ("a", "b", "c"):
            await over(store, task, data=task.encode() * 10_000)
            clock.advance(1)
        size = await store.stored_bytes(TENANT)
        assert await store.prune(TENANT, keep_bytes=size) == ()
        assert names(await store.prune(TENANT, keep_bytes=size - 1)) == ["a"]
        left = await store.stored_bytes(TENANT)
        assert size - left == (await store.tombstone(TENANT, "a")).freed_bytes > 10_000
        assert names(await store.prune(TENANT, keep_bytes=0)) == ["b", "c"]
        assert await store.stored_bytes(TENANT) == 0

    async def test_stored_bytes_are_those_of_entries_artifacts_and_late_records(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(ended(content="é"), artifacts=(("d", b"12345"),))
        await store.record_late(LateRecord(TENANT, "t-1", 1, 0, 1, 1, "ok", "é"))
        await held(store, "foreign", tenant="other")
        bodies = [entry.body for entry in await store.entries(TENANT, "t-1")]
        expected = sum(len(encode_body(body)) for body in bodies) + 5 + 2
        assert await store.stored_bytes(TENANT) == expected
        assert await store.stored_bytes(None) == expected + await store.stored_bytes("other")

    async def test_an_artifact_is_freed_with_the_last_task_that_names_it(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        await over(store, "a", data=b"s" * 5_000)
        clock.advance(1)
        await over(store, "b", data=b"s" * 5_000)
        await over(store, "c", tenant="other", data=b"s" * 5_000)
        assert names(await store.prune(TENANT, older_than=1.0)) == ["a"]
        assert await store.artifact(TENANT, "d-s") == b"s" * 5_000
        assert (await store.tombstone(TENANT, "a")).freed_bytes < 5_000
        assert names(await store.prune(TENANT, older_than=0.0)) == ["b"]
        assert (await store.tombstone(TENANT, "b")).freed_bytes > 5_000
        with pytest.raises(TaskNotFound):
            await store.artifact(TENANT, "d-s")
        assert await store.artifact("other", "d-s") == b"s" * 5_000

    async def test_two_that_share_an_artifact_and_go_together_free_it_once(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        for task in ("a", "b"):
            await over(store, task, data=b"s" * 5_000)
        size = await store.stored_bytes(TENANT)
        stones = await store.prune(TENANT, older_than=0.0)
        assert sum(stone.freed_bytes for stone in stones) == size
        assert await store.stored_bytes(TENANT) == 0

    async def test_a_task_with_a_live_fork_or_child_stays_until_that_is_over(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        parent = await held(store, "parent")
        await parent.append(ChildOpened(1, 0, "child"))
        await parent.stop()
        await over(store, "origin")
        fork: EntryBody = replace(opened(), parent="origin", cut=1)
        await store.open_task(new_task("fork", body=fork))
        await store.open_task(new_task("child"))
        assert await store.prune(TENANT, older_than=0.0) == ()
        assert await store.prune(TENANT, keep_bytes=0) == ()
        await store.intervene(TENANT, "fork", "ada", lambda *_: cancelled())
        assert names(await store.prune(TENANT, older_than=0.0)) == ["origin", "fork"]
        await store.intervene(TENANT, "child", "ada", lambda *_: cancelled())
        assert names(await store.prune(TENANT, older_than=0.0)) == ["parent", "child"]

    async def test_one_tenants_tasks_are_pruned_without_anothers_or_all_together(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        await over(store, "t-1")
        await over(store, "t-1", tenant="other")
        await over(store, "t-2", tenant="other")
        assert names(await store.prune(TENANT, older_than=0.0)) == ["t-1"]
        with pytest.raises(TaskNotFound):
            await store.tombstone("other", "t-1")
        assert [(one.tenant, one.id) for one in await store.prune(None, older_than=0.0)] == [
            ("other", "t-1"),
            ("other", "t-2"),
        ]

    async def test_a_dry_run_names_the_same_tasks_and_drops_none(self, make_store: MakeStore) -> None:
        store = make_store()
        for task in ("a", "b"):
            await over(store, task, data=b"s" * 5_000)
        would = await store.prune(TENANT, older_than=0.0, dry_run=True)
        assert names(would) == ["a", "b"]
        assert len(await store.tasks(TENANT)) == 2
        with pytest.raises(TaskNotFound):
            await store.tombstone(TENANT, "a")
        assert await store.prune(TENANT, older_than=0.0) == would

    async def test_the_id_of_a_pruned_task_opens_no_other_and_takes_nothing(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.stop()
        await store.prune(TENANT, older_than=0.0)
        with pytest.raises(TaskConflict, match="pruned"):
            await store.open_task(new_task())
        with pytest.raises(Fenced):
            await holder.append(asked())
        with pytest.raises(TaskNotFound):
            await store.record_late(LateRecord(TENANT, "t-1", 1, 0, 1, 1, "ok", "late"))
        assert store.beat([], lease_seconds=1) == frozenset()
        assert await store.claim("w", lease_seconds=1, tenant=TENANT, task="t-1") is None

    async def test_acts_and_operations_outlive_the_task(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), operations=(("refund:7", 1, 0),))
        await holder.append(ended(), settle=(("refund:7", "succeeded", "done"),))
        await holder.stop()
        await store.audit(AuditRecord(TENANT, "eve", "approve", "t-1", "refused"))
        await store.prune(TENANT, older_than=0.0)
        assert await store.operation(TENANT, "refund:7") == ("succeeded", "done")
        assert [record.task for record in await store.audited(TENANT)] == ["t-1"]

    async def test_a_sound_store_says_so_before_and_after_it_is_made_smaller(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        await over(store, "a", data=b"s" * 50_000)
        await over(store, "b", data=b"t" * 50_000)
        await store.prune(TENANT, older_than=0.0, limit=1)
        before = await store.row(TENANT, "b")
        await store.compact()
        assert await store.check() == ()
        assert await store.verify(TENANT, "b") is None
        assert await store.row(TENANT, "b") == before
        assert await store.artifact(TENANT, "d-t") == b"t" * 50_000
        with pytest.raises(TaskNotFound):
            await store.verify(TENANT, "a")
        await (await held(store, "c")).append(asked())
