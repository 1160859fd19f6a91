"""`demo`: the main job on bundled synthetic data, told step by step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fencepost.cli.command import Desk, command
from fencepost.cli.page import is_terminal
from fencepost.service.definitions import Source

if TYPE_CHECKING:
    from fencepost.cli.driving import Drive

BANNER = (
    "SYNTHETIC DATA: a payment service that never existed, made up for this demonstration.",
    "The brain is a playbook, a fixed procedure; no key and no network are used.",
)
DENIED = "Its rules deny the tool `rollback`: watch it being refused, and the answer that only suggests it."
ASKED = "Its rules ask a person before `rollback` runs: it will wait for your approval."
ANSWERS = ("approve", "reject", "later")


@click.command(short_help="Investigate a bundled incident; all its data is synthetic.")
@click.option("--ask", is_flag=True, help="Ask before the rollback instead of denying it.")
@command
async def demo(desk: Desk, ask: bool) -> int:
    """Investigate a bundled incident, step by step, and answer with evidence. All its data is synthetic."""
    from fencepost.cli.driving import drive, tell_ending
    from fencepost.service.surface import Live, Result, new_task_id

    source = Source("demo", (("ask", "yes" if ask else "no"),))
    agent, prompt = desk.app.agent(source), desk.app.demo_prompt
    store, task = desk.store(create=True), new_task_id()
    for words in BANNER:
        desk.err.line((words, "warn"))
    desk.err.line(ASKED if ask else DENIED)
    desk.err.line(("prompt  ", "dim"), prompt)

    async def starts(live: Live) -> Result:
        return await desk.app.run(agent, prompt, store=store, task=task, source=source, live=live)

    ended = await drive(desk, store, task, limits=agent.limits, starts=starts, quiet=False)
    desk.err.line("")
    tell_ending(desk, ended)
    if not desk.json:
        desk.err.line(("every result whole  ", "dim"), desk.hint("show", ended.row.id, "--full"), whole=True)
        if ended.row.waiting_for and is_terminal(sys.stdin) and is_terminal(sys.stderr):
            return await _offer(desk, ended)
    return ended.code


async def _offer(desk: Desk, ended: Drive) -> int:
    """Let the person in front of the terminal decide right here, and go on with the task if they do."""
    from fencepost.cli.answers import questions
    from fencepost.cli.approvals import decide
    from fencepost.cli.run import resume_task

    for question in questions(ended.entries):
        desk.err.line("")
        desk.err.line(
            ("Decide now? ", "strong"), f"{question.number} {question.ask.tool}, the arguments as above."
        )
        said = click.prompt(
            "approve, reject or later",
            type=click.Choice(ANSWERS),
            default="later",
            err=True,
            show_choices=False,
        )
        if said == "later":
            return ended.code
        yes = said == "approve"
        await decide(desk, ended.row.id, question.number, approve=yes, digest=question.ask.digest)
    return await resume_task(desk, ended.row.id)
