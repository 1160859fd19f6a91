"""Small true facts for tests of stores: an opened task, a step's entries, and a holder that appends them.

Rule: everything has a default, so that a test names only what it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fencepost.core.entries import (
    ApprovalAsked,
    Ask,
    CallEnded,
    CallStarted,
    CallStatus,
    EntryBody,
    ModelAsked,
    Opened,
    Stopped,
)
from fencepost.core.lifecycle import StopReason, TaskState, state_after
from fencepost.core.limits import Limits
from fencepost.core.recovery import Recovery
from fencepost.ports import Change, Claimed, Commit, NewTask, Receipt, Store, Totals

TENANT = "acme"


def opened(
    prompt: str = "why is checkout slow?", *, definition: str = "def-1", agent: str = "incident"
) -> Opened:
    """Entry 1 of a small task."""
    return Opened(
        prompt=prompt, agent=agent, instructions="be exact", tools=(), limits=Limits(5),
        recovery=Recovery.default(), definition=definition, requester="ada",
    )  # fmt: skip


def new_task(task: str = "t-1", *, tenant: str = TENANT, body: EntryBody | None = None) -> NewTask:
    """A task to be opened."""
    return NewTask(tenant, task, "ada", f"open-{task}", opened() if body is None else body)


def asked(step: int = 1) -> ModelAsked:
    """A request that is about to go out."""
    return ModelAsked(step, 1, 100)


def started(step: int = 1, position: int = 0) -> CallStarted:
    """A call that is about to run."""
    return CallStarted(step, position, 1, f"key-{step}.{position}")


def ended(step: int = 1, content: str = "42", *, position: int = 0) -> CallEnded:
    """A call that brought something."""
    return CallEnded(step, position, CallStatus.OK, content)


def question(step: int = 1, *, expires_at: float | None = None) -> ApprovalAsked:
    """A question to a person."""
    return ApprovalAsked((Ask(step, 0, "approval", "rollback", "digest", expires_at=expires_at),))


def cancelled(by: str = "ada") -> Change:
    """What a canceller writes to a task without open calls."""
    return Change((Stopped(StopReason.CANCELLED, by=by),), TaskState.CANCELLED, Totals())


class Holder:
    """A claimed task and where its journal ends, so that a test can append in one line."""

    def __init__(self, store: Store, claimed: Claimed) -> None:
        self.store, self.lease, self.seq = store, claimed.lease, claimed.row.seq

    def commit(
        self, bodies: Sequence[EntryBody], to: TaskState = TaskState.RUNNING, /, **fields: Any
    ) -> Commit:
        """The next commit of this run; `fields` replace what it would say by itself."""
        lease = self.lease
        made = Commit(
            tenant=lease.tenant, task=lease.task, epoch=lease.epoch, seq=self.seq,
            states=(TaskState.RUNNING,), to=to, bodies=tuple(bodies),
            commit_id=f"{lease.task}-{lease.epoch}-{self.seq}", by=lease.worker, attempt=lease.attempt,
            seconds=0.0, totals=Totals(),
        )  # fmt: skip
        return replace(made, **fields)

    async def append(self, *bodies: EntryBody, to: TaskState = TaskState.RUNNING, **fields: Any) -> Receipt:
        """The receipt of the next commit."""
        receipt = await self.store.append(self.commit(bodies, to, **fields))
        self.seq = receipt.seq
        return receipt

    async def wait(self, *, expires_at: float | None = None) -> Receipt:
        """The task waits for a person."""
        return await self.append(
            question(expires_at=expires_at), to=TaskState.WAITING_APPROVAL, waiting_for="approval",
            expires_at=expires_at,
        )  # fmt: skip

    async def stop(self, reason: StopReason = StopReason.COMPLETED) -> Receipt:
        """The task is over."""
        return await self.append(Stopped(reason), to=state_after(reason))


async def held(
    store: Store, task: str = "t-1", *, tenant: str = TENANT, lease_seconds: float | None = 30.0
) -> Holder:
    """A task that was opened unless it is there, and is claimed now by worker "w"."""
    await store.open_task(new_task(task, tenant=tenant))
    return await claimed_again(store, task, tenant=tenant, lease_seconds=lease_seconds)


async def claimed_again(
    store: Store,
    task: str = "t-1",
    *,
    tenant: str = TENANT,
    worker: str = "w",
    lease_seconds: float | None = 30.0,
    take_over: bool = False,
) -> Holder:
    """A claim by name that must succeed."""
    claimed = await store.claim(
        worker, lease_seconds=lease_seconds, tenant=tenant, task=task, take_over=take_over
    )
    assert claimed is not None, f"{task} cannot be claimed"
    return Holder(store, claimed)
