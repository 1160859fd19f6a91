"""The reference store: everything in dictionaries, every rule in view. Read this one first.

Rule 1: a write checks everything, passes its hook, and only then changes anything: a failure undoes nothing.
Rule 2: one lock around every write and read, because `beat` comes from another thread.
Rule 3: frozen bodies are shared, everything else is copied: nothing given to or read from it can change it.
Rule 4: an append encodes nothing; the hash chain is caught up when somebody asks for a row.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from fencepost.core.entries import (
    ENTRY_VERSION,
    ChildOpened,
    DefinitionAccepted,
    Entry,
    Stopped,
    encode_body,
    kind_of,
)
from fencepost.core.errors import TaskNotFound
from fencepost.core.lifecycle import TERMINAL, TaskState
from fencepost.ports import (
    PRUNED_AT_ONCE,
    Act,
    AuditRecord,
    Beat,
    Claimed,
    Commit,
    LateRecord,
    Lease,
    NewTask,
    Receipt,
    TaskRow,
    Tombstone,
)
from fencepost.stores import rules
from fencepost.stores.held import HeldTask
from fencepost.stores.hooks import Hooks
from fencepost.stores.retention import BATCH_BYTES, Bounds, Over, due
from fencepost.stores.rules import Operation

_RUNNING = TaskState.RUNNING
Key = tuple[str, str]  # (tenant, task) or (tenant, operation or digest)


class MemoryStore:
    """A Store that lives as long as its process; `now` is its clock.

    `hooks` is called at the points of `stores.hooks`, with the lock held at `inside`.
    """

    def __init__(self, now: Callable[[], float] = time.time, *, hooks: Hooks | None = None) -> None:
        self._now, self._hooks = now, hooks
        self._lock = threading.Lock()
        self._tasks: dict[Key, HeldTask] = {}
        self._open: dict[Key, HeldTask] = {}  # what a claim looks through, in order of opening
        self._operations: dict[Key, Operation] = {}
        self._artifacts: dict[Key, bytes] = {}
        self._uses: dict[Key, set[str]] = {}  # which tasks of the tenant name an artifact
        self._tombstones: dict[Key, Tombstone] = {}
        self._audit: list[AuditRecord] = []

    def another(self, *, hooks: Hooks | None = None) -> MemoryStore:
        """A second handle on the same data, as a second connection is to a file."""
        handle = copy.copy(self)  # the lock and every container are shared
        handle._hooks = hooks  # noqa: SLF001 - of our own copy
        return handle

    # --- writes: before, [lock: look, check, inside, change], after -------------------------------------

    async def open_task(self, new: NewTask, /) -> TaskRow:
        """Create the task PENDING with entry 1; the same id and commit id again returns the row unchanged."""
        self._pause("open_task.before")
        with self._lock:
            opened = rules.check_opened(new)
            key = (new.tenant, new.id)
            task = self._tasks.get(key)
            if task is not None:
                rules.check_same_task(new, task.opened_id)
                return task.row()
            if key in self._tombstones:
                raise rules.was_pruned(new)
            task = HeldTask(new, opened, self._now())
            self._pause("open_task.inside")
            self._tasks[key] = self._open[key] = task
            row = task.row()
        self._pause("open_task.after")
        return row

    async def claim(
        self,
        worker: str,
        *,
        lease_seconds: float | None,
        definitions: Collection[str] | None = None,
        tenant: str | None = None,
        task: str | None = None,
        take_over: bool = False,
        holder: str | None = None,
    ) -> Claimed | None:
        """Take the oldest runnable task, bump its epoch, count the attempt; None without one."""
        rules.check_claim(task, take_over=take_over, holder=holder)
        self._pause("claim.before")
        with self._lock:
            at = self._now()
            found = None
            for one in self._candidates(tenant, task):
                if definitions is not None and one.definition not in definitions:
                    continue
                if not rules.claimable(
                    one.state, not_before=one.not_before, lease_until=one.lease_until, now=at,
                    take_over=rules.takes_over(one.worker, take_over=take_over, holder=holder),
                ):  # fmt: skip
                    continue
                if found is None or one.created_at < found.created_at:
                    found = one
            if found is None:
                return None
            self._pause("claim.inside")
            found.state, found.worker, found.not_before, found.updated_at = _RUNNING, worker, None, at
            found.epoch += 1
            found.attempts += 1
            found.lease_until = None if lease_seconds is None else at + lease_seconds
            lease = Lease(
                found.new.tenant, found.new.id, found.epoch, found.attempts, worker, found.lease_until
            )
            claimed = Claimed(lease, found.row(), tuple(found.entries))
        self._pause("claim.after")
        return claimed

    async def append(self, commit: Commit, /) -> Receipt:
        """Write the commit, or raise `Fenced`. The same commit id at the expected seq is success."""
        hooks = self._hooks
        if hooks is not None:
            hooks("append.before")
        with self._lock:
            stopped = rules.check_bodies(commit.bodies, commit.to)
            task = self._tasks.get((commit.tenant, commit.task))
            if (
                task is None
                or task.epoch != commit.epoch
                or task.seq != commit.seq
                or task.state not in commit.states
            ):
                return _earlier(task, commit)
            stays = commit.to is _RUNNING and task.state is _RUNNING
            if not stays:
                rules.check_move(task.state, commit.to, commit.task)
            at = self._now()
            if commit.valid_until is not None:
                rules.check_valid(commit, at)
            operations = self._operations_after(commit) if commit.operations or commit.settle else None
            if hooks is not None:
                hooks("append.inside")
            seq, epoch, by = commit.seq, commit.epoch, commit.by
            attempt, commit_id, seconds = commit.attempt, commit.commit_id, commit.seconds
            for body in commit.bodies:
                seq += 1
                task.entries.append(Entry(seq, epoch, at, by, attempt, commit_id, seconds, body))
                if type(body) is DefinitionAccepted:
                    task.definition = body.definition
            task.seq, task.updated_at, task.totals = seq, at, commit.totals
            if seconds > task.seconds:  # noqa: PLR1730 - a beat may have counted further; max() is slower
                task.seconds = seconds
            if not stays:
                self._move(task, commit.to, commit.waiting_for, commit.expires_at, stopped)
            if operations:
                self._operations.update(operations)
            for digest, data in commit.artifacts:
                self._artifacts.setdefault((commit.tenant, digest), bytes(data))
                self._uses.setdefault((commit.tenant, digest), set()).add(commit.task)
            receipt = Receipt(seq, at)
        if hooks is not None:
            hooks("append.after")
        return receipt

    async def release(self, lease: Lease, /, *, seconds: float, not_before: float | None = None) -> None:
        """Give a task back unharmed: READY_TO_RESUME, attempts 0. Raises `Fenced` when it is not ours."""
        self._pause("release.before")
        with self._lock:
            task = self._tasks.get((lease.tenant, lease.task))
            if task is None or task.epoch != lease.epoch or task.state is not _RUNNING:
                raise rules.not_ours(lease.task, lease.epoch)
            self._pause("release.inside")
            task.seconds, task.updated_at = max(task.seconds, seconds), self._now()
            self._move(task, TaskState.READY_TO_RESUME, "", None, None)
            task.not_before = not_before
        self._pause("release.after")

    def beat(self, beats: Sequence[Beat], /, *, lease_seconds: float) -> frozenset[tuple[str, int]]:
        """Renew leases from any thread; returns (task, epoch) of those refused."""
        self._pause("beat.before")
        with self._lock:
            until = self._now() + lease_seconds
            ours: list[tuple[HeldTask, Beat]] = []
            refused = set()
            for beat in beats:
                task = self._tasks.get((beat.tenant, beat.task))
                if task is None or task.epoch != beat.epoch or task.state is not _RUNNING:
                    refused.add((beat.task, beat.epoch))
                else:
                    ours.append((task, beat))
            self._pause("beat.inside")
            for task, beat in ours:
                task.seconds = max(task.seconds, beat.seconds)
                if task.lease_until is not None:  # a lease for ever stays one
                    task.lease_until = until
        self._pause("beat.after")
        return frozenset(refused)

    async def intervene(self, tenant: str, task: str, by: str, act: Act, /) -> tuple[TaskRow, bool]:
        """Give `act` the journal and write its change, all under the lock; what it raises undoes all."""
        self._pause("intervene.before")
        with self._lock:
            held = self._find(tenant, task)
            row, at = held.row(), self._now()
            change = act(row, tuple(held.entries), at)
            if change is None or rules.is_nothing(change, row):
                return row, False
            stopped = rules.check_change(change, row)
            operations = self._settled(tenant, task, change.settle, {})
            self._pause("intervene.inside")
            held.epoch = epoch = row.epoch + 1 if change.bump else row.epoch
            commit_id = rules.act_id(epoch, row.seq + 1)
            for held.seq, body in enumerate(change.bodies, row.seq + 1):
                held.entries.append(
                    Entry(held.seq, epoch, at, by, row.attempts, commit_id, row.seconds, body)
                )
            held.definition = rules.accepted(change.bodies) or held.definition
            held.updated_at, held.totals = at, change.totals
            if change.to is _RUNNING:
                if change.bump:  # its worker is fenced: whoever comes next may have it at once
                    held.lease_until = at
            else:
                self._move(held, change.to, change.waiting_for, change.expires_at, stopped)
            self._operations.update(operations)
            row = held.row()
        self._pause("intervene.after")
        return row, True

    async def record_late(self, record: LateRecord, /) -> None:
        """Keep a late result; needs no fence, because it is never part of the journal."""
        self._pause("record_late.before")
        with self._lock:
            task = self._find(record.tenant, record.task)
            self._pause("record_late.inside")
            task.late.append(LateRecord(
                record.tenant, record.task, record.step, record.position, record.start, record.epoch,
                record.status, record.content, self._now(),
            ))  # fmt: skip
        self._pause("record_late.after")

    async def audit(self, record: AuditRecord, /) -> None:
        """Keep an act of the tenant."""
        self._pause("audit.before")
        with self._lock:
            self._pause("audit.inside")
            self._audit.append(AuditRecord(
                record.tenant, record.by, record.act, record.task, record.outcome, record.detail, self._now()
            ))  # fmt: skip
        self._pause("audit.after")

    async def prune(
        self,
        tenant: str | None,
        /,
        *,
        older_than: float | None = None,
        keep_bytes: int | None = None,
        limit: int = PRUNED_AT_ONCE,
        dry_run: bool = False,
    ) -> tuple[Tombstone, ...]:
        """Drop tasks that are over, longest over first, and keep a tombstone of each."""
        self._pause("prune.before")
        bounds = Bounds(tenant, older_than, keep_bytes, max(limit, 0), None if dry_run else BATCH_BYTES)
        with self._lock:
            at = self._now()
            stored = 0 if keep_bytes is None else self._bytes(tenant)
            found = [one for one, _ in due(self._over(tenant, at), bounds, now=at, stored=stored)]
            if dry_run:
                return tuple(found)
            self._pause("prune.inside")
            for one in found:
                del self._tasks[one.tenant, one.id]
                self._tombstones[one.tenant, one.id] = one
            for key, users in list(self._uses.items()):
                users.difference_update(one.id for one in found if one.tenant == key[0])
                if not users:
                    del self._uses[key], self._artifacts[key]
        self._pause("prune.after")
        return tuple(found)

    # --- reads -----------------------------------------------------------------------------------------

    async def row(self, tenant: str, task: str, /, *, chain: bool = True) -> TaskRow:
        """The task's row, or `TaskNotFound`; without `chain` nothing is encoded for it."""
        with self._lock:
            return self._find(tenant, task).row(chain=chain)

    async def entries(
        self, tenant: str, task: str, /, *, after: int = 0, limit: int | None = None
    ) -> tuple[Entry, ...]:
        """The journal after a seq, in order."""
        with self._lock:
            found = self._find(tenant, task).entries[max(after, 0) :]
        return tuple(found if limit is None else found[: max(limit, 0)])

    async def tasks(
        self,
        tenant: str,
        /,
        *,
        states: Collection[TaskState] | None = None,
        agent: str | None = None,
        limit: int = 100,
        before: float | None = None,
    ) -> tuple[TaskRow, ...]:
        """Rows newest first."""
        with self._lock:
            found = [
                task
                for (of, _), task in self._tasks.items()
                if of == tenant
                and (states is None or task.state in states)
                and (agent is None or task.opened.agent == agent)
                and (before is None or task.created_at < before)
            ]
            found.reverse()  # the later opened first where two have the same time: sort is stable
            found.sort(key=lambda task: task.created_at, reverse=True)
            return tuple(task.row() for task in found[: max(limit, 0)])

    async def expired(self, tenant: str | None, /, *, limit: int = 100) -> tuple[TaskRow, ...]:
        """Tasks waiting for people past their `expires_at`, the longest expired first."""
        with self._lock:
            now = self._now()
            late = [
                (task.expires_at, task)
                for (of, _), task in self._open.items()
                if tenant in (None, of) and task.expires_at is not None and task.expires_at <= now
            ]
            late.sort(key=lambda pair: pair[0])
            return tuple(task.row() for _, task in late[: max(limit, 0)])

    async def operation(self, tenant: str, key: str, /) -> tuple[str, str] | None:
        """How an operation key of the tenant went: (status, content)."""
        with self._lock:
            held = self._operations.get((tenant, key))
        return None if held is None else (held.status, held.content)

    async def artifact(self, tenant: str, digest: str, /, *, task: str | None = None) -> bytes:
        """The whole of a value that was cut, or `TaskNotFound`; with `task` only if that task names it."""
        with self._lock:
            data = self._artifacts.get((tenant, digest))
            named = task is None or task in self._uses.get((tenant, digest), ())
        if data is None or not named:
            raise TaskNotFound(f"there is no artifact {digest} here; look it up under the task that made it")
        return data

    async def tombstone(self, tenant: str, task: str, /) -> Tombstone:
        """What is left of a pruned task, or `TaskNotFound`."""
        with self._lock:
            found = self._tombstones.get((tenant, task))
        if found is None:
            raise TaskNotFound(f"no task {task} was pruned here; list the tasks to see which there are")
        return found

    async def stored_bytes(self, tenant: str | None, /) -> int:
        """How many bytes of entries, late records and artifacts are kept."""
        with self._lock:
            return self._bytes(tenant)

    async def late(self, tenant: str, task: str, /) -> tuple[LateRecord, ...]:
        """The late records of a task, oldest first."""
        with self._lock:
            return tuple(self._find(tenant, task).late)

    async def audited(self, tenant: str, /, *, limit: int = 100) -> tuple[AuditRecord, ...]:
        """The tenant's acts, newest first."""
        with self._lock:
            found = [record for record in reversed(self._audit) if record.tenant == tenant]
        return tuple(found[: max(limit, 0)])

    async def verify(self, tenant: str, task: str, /) -> str | None:
        """The first place where the row is not what the journal says, or None."""
        with self._lock:
            held = self._find(tenant, task)
            stored = [
                rules.StoredEntry(e.seq, e.epoch, kind_of(e.body), ENTRY_VERSION, encode_body(e.body))
                for e in held.entries
            ]
            return rules.first_difference(held.row(), stored, len(held.late))

    async def check(self) -> tuple[str, ...]:
        """Nothing: there is no file to be damaged."""
        return ()

    async def compact(self) -> None:
        """Nothing to give back: what was pruned is gone."""

    async def now(self) -> float:
        """The store's time, seconds since 1970."""
        return self._now()

    async def close(self) -> None:
        """Nothing to release: what it holds goes with the object."""

    # --- parts of the above, called with the lock held --------------------------------------------------

    def _pause(self, point: str) -> None:
        if self._hooks is not None:
            self._hooks(point)

    def _find(self, tenant: str, task: str) -> HeldTask:
        found = self._tasks.get((tenant, task))
        if found is None:
            raise TaskNotFound(f"there is no task {task}; list the tasks to see which there are")
        return found

    def _over(self, tenant: str | None, at: float) -> Iterator[Over]:
        """The tasks that are over and that no live task came from, longest over first."""
        kept = {(of, task.opened.parent) for (of, _), task in self._open.items()}
        over = [one for key, one in self._tasks.items() if key not in self._open and tenant in (None, key[0])]
        for one in sorted(over, key=lambda task: task.updated_at):  # stable: then in order of opening
            new, children = one.new, {e.body.child for e in one.entries if type(e.body) is ChildOpened}
            if (new.tenant, new.id) in kept or any((new.tenant, child) in self._open for child in children):
                continue
            assert one.reason is not None, "a task that is over says why"
            stone = Tombstone(
                new.tenant, new.id, one.opened.agent, one.state, one.reason, one.seq, one.chain(),
                one.created_at, one.updated_at, at, one.bytes(),
            )  # fmt: skip
            yield Over(stone, tuple(
                (digest, len(self._artifacts[of, digest]), len(users))
                for (of, digest), users in self._uses.items()
                if of == new.tenant and new.id in users
            ))  # fmt: skip

    def _bytes(self, tenant: str | None) -> int:
        """What is kept of a tenant, or of all."""
        tasks = sum(one.bytes() for key, one in self._tasks.items() if tenant in (None, key[0]))
        return tasks + sum(len(data) for key, data in self._artifacts.items() if tenant in (None, key[0]))

    def _candidates(self, tenant: str | None, task: str | None) -> Iterator[HeldTask]:
        if tenant is not None and task is not None:
            named = self._open.get((tenant, task))
            return iter(() if named is None else (named,))
        return (one for key, one in self._open.items() if tenant in (None, key[0]) and task in (None, key[1]))

    def _move(
        self,
        task: HeldTask,
        to: TaskState,
        waiting_for: str,
        expires_at: float | None,
        stopped: Stopped | None,
    ) -> None:
        move = rules.move(to, waiting_for=waiting_for, expires_at=expires_at, stopped=stopped)
        task.state, task.reason = move.state, move.reason
        task.waiting_for, task.expires_at = move.waiting_for, move.expires_at
        task.worker, task.lease_until, task.not_before = "", None, None
        if move.attempts is not None:
            task.attempts = move.attempts
        if to in TERMINAL:
            del self._open[task.new.tenant, task.new.id]

    def _operations_after(self, commit: Commit) -> dict[Key, Operation]:
        changed = self._settled(commit.tenant, commit.task, commit.settle, {})
        for key, step, position in commit.operations:
            at = (commit.tenant, key)
            held = changed.get(at, self._operations.get(at))
            changed[at] = rules.claim_operation(held, key, task=commit.task, step=step, position=position)
        return changed

    def _settled(
        self, tenant: str, task: str, settle: Iterable[tuple[str, str, str]], changed: dict[Key, Operation]
    ) -> dict[Key, Operation]:
        for key, status, content in settle:
            at = (tenant, key)
            held = changed.get(at, self._operations.get(at))
            changed[at] = rules.settle_operation(held, key, task=task, status=status, content=content)
        return changed


def _earlier(task: HeldTask | None, commit: Commit) -> Receipt:
    """The receipt of this very commit if it was written before and its answer was lost, else Fenced."""
    if task is None:
        raise rules.fenced(commit, state=None)
    end = commit.seq + len(commit.bodies)
    if commit.seq >= 0 and end <= task.seq and task.entries[end - 1].commit_id == commit.commit_id:
        return Receipt(end, task.entries[end - 1].at)
    raise rules.fenced(commit, state=task.state, epoch=task.epoch, seq=task.seq)
