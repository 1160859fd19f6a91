"""`approvals`: what tasks ask before a call may run, and a person's answers.

Rule 1: a decision is about the exact arguments that were shown: `--digest` binds it to them.
Rule 2: a decision that may not be recorded is refused, and the refusal is kept (contract 11.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fencepost.cli.command import Desk, command
from fencepost.cli.inbox import list_questions
from fencepost.core.errors import DecisionRefused

if TYPE_CHECKING:
    from fencepost.cli.answers import Question
    from fencepost.service.surface import TaskRow

# So much of a digest is enough to tell two argument objects apart; a person may leave off the rest.
DIGEST_CHARS_LEAST = 8


@click.group()
def approvals() -> None:
    """List and decide what tasks ask before a call may run."""


@approvals.command("list", short_help="List the calls that wait for a yes or a no.")
@command
async def list_approvals(desk: Desk) -> int:
    """List every call that waits for a yes or a no, with its exact arguments."""
    return await list_questions(desk, "approval", "approvals")


@approvals.command(short_help="Say yes to one call, once.")
@click.argument("task")
@click.argument("call")
@click.option(
    "--digest", metavar="DIGEST", help="Only if the arguments have this digest; its beginning is enough."
)
@click.option(
    "--resume", "then_resume", is_flag=True, help="Go on with the task here when nothing else is asked."
)
@command
async def approve(desk: Desk, task: str, call: str, *, digest: str | None, then_resume: bool) -> int:
    """Say yes to CALL (as 4.0) of TASK: this one call with these arguments, once."""
    return await _decide(desk, task, call, approve=True, digest=digest, reason="", then_resume=then_resume)


@approvals.command(short_help="Say no to one call, and why.")
@click.argument("task")
@click.argument("call")
@click.option("--reason", default="", help="What the model is told; say what would be better.")
@click.option(
    "--digest", metavar="DIGEST", help="Only if the arguments have this digest; its beginning is enough."
)
@click.option(
    "--resume", "then_resume", is_flag=True, help="Go on with the task here when nothing else is asked."
)
@command
async def reject(
    desk: Desk, task: str, call: str, *, reason: str, digest: str | None, then_resume: bool
) -> int:
    """Say no to CALL (as 4.0) of TASK; the model is told so, and why."""
    return await _decide(
        desk, task, call, approve=False, digest=digest, reason=reason, then_resume=then_resume
    )


async def _decide(
    desk: Desk, task: str, call: str, *, approve: bool, digest: str | None, reason: str, then_resume: bool
) -> int:
    from fencepost.cli.documents import question_document, task_document
    from fencepost.cli.run import resume_task
    from fencepost.core.lifecycle import TERMINAL
    from fencepost.service.reading import find_task

    store = desk.store()
    task = await find_task(store, task)
    row, asked = await decide(desk, task, call, approve=approve, digest=digest, reason=reason)
    said = "approved" if approve else "rejected"
    may_go_on = not row.waiting_for
    if then_resume and may_go_on:
        desk.err.line(f"Call {call} of {row.id} is {said}.")
        return await resume_task(desk, row.id)
    if desk.json:
        question = None if asked is None else question_document(row.id, asked)
        desk.show({"task": task_document(row), "call": call, "decision": said, "question": question})
        return 0
    desk.out.line(f"Call {call} of {row.id} is {said}.")
    if row.state in TERMINAL:
        desk.err.line(f"The task is over ({row.state.value}); that was decided before.")
    elif may_go_on:
        desk.err.line(("go on  ", "dim"), desk.hint("resume", row.id), whole=True)
    else:
        desk.err.line(("It asks for more  ", "dim"), desk.hint("show", row.id), whole=True)
    return 0


async def decide(
    desk: Desk, task: str, call: str, *, approve: bool, digest: str | None = None, reason: str = ""
) -> tuple[TaskRow, Question | None]:
    """Record the decision; returns the task and the question that was answered."""
    from fencepost.cli.answers import questions
    from fencepost.core.entries import Opened
    from fencepost.service.definitions import source_of
    from fencepost.service.tasks import decide_approval

    store, by = desk.store(), desk.app.principal
    entries = await store.entries("local", task)
    asked = next((one for one in questions(entries) if one.number == call.removeprefix("ev-")), None)
    opened = entries[0].body
    assert isinstance(opened, Opened)
    own = approve and asked is not None and opened.requester == by
    self_approval = desk.app.self_approval(source_of(opened)) if own else True
    row = await decide_approval(
        store, task, call, approve=approve, by=by, digest=_whole(digest, asked), reason=reason,
        self_approval=self_approval,
    )  # fmt: skip
    return row, asked


def _whole(digest: str | None, asked: Question | None) -> str | None:
    """The whole digest that the given beginning stands for; itself when it stands for no open question's."""
    if digest is None or asked is None:
        return digest
    if len(digest) < DIGEST_CHARS_LEAST:
        raise DecisionRefused(
            f"the digest {digest!r} is too short; give {DIGEST_CHARS_LEAST} characters or more"
        )
    return asked.ask.digest if asked.ask.digest.startswith(digest.lower()) else digest
