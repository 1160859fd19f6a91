"""SQLite does what the reference does, whatever is asked of both in whatever order."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fencepost.core.entries import ApprovalDecided, EntryBody, Stopped
from fencepost.core.errors import Fenced, TaskNotFound
from fencepost.core.lifecycle import StopReason, TaskState, state_after
from fencepost.ports import AuditRecord, Beat, Change, Commit, Lease, Store, TaskRow, Tombstone, Totals
from fencepost.stores.memory import MemoryStore
from fencepost.stores.sqlite import SqliteStore
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import asked, cancelled, ended, new_task, opened, question, started
from fencepost.testing.store_sides import late_record

TASKS = st.sampled_from(["a", "b", "c"])
TENANTS = st.sampled_from(["acme", "acme", "acme", "other"])
KEYS = st.sampled_from(["op-1", "op-2"])
DIGESTS = st.sampled_from(["d-1", "d-2"])
REASONS = st.sampled_from([StopReason.COMPLETED, StopReason.TASK_TIMEOUT, StopReason.CANCELLED])
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 31.0])
BODIES = st.lists(
    st.one_of(
        st.builds(asked, st.integers(1, 9)),
        st.builds(started, st.integers(1, 9)),
        st.builds(ended, st.integers(1, 9), st.text(st.characters(exclude_categories=["Cs"]))),
    ),
    min_size=1,
    max_size=3,
)

productive: Counter[str] = Counter()  # how often each rule changed something


class TwoStores(RuleBasedStateMachine):
    """The same request to both stores has the same outcome, and leaves the same rows and journals."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="fencepost-"))
        self.clock, self.loop = FakeClock(), asyncio.new_event_loop()
        self.memory = MemoryStore(self.clock.wall)
        self.sqlite = SqliteStore(self.folder / "store.db", now=self.clock.wall)
        self.last: Commit | None = None
        self.commits = 0
        self.pruned = False

    def teardown(self) -> None:
        for task in ("a", "b", "c"):
            if self.row("acme", task) is not None:
                assert self.loop.run_until_complete(self.sqlite.verify("acme", task)) is None
        self.loop.run_until_complete(self.sqlite.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    # --- asking both ---------------------------------------------------------------------------------------

    def both(self, name: str, ask: Callable[[Store], Awaitable[Any]]) -> Any:
        """What both stores answered; an exception counts by its class and words."""
        answers = []
        for store in (self.memory, self.sqlite):
            try:
                answers.append(self.loop.run_until_complete(_awaited(ask(store))))
            except Exception as why:  # noqa: BLE001 - the comparison is the test
                answers.append((type(why), str(why)))
        assert answers[0] == answers[1], name
        refused = isinstance(answers[0], tuple) and isinstance(answers[0][0], type)
        if name == "append_stale":  # it is there to be refused
            productive[name] += refused and answers[0][0] is Fenced
        elif not refused:
            productive[name] += answers[0] is not None or name in {"release", "late", "audit"}
        return None if refused else answers[0]

    def row(self, tenant: str, task: str) -> TaskRow | None:
        return self.loop.run_until_complete(_row(self.memory, tenant, task))

    def commit(
        self, name: str, tenant: str, task: str, bodies: list[EntryBody], to: TaskState, **fields: Any
    ) -> None:
        row = self.row(tenant, task)
        self.commits += 1
        facts: dict[str, Any] = {
            "tenant": tenant, "task": task, "epoch": row.epoch if row else 0, "seq": row.seq if row else 0,
            "states": (TaskState.RUNNING,), "to": to, "bodies": tuple(bodies), "by": "w",
            "commit_id": f"c-{self.commits}", "attempt": row.attempts if row else 0, "seconds": 0.0,
            "totals": Totals(tokens=self.commits, cost_nano=None if self.commits % 5 == 0 else self.commits),
        }  # fmt: skip
        self.last = Commit(**{**facts, **fields})
        self.both(name, lambda store: store.append(self.last))  # type: ignore[arg-type]

    def one_in(self, task: str, *states: TaskState) -> str:
        """A task in one of these states, the drawn one if it is, so that most requests can succeed."""
        tasks = [task, *({"a", "b", "c"} - {task})]
        rows = {each: self.row("acme", each) for each in sorted(tasks, key=lambda each: each != task)}
        return next((each for each, row in rows.items() if row and row.state in states), task)

    # --- rules ---------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.open("acme", "a", "def-1")
        self.open("acme", "b", "def-2")
        self.claim(None, None, 30.0)

    @rule(tenant=TENANTS, task=TASKS, definition=st.sampled_from(["def-1", "def-2"]))
    def open(self, tenant: str, task: str, definition: str) -> None:
        new = new_task(task, tenant=tenant, body=opened(definition=definition))
        self.both("open", lambda store: store.open_task(new))

    @rule(
        definitions=st.sampled_from([None, ("def-1",), ("def-2", "x"), ()]),
        tenant=st.sampled_from([None, None, "acme"]),
        lease=st.sampled_from([30.0, 30.0, None]),
    )
    def claim(self, definitions: tuple[str, ...] | None, tenant: str | None, lease: float | None) -> None:
        ask = {"lease_seconds": lease, "definitions": definitions, "tenant": tenant}
        self.both("claim", lambda store: store.claim("w", **ask))  # type: ignore[arg-type]

    @rule(tenant=TENANTS, task=TASKS)
    def take_over(self, tenant: str, task: str) -> None:
        ask = {"lease_seconds": 30.0, "tenant": tenant, "task": task, "take_over": True}
        self.both("take_over", lambda store: store.claim("thief", **ask))  # type: ignore[arg-type]

    @rule(tenant=TENANTS, task=TASKS, bodies=BODIES, seconds=SECONDS)
    def append(self, tenant: str, task: str, bodies: list[EntryBody], seconds: float) -> None:
        task = self.one_in(task, TaskState.RUNNING) if tenant == "acme" else task
        self.commit("append", tenant, task, bodies, TaskState.RUNNING, seconds=seconds)

    @rule(task=TASKS, bodies=BODIES, epoch=st.integers(0, 3), seq=st.integers(0, 4))
    def append_stale(self, task: str, bodies: list[EntryBody], epoch: int, seq: int) -> None:
        self.commit("append_stale", "acme", task, bodies, TaskState.RUNNING, epoch=epoch, seq=seq)

    @rule()
    def append_again(self) -> None:
        if self.last is not None:
            self.both("append_again", lambda store: store.append(self.last))  # type: ignore[arg-type]

    @rule(task=TASKS, expires=st.sampled_from([None, 5.0, 50.0]))
    def wait(self, task: str, expires: float | None) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        at = None if expires is None else self.clock.wall() + expires
        self.commit(
            "wait",
            "acme",
            task,
            [question()],
            TaskState.WAITING_APPROVAL,
            waiting_for="approval",
            expires_at=at,
        )

    @rule(task=TASKS)
    def park(self, task: str) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        self.commit("park", "acme", task, [asked()], TaskState.READY_TO_RESUME)

    @rule(task=TASKS, reason=REASONS)
    def stop(self, task: str, reason: StopReason) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        self.commit("stop", "acme", task, [Stopped(reason)], state_after(reason))

    @rule(task=TASKS, key=KEYS, step=st.integers(1, 2))
    def start_operation(self, task: str, key: str, step: int) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        self.commit(
            "start_operation", "acme", task, [started(step)], TaskState.RUNNING, operations=((key, step, 0),)
        )

    @rule(task=TASKS, key=KEYS, status=st.sampled_from(["succeeded", "failed", "unknown"]))
    def settle_operation(self, task: str, key: str, status: str) -> None:
        if ("acme", key) not in self.memory._operations:
            self.start_operation(task, key, 1)
        held = self.memory._operations.get(("acme", key))
        task = task if held is None else held.task
        self.commit(
            "settle_operation", "acme", task, [ended()], TaskState.RUNNING, settle=((key, status, "content"),)
        )

    @rule(tenant=TENANTS, task=TASKS, later=st.sampled_from([None, 20.0]), seconds=SECONDS)
    def release(self, tenant: str, task: str, later: float | None, seconds: float) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        row = self.row(tenant, task)
        lease = Lease(tenant, task, row.epoch if row else 0, 1, "w", None)
        not_before = None if later is None else self.clock.wall() + later
        self.both("release", lambda store: store.release(lease, seconds=seconds, not_before=not_before))

    @rule(task=TASKS, seconds=SECONDS, behind=st.sampled_from([0, 0, 1]))
    def beat(self, task: str, seconds: float, behind: int) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        row = self.row("acme", task)
        beat = Beat("acme", task, (row.epoch if row else 0) - behind, seconds)

        async def beaten(store: Store) -> bool | None:
            return not store.beat([beat], lease_seconds=30) or None

        self.both("beat", beaten)

    @rule(tenant=TENANTS, task=TASKS)
    def cancel(self, tenant: str, task: str) -> None:
        self.both("cancel", lambda store: store.intervene(tenant, task, "ada", lambda *_: cancelled()))

    @rule(task=TASKS, bump=st.booleans())
    def approve(self, task: str, bump: bool) -> None:
        task = self.one_in(task, TaskState.WAITING_APPROVAL)
        decided = ApprovalDecided(1, 0, "approved", by="bob")
        change = Change((decided,), TaskState.READY_TO_RESUME, Totals(tokens=1), bump=bump)
        self.both("approve", lambda store: store.intervene("acme", task, "bob", lambda *_: change))

    @rule(task=TASKS, bump=st.booleans())
    def disturb(self, task: str, bump: bool) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        change = Change((asked(),), TaskState.RUNNING, Totals(), bump=bump)
        self.both("disturb", lambda store: store.intervene("acme", task, "bob", lambda *_: change))

    @rule(task=TASKS)
    def late(self, task: str) -> None:
        task = self.one_in(task, *TaskState)
        self.both("late", lambda store: store.record_late(late_record(task)))

    @rule(task=TASKS)
    def audit(self, task: str) -> None:
        record = AuditRecord("acme", "eve", "approve", task, "refused")
        self.both("audit", lambda store: store.audit(record))

    @rule(task=TASKS, digest=DIGESTS)
    def keep(self, task: str, digest: str) -> None:
        task = self.one_in(task, TaskState.RUNNING)
        artifacts = ((digest, digest.encode() * 100),)
        self.commit("keep", "acme", task, [ended()], TaskState.RUNNING, artifacts=artifacts)

    @rule(
        tenant=st.sampled_from([None, "acme"]),
        older_than=st.sampled_from([None, 0.0, 10.0]),
        keep_bytes=st.sampled_from([None, 0, 2000]),
        limit=st.integers(1, 2),
    )
    def prune(self, tenant: str | None, older_than: float | None, keep_bytes: int | None, limit: int) -> None:
        if self.pruned:  # a pruned id is used up, and there are few
            return
        ask: dict[str, Any] = {"older_than": older_than, "keep_bytes": keep_bytes, "limit": limit}

        async def pruned(store: Store) -> tuple[Tombstone, ...] | None:
            would = await store.prune(tenant, **ask, dry_run=True)
            assert await store.prune(tenant, **ask) == would
            return would or None

        self.pruned = bool(self.both("prune", pruned))

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        productive["pass_time"] += seconds > 0

    # --- what must always be equal -------------------------------------------------------------------------

    @invariant()
    def everything_that_can_be_read_is_equal(self) -> None:
        expected, found = (self.loop.run_until_complete(_all(store)) for store in (self.memory, self.sqlite))
        assert found == expected


async def _all(store: Store) -> list[Any]:
    found: list[Any] = [await store.expired(None), await store.audited("acme")]
    for tenant in ("acme", "other"):
        found += [await store.operation(tenant, key) for key in ("op-1", "op-2")]
        found += [await _or_none(store.artifact(tenant, digest)) for digest in ("d-1", "d-2")]
        found += [await _or_none(store.tombstone(tenant, task)) for task in ("a", "b", "c")]
        found.append(await store.stored_bytes(tenant))
        for row in await store.tasks(tenant):
            found += [row, await store.entries(tenant, row.id), await store.late(tenant, row.id)]
    return found


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


async def _or_none(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except TaskNotFound:
        return None


async def _row(store: Store, tenant: str, task: str) -> TaskRow | None:
    found = [row for row in await store.tasks(tenant) if row.id == task]
    return found[0] if found else None


def test_sqlite_answers_as_the_reference_does_and_every_rule_does_something() -> None:
    productive.clear()
    run_state_machine_as_test(
        TwoStores,
        settings=settings(
            max_examples=70, stateful_step_count=50, deadline=None, derandomize=True,
            suppress_health_check=list(HealthCheck), database=None,
        ),
    )  # fmt: skip
    rules = {name for name, method in vars(TwoStores).items() if hasattr(method, RULE_MARKER)}
    assert len(rules) == 21
    assert {name for name in rules if not productive[name]} == set()
