"""The part of the store contract about people and the runtime acting on a task, and about two at once."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fencepost.core.entries import ApprovalDecided, DefinitionAccepted, Entry, Stopped, kind_of
from fencepost.core.errors import Fenced, TaskConflict, TaskNotFound
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import Beat, Change, LateRecord, Store, TaskRow, Totals
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
    started,
)
from fencepost.testing.store_commits import MakeStore, no_change, task_in

HANG_SECONDS = 20.0  # nothing here takes a second; a test that waits for so long has found a deadlock
EARLY_SECONDS = 0.05  # how long a transaction is given to get inside one that is open


def approved() -> Change:
    """What approving the only question of a task writes."""
    return Change((ApprovalDecided(1, 0, "approved", by="bob"),), TaskState.READY_TO_RESUME, Totals())


class InterventionContract:
    """Changes by those who do not hold the lease: atomic, over the journal as it is, and fencing the run."""

    async def test_a_cancel_is_one_commit_that_fences_the_run(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.append(started(), seconds=2.0)
        clock.advance(3)
        seen: list[tuple[TaskRow, tuple[Entry, ...], float]] = []

        def cancel(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change:
            seen.append((row, entries, now))
            bodies = (ended(content="cancelled"), Stopped(StopReason.CANCELLED, by="ada"))
            return Change(bodies, TaskState.CANCELLED, Totals(tokens=7, cost_nano=None, steps=1, calls=1))

        before, journal = await store.row(TENANT, "t-1"), await store.entries(TENANT, "t-1")
        row, written = await store.intervene(TENANT, "t-1", "ada", cancel)
        assert seen == [(before, journal, clock.wall())]
        assert written
        assert row == await store.row(TENANT, "t-1")
        assert (row.state, row.reason) == (TaskState.CANCELLED, StopReason.CANCELLED)
        assert (row.seq, row.epoch, row.worker, row.lease_until) == (4, 2, "", None)
        assert (row.tokens, row.cost_nano, row.steps, row.calls) == (7, None, 1, 1)
        assert row.updated_at == clock.wall()
        added = await store.entries(TENANT, "t-1", after=2)
        assert [kind_of(entry.body) for entry in added] == ["CallEnded", "Stopped"]
        envelopes = {(e.by, e.epoch, e.at, e.attempt, e.seconds) for e in added}
        assert envelopes == {("ada", 2, clock.wall(), 1, 2.0)}
        assert len({entry.commit_id for entry in added}) == 1
        with pytest.raises(Fenced):
            await holder.append(ended())

    async def test_an_act_that_finds_nothing_to_do_writes_nothing(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        before = await store.row(TENANT, "t-1")

        def nothing_new(row: TaskRow, _entries: tuple[Entry, ...], _now: float) -> Change:
            return Change((), row.state, Totals())

        for act in (no_change, nothing_new):
            assert await store.intervene(TENANT, "t-1", "ada", act) == (before, False)
        await holder.append(asked())

    async def test_what_an_act_raises_undoes_it(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        before = await store.row(TENANT, "t-1")

        def refuse(_row: TaskRow, _entries: tuple[Entry, ...], _now: float) -> Change:
            raise TaskConflict("not now")

        with pytest.raises(TaskConflict, match="not now"):
            await store.intervene(TENANT, "t-1", "ada", refuse)
        assert await store.row(TENANT, "t-1") == before
        await holder.append(asked())

    async def test_nobody_acts_on_a_task_that_is_missing_or_foreign(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open_task(new_task())

        def never(*_: object) -> Change | None:
            raise AssertionError("an act was shown a task that is not its tenant's")

        for tenant, task in ((TENANT, "t-2"), ("other", "t-1")):
            with pytest.raises(TaskNotFound, match=task):
                await store.intervene(tenant, task, "ada", never)

    async def test_a_deciding_approval_moves_the_epoch_and_the_task_is_ready(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store)
        await holder.wait(expires_at=99.0)
        row, written = await store.intervene(TENANT, "t-1", "bob", lambda *_: approved())
        assert written
        assert (row.state, row.epoch, row.attempts) == (TaskState.READY_TO_RESUME, 2, 0)
        assert (row.waiting_for, row.expires_at) == ("", None)
        assert (await claimed_again(store)).lease.epoch == 3

    async def test_one_of_two_questions_answered_leaves_the_task_waiting(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        await holder.wait(expires_at=50.0)
        still = Change(
            (ApprovalDecided(1, 0, "approved"),), TaskState.WAITING_APPROVAL, Totals(),
            waiting_for="outcome", expires_at=80.0,
        )  # fmt: skip
        row, _ = await store.intervene(TENANT, "t-1", "bob", lambda *_: still)
        assert (row.state, row.waiting_for, row.expires_at) == (TaskState.WAITING_APPROVAL, "outcome", 80.0)

    async def test_a_task_goes_by_the_definition_that_was_accepted_last(self, make_store: MakeStore) -> None:
        store = make_store()
        await task_in(store, "t-1", TaskState.READY_TO_RESUME)
        accept = Change((DefinitionAccepted("def-2", (), "new", "ada"),), TaskState.READY_TO_RESUME, Totals())
        row, _ = await store.intervene(TENANT, "t-1", "ada", lambda *_: accept)
        assert row.definition == "def-2"
        assert await store.claim("w", lease_seconds=9, definitions=["def-1"]) is None
        claimed = await store.claim("w", lease_seconds=9, definitions=["def-2"])
        assert claimed is not None
        await Holder(store, claimed).append(DefinitionAccepted("def-3", (), "newer", "ada"))
        assert (await store.row(TENANT, "t-1")).definition == "def-3"

    async def test_a_change_need_not_move_the_epoch(self, make_store: MakeStore) -> None:
        store = make_store()
        await task_in(store, "t-1", TaskState.READY_TO_RESUME)
        quiet = Change((asked(),), TaskState.READY_TO_RESUME, Totals(), bump=False)
        row, written = await store.intervene(TENANT, "t-1", "runtime", lambda *_: quiet)
        assert (row.epoch, row.seq, written) == (1, 2, True)
        assert (await store.entries(TENANT, "t-1", after=1))[0].epoch == 1

    async def test_whoever_is_fenced_off_while_running_leaves_the_task_free_at_once(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        holder = await held(store, lease_seconds=None)
        change = Change((asked(),), TaskState.RUNNING, Totals())
        row, _ = await store.intervene(TENANT, "t-1", "ada", lambda *_: change)
        assert (row.state, row.epoch, row.worker) == (TaskState.RUNNING, 2, "w")
        with pytest.raises(Fenced):
            await holder.append(asked())
        assert store.beat([Beat(TENANT, "t-1", 1, 0.0)], lease_seconds=30) == {("t-1", 1)}
        assert (await claimed_again(store)).lease.epoch == 3

    @pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED])
    async def test_history_is_not_rewritten(self, make_store: MakeStore, state: TaskState) -> None:
        store = make_store()
        await task_in(store, "t-1", state)
        before = await store.row(TENANT, "t-1")
        with pytest.raises(TaskConflict, match=str(state)):
            await store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())
        assert await store.row(TENANT, "t-1") == before

    async def test_a_change_that_could_never_be_right_is_refused(self, make_store: MakeStore) -> None:
        store = make_store()
        await task_in(store, "t-1", TaskState.WAITING_APPROVAL)
        before = await store.row(TENANT, "t-1")
        for change in (
            Change((), TaskState.CANCELLED, Totals()),
            Change((asked(),), TaskState.CANCELLED, Totals()),
            Change((Stopped(StopReason.CANCELLED), asked()), TaskState.CANCELLED, Totals()),
        ):
            with pytest.raises(ValueError, match="Stopped"):
                await store.intervene(TENANT, "t-1", "ada", lambda *_, made=change: made)
        with pytest.raises(TaskConflict):
            await store.intervene(
                TENANT, "t-1", "ada", lambda *_: Change((asked(),), TaskState.RUNNING, Totals())
            )
        assert await store.row(TENANT, "t-1") == before


# One call of each write, for tests that are about all of them.
WRITES: dict[str, Callable[[Store, Holder], Awaitable[Any]]] = {
    "append": lambda _store, holder: holder.append(
        started(), operations=(("op", 1, 0),), artifacts=(("d", b"x"),)
    ),
    "intervene": lambda store, _holder: store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled()),
    "claim": lambda store, _holder: claimed_again(store, take_over=True),
    "release": lambda store, holder: store.release(holder.lease, seconds=7),
    "open_task": lambda store, _holder: store.open_task(new_task("t-2")),
    "record_late": lambda store, _holder: store.record_late(
        LateRecord(TENANT, "t-1", 1, 0, 1, 1, "ok", "late")
    ),
    "prune": lambda store, _holder: store.prune(TENANT, older_than=0.0),
}


class Overlap:
    """Two writes by two handles on the same data, the first held open inside its transaction.

    `early` says whether the second got inside while the first was there, which no sound store allows.
    """

    def __init__(self, make_store: MakeStore) -> None:
        self._make_store = make_store
        self._entered, self._reached, self._go_on = threading.Event(), threading.Event(), threading.Event()
        self.early = False

    async def run(
        self,
        first: tuple[str, Callable[[Store], Awaitable[Any]]],
        second: tuple[str, Callable[[Store], Awaitable[Any]]],
    ) -> tuple[Any, Any]:
        """What each (name, write) returned or raised; the second began while the first was open."""
        inside = threading.Event()

        def hold(point: str) -> None:
            if point == f"{first[0]}.inside":
                inside.set()
                assert self._go_on.wait(HANG_SECONDS), "nobody let the first write go on"

        def note(point: str) -> None:
            if point == f"{second[0]}.before":
                self._entered.set()
            if point == f"{second[0]}.inside":
                self._reached.set()

        one, two = self._make_store(hooks=hold), self._make_store(hooks=note)
        results: dict[int, Any] = {}

        def write(number: int, act: Callable[[Store], Awaitable[Any]], store: Store) -> None:
            async def outcome() -> Any:
                return await act(store)

            try:
                results[number] = asyncio.run(outcome())
            except Exception as why:  # noqa: BLE001 - what it raised is the result
                results[number] = why

        threads = [threading.Thread(target=write, args=(1, first[1], one), daemon=True)]
        threads[0].start()
        assert inside.wait(HANG_SECONDS), f"the first write did not get inside: {results}"
        threads.append(threading.Thread(target=write, args=(2, second[1], two), daemon=True))
        threads[1].start()
        assert self._entered.wait(HANG_SECONDS)
        self.early = self._reached.wait(EARLY_SECONDS)
        self._go_on.set()
        for thread in threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive(), "the two writes wait for each other"
        return results[1], results[2]


class OverlapContract:
    """The fence under two writers at once: whoever commits first wins, and the loser writes nothing."""

    async def test_a_cancel_waits_for_the_append_that_is_open_and_comes_after_it(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        commit = (await held(store)).commit([started()])
        overlap = Overlap(make_store)
        receipt, answer = await overlap.run(
            ("append", lambda store: store.append(commit)),
            ("intervene", lambda store: store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())),
        )
        assert not overlap.early
        assert (receipt.seq, answer[1]) == (2, True)
        kinds = [kind_of(entry.body) for entry in await store.entries(TENANT, "t-1")]
        assert kinds == ["Opened", "CallStarted", "Stopped"]

    async def test_an_append_that_began_during_a_cancel_is_fenced(self, make_store: MakeStore) -> None:
        store = make_store()
        commit = (await held(store)).commit([started()])
        overlap = Overlap(make_store)
        answer, refused = await overlap.run(
            ("intervene", lambda store: store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())),
            ("append", lambda store: store.append(commit)),
        )
        assert not overlap.early
        assert answer[1]
        assert isinstance(refused, Fenced)
        kinds = [kind_of(entry.body) for entry in await store.entries(TENANT, "t-1")]
        assert kinds == ["Opened", "Stopped"]

    async def test_an_append_that_began_during_a_takeover_is_fenced(self, make_store: MakeStore) -> None:
        store = make_store()
        commit = (await held(store)).commit([started()])
        overlap = Overlap(make_store)
        taken, refused = await overlap.run(
            ("claim", lambda store: claimed_again(store, take_over=True)),
            ("append", lambda store: store.append(commit)),
        )
        assert not overlap.early
        assert taken.lease.epoch == 2
        assert isinstance(refused, Fenced)
        assert len(await store.entries(TENANT, "t-1")) == 1

    async def test_a_takeover_sees_the_append_that_was_open(self, make_store: MakeStore) -> None:
        store = make_store()
        commit = (await held(store)).commit([started()])
        overlap = Overlap(make_store)
        _, taken = await overlap.run(
            ("append", lambda store: store.append(commit)),
            ("claim", lambda store: claimed_again(store, take_over=True)),
        )
        assert not overlap.early
        assert (taken.seq, taken.lease.epoch) == (2, 2)

    async def test_of_two_commits_for_one_seq_the_first_is_written(self, make_store: MakeStore) -> None:
        store = make_store()
        holder = await held(store)
        mine, other = holder.commit([started()]), holder.commit([ended()], commit_id="other")
        overlap = Overlap(make_store)
        receipt, refused = await overlap.run(
            ("append", lambda store: store.append(mine)), ("append", lambda store: store.append(other))
        )
        assert not overlap.early
        assert receipt.seq == 2
        assert isinstance(refused, Fenced)
        assert [entry.body for entry in await store.entries(TENANT, "t-1", after=1)] == [started()]

    async def test_a_heartbeat_that_began_during_a_cancel_is_refused(self, make_store: MakeStore) -> None:
        store = make_store()
        await held(store)
        overlap = Overlap(make_store)

        async def beat(store: Store) -> frozenset[tuple[str, int]]:
            return store.beat([Beat(TENANT, "t-1", 1, 9.0)], lease_seconds=30)

        _, refused = await overlap.run(
            ("intervene", lambda store: store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())),
            ("beat", beat),
        )
        assert not overlap.early
        assert refused == {("t-1", 1)}
        row = await store.row(TENANT, "t-1")
        assert (row.lease_until, row.seconds) == (None, 0.0)

    @pytest.mark.parametrize("write", WRITES)
    async def test_what_fails_inside_a_transaction_was_never_there(
        self, make_store: MakeStore, write: str
    ) -> None:
        store = make_store()
        holder = await held(store)
        before = await store.row(TENANT, "t-1")

        def fail(point: str) -> None:
            if point == f"{write}.inside":
                raise InterruptedError(point)

        failing = make_store(hooks=fail)
        holder.store = failing
        with pytest.raises(InterruptedError):
            await WRITES[write](failing, holder)
        assert await store.row(TENANT, "t-1") == before
        assert len(await store.entries(TENANT, "t-1")) == 1
        assert await store.operation(TENANT, "op") is None
        assert await store.late(TENANT, "t-1") == ()
        with pytest.raises(TaskNotFound):
            await store.row(TENANT, "t-2")
        holder.store = store
        await holder.append(asked())
