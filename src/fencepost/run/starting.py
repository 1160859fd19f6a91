"""What stands between a call and its start: live rules, a spent approval, a tool that no longer takes it.

Nothing here is committed and nothing runs; the loop does both with what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from fencepost.core.entries import ApprovalAsked, Ask, CallEnded, CallStarted, CallStatus, EntryBody, Replied
from fencepost.core.errors import OperationTaken
from fencepost.core.state import CallState, State
from fencepost.core.values import stored
from fencepost.ports import Boundary, CallContext, Prepared, Tool
from fencepost.run.foreign import authorized
from fencepost.run.perform import Call, refused


class Starts(Struct, frozen=True, gc=False):
    """The starts of one task's calls. Times are seconds since 1970 by the store's clock."""

    tenant: str
    task: str
    principal: str
    tools: Mapping[str, Tool]
    boundary: Boundary
    approval_seconds: float

    def question(self, state: State, position: int, about: str, now: float) -> Ask:
        """What people are asked about a call: whether it may run ("approval"), or what became of it ("outcome")."""
        known, reply = _open(state, position)
        definition = state.tools.get(known.call.name)  # None when an accepted definition dropped it
        return Ask(
            reply.step,
            position,
            about,
            known.call.name,
            known.call.digest,
            definition="" if definition is None else definition.digest,
            rules=self.boundary.version,
            expires_at=now + self.approval_seconds if about == "approval" else None,
            cause=known.cause or known.call.reason,
        )

    def objection(self, state: State, position: int, now: Callable[[], float]) -> EntryBody | None:
        """Why a call that was allowed may not start now: rules are live, and the stricter wins (contract 11.3)."""
        call, boundary = state.open[position], self.boundary
        approved = call.decision == "approved"
        if call.call.rules and call.call.rules == boundary.version and not approved:
            return None
        definition = state.tools.get(call.call.name)
        if definition is None:
            return None  # an accepted definition dropped the tool: `prepare` says so
        _, reply = _open(state, position)
        verdict = authorized(boundary, self.principal, definition, call.call.arguments)
        if verdict.verdict == "deny":
            said = f"denied: {verdict.reason or 'the rules no longer allow this call'}"
            return CallEnded(reply.step, position, CallStatus.DENIED, said, failure="denied")
        if call.starts or verdict.verdict == "allow" or call.resolved is not None:
            return None
        ask = call.asked if approved else None
        if ask is not None and (ask.rules, ask.definition) == (boundary.version, definition.digest):
            expired = ask.expires_at is not None and ask.expires_at <= now()
            if not expired:
                return None
        return ApprovalAsked((self.question(state, position, "approval", now()),))

    def ask_again(self, state: State, positions: Iterable[int], now: float) -> ApprovalAsked:
        """The questions about the calls whose approvals ran out while their start was being committed."""
        over = [p for p in positions if state.open[p].decision == "approved"]
        return ApprovalAsked(tuple(self.question(state, p, "approval", now) for p in over))

    def valid_until(self, state: State, positions: Iterable[int]) -> float | None:
        """When the first of the approvals that these calls start on runs out; None when none of them can."""
        first = None
        for position in positions:
            call = state.open[position]
            if (
                call.consumed and call.starts == 1 and call.asked is not None
            ):  # a later start needs no new yes
                ends = call.asked.expires_at
                first = ends if first is None or (ends is not None and ends < first) else first
        return first

    def prepare(
        self, state: State, position: int, prepared: Prepared | None, *, usual: float, left: float
    ) -> tuple[Call, CallStarted] | CallEnded:
        """The call and its start, or its result where the tool no longer takes it.

        `prepared` is what admission made of its arguments in this run. Seconds: `usual` is what a call may take
        whose tool does not say, `left` what the task has left.
        """
        known, reply = _open(state, position)
        tool = self.tools.get(known.call.name)
        if tool is None:
            said = f"the tool {known.call.name} is no longer part of this task"
            return CallEnded(reply.step, position, CallStatus.FAILED, said, failure="unknown_tool")
        try:
            if prepared is None or prepared.digest != known.call.digest:
                prepared = tool.prepare(known.call.arguments)
            operation = tool.operation_key(prepared) or ""
        except Exception as error:  # noqa: BLE001 - foreign code makes one failed call (contract 5.2)
            return refused(reply.step, position, tool.definition.name, error)
        seconds = min(tool.definition.timeout or usual, left)
        context = self.context(reply.step, position, known.starts + 1, seconds=seconds)
        started = CallStarted(reply.step, position, context.start, context.key, operation)
        return Call(tool, prepared, context, operation), started

    def context(self, step: int, position: int, start: int, *, seconds: float) -> CallContext:
        """What the body of a call may know of it; its key is the same at every start (contract 8.2)."""
        key = f"{self.task}:{step}.{position}"
        return CallContext(self.task, self.tenant, self.principal, step, position, start, key, seconds)


def earlier(call: Call, taken: OperationTaken) -> CallEnded:
    """The result of a call whose operation the tenant already has (contract 8.2)."""
    if taken.status == "succeeded":
        value = stored(taken.content, limit=max(len(taken.content.encode()), 1))
        return CallEnded(
            call.context.step,
            call.context.position,
            CallStatus.OK,
            value.text,
            digest=value.digest,
            size_bytes=value.size_bytes,
        )
    said = f"not run again: {taken}"
    return CallEnded(
        call.context.step, call.context.position, CallStatus.FAILED, said, failure="operation_taken"
    )


def _open(state: State, position: int) -> tuple[CallState, Replied]:
    reply = state.reply
    assert reply is not None, "a call is part of a reply"
    return state.open[position], reply
