"""`replay`: whether the loop would do the same again, offline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import click

from fencepost.cli.command import Desk, command

if TYPE_CHECKING:
    from fencepost.service.reading import Reading
    from fencepost.service.replay.replaying import Replay
    from fencepost.service.surface import Agent


@click.command(short_help="Play a task again, offline, and name the first difference.")
@click.argument("task")
@click.option("--agent", metavar="AGENT", help="Where the agent is now, when it is not where it was.")
@click.option("--prompt", metavar="TEXT", help="Compare with this prompt instead of the task's own.")
@click.option(
    "--tools", type=click.Choice(["recorded", "read"]), default="recorded", show_default=True,
    help="Give the recorded results, or run the tools that only read again.",
)  # fmt: skip
@click.option("--journal-only", is_flag=True, help="Compare with no agent; what the journal says is enough.")
@command
async def replay(
    desk: Desk,
    task: str,
    *,
    agent: str | None,
    prompt: str | None,
    tools: Literal["recorded", "read"],
    journal_only: bool,
) -> int:
    """Play a task again and name the first difference.

    The loop runs over the recorded journal: model, results, people and time say what they said then. Nothing is
    written. The agent as it is now is compared with the task's definition first.
    """
    from fencepost.cli.exits import Exit
    from fencepost.service.reading import find_task, read_task
    from fencepost.service.replay.replaying import replay as play

    if journal_only and (agent is not None or tools == "read"):
        raise click.UsageError("--journal-only excludes --agent and --tools read; leave it out.")
    store = desk.store()
    reading = await read_task(store, await find_task(store, task))
    made = None if journal_only else _agent_now(desk, reading, agent)
    entries = reading.entries
    if reading.damage:  # what comes before the first hole is whole, and can be played
        entries = tuple(entry for entry in entries if entry.seq < reading.damage[0].seq)
    found = await asyncio.to_thread(play, entries, made, tools=tools, prompt=prompt)
    if desk.json:
        desk.show(_document(reading, found))
    else:
        _tell(desk, reading, found)
    if reading.damage:
        first = reading.damage[0]
        desk.err.line(
            ("fencepost: ", "bad"),
            f"entry {first.seq} of task {reading.row.id} cannot be read ({first.problem});"
            " only what comes before it was played",
        )
        return Exit.STORE
    if found.same and found.of == reading.row.seq and found.recorded != reading.row.chain:
        desk.err.line(
            ("fencepost: ", "bad"),
            f"the entries of task {reading.row.id} are not the ones that were written: their chain head is"
            f" {found.recorded}, the store's {reading.row.chain}; restore a backup",
        )
        return Exit.STORE
    return Exit.OK if found.same else Exit.FAILED


def _agent_now(desk: Desk, reading: Reading, agent: str | None) -> Agent | None:
    from fencepost.cli.run import made_agent, source_now

    opened = reading.opened
    return None if opened is None else made_agent(desk, source_now(opened, agent, None, reading.row.id, desk))


def _document(reading: Reading, found: Replay) -> dict[str, Any]:
    difference = found.difference
    return {
        "task": reading.row.id,
        "same": found.same,
        "entries": found.entries,
        "of": found.of,
        "runs": found.runs,
        "requests": found.requests,
        "reran": found.reran,
        "chain": found.chain,
        "damaged": [{"seq": one.seq, "problem": one.problem} for one in reading.damage],
        "difference": None
        if difference is None
        else {
            "seq": difference.seq,
            "kind": difference.kind,
            "place": difference.place or None,
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        },
    }


def _tell(desk: Desk, reading: Reading, found: Replay) -> None:
    counted = f"{found.runs} runs, {found.requests} requests, {found.reran} calls ran again"
    if found.difference is None:
        desk.out.line(f"Task {reading.row.id} replays to the same {found.of} entries: {counted}.")
        desk.out.line(("chain    ", "dim"), found.chain)
        return
    difference = found.difference
    desk.out.line(f"Task {reading.row.id} differs after {found.entries} of {found.of} entries: {counted}.")
    where = f"entry {difference.seq} ({difference.kind})" + (
        f", {difference.place}" if difference.place else ""
    )
    desk.out.line(("first    ", "dim"), where)
    desk.out.line(("recorded ", "dim"), difference.recorded)
    desk.out.line(("replayed ", "dim"), difference.replayed)
