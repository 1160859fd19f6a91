"""`run` and `resume`: carrying a task forward in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import click

from fencepost.cli.command import Desk, command
from fencepost.core.errors import DefinitionInvalid, TaskConflict
from fencepost.core.lifecycle import TERMINAL, TaskState
from fencepost.service.definitions import Source

if TYPE_CHECKING:
    from fencepost.service.surface import Agent, TaskRow

# The options that only the agent `incident` understands.
INCIDENT_OPTIONS = ("prometheus", "logs", "releases", "calls", "rollback_command", "service_label", "model")
# Options that name places: they mean the same from every folder.
PATHS = frozenset({"logs", "releases", "calls", "rules"})
# Of a prompt on stdin so much is read; the task itself takes less.
PROMPT_BYTES = 1024 * 1024


@click.command(short_help="Run an agent on a prompt.")
@click.argument("agent")
@click.argument("prompt")
@click.option("--prometheus", metavar="URL", help="incident: the Prometheus server to query.")
@click.option("--logs", metavar="PATH", help="incident: a file or folder of JSON-lines logs.")
@click.option("--releases", metavar="PATH", help="incident: a git checkout, or a JSON-lines change record.")
@click.option("--calls", metavar="FILE", help="incident: which service calls which (docs/incident.md).")
@click.option(
    "--rollback-command", metavar="COMMAND",
    help="incident: what rolls back, with {service} and {release} as words; without it, no such tool.",
)  # fmt: skip
@click.option("--service-label", metavar="NAME", help="incident: the metric label that names a service.")
@click.option(
    "--model", metavar="NAME", help="incident: what decides; `playbook` needs no key and is the default."
)
@click.option("--rules", metavar="FILE", help="Who may have which tool run: a TOML file (docs/rules.md).")
@click.option("--quiet", is_flag=True, help="Say nothing before the end.")
@command
async def run(
    desk: Desk, /, agent: str, prompt: str, *, rules: str | None, quiet: bool, **given: str | None
) -> int:
    """Run AGENT on PROMPT until it answers, stops or waits for a person.

    AGENT is `incident`, or your own as module:attribute or file.py:attribute: a fencepost.Agent, or a
    function without arguments that returns one. A PROMPT of - is read from stdin. Ctrl-C cancels the task
    and keeps its journal.
    """
    from fencepost.cli.driving import drive, tell_ending
    from fencepost.service.surface import Live, Result, new_task_id

    source = source_given(agent, rules, given)
    made = made_agent(desk, source)
    said = _prompt(prompt)
    store, task = desk.store(create=True), new_task_id()

    async def starts(live: Live) -> Result:
        return await desk.app.run(made, said, store=store, task=task, source=source, live=live)

    ended = await drive(desk, store, task, limits=made.limits, starts=starts, quiet=quiet)
    tell_ending(desk, ended)
    return ended.code


@click.command(short_help="Go on with a task that is not over.")
@click.argument("task")
@click.option(
    "--agent", metavar="AGENT", help="Where the agent is now, if it is not where the task was opened from."
)
@click.option("--rules", metavar="FILE", help="Other rules than those it was started with.")
@click.option(
    "--accept-definition", is_flag=True, help="Go on with an agent that has changed; an entry says so."
)
@click.option(
    "--refuse-definition",
    is_flag=True,
    help="End the task, with DEFINITION_CHANGED, if the agent has changed.",
)
@click.option("--quiet", is_flag=True, help="Say nothing before the end.")
@command
async def resume(
    desk: Desk,
    task: str,
    *,
    agent: str | None,
    rules: str | None,
    accept_definition: bool,
    refuse_definition: bool,
    quiet: bool,
) -> int:
    """Go on with a task that was given back, decided about, or left by a process that ended."""
    from fencepost.service.reading import find_task

    if accept_definition and refuse_definition:
        raise click.UsageError("--accept-definition and --refuse-definition exclude each other; give one.")
    changed: Literal["ask", "accept", "refuse"] = "ask"
    if accept_definition or refuse_definition:
        changed = "accept" if accept_definition else "refuse"
    return await resume_task(
        desk, await find_task(desk.store(), task), agent=agent, rules=rules, changed=changed, quiet=quiet
    )


async def resume_task(
    desk: Desk,
    task: str,
    *,
    agent: str | None = None,
    rules: str | None = None,
    changed: Literal["ask", "accept", "refuse"] = "ask",
    quiet: bool = False,
) -> int:
    """Drive the task on from where its journal ends and print how that ended; returns the exit code.

    `changed` says what to do about an agent that is not what it was: say so, take it, or end the task.
    """
    from fencepost.cli.driving import Drive, drive, tell_ending
    from fencepost.cli.exits import exit_of_state
    from fencepost.service.surface import Live, Result
    from fencepost.service.tasks import accept_definition, expire, refuse_definition

    store = desk.store()
    await expire(store, tenant="local")
    row, entries = await store.row("local", task), await store.entries("local", task)
    if row.state in TERMINAL or row.state is TaskState.WAITING_APPROVAL:
        tell_ending(desk, Drive(row, entries, 0))
        return exit_of_state(row.state)
    take_from = _ended_holder(desk, row, now=await store.now())
    source = source_now(entries[0].body, agent, rules, task, desk)
    made = made_agent(desk, source)
    if row.definition != made.definition:
        if changed == "ask":
            raise DefinitionInvalid(
                f"the agent {row.agent!r} has changed since task {task} was opened; go back to what it was,"
                " add --accept-definition to go on with what it is now, or --refuse-definition to end the task"
            )
        if changed == "refuse":
            row = await refuse_definition(store, task, made, by=desk.app.principal)
            tell_ending(desk, Drive(row, await store.entries("local", task), 0))
            return exit_of_state(row.state)
        await accept_definition(store, task, made, by=desk.app.principal)

    async def starts(live: Live) -> Result:
        return await desk.app.resume(made, task, store=store, live=live, take_from=take_from)

    ended = await drive(
        desk, store, task, limits=made.limits, starts=starts, begun=(row, entries), quiet=quiet
    )
    tell_ending(desk, ended)
    return ended.code


def _ended_holder(desk: Desk, row: TaskRow, *, now: float) -> str | None:
    """The worker that has ended with the task in its hands, if any; TaskConflict while one may be at work."""
    from fencepost.cli.text import moment
    from fencepost.service.holder import is_gone

    task, worker, lease_until = row.id, row.worker, row.lease_until
    if row.state is not TaskState.RUNNING or (lease_until is not None and lease_until <= now):
        return None
    if is_gone(worker):
        return worker
    until = "without end" if lease_until is None else f"until {moment(lease_until)} and renews that"
    raise TaskConflict(
        f"task {task} is held by worker {worker} {until}; follow it with `{desk.hint('watch', task)}`,"
        f" or end it with `{desk.hint('cancel', task)}`"
    )


def source_given(agent: str, rules: str | None, given: dict[str, str | None]) -> Source:
    """Where the agent is from, by the options of `run`; DefinitionInvalid for options it does not take."""
    from fencepost.service.definitions import absolute

    options = {name: value for name, value in given.items() if value is not None}
    if agent != "incident" and options:
        names = ", ".join("--" + name.replace("_", "-") for name in options)
        raise DefinitionInvalid(
            f"{names}: only the agent incident takes that, {agent} does not; leave it out"
        )
    if "@" in urlsplit(options.get("prometheus", "")).netloc:
        raise DefinitionInvalid(
            "--prometheus has a user or password in it, and the journal would keep it; name an address"
            " without, for example of a proxy on this machine that adds it"
        )
    if rules is not None:
        options["rules"] = rules
    named = tuple(
        (name, str(Path(value).absolute()) if name in PATHS else value) for name, value in options.items()
    )
    return Source(absolute(agent), named)


def source_now(opened: object, agent: str | None, rules: str | None, task: str, desk: Desk) -> Source:
    """Where the task's agent is now, by its first entry and the options; DefinitionInvalid if nobody said."""
    from fencepost.core.entries import Opened
    from fencepost.service.definitions import absolute, source_of

    assert isinstance(opened, Opened)
    source = source_of(opened)
    if agent is not None:
        kept = source.options if source is not None and source.name == agent else ()
        source = Source(absolute(agent), kept)
    if source is None:
        raise DefinitionInvalid(
            f"task {task} was opened by a program that did not say where its agent is; resume it from there,"
            f" or name the agent: `{desk.hint('resume', task, '--agent', 'file.py:attribute')}`"
        )
    if rules is not None:
        others = tuple(one for one in source.options if one[0] != "rules")
        source = Source(source.name, (*others, ("rules", str(Path(rules).absolute()))))
    return source


def made_agent(desk: Desk, source: Source) -> Agent:
    """The agent; what its module prints while it is imported goes to stderr, made harmless."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return desk.app.agent(source)
    finally:
        if printed.getvalue():
            desk.err.line(("│ ", "dim"), printed.getvalue().rstrip("\n"))


def _prompt(given: str) -> str:
    if given != "-":
        return given
    data = sys.stdin.buffer.read(PROMPT_BYTES + 1)
    if len(data) > PROMPT_BYTES:
        raise DefinitionInvalid(
            f"the prompt on stdin is longer than {PROMPT_BYTES} bytes; give a shorter one"
        )
    try:
        return data.decode().strip()
    except UnicodeDecodeError as why:
        raise DefinitionInvalid(
            f"the prompt on stdin is not UTF-8 ({why.reason} at byte {why.start})"
        ) from why
