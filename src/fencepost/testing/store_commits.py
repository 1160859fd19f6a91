"""The part of the store contract about journals and the fence around every append."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from fencepost.core.entries import (
    CHAIN_START,
    KINDS,
    AdmittedCall,
    Answer,
    AnswerRejected,
    ApprovalDecided,
    AttemptFailed,
    CallStarted,
    ChildEnded,
    ChildOpened,
    Claim,
    ContextElided,
    DefinitionAccepted,
    EntryBody,
    OutcomeResolved,
    Refusal,
    Replied,
    Stopped,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.errors import ApprovalExpired, Fenced, TaskConflict
from fencepost.core.lifecycle import TERMINAL, StopReason, TaskState, allows, state_after
from fencepost.core.messages import Finish, ToolDefinition, Usage
from fencepost.ports import Beat, Change, Store, Totals
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import (
    TENANT,
    Holder,
    asked,
    cancelled,
    claimed_again,
    ended,
    held,
    new_task,
    opened,
    question,
    started,
)

MakeStore = Callable[..., Store]
AWKWARD = 'nul \0, é, 漢字, 🜁, "quotes", \\, \u2028, ' + "long " * 300


class CommitContract:
    """Opening, appending, reading: gapless, fenced, once, whole or not at all."""

    async def test_a_task_is_pending_with_entry_1_once_it_is_opened(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        row = await store.open_task(new_task())
        assert row == await store.row(TENANT, "t-1")
        assert (row.state, row.seq, row.epoch, row.attempts) == (TaskState.PENDING, 1, 0, 0)
        assert (row.agent, row.requester, row.definition) == ("incident", "ada", "def-1")
        assert (row.created_at, row.updated_at, row.seconds) == (clock.wall(), clock.wall(), 0.0)
        assert (row.prompt, row.tokens, row.cost_nano, row.late) == ("why is checkout slow?", 0, 0, 0)
        (entry,) = await store.entries(TENANT, "t-1")
        assert (entry.seq, entry.epoch, entry.at, entry.by) == (1, 0, clock.wall(), "ada")
        assert (entry.commit_id, entry.attempt, entry.body) == ("open-t-1", 0, opened())

    async def test_opening_again_by_the_same_commit_changes_nothing(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(asked())
        before = await store.row(TENANT, "t-1")
        assert await store.open_task(new_task()) == before
        assert await store.row(TENANT, "t-1") == before
        assert len(await store.entries(TENANT, "t-1")) == 2

    async def test_opening_the_same_id_by_another_commit_is_refused(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open_task(new_task())
        with pytest.raises(TaskConflict, match="t-1"):
            await store.open_task(replace(new_task(), commit_id="another"))

    async def test_a_task_begins_with_opened(self, make_store: MakeStore) -> None:
        store = make_store()
        with pytest.raises(ValueError, match="Opened"):
            await store.open_task(new_task(body=asked()))
        for new in (
            replace(new_task(), id=""),
            replace(new_task(), tenant=""),
            replace(new_task(), commit_id=""),
            new_task(body=replace(opened(), tools=[])),
        ):
            with pytest.raises(ValueError, match=r"[a-z]"):
                await store.open_task(new)
        assert await store.tasks(TENANT) == ()

    async def test_an_append_writes_the_entries_and_moves_the_row(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        clock.advance(5)
        totals = Totals(tokens=70, cost_nano=9, steps=1, calls=2)
        receipt = await holder.append(started(), ended(), commit_id="c-9", seconds=2.5, totals=totals)
        assert (receipt.seq, receipt.at) == (3, clock.wall())
        row = await store.row(TENANT, "t-1")
        assert (row.state, row.seq, row.seconds) == (TaskState.RUNNING, 3, 2.5)
        assert (row.tokens, row.cost_nano, row.steps, row.calls) == (70, 9, 1, 2)
        assert row.updated_at == clock.wall()
        entries = await store.entries(TENANT, "t-1", after=1)
        assert [entry.body for entry in entries] == [started(), ended()]
        assert [entry.seq for entry in entries] == [2, 3]
        envelopes = {(e.epoch, e.at, e.by, e.attempt, e.commit_id, e.seconds) for e in entries}
        assert envelopes == {(1, clock.wall(), "w", 1, "c-9", 2.5)}

    async def test_unknown_cost_is_kept_as_unknown(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(asked(), totals=Totals(tokens=1, cost_nano=None))
        assert (await store.row(TENANT, "t-1")).cost_nano is None

    async def test_every_kind_of_entry_comes_back_as_it_was(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        bodies = one_of_each_kind()
        for body in bodies[:-1]:
            await holder.append(body)
        await holder.append(bodies[-1], to=TaskState.SUCCEEDED)
        read = [entry.body for entry in await store.entries(TENANT, "t-1")]
        assert read == [opened(), *bodies]
        assert {kind_of(body) for body in read} == set(KINDS)

    async def test_entries_can_be_read_from_a_seq_and_in_parts(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        for step in range(1, 6):
            await holder.append(asked(step))

        async def seqs(after: int, limit: int | None) -> list[int]:
            return [entry.seq for entry in await store.entries(TENANT, "t-1", after=after, limit=limit)]

        assert await seqs(0, None) == [1, 2, 3, 4, 5, 6]
        assert await seqs(2, 2) == [3, 4]
        assert await seqs(6, None) == []
        assert await seqs(2, 0) == []

    async def test_the_chain_is_the_one_anybody_can_compute(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        for body in one_of_each_kind()[:-1]:
            await holder.append(body, ended())
        await store.intervene(TENANT, "t-1", "ada", lambda _row, _entries, _now: cancelled())
        head = CHAIN_START
        for entry in await store.entries(TENANT, "t-1"):
            head = link(head, kind_of(entry.body), encode_body(entry.body))
        assert (await store.row(TENANT, "t-1")).chain == head

    @pytest.mark.parametrize(
        "wrong",
        [
            {"epoch": 0},
            {"epoch": 2},
            {"seq": 0},
            {"seq": 2},
            {"states": (TaskState.PENDING, TaskState.READY_TO_RESUME)},
            {"states": ()},
            {"task": "t-2"},
            {"tenant": "other"},
        ],
        ids=str,
    )
    async def test_a_commit_for_another_epoch_seq_state_or_task_changes_nothing(
        self, make_store: MakeStore, wrong: dict[str, Any]
    ) -> None:
        store = make_store()
        holder = await held(store)
        before = await store.row(TENANT, "t-1")
        with pytest.raises(Fenced, match="t-"):
            await store.append(holder.commit([asked()], **wrong))
        assert await store.row(TENANT, "t-1") == before
        assert len(await store.entries(TENANT, "t-1")) == 1
        await holder.append(asked())

    async def test_a_commit_whose_answer_was_lost_is_found_again_and_written_once(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        lost = holder.commit([started(), ended()])
        receipt = await store.append(lost)
        holder.seq = receipt.seq
        clock.advance(1)
        assert await store.append(lost) == receipt
        await holder.append(asked(2))
        assert await store.append(lost) == receipt
        await store.intervene(TENANT, "t-1", "ada", lambda _row, _entries, _now: cancelled())
        assert await store.append(lost) == receipt
        assert len(await store.entries(TENANT, "t-1")) == 5

    @pytest.mark.parametrize("left", [1.0, 0.0, -1.0])
    async def test_a_commit_is_written_only_while_it_is_valid_by_the_clock_of_the_store(
        self, make_store: MakeStore, clock: FakeClock, left: float
    ) -> None:
        store = make_store()
        holder = await held(store)
        commit = holder.commit([asked(), started()], valid_until=clock.wall() + left)
        if left <= 0:
            with pytest.raises(ApprovalExpired, match="ran out"):
                await store.append(commit)
            assert len(await store.entries(TENANT, "t-1")) == 1
            await holder.append(asked())
            return
        receipt = await store.append(commit)
        clock.advance(60)
        assert await store.append(commit) == receipt, "what was written in time is not undone by asking later"

    async def test_another_commit_at_the_same_seq_is_fenced(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        first = holder.commit([asked()])
        await store.append(first)
        for other in (
            replace(first, commit_id="another"),
            replace(first, bodies=(asked(), ended())),
            replace(first, commit_id=""),
        ):
            with pytest.raises(Fenced):
                await store.append(other)
        assert len(await store.entries(TENANT, "t-1")) == 2

    @pytest.mark.parametrize(
        ("bodies", "to"),
        [
            ((), TaskState.RUNNING),
            ((), TaskState.READY_TO_RESUME),
            ((Stopped(StopReason.COMPLETED), asked()), TaskState.SUCCEEDED),
            ((Stopped(StopReason.COMPLETED), Stopped(StopReason.COMPLETED)), TaskState.SUCCEEDED),
            ((asked(),), TaskState.SUCCEEDED),
            ((asked(),), TaskState.CANCELLED),
            ((Stopped(StopReason.COMPLETED),), TaskState.RUNNING),
            ((Stopped(StopReason.COMPLETED),), TaskState.FAILED),
            ((Stopped(StopReason.TASK_TIMEOUT),), TaskState.SUCCEEDED),
            ((opened(),), TaskState.RUNNING),
            ((Replied(1, 1, Finish.STOP, calls=[]),), TaskState.RUNNING),  # type: ignore[arg-type]
        ],
    )
    async def test_a_commit_that_could_never_be_right_is_refused(
        self, make_store: MakeStore, bodies: tuple[EntryBody, ...], to: TaskState
    ) -> None:
        store = make_store()
        holder = await held(store)
        before = await store.row(TENANT, "t-1")
        with pytest.raises(ValueError, match=r"[a-z]"):
            await store.append(holder.commit(bodies, to))
        assert await store.row(TENANT, "t-1") == before

    @pytest.mark.parametrize("before", TaskState)
    async def test_the_lifecycle_table_holds_for_every_pair_of_states(
        self, make_store: MakeStore, before: TaskState
    ) -> None:
        store = make_store()
        for after in TaskState:
            task = f"to-{after}"
            seq, epoch = await task_in(store, task, before)
            bodies: tuple[EntryBody, ...] = (asked(),)
            if after in TERMINAL:
                bodies = (Stopped(REASONS[after]),)
            row = await store.row(TENANT, task)
            holder = Holder(store, (await claimed_somehow(store)))
            at = {"tenant": TENANT, "task": task, "epoch": epoch, "seq": seq}
            commit = holder.commit(bodies, after, states=(before,), **at)
            by_claim_only = after is TaskState.RUNNING and before is not TaskState.RUNNING
            if allows(before, after) and not by_claim_only:
                await store.append(commit)
                assert (await store.row(TENANT, task)).state is after
            else:
                with pytest.raises(TaskConflict, match=str(before)):
                    await store.append(commit)
                assert await store.row(TENANT, task) == row

    async def test_leaving_running_gives_the_lease_back_and_a_wait_forgets_the_attempts(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(asked(), to=TaskState.READY_TO_RESUME)
        row = await store.row(TENANT, "t-1")
        assert (row.worker, row.lease_until, row.attempts) == ("", None, 0)
        holder = await claimed_again(store)
        await holder.wait(expires_at=77.0)
        row = await store.row(TENANT, "t-1")
        assert (row.worker, row.lease_until, row.attempts) == ("", None, 0)
        assert (row.waiting_for, row.expires_at) == ("approval", 77.0)

    async def test_an_end_gives_the_lease_back_and_keeps_the_attempts(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.stop(StopReason.TASK_TIMEOUT)
        row = await store.row(TENANT, "t-1")
        assert (row.worker, row.lease_until, row.attempts) == ("", None, 1)
        assert (row.state, row.reason) == (TaskState.FAILED, StopReason.TASK_TIMEOUT)

    async def test_nothing_follows_the_end(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.stop()
        with pytest.raises(Fenced):
            await holder.append(asked())
        with pytest.raises(TaskConflict):
            await holder.append(
                Stopped(StopReason.COMPLETED), to=TaskState.SUCCEEDED, states=tuple(TaskState)
            )
        entries = await store.entries(TENANT, "t-1")
        assert [kind_of(entry.body) for entry in entries] == ["Opened", "Stopped"]

    async def test_task_seconds_never_go_back(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        assert not store.beat([Beat(TENANT, "t-1", 1, 50.0)], lease_seconds=30)
        await holder.append(asked(), seconds=40.0)
        assert (await store.row(TENANT, "t-1")).seconds == 50.0
        assert (await store.entries(TENANT, "t-1", after=1))[0].seconds == 40.0

    async def test_what_was_given_can_be_changed_without_changing_the_journal(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        bodies, data = [asked()], bytearray(b"whole")
        commit = holder.commit([asked()], bodies=bodies, artifacts=(("d-1", data),))
        await store.append(commit)
        bodies.append(asked(9))
        data[:] = b"other"
        assert [entry.body for entry in await store.entries(TENANT, "t-1", after=1)] == [asked()]
        assert await store.artifact(TENANT, "d-1") == b"whole"

    async def test_what_was_read_cannot_be_changed(self, make_store: MakeStore) -> None:
        store = make_store()
        await held(store)
        entries, row = await store.entries(TENANT, "t-1"), await store.row(TENANT, "t-1")
        assert isinstance(entries, tuple)
        for fact, field in ((entries[0], "seq"), (entries[0].body, "prompt"), (row, "seq")):
            with pytest.raises(AttributeError):
                setattr(fact, field, "changed")
        assert await store.entries(TENANT, "t-1") == entries

    async def test_many_runs_append_at_once_and_each_journal_is_whole(self, make_store: MakeStore) -> None:
        store = make_store()

        async def run(task: str) -> None:
            holder = await held(store, task)
            for step in range(1, 11):
                await holder.append(started(step), ended(step))
            await holder.stop()

        tasks = [f"t-{number}" for number in range(12)]
        await asyncio.gather(*map(run, tasks))
        for task in tasks:
            entries = await store.entries(TENANT, task)
            assert [entry.seq for entry in entries] == list(range(1, 23))
            assert (await store.row(TENANT, task)).seq == 22

    @pytest.mark.parametrize("steps", [0, 8], ids=["among many", "alone"])
    async def test_a_cancelled_append_is_settled_when_its_caller_hears_of_it(
        self, make_store: MakeStore, steps: int
    ) -> None:
        store = make_store()
        holder = await held(store)
        for step in range(steps):
            await holder.append(asked(step))
        for turns in range(4):
            commit = holder.commit([started(), ended()])
            writing = asyncio.create_task(store.append(commit))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            settled = (await store.row(TENANT, "t-1")).seq
            assert settled - holder.seq in {0, 2}
            receipt = await store.append(commit)  # whatever became of it, asking again settles it once
            assert receipt.seq == holder.seq + 2
            holder.seq = receipt.seq


REASONS = {
    state_after(reason): reason
    for reason in (StopReason.COMPLETED, StopReason.CANCELLED, StopReason.TASK_TIMEOUT)
}


async def claimed_somehow(store: Store) -> Any:
    """A claim of a task nobody is interested in, for the lease in it."""
    await store.open_task(new_task("spare", tenant="spare"))
    return await store.claim("w", lease_seconds=None, tenant="spare", task="spare", take_over=True)


async def task_in(store: Store, task: str, state: TaskState) -> tuple[int, int]:
    """(seq, epoch) of a new task that was brought into a state the way tasks get there."""
    if state in (TaskState.PENDING, TaskState.CANCELLED):
        await store.open_task(new_task(task))
        if state is TaskState.CANCELLED:
            await store.intervene(TENANT, task, "ada", lambda _row, _entries, _now: cancelled())
    else:
        holder = await held(store, task)
        match state:
            case TaskState.WAITING_APPROVAL:
                await holder.wait()
            case TaskState.READY_TO_RESUME:
                await store.release(holder.lease, seconds=0.0)
            case TaskState.SUCCEEDED | TaskState.FAILED:
                await holder.stop(REASONS[state])
            case _:
                pass
    row = await store.row(TENANT, task)
    assert row.state is state
    return row.seq, row.epoch


def one_of_each_kind() -> tuple[EntryBody, ...]:
    """A body of each kind but Opened, full of awkward text; Stopped(COMPLETED) is the last."""
    usage = Usage(input_tokens=2**53, output_tokens=0, cost_nano=None)
    call = AdmittedCall(
        "id", "sent", "tool", '{"n":123456789012345678}', "digest", Refusal("k", AWKWARD, raw_bytes=9)
    )
    answer = Answer(AWKWARD, ("ev-1.0",), (Claim("c", "ev-1.0", pointer="/a", value=Raw(b'{"z":1.0}')),))
    tool = ToolDefinition("tool", AWKWARD, "{}", timeout=1.5)
    return (
        asked(),
        AttemptFailed(1, 1, "status", AWKWARD, status=503, retry_in=0.5),
        Replied(1, 2, Finish.TOOL_CALLS, AWKWARD, (call,), answer, usage=usage, opaque=(Raw(b"[1]"),)),
        CallStarted(1, 0, 1, "key", operation="refund:7"),
        ended(content=AWKWARD),
        question(expires_at=12.5),
        ApprovalDecided(1, 0, "approved", by="bob"),
        OutcomeResolved(1, 0, "happened", "person", content=AWKWARD),
        AnswerRejected(1, "INVALID_EVIDENCE", AWKWARD),
        ContextElided(1, 0, "sent", replacement="cut"),
        DefinitionAccepted("def-2", (tool,), "new", "bob"),
        ChildOpened(1, 0, "child"),
        ChildEnded("child", StopReason.COMPLETED, 5, None),
        Stopped(StopReason.COMPLETED, answer=answer, settled_nano=None),
    )


def no_change(*_: object) -> Change | None:
    """An act that finds nothing to do."""
    return None
