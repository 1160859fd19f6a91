"""The part of the store contract about what is kept beside journals."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import pytest

from fencepost.core.errors import OperationTaken, TaskNotFound
from fencepost.core.lifecycle import TaskState
from fencepost.ports import AuditRecord, Change, LateRecord, Totals
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import (
    TENANT,
    asked,
    cancelled,
    claimed_again,
    ended,
    held,
    new_task,
    opened,
    started,
)
from fencepost.testing.store_commits import MakeStore, no_change

OP = "refund:7"


def late_record(task: str = "t-1", *, tenant: str = TENANT, content: str = "too late") -> LateRecord:
    """What a call brought after it was closed."""
    return LateRecord(tenant, task, 1, 0, 1, 1, "ok", content)


class SideContract:
    """Operations, artifacts, late records, audit, lists; and no tenant sees another's."""

    @pytest.mark.parametrize("settled", [None, "succeeded", "unknown"])
    async def test_an_operation_that_was_started_or_done_or_may_be_done_is_not_claimed_again(
        self, make_store: MakeStore, settled: str | None
    ) -> None:
        store = make_store()
        first = await held(store, "first")
        await first.append(started(), operations=((OP, 1, 0),))
        if settled is not None:
            await first.append(ended(), settle=((OP, settled, "content"),))
        second = await held(store, "second")
        with pytest.raises(OperationTaken, match=OP) as refused:
            await second.append(started(), operations=((OP, 1, 0),))
        expected = ("started", "") if settled is None else (settled, "content")
        assert (refused.value.status, refused.value.content) == expected
        assert await store.operation(TENANT, OP) == expected
        assert len(await store.entries(TENANT, "second")) == 1
        await second.append(asked())

    async def test_an_operation_that_failed_may_be_claimed_again(self, make_store: MakeStore) -> None:
        store = make_store()
        first = await held(store, "first")
        await first.append(started(), operations=((OP, 1, 0),))
        await first.append(ended(), settle=((OP, "failed", "no"),))
        second = await held(store, "second")
        await second.append(started(), operations=((OP, 1, 0),))
        assert await store.operation(TENANT, OP) == ("started", "")

    async def test_the_same_call_may_claim_its_operation_again(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), operations=((OP, 1, 0),))
        again = await claimed_again(store, take_over=True)
        await again.append(started(), operations=((OP, 1, 0),))
        with pytest.raises(OperationTaken):
            await again.append(started(2), operations=((OP, 2, 0),))

    async def test_two_calls_of_one_commit_cannot_have_one_operation(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        with pytest.raises(OperationTaken):
            await holder.append(started(), started(position=1), operations=((OP, 1, 0), (OP, 1, 1)))
        assert await store.operation(TENANT, OP) is None
        assert len(await store.entries(TENANT, "t-1")) == 1

    async def test_a_commit_may_settle_an_operation_and_claim_it_for_its_next_call(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), operations=((OP, 1, 0),))
        await holder.append(ended(), started(2), settle=((OP, "failed", ""),), operations=((OP, 2, 0),))
        assert await store.operation(TENANT, OP) == ("started", "")

    async def test_only_the_task_that_holds_an_operation_settles_it(self, make_store: MakeStore) -> None:
        store = make_store()
        first, second = await held(store, "first"), await held(store, "second")
        await first.append(started(), operations=((OP, 1, 0),))
        for key, status in ((OP, "succeeded"), ("nobody's", "failed")):
            with pytest.raises(ValueError, match=key):
                await second.append(ended(), settle=((key, status, ""),))
        with pytest.raises(ValueError, match="perhaps"):
            await first.append(ended(), settle=((OP, "perhaps", ""),))
        assert await store.operation(TENANT, OP) == ("started", "")
        assert len(await store.entries(TENANT, "second")) == 1

    async def test_an_intervention_may_settle_operations(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), operations=((OP, 1, 0),))
        change = Change(
            (*cancelled().bodies,), TaskState.CANCELLED, Totals(), settle=((OP, "unknown", "cancelled"),)
        )
        await store.intervene(TENANT, "t-1", "ada", lambda *_: change)
        assert await store.operation(TENANT, OP) == ("unknown", "cancelled")

    async def test_a_lost_answer_does_not_claim_an_operation_twice(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        commit = holder.commit([started()], operations=((OP, 1, 0),))
        assert await store.append(commit) == await store.append(commit)

    async def test_artifacts_are_written_with_the_entries_and_kept_once(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        whole = bytes(range(256)) * 1000
        await holder.append(ended(), artifacts=(("d-1", whole), ("d-2", b"")))
        await holder.append(ended(2), artifacts=(("d-1", whole),))
        assert await store.artifact(TENANT, "d-1") == whole
        assert await store.artifact(TENANT, "d-2") == b""
        with pytest.raises(TaskNotFound, match="d-3"):
            await store.artifact(TENANT, "d-3")

    async def test_an_artifact_can_be_asked_for_as_a_task_names_it(self, make_store: MakeStore) -> None:
        store = make_store()
        for task in ("t-1", "t-2"):
            holder = await held(store, task)
            await holder.append(ended(), artifacts=(("shared", b"x"), (f"of {task}", b"y")))
        assert await store.artifact(TENANT, "shared", task="t-1") == b"x"
        assert await store.artifact(TENANT, "shared", task="t-2") == b"x"
        assert await store.artifact(TENANT, "of t-2", task="t-2") == b"y"
        for tenant, digest, task in (
            (TENANT, "of t-2", "t-1"),
            (TENANT, "none", "t-1"),
            ("other", "shared", "t-1"),
            (TENANT, "shared", "t-3"),
        ):
            with pytest.raises(TaskNotFound):
                await store.artifact(tenant, digest, task=task)

    async def test_late_records_are_kept_in_order_and_counted_and_no_part_of_the_journal(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        await store.record_late(late_record(content="one"))
        await holder.stop()
        before = await store.row(TENANT, "t-1")
        clock.advance(9)
        await store.record_late(late_record(content="two"))
        records = await store.late(TENANT, "t-1")
        assert [(record.content, record.at) for record in records] == [
            ("one", clock.wall() - 9),
            ("two", clock.wall()),
        ]
        assert (records[0].step, records[0].position, records[0].start, records[0].epoch) == (1, 0, 1, 1)
        assert (records[0].tenant, records[0].task, records[0].status) == (TENANT, "t-1", "ok")
        row = await store.row(TENANT, "t-1")
        assert (row.late, row.seq, row.chain, row.state) == (2, before.seq, before.chain, before.state)
        with pytest.raises(TaskNotFound):
            await store.record_late(late_record("t-2"))

    async def test_acts_are_kept_and_read_newest_first(self, make_store: MakeStore, clock: FakeClock) -> None:
        store = make_store()
        for act in ("approve", "reject", "cancel"):
            await store.audit(AuditRecord(TENANT, "eve", act, "t-1", "refused", "not hers"))
            clock.advance(1)
        acts = await store.audited(TENANT)
        assert [record.act for record in acts] == ["cancel", "reject", "approve"]
        assert acts[0] == AuditRecord(TENANT, "eve", "cancel", "t-1", "refused", "not hers", clock.wall() - 1)
        assert [record.act for record in await store.audited(TENANT, limit=1)] == ["cancel"]

    async def test_tasks_are_listed_newest_first_and_by_what_is_asked(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        start = clock.wall()
        for number, agent in enumerate(("incident", "coding", "incident", "incident")):
            await store.open_task(new_task(f"t-{number}", body=opened(agent=agent)))
            clock.advance(number % 2)  # two pairs of the same moment
        await claimed_again(store, "t-2")

        async def listed(**wanted: object) -> list[str]:
            return [row.id for row in await store.tasks(TENANT, **wanted)]  # type: ignore[arg-type]

        assert await listed() == ["t-3", "t-2", "t-1", "t-0"]
        assert await listed(limit=2) == ["t-3", "t-2"]
        assert await listed(limit=0) == []
        assert await listed(agent="incident") == ["t-3", "t-2", "t-0"]
        assert await listed(states=[TaskState.RUNNING]) == ["t-2"]
        assert await listed(states={TaskState.PENDING, TaskState.RUNNING}, agent="coding") == ["t-1"]
        assert await listed(states=()) == []
        assert await listed(before=start + 1) == ["t-1", "t-0"]
        assert (await store.tasks(TENANT))[1] == await store.row(TENANT, "t-2")

    async def test_tasks_whose_question_expired_are_found_the_longest_expired_first(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        for task, seconds in (("soon", 5.0), ("sooner", 2.0), ("later", 500.0), ("never", None)):
            holder = await held(store, task)
            await holder.wait(expires_at=None if seconds is None else clock.wall() + seconds)
        foreign = await held(store, "foreign", tenant="other")
        await foreign.wait(expires_at=clock.wall())
        clock.advance(5)
        assert [row.id for row in await store.expired(TENANT)] == ["sooner", "soon"]
        assert [row.id for row in await store.expired(None)] == ["foreign", "sooner", "soon"]
        assert [row.id for row in await store.expired(None, limit=1)] == ["foreign"]
        await store.intervene(TENANT, "soon", "ada", lambda *_: cancelled())
        assert [row.id for row in await store.expired(TENANT)] == ["sooner"]

    async def test_no_tenant_sees_another_tenants_anything(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), operations=((OP, 1, 0),), artifacts=(("d-1", b"secret"),))
        await store.record_late(late_record())
        await store.audit(AuditRecord(TENANT, "eve", "approve", "t-1", "refused"))
        assert await store.tasks("other") == ()
        assert await store.operation("other", OP) is None
        assert await store.audited("other") == ()
        for read in (
            store.row("other", "t-1"),
            store.entries("other", "t-1"),
            store.late("other", "t-1"),
            store.artifact("other", "d-1"),
            store.record_late(late_record(tenant="other")),
            store.intervene("other", "t-1", "eve", no_change),
        ):
            with pytest.raises(TaskNotFound):
                await read

    async def test_an_id_that_no_store_can_hold_names_nothing(self, make_store: MakeStore) -> None:
        store = make_store()
        for read in (
            store.row(TENANT, "half \ud800"),
            store.entries(TENANT, "half \ud800"),
            store.late(TENANT, "half \ud800"),
            store.row("half \ud800", "t-1"),
            store.intervene(TENANT, "half \ud800", "eve", no_change),
        ):
            with pytest.raises(TaskNotFound):
                await read

    async def test_two_tenants_may_use_the_same_ids_and_keys(self, make_store: MakeStore) -> None:
        store = make_store()
        for tenant in (TENANT, "other"):
            holder = await held(store, tenant=tenant)
            data = tenant.encode()
            await holder.append(started(), operations=((OP, 1, 0),), artifacts=(("d-1", data),))
        assert await store.artifact(TENANT, "d-1") == b"acme"
        assert await store.artifact("other", "d-1") == b"other"
        await store.intervene("other", "t-1", "ada", lambda *_: cancelled())
        assert (await store.row(TENANT, "t-1")).state is TaskState.RUNNING
        assert len(await store.entries(TENANT, "t-1")) == 2

    async def test_the_stores_clock_is_the_one_it_was_given(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        assert await store.now() == clock.wall()
        clock.set_wall(5.0)
        assert await store.now() == 5.0

    async def test_closing_twice_is_closing_once(self, make_store: MakeStore) -> None:
        store = make_store()
        await held(store)
        await store.close()
        await store.close()
