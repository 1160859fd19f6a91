"""`replay`: whether the loop would do the same again, offline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import Struct

from fencepost.cli.command import Desk, command
from fencepost.core.entries import Entry, ModelAsked
from fencepost.core.errors import StoreFailed, TaskNotFound
from fencepost.core.messages import ModelProfile
from fencepost.service.reading import Damage

if TYPE_CHECKING:
    from fencepost.service.replay.replaying import Replay
    from fencepost.service.surface import Agent

# A task's id has no dot, so a file is never taken for one.
FILE_SUFFIX = ".jsonl"


@click.command(short_help="Play a task again, offline, and name the first difference.")
@click.argument("task")
@click.option("--agent", metavar="AGENT", help="Where the agent is now, when it is not where it was.")
@click.option("--prompt", metavar="TEXT", help="Compare with this prompt instead of the task's own.")
@click.option(
    "--tools", type=click.Choice(["recorded", "read"]), default="recorded", show_default=True,
    help="Give the recorded results, or run the tools that only read again.",
)  # fmt: skip
@click.option("--journal-only", is_flag=True, help="Compare with no agent; what the journal says is enough.")
@click.option("--save", metavar="FILE", help="Write the journal to a new file, too (FILE.jsonl).")
@command
async def replay(
    desk: Desk,
    task: str,
    *,
    agent: str | None,
    prompt: str | None,
    tools: Literal["recorded", "read"],
    journal_only: bool,
    save: str | None,
) -> int:
    """Play a task again and name the first difference.

    The loop runs over the recorded journal: model, results, people and time say what they said then. Nothing is
    written. The agent as it is now is compared with the task's definition first.

    TASK may be a file that --save wrote (FILE.jsonl); its agent is compared only with --agent.
    """
    from fencepost.cli.exits import Exit
    from fencepost.service.replay.replaying import replay as play

    if journal_only and (agent is not None or tools == "read"):
        raise click.UsageError("--journal-only excludes --agent and --tools read; leave it out.")
    if save is not None and not save.endswith(FILE_SUFFIX):
        raise click.UsageError(f"--save writes a file that ends in {FILE_SUFFIX}, not {save}.")
    recorded = _read_file(task) if task.endswith(FILE_SUFFIX) else await _read_store(desk, task)
    made = None
    if not journal_only and (agent is not None or not task.endswith(FILE_SUFFIX)):
        made = _agent_now(desk, recorded, agent)
    if save is not None:
        _write_file(save, recorded, made)
    found = await asyncio.to_thread(
        play, recorded.entries, made, tools=tools, prompt=prompt, profile=recorded.profile
    )
    if desk.json:
        desk.show(_document(recorded, found))
    else:
        _tell(desk, recorded, found)
    problem = _problem(recorded, found)
    if problem:
        desk.err.line(("fencepost: ", "bad"), problem)
        return Exit.STORE
    return Exit.OK if found.same else Exit.FAILED


class Recorded(Struct, frozen=True):
    """What is played: a journal as far as it is whole, from a store or a file."""

    task: str
    entries: tuple[Entry, ...]
    damage: tuple[Damage, ...] = ()
    chain: str = ""
    profile: ModelProfile | None = None


async def _read_store(desk: Desk, given: str) -> Recorded:
    from fencepost.service.reading import find_task, read_task
    from fencepost.service.retention import find_tombstone

    store = desk.store()
    try:
        task = await find_task(store, given)
    except TaskNotFound:
        stone = await find_tombstone(store, given)
        if stone is None:
            raise
        raise TaskNotFound(
            f"task {stone.id} was pruned: its journal is gone, so it cannot be replayed"
        ) from None
    reading = await read_task(store, task)
    entries = reading.entries
    if reading.damage:  # what comes before the first hole is whole, and can be played
        entries = tuple(entry for entry in entries if entry.seq < reading.damage[0].seq)
    return Recorded(reading.row.id, entries, reading.damage, reading.row.chain)


def _read_file(name: str) -> Recorded:
    from fencepost.service.replay.files import read_journal, readable_part

    try:
        data = Path(name).read_bytes()
    except OSError as why:
        raise click.UsageError(
            f"{name} cannot be read ({why.strerror}); name a file that --save wrote."
        ) from why
    try:
        file = read_journal(data)
    except StoreFailed as why:
        entries = readable_part(data)
        if not entries:
            raise
        return Recorded(name, entries, (Damage(len(entries) + 1, str(why)),))
    return Recorded(file.task, file.entries, profile=file.profile)


def _write_file(name: str, recorded: Recorded, made: Agent | None) -> None:
    from fencepost.service.replay.files import write_journal

    names = {entry.body.model for entry in recorded.entries if isinstance(entry.body, ModelAsked)}
    profile = None if made is None else made.model.profile
    if profile is not None and not names <= {profile.name}:
        profile = None  # it is not the model that was asked
    try:
        with Path(name).open("xb") as file:
            file.write(write_journal(recorded.task, recorded.entries, profile))
    except OSError as why:
        raise click.UsageError(f"{name} cannot be written ({why.strerror}); name another file.") from why


def _problem(recorded: Recorded, found: Replay) -> str:
    """Why the journal itself is not what was written, "" where it is."""
    if recorded.damage:
        first = recorded.damage[0]
        return (
            f"entry {first.seq} of task {recorded.task} cannot be read ({first.problem});"
            " only what comes before it was played"
        )
    if found.same and recorded.chain and found.recorded != recorded.chain:
        return (
            f"the entries of task {recorded.task} are not the ones that were written: their chain head is"
            f" {found.recorded}, the store's {recorded.chain}; restore a backup"
        )
    return ""


def _agent_now(desk: Desk, recorded: Recorded, agent: str | None) -> Agent | None:
    from fencepost.cli.run import made_agent, source_now

    if not recorded.entries:
        return None
    return made_agent(desk, source_now(recorded.entries[0].body, agent, None, recorded.task, desk))


def _document(recorded: Recorded, found: Replay) -> dict[str, Any]:
    difference = found.difference
    return {
        "task": recorded.task,
        "same": found.same,
        "entries": found.entries,
        "of": found.of,
        "runs": found.runs,
        "requests": found.requests,
        "reran": found.reran,
        "chain": found.chain,
        "damaged": [{"seq": one.seq, "problem": one.problem} for one in recorded.damage],
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


def _tell(desk: Desk, recorded: Recorded, found: Replay) -> None:
    counted = f"{found.runs} runs, {found.requests} requests, {found.reran} calls ran again"
    if found.difference is None:
        desk.out.line(f"Task {recorded.task} replays to the same {found.of} entries: {counted}.")
        desk.out.line(("chain    ", "dim"), found.chain)
        return
    difference = found.difference
    desk.out.line(f"Task {recorded.task} differs after {found.entries} of {found.of} entries: {counted}.")
    where = f"entry {difference.seq} ({difference.kind})" + (
        f", {difference.place}" if difference.place else ""
    )
    desk.out.line(("first    ", "dim"), where)
    desk.out.line(("recorded ", "dim"), difference.recorded)
    desk.out.line(("replayed ", "dim"), difference.replayed)
