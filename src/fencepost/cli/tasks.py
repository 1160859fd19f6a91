"""`list`, `show`, `watch` and `cancel`: looking at tasks, and ending one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from fencepost.cli.command import Desk, command
from fencepost.core.lifecycle import TERMINAL, TaskState

if TYPE_CHECKING:
    from fencepost.service.surface import Tombstone

# Many screens; more are asked for by name.
LISTED = 50
# A second terminal sees a fact this long after it was committed, at most. Seconds.
WATCH_SECONDS = 0.25


@click.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only tasks in this state; repeat for more."
)
@click.option("--agent", metavar="NAME", help="Only tasks of this agent.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=LISTED, show_default=True, help="At most so many."
)
@command
async def list_tasks(desk: Desk, states: tuple[str, ...], agent: str | None, limit: int) -> int:
    """List the tasks, newest first."""
    from fencepost.cli.documents import task_document
    from fencepost.cli.tables import task_lines

    wanted = tuple(_state(name) for name in states)
    store = desk.store_if_any()
    rows = (
        ()
        if store is None
        else await store.tasks("local", states=wanted or None, agent=agent, limit=limit + 1)
    )
    more = len(rows) > limit
    if desk.json:
        desk.show({"tasks": [task_document(row) for row in rows[:limit]], "more": more})
        return 0
    if store is None:
        desk.err.line(desk.no_store())
        return 0
    if not rows:
        which = (
            "There are no such tasks."
            if wanted or agent
            else "There are no tasks yet; start with `fencepost demo`."
        )
        desk.err.line(which)
        return 0
    desk.out.put(task_lines(rows[:limit], now=await store.now(), width=desk.out.width))
    if more:
        desk.err.line((f"There are more than {limit}; --limit shows more of them.", "dim"))
    return 0


def _state(name: str) -> TaskState:
    try:
        return TaskState(name.upper())
    except ValueError:
        known = ", ".join(state.value for state in TaskState)
        raise click.BadParameter(
            f"there is no state {name!r}; there are {known}", param_hint="--state"
        ) from None


@click.command(short_help="Show a task: timeline, answer, evidence, budgets.")
@click.argument("task")
@click.option("--full", is_flag=True, help="Show results and texts whole, however long.")
@command
async def show(desk: Desk, task: str, full: bool) -> int:
    """Show a task: its timeline, its answer with evidence, its budgets and why it stopped."""
    from fencepost.cli.answers import questions
    from fencepost.cli.documents import reading_document
    from fencepost.cli.exits import Exit
    from fencepost.cli.reports import reading_lines
    from fencepost.core.errors import TaskNotFound
    from fencepost.service.reading import find_task, read_task
    from fencepost.service.retention import find_tombstone

    store = desk.store()
    try:
        reading = await read_task(store, await find_task(store, task))
    except TaskNotFound:
        stone = await find_tombstone(store, task)
        if stone is None:
            raise
        _show_tombstone(desk, stone)
        return Exit.OK
    asked = () if reading.damage else questions(reading.entries)
    if desk.json:
        desk.show(reading_document(reading, asked))
    else:
        desk.out.put(reading_lines(reading, asked, full=full, hint=desk.hint))
    if not reading.damage:
        return Exit.OK
    seqs = ", ".join(str(one.seq) for one in reading.damage)
    desk.err.line(
        ("fencepost: ", "bad"),
        f"of task {reading.row.id} the journal entries {seqs} cannot be read; the rest is shown,"
        " restore a backup to go on with it",
    )
    return Exit.STORE


def _show_tombstone(desk: Desk, stone: Tombstone) -> None:
    from fencepost.cli.documents import tombstone_document
    from fencepost.cli.text import moment

    if desk.json:
        desk.show({"tombstone": tombstone_document(stone)})
        return
    desk.out.line((stone.id, "strong"), f"  {stone.state.value}  {stone.reason.value}  {stone.agent}")
    desk.out.line(f"It ended {moment(stone.ended_at)} and was pruned {moment(stone.pruned_at)}.")
    desk.out.line(f"Its journal had {stone.seq} entries; the head of its chain is {stone.chain}.")


@click.command(short_help="Follow a task, from any terminal.")
@click.argument("task")
@command
async def watch(desk: Desk, task: str) -> int:
    """Follow a task until it is over or waits for a person; from any terminal.

    With --json each entry is one JSON document on one line, and the task itself is the last line.
    """
    from fencepost.cli.answers import is_orphaned
    from fencepost.cli.documents import entry_document, task_document
    from fencepost.cli.exits import exit_of_state
    from fencepost.cli.reports import ending_lines
    from fencepost.cli.timeline import Timeline
    from fencepost.service.reading import find_task, read_task

    store = desk.store()
    task = await find_task(store, task)
    timeline, seq, told = Timeline(), 0, False
    while not desk.out.closed:
        row = await store.row("local", task)
        for entry in await store.entries("local", task, after=seq) if row.seq > seq else ():
            seq = entry.seq
            if desk.json:
                desk.show_line({"entry": entry_document(entry)})
            else:
                desk.out.put(timeline.told(entry.body))
        if row.state in TERMINAL or row.state is TaskState.WAITING_APPROVAL:
            break
        if is_orphaned(row) and not told:
            told = True
            desk.err.line(
                "The process that ran it has ended; go on with: ", desk.hint("resume", task), whole=True
            )
        await asyncio.sleep(WATCH_SECONDS)
    reading = await read_task(store, task)
    if desk.json:
        desk.show_line({"task": task_document(reading.row)})
    else:
        desk.out.put(ending_lines(reading.row, reading.entries, hint=desk.hint))
    return exit_of_state(reading.row.state)


@click.command(short_help="Cancel a task, whoever runs it; its journal stays.")
@click.argument("task")
@command
async def cancel(desk: Desk, task: str) -> int:
    """Cancel a task, whoever runs it: nothing of it starts afterwards, and its journal stays."""
    from fencepost.cli.documents import task_document
    from fencepost.cli.exits import Exit
    from fencepost.service.reading import find_task
    from fencepost.service.tasks import cancel as cancel_task

    store = desk.store()
    before = await store.row("local", await find_task(store, task))
    row = await cancel_task(store, before.id, by=desk.app.principal)
    was_over = before.state in TERMINAL
    if desk.json:
        desk.show({"task": task_document(row), "changed": not was_over and row.state is TaskState.CANCELLED})
    elif row.state is not TaskState.CANCELLED:
        desk.err.line(f"Task {row.id} was over before: {row.state.value}. Nothing was changed.")
    else:
        desk.out.line(
            f"Task {row.id} {'was' if was_over else 'is'} cancelled{' before' if was_over else ''}."
        )
        desk.err.line((f"Its journal stays: {desk.hint('show', row.id)}", "dim"), whole=True)
    return Exit.OK if row.state is TaskState.CANCELLED else Exit.CONFLICT
