"""The four things the loop needs from the world: Model, Tool, Store, Clock. There is no second layer.

A port says what must hold, adapters and stores make it so, and `fencepost.testing` proves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from fencepost.core.entries import Entry, EntryBody
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.core.messages import ModelProfile, ModelRequest, Reply, ToolDefinition


class Delta(Struct, frozen=True, gc=False):
    """A fragment of a reply while it arrives: shown, never stored, never executed (contract 3.1).

    `kind` is "text", "reasoning", "call" (text is the tool's name) or "arguments".
    """

    kind: str
    text: str
    index: int = 0


Sink = Callable[[Delta], None]


@runtime_checkable
class Model(Protocol):
    """Something that answers a request with one complete reply, or raises `ModelFailed`.

    It is called under the task's deadline and may be cancelled at any await. It tells `sink` (when there is one)
    of each fragment, and returns only after the provider's terminal signal. It never retries by itself.
    """

    @property
    def profile(self) -> ModelProfile:
        """What budgets must know of it before it is asked."""
        ...

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """One complete reply, or `ModelFailed`."""
        ...


class CallContext(Struct, frozen=True, gc=False):
    """What a running tool may know about its call. `seconds` is the time it has.

    `key` is the idempotency key: the same at every start of this call, unique to it (contract 8.2).
    """

    task: str
    tenant: str
    principal: str
    step: int
    position: int
    start: int
    key: str
    seconds: float


class Prepared(Struct, frozen=True, gc=False):
    """Arguments that passed a tool's validation: the only thing a tool can be run with (contract 4.5).

    `canonical` is the one object of contract 4.1 as text, `digest` its SHA-256, `values` what the function gets.
    """

    tool: str
    canonical: str
    digest: str
    values: Any


class Reconciled(Struct, frozen=True):
    """A tool's word on a start with unknown outcome: "happened", "did_not_happen" or "cannot_tell".

    "did_not_happen" also promises that a later start of the lost attempt with this key will be refused.
    """

    verdict: str
    result: Any = None


@runtime_checkable
class Tool(Protocol):
    """A named capability. Whoever calls it goes through `prepare`, so bad arguments never reach its body."""

    @property
    def definition(self) -> ToolDefinition:
        """What a task is told of it."""
        ...

    @property
    def threaded(self) -> bool:
        """Whether the body runs in a thread, which nobody can stop (contract 6.7)."""
        ...

    def prepare(self, arguments: str, /) -> Prepared:
        """Validated arguments, or `ArgumentsInvalid` with words for the model."""
        ...

    def operation_key(self, prepared: Prepared, /) -> str | None:
        """The tenant-wide name of the effect these arguments have, if the tool declares one."""
        ...

    def run(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Any]:
        """Do it once, and return its value; anything raised is one failed call."""
        ...

    def reconcile(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Reconciled]:
        """What became of an earlier start with this key."""
        ...


class Authorization(Struct, frozen=True, gc=False):
    """The boundary's word on one call, and the version of the rules that gave it."""

    verdict: str
    reason: str = ""
    rules: str = "default"


class Boundary(Protocol):
    """Answers allow, ask or deny for (principal, tool, effect, canonical arguments) (contract 4.6)."""

    @property
    def version(self) -> str:
        """Changes whenever an answer could; an approval is bound to it."""
        ...

    @property
    def self_approval(self) -> bool:
        """Whether the requester may approve their own call (contract 11.2)."""
        ...

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        """The word on one call with these canonical arguments."""
        ...


class TaskRow(Struct, frozen=True, gc=False):
    """What a store keeps of a task beside its journal; everything here can be rebuilt from the journal or lease.

    Times are seconds since 1970 by the store's clock. `seconds` is task time used (contract 6.4).
    """

    tenant: str
    id: str
    agent: str
    requester: str
    definition: str
    state: TaskState
    seq: int
    epoch: int
    attempts: int
    created_at: float
    updated_at: float
    seconds: float = 0.0
    prompt: str = ""
    waiting_for: str = ""
    reason: StopReason | None = None
    tokens: int = 0
    cost_nano: int | None = 0
    steps: int = 0
    calls: int = 0
    worker: str = ""
    lease_until: float | None = None
    not_before: float | None = None
    expires_at: float | None = None
    chain: str = ""
    late: int = 0


class Totals(Struct, frozen=True, gc=False):
    """Sums over the journal that the store keeps in the task row, committed with the entries."""

    tokens: int = 0
    cost_nano: int | None = 0
    steps: int = 0
    calls: int = 0


class NewTask(Struct, frozen=True, gc=False):
    """A task to be created: its row's fixed part and entry 1. `id` is made by the caller, so a retry is safe."""

    tenant: str
    id: str
    by: str
    commit_id: str
    opened: EntryBody


class Lease(Struct, frozen=True, gc=False):
    """The right to run one task: who, under which epoch. `until` is by the store's clock, None for ever."""

    tenant: str
    task: str
    epoch: int
    attempt: int
    worker: str
    until: float | None


class Claimed(Struct, frozen=True, gc=False):
    """A task that is now ours to run: its lease, its row and its whole journal, read in the claim's transaction."""

    lease: Lease
    row: TaskRow
    entries: tuple[Entry, ...]


class Commit(Struct, frozen=True, gc=False):
    """One fenced append: written whole if the task still is at `epoch` and `seq` and in one of `states`.

    `to` is the state afterwards; leaving RUNNING gives the lease back. `operations` claims tenant-wide operation
    keys together with the entries, as (key, step, position); `settle` records how an earlier operation ended
    ("succeeded", "failed", "unknown"), as (key, status, content). `artifacts` are (digest, bytes) kept with the
    entries. At `valid_until` by the store's clock, or later, nothing is written and `ApprovalExpired` is raised.
    """

    tenant: str
    task: str
    epoch: int
    seq: int
    states: tuple[TaskState, ...]
    to: TaskState
    bodies: tuple[EntryBody, ...]
    commit_id: str
    by: str
    attempt: int
    seconds: float
    totals: Totals
    waiting_for: str = ""
    expires_at: float | None = None
    operations: tuple[tuple[str, int, int], ...] = ()
    valid_until: float | None = None
    settle: tuple[tuple[str, str, str], ...] = ()
    artifacts: tuple[tuple[str, bytes], ...] = ()


class Receipt(Struct, frozen=True, gc=False):
    """A commit that is durable: the seq after it and the store's time of it."""

    seq: int
    at: float


class Change(Struct, frozen=True, gc=False):
    """What somebody who is not the worker does to a task (cancel, approval, expiry, reaper, operator).

    Applied in the same transaction that read the journal; `bump` moves the epoch, so that a run in flight is
    fenced. No bodies and no new state means nothing to do.
    """

    bodies: tuple[EntryBody, ...]
    to: TaskState
    totals: Totals
    bump: bool = True
    waiting_for: str = ""
    expires_at: float | None = None
    settle: tuple[tuple[str, str, str], ...] = ()


Act = Callable[[TaskRow, tuple[Entry, ...], float], "Change | None"]


class Beat(Struct, frozen=True, gc=False):
    """A sign of life of one run, with the task seconds it has used."""

    tenant: str
    task: str
    epoch: int
    seconds: float


class LateRecord(Struct, frozen=True, gc=False):
    """What a call brought after it was closed or its run fenced: kept beside the journal, never in it."""

    tenant: str
    task: str
    step: int
    position: int
    start: int
    epoch: int
    status: str
    content: str
    at: float = 0.0


class AuditRecord(Struct, frozen=True, gc=False):
    """An act that changed no journal, above all one that was refused (contract 11.2)."""

    tenant: str
    by: str
    act: str
    task: str
    outcome: str
    detail: str = ""
    at: float = 0.0


# Pruning holds the store's lock, so it is done in parts: so many tasks take some tens of milliseconds.
PRUNED_AT_ONCE = 100


class Tombstone(Struct, frozen=True, gc=False):
    """What is kept of a task that was pruned: who it was, how it ended, and the head of its hash chain.

    `freed_bytes` counts its entries, late records, and the artifacts that nobody else named.
    """

    tenant: str
    id: str
    agent: str
    state: TaskState
    reason: StopReason
    seq: int
    chain: str
    created_at: float
    ended_at: float
    pruned_at: float
    freed_bytes: int


class Store(Protocol):
    """All that survives: rows, journals, late records, operations, artifacts, audit.

    Every write is one transaction that is durable when the call returns. A failed transaction raises `StoreFailed`
    (never `Fenced`), a lost ownership raises `Fenced` (never `StoreFailed`). Each statement names the tenant.
    """

    async def open_task(self, new: NewTask, /) -> TaskRow:
        """Create the task PENDING with its entry 1; the same id and commit id again returns the row unchanged."""
        ...

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
        """Take the oldest runnable task (PENDING, READY_TO_RESUME whose time has come, or RUNNING with an
        expired lease), bump its epoch, count the attempt. `task` names one; `take_over` also takes a live lease,
        with `holder` only from that worker: whoever saw it end must not rob the one who came after it.
        `definitions` None means any. None when there is nothing to run.
        """
        ...

    async def append(self, commit: Commit, /) -> Receipt:
        """Write the commit, or raise `Fenced`. The same commit id at the expected seq is success."""
        ...

    async def release(self, lease: Lease, /, *, seconds: float, not_before: float | None = None) -> None:
        """Give a task back unharmed: READY_TO_RESUME, attempts 0. Raises `Fenced` when it is not ours."""
        ...

    def beat(self, beats: Sequence[Beat], /, *, lease_seconds: float) -> frozenset[tuple[str, int]]:
        """Renew leases from any thread; returns (task, epoch) of those refused. Not async on purpose."""
        ...

    async def intervene(self, tenant: str, task: str, by: str, act: Act, /) -> tuple[TaskRow, bool]:
        """Lock the row, give `act` the journal, write its change, all in one transaction.

        Returns the row afterwards and whether anything was written. `act` is pure; what it raises undoes all.
        """
        ...

    async def row(self, tenant: str, task: str, /, *, chain: bool = True) -> TaskRow:
        """The task's row, or `TaskNotFound`. `chain` False may leave the chain head out, where it costs."""
        ...

    async def entries(
        self, tenant: str, task: str, /, *, after: int = 0, limit: int | None = None
    ) -> tuple[Entry, ...]:
        """The journal after a seq, in order."""
        ...

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
        ...

    async def expired(self, tenant: str | None, /, *, limit: int = 100) -> tuple[TaskRow, ...]:
        """Tasks waiting for people past their `expires_at`."""
        ...

    async def operation(self, tenant: str, key: str, /) -> tuple[str, str] | None:
        """How an operation key of the tenant went: (status, content)."""
        ...

    async def artifact(self, tenant: str, digest: str, /, *, task: str | None = None) -> bytes:
        """The whole of a value that was cut, or `TaskNotFound`; with `task` only if that task names it.

        `StoreCorrupt` when the task names it and it is gone.
        """
        ...

    async def record_late(self, record: LateRecord, /) -> None:
        """Keep a late result; needs no fence, because it is never part of the journal."""
        ...

    async def late(self, tenant: str, task: str, /) -> tuple[LateRecord, ...]:
        """The late records of a task, oldest first."""
        ...

    async def audit(self, record: AuditRecord, /) -> None:
        """Keep an act of the tenant."""
        ...

    async def audited(self, tenant: str, /, *, limit: int = 100) -> tuple[AuditRecord, ...]:
        """The tenant's acts, newest first."""
        ...

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
        """Drop tasks that are over, longest over first, and keep a tombstone of each (contract 12.1).

        Those that ended `older_than` seconds ago or earlier go, and the oldest ones beyond `keep_bytes`; at most
        `limit` in one transaction, and fewer when they are large, so call it until it returns nothing. A task
        with a live child or fork stays.
        `tenant` None means all. Audit records and operation keys stay; an artifact goes with the last task that
        names it. `dry_run` says what would go.
        """
        ...

    async def tombstone(self, tenant: str, task: str, /) -> Tombstone:
        """What is left of a pruned task, or `TaskNotFound`."""
        ...

    async def stored_bytes(self, tenant: str | None, /) -> int:
        """How many bytes of entries, late records and artifacts are kept; None counts every tenant's."""
        ...

    async def verify(self, tenant: str, task: str, /) -> str | None:
        """The first place where the task's row is not what its journal says, as a sentence, or None."""
        ...

    async def check(self) -> tuple[str, ...]:
        """What is wrong with what holds the data, a file say, apart from what is in it."""
        ...

    async def compact(self) -> None:
        """Give back to the system what is kept free for later writes, where the store keeps any."""
        ...

    async def now(self) -> float:
        """The store's time, seconds since 1970."""
        ...

    async def close(self) -> None:
        """Release files and threads; safe to call twice."""
        ...


class Clock(Protocol):
    """Where seconds come from; only the composition root and `fencepost.testing` know which."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Return after so many seconds."""
        ...
