"""What must hold of every task after every conformance row, whatever the row was about.

Rule 1: everything is recomputed from the journal here, with none of the code that wrote it, except for the
fold and the chain, which are compared with the row.
Rule 2: the checker never excuses a row; a row that needs an excuse is a row about something that is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from fencepost.core.entries import (
    CHAIN_START,
    AnswerRejected,
    ApprovalDecided,
    AttemptFailed,
    CallEnded,
    CallStarted,
    Entry,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Replied,
    Stopped,
    Verdict,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.lifecycle import TERMINAL, state_after
from fencepost.core.messages import AssistantMessage, Effect, ToolMessage
from fencepost.core.state import ANSWER_TOOL, fold
from fencepost.ports import Store, TaskRow

Place = tuple[int, int]


class EffectLine(Struct, frozen=True):
    """One line of the file outside the store: a tool's body really began.

    `committed` is what the body saw of its own CallStarted in the store at that moment.
    """

    task: str
    tool: str
    step: int
    position: int
    start: int
    key: str
    n: int
    committed: bool


async def check_task(store: Store, row: TaskRow, effects: Sequence[EffectLine]) -> None:
    """Raise AssertionError, naming the rule, unless the task's journal, row and effects agree."""
    entries = await store.entries(row.tenant, row.id)
    _check_sequence(entries, row)
    _check_end(entries, row)
    _check_closed(entries, over=row.state in TERMINAL)
    _check_transcript(entries, over=row.state in TERMINAL)
    _check_starts(entries)
    _check_spend(entries, row)
    _check_effects(entries, [line for line in effects if line.task == row.id])
    verify: Any = getattr(store, "verify", None)
    if verify is not None:
        assert await verify(row.tenant, row.id) is None, "the store's own verification"


def _check_sequence(entries: Sequence[Entry], row: TaskRow) -> None:
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1)), "seq is gapless from 1"
    assert row.seq == len(entries), "the row is at the last seq"
    assert [isinstance(e.body, Opened) for e in entries] == [e.seq == 1 for e in entries], "Opened is entry 1"
    epochs = [e.epoch for e in entries]
    assert epochs == sorted(epochs), "epochs never go back"
    assert row.epoch >= epochs[-1], "the row's epoch is not behind its journal"
    times = [e.seconds for e in entries]
    assert times == sorted(times), "task seconds never go back"
    head = CHAIN_START
    for entry in entries:
        head = link(head, kind_of(entry.body), encode_body(entry.body))
    assert head == row.chain, "the chain over the entries is the row's"


def _check_end(entries: Sequence[Entry], row: TaskRow) -> None:
    stops = [e for e in entries if isinstance(e.body, Stopped)]
    if row.state not in TERMINAL:
        assert stops == [], "a task that is not over has no terminal entry"
        assert row.reason is None
        return
    assert len(stops) == 1, "exactly one terminal entry"
    assert stops[0] is entries[-1], "the terminal entry is the last one"
    body = stops[0].body
    assert isinstance(body, Stopped)
    assert row.reason is body.reason
    assert row.state is state_after(body.reason), "the state follows from the reason"


def _check_closed(entries: Sequence[Entry], *, over: bool) -> None:
    asked: list[Place] = []
    ended: Counter[Place] = Counter()
    begun: set[Place] = set()
    for entry in entries:
        body = entry.body
        if isinstance(body, Replied):
            asked += [(body.step, i) for i in range(len(body.calls))]
        elif isinstance(body, CallStarted):
            place = (body.step, body.position)
            assert place in asked, "a call is in the journal before it starts"
            assert not ended[place], f"call {place} starts after it was closed"
            begun.add(place)
        elif isinstance(body, CallEnded):
            place = (body.step, body.position)
            assert place in asked, "a result belongs to a call"
            ended[place] += 1
    assert len(asked) == len(set(asked)), "a call is asked for once"
    assert all(count == 1 for count in ended.values()), f"one result per call: {ended}"
    if over:
        assert set(ended) == set(asked), "closed: every call has exactly one result"


def _check_transcript(entries: Sequence[Entry], *, over: bool) -> None:
    messages = list(fold(e.body for e in entries).messages)
    sent: list[str] = []
    waiting: list[tuple[str, str]] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            assert message.text.strip() or message.calls, "no empty message is ever sent on"
            assert waiting == [], "every call is answered before the model speaks again"
            sent += [call.id for call in message.calls]
            waiting = [(call.id, call.name) for call in message.calls]
        elif isinstance(message, ToolMessage):
            assert (message.call_id, message.name) == waiting.pop(0), "results come in the order of the calls"
    assert all(sent), "no empty id is ever sent on"
    assert len(sent) == len(set(sent)), "ids sent out are unique in the task"
    if over:  # the answer tool's own call may stay open: it is the end
        assert all(name == ANSWER_TOOL for _, name in waiting), f"unanswered: {waiting}"


def _check_starts(entries: Sequence[Entry]) -> None:
    """A write starts once, unless somebody said that it did not happen; an asked call only when approved."""
    opened = entries[0].body
    assert isinstance(opened, Opened)
    writes = {tool.name for tool in opened.tools if tool.effect is Effect.WRITE}
    calls: dict[Place, Any] = {}
    starts: Counter[Place] = Counter()
    allowed: dict[Place, int] = {}
    approved: set[Place] = set()
    keys: dict[Place, str] = {}
    for entry in entries:
        body = entry.body
        match body:
            case Replied():
                calls |= {(body.step, i): call for i, call in enumerate(body.calls)}
            case ApprovalDecided(step, position, decision):
                (approved.add if decision == "approved" else approved.discard)((step, position))
            case OutcomeResolved(step, position, verdict):
                if verdict == "did_not_happen":
                    allowed[step, position] = allowed.get((step, position), 1) + 1
            case CallStarted(step, position, start, key):
                place = (step, position)
                starts[place] += 1
                assert start == starts[place], "starts are counted from 1"
                assert keys.setdefault(place, key) == key, "the idempotency key is the same at every start"
                assert calls[place].refusal is None, "a refused call never starts"
                assert calls[place].verdict is not Verdict.DENY, "a denied call never starts"
                assert calls[place].verdict is Verdict.ALLOW or place in approved, "asked and not approved"
                if calls[place].name in writes:
                    assert starts[place] <= allowed.get(place, 1), "a write never runs again by itself"
    assert len(set(keys.values())) == len(keys), "an idempotency key belongs to one call"


def _check_spend(entries: Sequence[Entry], row: TaskRow) -> None:
    opened = entries[0].body
    assert isinstance(opened, Opened)
    limits = opened.limits
    tokens = steps = calls = started = 0
    cost: int | None = 0
    held: ModelAsked | None = None
    for entry in entries:
        body = entry.body
        match body:
            case ModelAsked():
                assert held is None, "one request at a time"
                assert tokens + body.reserved_tokens <= limits.tokens, (
                    "no request that the budget cannot bear"
                )
                if limits.cost_nano is not None:
                    assert cost is not None, "a request at an unknown cost"
                    assert body.reserved_nano is not None, "a request without a price"
                    assert cost + body.reserved_nano <= limits.cost_nano
                assert steps < limits.steps, "no request after the last permitted step"
                held = body
            case Replied() | AttemptFailed():
                assert held is not None, "a reply or a failure answers a request"
                held = None
                tokens += body.charged_tokens
                cost = None if cost is None or body.charged_nano is None else cost + body.charged_nano
                if isinstance(body, Replied):
                    steps += 1
                    calls += len(body.calls)
            case CallStarted(start=1):
                started += 1
                assert started <= limits.tool_calls, "no more calls than the budget has"
            case Stopped():
                settled = (body.settled_tokens, body.settled_nano)
                assert settled == ((0, 0) if held is None else (held.reserved_tokens, held.reserved_nano))
                if held is not None:
                    tokens += body.settled_tokens
                    nano = body.settled_nano
                    cost = None if cost is None or nano is None else cost + nano
                held = None
    assert (row.tokens, row.cost_nano, row.steps, row.calls) == (tokens, cost, steps, calls), (
        "totals are sums"
    )
    state = fold(e.body for e in entries)
    assert (state.tokens, state.cost_nano, state.steps, state.calls) == (tokens, cost, steps, calls)
    assert steps <= limits.steps
    tries = sum(isinstance(e.body, AnswerRejected) and e.body.reason == "invalid_evidence" for e in entries)
    assert tries <= limits.answer_tries


def _check_effects(entries: Sequence[Entry], effects: Sequence[EffectLine]) -> None:
    starts = {
        (e.body.step, e.body.position, e.body.start): e.body.key
        for e in entries
        if isinstance(e.body, CallStarted)
    }
    names = {
        (e.body.step, i): call.name
        for e in entries
        if isinstance(e.body, Replied)
        for i, call in enumerate(e.body.calls)
    }
    seen: Counter[tuple[int, int, int]] = Counter()
    for line in effects:
        which = (line.step, line.position, line.start)
        assert starts.get(which) == line.key, f"an effect without its started entry: {line}"
        assert line.committed, f"the body began before its start was committed: {line}"
        assert names[line.step, line.position] == line.tool
        seen[which] += 1
    assert all(count == 1 for count in seen.values()), f"a body began twice under one start: {seen}"
