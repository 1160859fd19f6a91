"""`outcomes`: writes of which nobody heard the end, and what a person found out about them.

Rule: a write with unknown outcome is never run again by itself (contract 8.3); a person looks, and says.
"""

from __future__ import annotations

import click

from fencepost.cli.command import Desk, command
from fencepost.cli.inbox import list_questions

VERDICTS = ("happened", "did-not-happen", "cannot-tell")


@click.group()
def outcomes() -> None:
    """List and settle writes of which nobody heard the end."""


@outcomes.command("list")
@command
async def list_outcomes(desk: Desk) -> int:
    """List every call whose outcome a task asks about."""
    return await list_questions(desk, "outcome", "outcomes")


@outcomes.command()
@click.argument("task")
@click.argument("call")
@click.argument("verdict", type=click.Choice(VERDICTS))
@click.option("--result", default="", help="With `happened`: the call's result, as the model is to see it.")
@click.option(
    "--resume", "then_resume", is_flag=True, help="Go on with the task here when nothing else is asked."
)
@command
async def resolve(desk: Desk, task: str, call: str, *, verdict: str, result: str, then_resume: bool) -> int:
    """Say what became of CALL (as 4.0) of TASK.

    VERDICT is `happened`, `did-not-happen` (it may then run again, with the same key), or `cannot-tell`.
    """
    from fencepost.cli.documents import task_document
    from fencepost.cli.run import resume_task
    from fencepost.service.reading import find_task
    from fencepost.service.tasks import resolve_outcome

    if result and verdict != "happened":
        raise click.BadParameter("only a call that happened has a result", param_hint="--result")
    store = desk.store()
    task = await find_task(store, task)
    said = verdict.replace("-", "_")
    row = await resolve_outcome(store, task, call, said, content=result, by=desk.app.principal)
    if then_resume and not row.waiting_for:
        desk.err.line(f"Call {call} of {row.id}: {verdict}.")
        return await resume_task(desk, row.id)
    if desk.json:
        desk.show({"task": task_document(row), "call": call, "verdict": said})
        return 0
    desk.out.line(f"Call {call} of {row.id}: {verdict}.")
    desk.err.line(("go on  ", "dim"), desk.hint("resume", row.id), whole=True)
    return 0
