"""Whole readings of a task: what `show` prints, and how a run, a watch or a resume ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fencepost.cli.answers import (
    Question,
    answer_lines,
    budget_lines,
    is_orphaned,
    is_synthetic,
    question_lines,
    questions,
    row_budgets,
    state_parts,
)
from fencepost.cli.page import Line, Part, line
from fencepost.cli.text import cut, moment
from fencepost.cli.timeline import RESULT_CHARS, SYNTHETIC, Timeline
from fencepost.core.entries import AttemptFailed, Entry, Opened, Stopped
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.service.reading import Reading
from fencepost.service.surface import LateRecord, TaskRow

# Makes a command to copy of its words.
Hint = Callable[..., str]
GUTTER = 6
# Stops for which the last failed attempt says more than the reason does.
MODEL_FAILURES = frozenset({StopReason.LLM_ERROR, StopReason.LLM_TIMEOUT})


def reading_lines(reading: Reading, asked: Sequence[Question], *, full: bool, hint: Hint) -> Iterator[Line]:
    """The task: head, timeline, answer, late results, budgets, and why it stopped or what is next."""
    yield from _head(reading)
    yield line("")
    yield line(("Timeline", "head"))
    yield from _timeline(reading, full=full)
    stopped = reading.stopped
    if stopped is not None and stopped.answer is not None:
        yield line("")
        yield from answer_lines(stopped.answer, reading.entries, partial=stopped.partial)
    if reading.late:
        yield line("")
        yield line((f"Late results ({len(reading.late)}), not part of the journal", "head"))
        yield from (one for record in reading.late for one in _late(record, full=full))
    yield line("")
    yield line(("Budgets", "head"))
    opened = reading.opened
    yield from budget_lines(row_budgets(reading.row, None if opened is None else opened.limits))
    yield line("")
    yield from _why(reading.row, reading.entries, stopped, asked=asked, hint=hint)


def _head(reading: Reading) -> Iterator[Line]:
    row, opened = reading.row, reading.opened
    synthetic: list[Part] = [SYNTHETIC] if is_synthetic(reading.entries) else []
    yield line((row.id, "strong"), "  ", *state_parts(row), *synthetic)
    model = "" if opened is None or not opened.model else f", model {opened.model}"
    yield line(("agent    ", "dim"), (row.agent, "name"), model)
    yield line(("asked    ", "dim"), f"{moment(row.created_at)} by {row.requester}")
    yield line(("prompt   ", "dim"), row.prompt)
    if row.worker and row.state is TaskState.RUNNING:
        until = "without end" if row.lease_until is None else f"until {moment(row.lease_until)}"
        yield line(("held     ", "dim"), f"by {row.worker} {until}")


def _timeline(reading: Reading, *, full: bool) -> Iterator[Line]:
    timeline = Timeline(full=full)
    damage = {one.seq: one.problem for one in reading.damage}
    entries = {entry.seq: entry for entry in reading.entries}
    for seq in range(1, max([*damage, *entries, 0]) + 1):
        if seq in damage:
            yield _numbered(seq, line(("cannot be read: ", "bad"), damage[seq]))
        elif seq in entries:
            for place, told in enumerate(timeline.told(entries[seq].body)):
                yield _numbered(seq, told) if place == 0 else replace(told, indent=told.indent + GUTTER)


def _numbered(seq: int, told: Line) -> Line:
    number: Part = (f"{seq:>4}  " + " " * told.indent, "dim")
    return replace(told, parts=(number, *told.parts), indent=0)


def _late(record: LateRecord, *, full: bool) -> Iterator[Line]:
    number = f"{record.step}.{record.position}"
    yield line(f"{number}, start {record.start}: {record.status}, {moment(record.at)}", indent=2)
    if record.content:
        yield line(record.content if full else cut(record.content, RESULT_CHARS), indent=6)


def _why(
    row: TaskRow, entries: Sequence[Entry], stopped: Stopped | None, *, asked: Sequence[Question], hint: Hint
) -> Iterator[Line]:
    failures = [entry.body.detail for entry in entries if isinstance(entry.body, AttemptFailed)]
    failure = failures[-1] if failures else ""
    match row.state:
        case TaskState.SUCCEEDED | TaskState.FAILED | TaskState.CANCELLED:
            reason = "" if row.reason is None else row.reason.value
            by = f" by {stopped.by}" if stopped is not None and stopped.by else ""
            detail = f": {stopped.detail}" if stopped is not None and stopped.detail else ""
            yield line(("Stopped  ", "head"), f"{reason}{by}{detail}")
            if row.reason in MODEL_FAILURES and failure:
                yield line(("because  ", "dim"), failure)
        case TaskState.WAITING_APPROVAL:
            yield from waiting_lines(row.id, asked, hint)
        case TaskState.READY_TO_RESUME | TaskState.PENDING:
            yield line(("Not over ", "head"), f"go on with: {hint('resume', row.id)}", whole=True)
        case TaskState.RUNNING if is_orphaned(row):
            yield line(
                ("Orphaned ", "head"),
                f"the process that ran it has ended; go on with: {hint('resume', row.id)}",
            )
        case TaskState.RUNNING:
            yield line(("Running  ", "head"), f"follow it with: {hint('watch', row.id)}", whole=True)


def waiting_lines(task: str, asked: Sequence[Question], hint: Hint) -> Iterator[Line]:
    """What the task waits for, each question with its exact arguments and the commands that answer it."""
    yield line(("Waits for a person", "head"))
    for question in asked:
        yield from asking_lines(task, question, hint)
    yield _command("go on", hint("resume", task))


def asking_lines(task: str, question: Question, hint: Hint) -> Iterator[Line]:
    """One question with its exact arguments and the commands that answer it."""
    yield from question_lines(question)
    if question.ask.about == "approval":
        digest = ("--digest", question.ask.digest[:16])
        yield _command("approve", hint("approvals", "approve", task, question.number, *digest, "--resume"))
        yield _command("reject", hint("approvals", "reject", task, question.number, "--reason", "…"))
    else:
        yield _command("resolve", hint("outcomes", "resolve", task, question.number, "VERDICT"))
        yield line(("VERDICT is happened, did-not-happen or cannot-tell", "dim"), indent=15)


def _command(name: str, words: str) -> Line:
    return line((f"{name:<9}", "dim"), "  ", words, indent=4, whole=True)


def ending_lines(row: TaskRow, entries: Sequence[Entry], *, hint: Hint) -> Iterator[Line]:
    """How a run left its task: the answer or the questions, the budgets, why it stopped, where to look."""
    last = entries[-1].body if entries else None
    stopped = last if isinstance(last, Stopped) else None
    if stopped is not None and stopped.answer is not None:
        yield from answer_lines(stopped.answer, entries, partial=stopped.partial)
        yield line("")
    asked = questions(entries) if row.state is TaskState.WAITING_APPROVAL else ()
    yield line((row.id, "strong"), "  ", *state_parts(row))
    opened = entries[0].body if entries else None
    limits = opened.limits if isinstance(opened, Opened) else None
    used = ", ".join(f"{one.name} {one.told}" for one in row_budgets(row, limits))
    yield line(("used     ", "dim"), used)
    yield from _why(row, entries, stopped, asked=asked, hint=hint)
    yield line(("journal  ", "dim"), hint("show", row.id), whole=True)
