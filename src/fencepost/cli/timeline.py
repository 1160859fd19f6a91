"""Entries as lines for people: what `show`, `watch` and the progress of a run print.

Rule 1: one entry is told at a time and from itself, so that a journal with a hole can be shown around it.
Rule 2: arguments are always whole. Results are cut for the eye, and the cut says so; `full` shows all of it.
Rule 3: synthetic data is marked wherever it is shown.
"""

from __future__ import annotations

from typing import assert_never

from fencepost.cli.page import Line, Part, line
from fencepost.cli.text import cut, moment, size
from fencepost.core.entries import (
    AdmittedCall,
    AnswerRejected,
    ApprovalAsked,
    ApprovalDecided,
    AttemptFailed,
    CallEnded,
    CallStarted,
    CallStatus,
    ChildEnded,
    ChildOpened,
    ContextElided,
    DefinitionAccepted,
    EntryBody,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Replied,
    Stopped,
    Verdict,
    evidence_id,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import EXECUTABLE_FINISHES

# What of a result one takes in at a glance; the whole is in the journal.
RESULT_CHARS = 240
SAID_CHARS = 400
STATUS_STYLES = {
    CallStatus.OK: "good", CallStatus.FAILED: "bad", CallStatus.TIMEOUT: "bad", CallStatus.DENIED: "warn",
    CallStatus.CANCELLED: "warn", CallStatus.NOT_EXECUTED: "warn", CallStatus.UNKNOWN: "bad",
}  # fmt: skip
SYNTHETIC: Part = (" [synthetic]", "warn")


class Timeline:
    """Tells entries one after another; remembers the names of the open step's calls."""

    def __init__(self, *, full: bool = False) -> None:
        self._full = full
        self._calls: dict[tuple[int, int], AdmittedCall] = {}
        self._step = 0

    def told(self, body: EntryBody) -> tuple[Line, ...]:
        """The lines of one entry; none for those that only make the next one safe."""
        return _told(body, self)

    def name(self, step: int, position: int) -> str:
        """The tool of a call, "" when its reply could not be read."""
        call = self._calls.get((step, position))
        return "" if call is None else call.name

    def refused(self, step: int, position: int) -> bool:
        """Whether the call was refused when it was asked for; the reason was told there."""
        call = self._calls.get((step, position))
        return call is not None and call.refusal is not None

    def cut(self, text: str, most: int) -> str:
        """The text as long as it may be here."""
        return text if self._full else cut(text, most)

    def note(self, body: Replied) -> None:
        """Remember the calls of this reply instead of those before it."""
        self._calls = {(body.step, position): call for position, call in enumerate(body.calls)}

    def enters(self, step: int) -> bool:
        """Whether this is the first line of a step."""
        first = step != self._step
        self._step = step
        return first


def _told(body: EntryBody, timeline: Timeline) -> tuple[Line, ...]:  # noqa: C901 - one case for each kind
    match body:
        case Opened():
            return _opened(body)
        case ModelAsked():
            return _model_asked(body, timeline)
        case AttemptFailed():
            return _attempt_failed(body, timeline)
        case Replied():
            return _replied(body, timeline)
        case CallStarted():
            return _call_started(body, timeline)
        case CallEnded():
            return _call_ended(body, timeline)
        case ApprovalAsked():
            return _approval_asked(body)
        case ApprovalDecided():
            return _approval_decided(body, timeline)
        case OutcomeResolved():
            return _outcome_resolved(body, timeline)
        case AnswerRejected():
            return _answer_rejected(body, timeline)
        case ContextElided():
            return _context_elided(body)
        case DefinitionAccepted():
            return _definition_accepted(body)
        case ChildOpened():
            return _child_opened(body)
        case ChildEnded():
            return _child_ended(body)
        case Stopped():
            return _stopped(body, timeline)
    assert_never(body)


def _opened(body: Opened) -> tuple[Line, ...]:
    count = len(body.tools)
    tools = ", ".join(tool.name for tool in body.tools)
    parent = f", continues {body.parent}" if body.parent else ""
    many = f"{count} tool{'' if count == 1 else 's'}" + (f" ({tools})" if tools else "")
    return (line("opened by ", body.requester, ": agent ", (body.agent, "name"), ", ", many, parent),)


def _model_asked(body: ModelAsked, timeline: Timeline) -> tuple[Line, ...]:
    if timeline.enters(body.step):
        return (line((f"step {body.step}", "strong"), (f"  asks {body.model or 'the model'}", "dim")),)
    return (line(f"asks again, attempt {body.attempt}", indent=2),)


def _attempt_failed(body: AttemptFailed, timeline: Timeline) -> tuple[Line, ...]:
    status = "" if body.status is None else f", status {body.status}"
    after = "no further attempt" if body.retry_in is None else f"tries again in {body.retry_in:.1f} s"
    head = line((f"attempt {body.attempt} failed", "bad"), f" ({body.kind}{status}), {after}", indent=2)
    return (head, line(timeline.cut(body.detail, SAID_CHARS), indent=4)) if body.detail else (head,)


def _replied(body: Replied, timeline: Timeline) -> tuple[Line, ...]:
    timeline.note(body)
    lines: list[Line] = []
    if timeline.enters(body.step):
        lines.append(line((f"step {body.step}", "strong")))
    if body.finish not in EXECUTABLE_FINISHES:
        lines.append(line((f"the reply ended with {body.finish.value}: nothing of it runs", "bad"), indent=2))
    if body.text.strip() and (body.calls or body.answer is not None):
        lines.append(line(("says: ", "dim"), timeline.cut(body.text.strip(), SAID_CHARS), indent=2))
    for position, call in enumerate(body.calls):
        lines.extend(_asked_for(call, f"{body.step}.{position}", timeline))
    if body.answer_problem:
        lines.append(line(("answers, but not well-formed: ", "bad"), body.answer_problem, indent=2))
    elif body.answer is not None:
        count = len(body.answer.claims)
        lines.append(line(f"answers with {count} claim{'' if count == 1 else 's'}", indent=2))
    elif not body.calls and body.text.strip():
        lines.append(line("answers in words", indent=2))
    return tuple(lines)


def _asked_for(call: AdmittedCall, number: str, timeline: Timeline) -> list[Line]:
    name: Part = (call.name or "(no name)", "name")
    if call.refusal is not None:
        refusal = call.refusal
        lines = [line((f"{number} ", "dim"), name, (f"  refused: {refusal.kind}", "bad"), indent=2)]
        lines.append(line(timeline.cut(refusal.message, SAID_CHARS), indent=6))
        if refusal.raw:
            kept = len(refusal.raw.encode("utf-8", "surrogatepass"))
            note = (
                f" ({size(refusal.raw_bytes)}, the first {size(kept)} kept)"
                if kept < refusal.raw_bytes
                else ""
            )
            lines.append(line(("sent: ", "dim"), refusal.raw, (note, "dim"), indent=6, exact=True))
        return lines
    lines = [line((f"{number} ", "dim"), name, " ", call.arguments, indent=2, exact=True)]
    why = f": {call.reason}" if call.reason else ""
    match call.verdict:
        case Verdict.ASK:
            lines.append(line((f"needs a person's yes{why}", "warn"), indent=6))
        case Verdict.DENY:
            lines.append(line((f"denied by the rules{why}", "warn"), indent=6))
        case Verdict.ALLOW:
            pass
    return lines


def _call_started(body: CallStarted, timeline: Timeline) -> tuple[Line, ...]:
    if body.start == 1:
        return ()
    number = f"{body.step}.{body.position} "
    name = timeline.name(body.step, body.position)
    return (
        line((number, "dim"), (name, "name"), f"  started again (start {body.start}), same key", indent=2),
    )


def _call_ended(body: CallEnded, timeline: Timeline) -> tuple[Line, ...]:
    name = timeline.name(body.step, body.position)
    parts: list[Part] = [(f"{body.step}.{body.position} ", "dim"), (name, "name"), "  "]
    parts.append((body.status.value.replace("_", " "), STATUS_STYLES[body.status]))
    if body.status is CallStatus.OK:
        parts += ["  ", (evidence_id(body.step, body.position), "strong"), f"  {size(body.size_bytes)}"]
    elif body.failure:
        parts.append(f"  ({body.failure})")
    if body.synthetic:
        parts.append(SYNTHETIC)
    if body.cut:
        parts.append(("  shown to the model cut; whole in the store", "dim"))
    lines = [line(*parts, indent=2)]
    if body.content and not timeline.refused(body.step, body.position):
        lines.append(line(timeline.cut(body.content, RESULT_CHARS), indent=6))
    return tuple(lines)


def _approval_asked(body: ApprovalAsked) -> tuple[Line, ...]:
    lines = [line(("waits for a person", "warn"), indent=2)]
    for ask in body.asks:
        number = f"{ask.step}.{ask.position}"
        if ask.about == "outcome":
            cause = f" ({ask.cause})" if ask.cause else ""
            question = f"what became of {number} {ask.tool}?{cause}"
        else:
            until = "" if ask.expires_at is None else f", until {moment(ask.expires_at)}"
            question = f"may {number} {ask.tool} run? arguments {ask.digest[:12]}{until}"
        lines.append(line(question, indent=4))
    return tuple(lines)


def _approval_decided(body: ApprovalDecided, timeline: Timeline) -> tuple[Line, ...]:
    style = "good" if body.decision == "approved" else "warn"
    number = f"{body.step}.{body.position} "
    by = f" by {body.by}" if body.by else ""
    why = f": {body.reason}" if body.reason else ""
    name = timeline.name(body.step, body.position)
    return (line((number, "dim"), (name, "name"), "  ", (body.decision, style), by, why, indent=2),)


def _outcome_resolved(body: OutcomeResolved, timeline: Timeline) -> tuple[Line, ...]:
    number = f"{body.step}.{body.position} "
    by = f" ({body.by})" if body.by else ""
    said = body.verdict.replace("_", " ")
    lines = [line((number, "dim"), f"its outcome: {said}, says the {_source(body.source)}{by}", indent=2)]
    if body.content:
        lines.append(line(timeline.cut(body.content, RESULT_CHARS), indent=6))
    return tuple(lines)


def _source(source: str) -> str:
    return "tool" if source == "reconcile" else source


def _answer_rejected(body: AnswerRejected, timeline: Timeline) -> tuple[Line, ...]:
    head = line((f"answer not taken: {body.reason}", "bad"), indent=2)
    return (head, line(timeline.cut(body.problem, SAID_CHARS), indent=6))


def _context_elided(body: ContextElided) -> tuple[Line, ...]:
    number = f"{body.step}.{body.position}"
    return (line(f"the model no longer sees the result of {number}, but: ", body.replacement, indent=2),)


def _definition_accepted(body: DefinitionAccepted) -> tuple[Line, ...]:
    return (line(f"a changed definition was accepted by {body.by} ({body.definition[:12]})", indent=2),)


def _child_opened(body: ChildOpened) -> tuple[Line, ...]:
    return (line(f"{body.step}.{body.position} opened task {body.child}", indent=2),)


def _child_ended(body: ChildEnded) -> tuple[Line, ...]:
    return (line(f"task {body.child} ended: {body.reason.value}", indent=2),)


def _stopped(body: Stopped, timeline: Timeline) -> tuple[Line, ...]:
    style = "good" if body.reason is StopReason.COMPLETED else "bad"
    by = f" by {body.by}" if body.by else ""
    lines = [line("stopped", by, ": ", (body.reason.value, style))]
    if body.detail:
        lines.append(line(timeline.cut(body.detail, SAID_CHARS), indent=2))
    return tuple(lines)
