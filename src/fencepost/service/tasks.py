"""What people do to tasks, one function per command: cancel, decide, resolve, expire, stop, accept.

Rule 1: whoever acts is not the run, so each act is one transaction that locks the task, folds its journal, and
writes through the fence (`Store.intervene`); it bumps the epoch, so a run in flight is refused from then on.
Rule 2: an act that may not be recorded is refused with `DecisionRefused` and kept in the audit log.
"""

from __future__ import annotations

from fencepost.core.entries import (
    ApprovalDecided,
    Ask,
    DefinitionAccepted,
    Entry,
    EntryBody,
    OutcomeResolved,
)
from fencepost.core.errors import DecisionRefused, StoreCorrupt, StoreNewer, TaskConflict, TaskNotFound
from fencepost.core.lifecycle import TERMINAL, StopReason, TaskState
from fencepost.core.state import State, fold
from fencepost.core.values import stored
from fencepost.ports import Act, AuditRecord, Change, Store, TaskRow, Totals
from fencepost.run.agent import Agent
from fencepost.run.live import Live
from fencepost.run.running import stop_change

# A person's note is for people; longer ones belong in a document. Characters.
REASON_CHARS_MOST = 2000
# Of a step's or a position's number; no task has so many.
CALL_DIGITS_MOST = 9


async def cancel(
    store: Store, task: str, *, tenant: str = "local", by: str = "local/user", live: Live | None = None
) -> TaskRow:
    """End the task CANCELLED with every call closed; a task that is over comes back as it is (contract 7.1)."""

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        if row.state in TERMINAL:
            return None
        return stop_change(_state(entries), StopReason.CANCELLED, by=by)

    return await _intervene(store, tenant, task, by, act, live=live)


async def decide_approval(
    store: Store,
    task: str,
    call: str,
    *,
    approve: bool,
    tenant: str = "local",
    by: str = "local/user",
    digest: str | None = None,
    reason: str = "",
    self_approval: bool = True,
    live: Live | None = None,
) -> TaskRow:
    """Record one person's yes or no to one call, bound to the digest of the arguments they were shown.

    `call` is "<step>.<position>". The same decision by the same person again returns the task as it is. Anything
    else that comes late, twice, from elsewhere or about other arguments raises DecisionRefused (contract 11.2).
    """
    decision = "approved" if approve else "rejected"
    step, position = _call(call)

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        state = _state(entries)
        ask = _asked(state, step, position, "approval")
        if ask is None:
            if _same_again(entries, step, position, decision, by, digest=digest):
                return None
            raise DecisionRefused(_why_not_asked(row, entries, step, position, call))
        if approve and not self_approval and state.opened is not None and state.opened.requester == by:
            raise DecisionRefused(
                f"{by} asked for task {task} and may not approve its calls; somebody else must"
            )
        if digest is not None and digest != ask.digest:
            raise DecisionRefused(
                f"call {call} waits for a decision on other arguments (digest {ask.digest})"
            )
        if ask.expires_at is not None and now >= ask.expires_at:
            raise DecisionRefused(
                f"the question about call {call} expired; resume the task, which goes on without that call"
            )
        body = ApprovalDecided(step, position, decision, ask.digest, _note(reason), by)
        return _answered(state, (body,))

    try:
        return await _intervene(store, tenant, task, by, act, live=live)
    except (DecisionRefused, TaskNotFound) as why:
        await store.audit(AuditRecord(tenant, by, decision, _note(task), "refused", _note(str(why))))
        raise


async def resolve_outcome(
    store: Store,
    task: str,
    call: str,
    verdict: str,
    *,
    content: str = "",
    tenant: str = "local",
    by: str = "local/user",
    live: Live | None = None,
) -> TaskRow:
    """Record what a person found out about a call with unknown outcome (contract 8.3).

    `verdict` is "happened" (with its result in `content`), "did_not_happen" (the call may run again, with the same
    key) or "cannot_tell" (the model is told so). Raises DecisionRefused when nobody was asked.
    """
    if verdict not in ("happened", "did_not_happen", "cannot_tell"):
        raise DecisionRefused(f"verdict {verdict!r} is not one of happened, did_not_happen, cannot_tell")
    step, position = _call(call)

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        state = _state(entries)
        if _asked(state, step, position, "outcome") is None:
            raise DecisionRefused(
                f"task {task} asks about no outcome of call {call}; it is {row.state.value}"
            )
        given = content or ("A person confirmed that this happened." if verdict == "happened" else "")
        assert state.opened is not None
        value = stored(given, limit=state.opened.limits.result_bytes)
        said = value.text
        body = OutcomeResolved(step, position, verdict, "person", content=said, by=by, digest=value.digest)
        operation = state.open[position].operation
        status = {"happened": "succeeded", "did_not_happen": "failed"}.get(verdict, "unknown")
        return _answered(state, (body,), ((operation, status, said),) if operation else ())

    try:
        return await _intervene(store, tenant, task, by, act, live=live)
    except (DecisionRefused, TaskNotFound) as why:
        act_name = f"resolve {verdict}"
        await store.audit(AuditRecord(tenant, by, act_name, _note(task), "refused", _note(str(why))))
        raise


async def expire(store: Store, *, tenant: str | None = None, live: Live | None = None) -> int:
    """Close the questions whose time is over, so that their tasks can go on; returns how many tasks moved."""
    moved = 0
    for row in await store.expired(tenant):

        def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
            state = _state(entries)
            over = tuple(
                ApprovalDecided(
                    ask.step, ask.position, "expired", ask.digest, "nobody decided in time", "runtime"
                )
                for ask in state.open_asks
                if ask.expires_at is not None and now >= ask.expires_at
            )
            return _answered(state, over) if over else None

        try:
            after = await _intervene(store, row.tenant, row.id, "runtime", act, live=live)
        except (StoreCorrupt, StoreNewer):
            continue  # whoever opens that task is told; the others do not wait for it
        moved += after.seq > row.seq
    return moved


async def accept_definition(
    store: Store, task: str, agent: Agent, *, tenant: str = "local", by: str = "local/user"
) -> TaskRow:
    """Take the agent's present definition for the rest of the task (contract 2.6)."""

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        if row.state in TERMINAL:
            raise TaskConflict(f"task {task} is over ({row.state.value}); its definition stays as it was")
        if row.definition == agent.definition:
            return None
        body = DefinitionAccepted(agent.definition, agent.definitions, agent.instructions, by)
        state = fold((body,), _state(entries))
        to = TaskState.READY_TO_RESUME if row.state is TaskState.RUNNING else row.state
        return Change((body,), to, _totals(state), waiting_for=row.waiting_for, expires_at=row.expires_at)

    return await _intervene(store, tenant, task, by, act, live=None)


async def refuse_definition(
    store: Store, task: str, agent: Agent, *, tenant: str = "local", by: str = "local/user"
) -> TaskRow:
    """End the task DEFINITION_CHANGED because the agent is not what it was; unchanged, it stays as it is."""

    def act(row: TaskRow, entries: tuple[Entry, ...], now: float) -> Change | None:
        if row.state in TERMINAL or row.definition == agent.definition:
            return None
        state = _state(entries)
        changed = ", ".join(agent.changes_from(state.opened)) if state.opened is not None else ""
        return stop_change(state, StopReason.DEFINITION_CHANGED, detail=f"changed: {changed}", by=by)

    return await _intervene(store, tenant, task, by, act, live=None)


def _state(entries: tuple[Entry, ...]) -> State:
    return fold(entry.body for entry in entries)


def _totals(state: State) -> Totals:
    return Totals(state.tokens, state.cost_nano, state.steps, state.calls)


def _call(call: str) -> tuple[int, int]:
    step, _, position = call.removeprefix("ev-").partition(".")
    for part in (step, position):
        if not (part.isascii() and part.isdigit() and len(part) <= CALL_DIGITS_MOST):
            raise DecisionRefused(f"a call is named <step>.<position>, as in 2.0; got {call[:40]!r}")
    return int(step), int(position)


def _note(reason: str) -> str:
    """A person's words as every store can hold them (contract 8.4)."""
    kept = reason[:REASON_CHARS_MOST]
    return stored(kept, limit=4 * REASON_CHARS_MOST).text


def _asked(state: State, step: int, position: int, about: str) -> Ask | None:
    for ask in state.open_asks:
        if (ask.step, ask.position, ask.about) == (step, position, about):
            return ask
    return None


def _answered(
    state: State, bodies: tuple[EntryBody, ...], settle: tuple[tuple[str, str, str], ...] = ()
) -> Change:
    """The change after some questions were answered: the task runs on when none is left."""
    after = fold(bodies, state)
    waits = after.waits_for
    to = TaskState.WAITING_APPROVAL if waits else TaskState.READY_TO_RESUME
    times = [ask.expires_at for ask in after.open_asks if ask.expires_at is not None]
    expires_at = min(times) if times else None
    return Change(bodies, to, _totals(after), waiting_for=waits, expires_at=expires_at, settle=settle)


def _same_again(
    entries: tuple[Entry, ...], step: int, position: int, decision: str, by: str, *, digest: str | None
) -> bool:
    for entry in reversed(entries):
        body = entry.body
        if isinstance(body, ApprovalDecided) and (body.step, body.position) == (step, position):
            return body.decision == decision and body.by == by and digest in (None, body.digest)
    return False


def _why_not_asked(row: TaskRow, entries: tuple[Entry, ...], step: int, position: int, call: str) -> str:
    if row.state in TERMINAL:
        return f"task {row.id} is over ({row.state.value}); nothing of it can be decided"
    for entry in reversed(entries):
        body = entry.body
        if isinstance(body, ApprovalDecided) and (body.step, body.position) == (step, position):
            return f"call {call} of task {row.id} was already {body.decision} by {body.by or 'the runtime'}"
    return f"task {row.id} asks nothing about call {call}; it is {row.state.value}"


async def _intervene(
    store: Store, tenant: str, task: str, by: str, act: Act, *, live: Live | None
) -> TaskRow:
    row, written = await store.intervene(tenant, task, by, act)
    if written and live is not None:
        live.fence(tenant, task, row.epoch)
    return row
