"""One task as the memory store holds it: the row's fields, its journal, and how far the chain is computed.

Rule: it changes only under the store's lock, and only in `memory.py`.
"""

from __future__ import annotations

from fencepost.core.entries import CHAIN_START, Entry, Opened, encode_body, kind_of, link
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import LateRecord, NewTask, TaskRow, Totals


class HeldTask:
    """One task: the row's fields, its journal, and how far the chain has been computed."""

    __slots__ = (
        "attempts", "created_at", "definition", "entries", "epoch", "expires_at", "head", "head_seq", "late",
        "lease_until", "new", "not_before", "opened", "opened_id", "reason", "seconds", "seq", "state",
        "totals", "updated_at", "waiting_for", "worker",
    )  # fmt: skip

    def __init__(self, new: NewTask, opened: Opened, at: float) -> None:
        self.new, self.opened, self.opened_id = new, opened, new.commit_id
        self.definition = opened.definition
        self.state, self.seq, self.epoch, self.attempts = TaskState.PENDING, 1, 0, 0
        self.created_at = self.updated_at = at
        self.seconds, self.totals = 0.0, Totals()
        self.waiting_for, self.worker = "", ""
        self.expires_at: float | None = None
        self.lease_until: float | None = None
        self.not_before: float | None = None
        self.reason: StopReason | None = None
        self.entries = [Entry(1, 0, at, new.by, 0, new.commit_id, 0.0, opened)]
        self.late: list[LateRecord] = []
        self.head, self.head_seq = CHAIN_START, 0

    def chain(self) -> str:
        """The chain head, computed for the entries that came since it was last asked for."""
        for entry in self.entries[self.head_seq :]:
            self.head = link(self.head, kind_of(entry.body), encode_body(entry.body))
        self.head_seq = len(self.entries)
        return self.head

    def bytes(self) -> int:
        """How much its entries and late records hold."""
        late = sum(len(record.content.encode()) for record in self.late)
        return late + sum(len(encode_body(entry.body)) for entry in self.entries)

    def row(self, *, chain: bool = True) -> TaskRow:
        """The task as the port describes it."""
        new, opened, totals = self.new, self.opened, self.totals
        return TaskRow(
            tenant=new.tenant, id=new.id, agent=opened.agent, requester=opened.requester,
            definition=self.definition, state=self.state, seq=self.seq, epoch=self.epoch,
            attempts=self.attempts, created_at=self.created_at, updated_at=self.updated_at,
            seconds=self.seconds, prompt=opened.prompt, waiting_for=self.waiting_for, reason=self.reason,
            tokens=totals.tokens, cost_nano=totals.cost_nano, steps=totals.steps, calls=totals.calls,
            worker=self.worker, lease_until=self.lease_until, not_before=self.not_before,
            expires_at=self.expires_at, chain=self.chain() if chain else "", late=len(self.late),
        )  # fmt: skip
