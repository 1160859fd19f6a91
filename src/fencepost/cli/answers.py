"""A task's head, answer, questions and budgets as lines for people.

Rule 1: an answer is shown claim by claim, each with the evidence it cites; prose outside claims is said to be
uncited (contract 10.2).
Rule 2: what rests on synthetic data says so.
Rule 3: a budget is shown as used of allowed; what is not known is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fencepost.cli.page import Line, Part, line
from fencepost.cli.text import moment, money
from fencepost.cli.timeline import SYNTHETIC
from fencepost.core.entries import (
    AdmittedCall,
    Answer,
    Ask,
    CallEnded,
    CallStatus,
    Claim,
    Entry,
    evidence_id,
)
from fencepost.core.lifecycle import TaskState
from fencepost.core.limits import Limits
from fencepost.service.holder import is_gone
from fencepost.service.surface import TaskRow

STATE_STYLES = {
    TaskState.SUCCEEDED: "good", TaskState.FAILED: "bad", TaskState.CANCELLED: "warn",
    TaskState.WAITING_APPROVAL: "warn", TaskState.READY_TO_RESUME: "warn",
    TaskState.RUNNING: "name", TaskState.PENDING: "dim",
}  # fmt: skip
FULL, EMPTY = "█", "░"
BAR_CELLS = 10


class Budget(Struct, frozen=True):
    """One budget of a task: what was used of what is allowed; None is unknown, or no limit."""

    name: str
    used: float | None
    limit: float | None
    told: str

    @property
    def share(self) -> float:
        """The used part of the limit, between 0 and 1."""
        if self.limit is None or self.used is None:
            return 0.0
        return min(1.0, self.used / self.limit) if self.limit else 1.0

    def bar(self, cells: int = BAR_CELLS) -> str:
        """The share drawn; anything used shows at least one cell, and only a used-up budget is full."""
        if self.limit is None:
            return ""
        filled = int(self.share * cells)
        if self.share > 0:
            filled = max(filled, 1)
        return FULL * filled + EMPTY * (cells - filled)

    @property
    def style(self) -> str:
        """Calm, then a warning from four fifths on, then bad when there is nothing left."""
        return "bad" if self.share >= 1 else "warn" if self.share >= 0.8 else "good"


def budgets(
    limits: Limits | None, *, steps: int, calls: int, tokens: int, cost_nano: int | None, seconds: float
) -> tuple[Budget, ...]:
    """The budgets people ask about, in the order in which they usually run out."""
    most: tuple[int | None, int | None, int | None, int | None, float | None] = (None,) * 5
    if limits is not None:
        most = (limits.steps, limits.tool_calls, limits.tokens, limits.cost_nano, limits.task_seconds)
    of_steps, of_calls, of_tokens, of_cost, of_seconds = most
    return (
        Budget("steps", steps, of_steps, f"{steps:,}{_of(of_steps)}"),
        Budget("calls", calls, of_calls, f"{calls:,}{_of(of_calls)}"),
        Budget("tokens", tokens, of_tokens, f"{tokens:,}{_of(of_tokens)}"),
        Budget(
            "cost", cost_nano, of_cost, money(cost_nano) + ("" if of_cost is None else f"/{money(of_cost)}")
        ),
        Budget("seconds", seconds, of_seconds, f"{seconds:,.1f}{_of(of_seconds)}"),
    )


def _of(limit: float | None) -> str:
    return "" if limit is None else f"/{limit:,.0f}" if limit >= 1 or limit == 0 else f"/{limit:g}"


def row_budgets(row: TaskRow, limits: Limits | None) -> tuple[Budget, ...]:
    """The budgets of a task as its row has them."""
    return budgets(
        limits, steps=row.steps, calls=row.calls, tokens=row.tokens, cost_nano=row.cost_nano,
        seconds=row.seconds,
    )  # fmt: skip


def budget_lines(all_of_them: Iterable[Budget], *, indent: int = 2) -> list[Line]:
    """One line for each budget."""
    lines = []
    for budget in all_of_them:
        parts: list[Part] = [f"{budget.name:<8}", f"{budget.told:<18}"]
        if budget.limit is None:
            parts.append(("  no limit", "dim"))
        else:
            parts += ["  ", (budget.bar(), budget.style)]
        lines.append(line(*parts, indent=indent))
    return lines


def is_orphaned(row: TaskRow) -> bool:
    """Whether the task is held by a process of this host that has ended: it can be resumed at once."""
    return row.state is TaskState.RUNNING and is_gone(row.worker)


def state_parts(row: TaskRow) -> list[Part]:
    """The state of a task with what makes it so."""
    parts: list[Part] = [(row.state.value, STATE_STYLES[row.state])]
    if row.waiting_for:
        parts.append(f" ({row.waiting_for})")
    elif is_orphaned(row):
        parts.append((" (its process ended)", "bad"))
    elif row.reason is not None and row.reason.value not in (row.state.value, "COMPLETED"):
        parts.append(f" ({row.reason.value})")
    return parts


def results(entries: Sequence[Entry]) -> dict[str, bool]:
    """The evidence ids of a journal, each with whether its result is synthetic."""
    return {
        evidence_id(entry.body.step, entry.body.position): entry.body.synthetic
        for entry in entries
        if isinstance(entry.body, CallEnded) and entry.body.status is CallStatus.OK
    }


def is_synthetic(entries: Sequence[Entry]) -> bool:
    """Whether any result of the journal is synthetic."""
    return any(isinstance(entry.body, CallEnded) and entry.body.synthetic for entry in entries)


def answer_lines(answer: Answer | None, entries: Sequence[Entry], *, partial: bool = False) -> list[Line]:
    """The answer: its summary marked as uncited, then each claim with its evidence."""
    if answer is None:
        return []
    synthetic = results(entries)
    marked: list[Part] = [SYNTHETIC] if any(synthetic.values()) else []
    kept: list[Part] = [("  partial: a limit was crossed", "bad")] if partial else []
    lines = [line(("Answer", "head"), *marked, *kept)]
    if not answer.claims:
        lines.append(line(answer.summary, indent=2))
        return [*lines, line(("uncited: this answer names no evidence", "dim"), indent=2)]
    lines.append(line(answer.summary, indent=2))
    lines.append(line(("(uncited prose; what is tied to evidence follows)", "dim"), indent=2))
    count = len(answer.claims)
    lines.append(line((f"{count} claim{'' if count == 1 else 's'}, each with its evidence", "head")))
    said = ""
    for claim in answer.claims:
        if claim.text != said:  # claims of one sentence stand below it, each with its own place
            lines.append(line("• ", claim.text, indent=2))
        said = claim.text
        lines.append(_place(claim, synthetic.get(claim.evidence_id, False)))
    return lines


def _place(claim: Claim, synthetic: bool) -> Line:
    place: list[Part] = [(claim.evidence_id, "strong")]
    if claim.pointer is not None:
        place.append(f" {claim.pointer or '(whole result)'}")
        if bytes(claim.value):
            place.append(f" = {bytes(claim.value).decode()}")
    if claim.quote is not None:
        place.append(f" “{claim.quote}”")
    if synthetic:
        place.append(SYNTHETIC)
    return line(*place, indent=6)


class Question(Struct, frozen=True):
    """An open question to a person, with the exact call it is about."""

    ask: Ask
    call: AdmittedCall
    effect: str
    description: str

    @property
    def number(self) -> str:
        """How the call is named in a command."""
        return f"{self.ask.step}.{self.ask.position}"


def questions(entries: Sequence[Entry]) -> tuple[Question, ...]:
    """What the task asks people now."""
    from fencepost.core.state import effect_of, fold

    state = fold(entry.body for entry in entries)
    found = []
    for ask in state.open_asks:
        call = state.open[ask.position].call
        tool = state.tools.get(call.name)
        effect = effect_of(state, call).value
        found.append(Question(ask, call, effect, "" if tool is None else tool.description))
    return tuple(found)


def question_lines(question: Question, *, indent: int = 2) -> list[Line]:
    """The question with the exact arguments, whole."""
    ask, call = question.ask, question.call
    about = "may this run?" if ask.about == "approval" else "what became of this?"
    lines = [
        line(
            (f"{question.number} ", "strong"),
            (ask.tool, "name"),
            f" ({question.effect}): {about}",
            indent=indent,
        )
    ]
    if question.description:
        lines.append(line((question.description, "dim"), indent=indent + 2))
    lines.append(line(("arguments  ", "dim"), call.arguments, indent=indent + 2, exact=True))
    lines.append(line(("digest     ", "dim"), ask.digest, indent=indent + 2, exact=True))
    if ask.about == "approval" and call.reason:
        lines.append(line(("asked for  ", "dim"), call.reason, indent=indent + 2))
    if ask.about == "outcome" and ask.cause:
        heard = f"it was started, and its end was not heard ({ask.cause})"
        lines.append(line(("because    ", "dim"), heard, indent=indent + 2))
    if ask.expires_at is not None:
        lines.append(line(("until      ", "dim"), moment(ask.expires_at), indent=indent + 2))
    return lines
