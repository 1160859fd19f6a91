"""`chaos`: an agent of your own through every crash point, cancel, timeout and spoilt reply.

Rule: the command only prints; what is tried, and how it is judged, is `fencepost.testing.chaos`.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import click

from fencepost.cli.application import ChaosReport
from fencepost.cli.command import Desk, command
from fencepost.cli.exits import Exit
from fencepost.cli.page import Line, line


@click.command(short_help="Try an agent of your own against crashes and bad replies.")
@click.argument("agent")
@click.option(
    "--script", metavar="FILE", help="What the model says, a reply a step: JSON lines, or a PLACE in Python."
)
@click.option("--prompt", metavar="TEXT", help="What the agent is asked.")
@click.option("--probe", metavar="PLACE", help="A function that tells what the tools have done to the world.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600.0), metavar="N", help="A run that takes longer hangs; 20."
)
@command
async def chaos(
    desk: Desk,
    agent: str,
    *,
    script: str | None,
    prompt: str | None,
    probe: str | None,
    seconds: float | None,
) -> int:
    """Try AGENT against every crash, cancel, timeout and spoilt reply.

    AGENT is module:attribute or file.py:attribute; each PLACE is written the same way. Its task is run again and
    again, each time in a process and an empty folder of its own: the process dies before and after each commit and
    in each call; the task is cancelled at each of these places; calls run out of time; replies come cut, broken,
    doubled or never. Calls are approved. What does not hold is said once for each tool, with the shortest journal
    that shows it. The tools run for real, many times: give them a world made for tests.
    """
    told = 0

    def tell(words: str) -> None:
        nonlocal told
        told += 1
        if not desk.json:
            desk.err.line((f"{told:4} {words}", "dim"))

    printed = io.StringIO()  # what the agent's module says while it is imported is no part of the result
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            report = desk.app.chaos(
                agent, script=script, prompt=prompt, probe=probe, seconds=seconds, tell=tell
            )
    finally:
        if printed.getvalue():
            desk.err.line(("│ ", "dim"), printed.getvalue().rstrip("\n"))
    if desk.json:
        desk.show(_document(report))
    else:
        desk.out.put(_lines(report))
    return Exit.FAILED if report.findings else Exit.OK


def _lines(report: ChaosReport) -> list[Line]:
    lines = []
    for number, found in enumerate(report.findings, 1):
        about = f"{found.tool}, " if found.tool else ""
        lines.append(line((f"{number}. {about}{found.rule}: ", "bad"), found.says))
        lines.append(line("seen when ", found.did, indent=3))
        lines.extend(line((entry, "dim"), indent=5) for entry in found.journal)
    lines.extend(line(("note: ", "warn"), note) for note in report.notes)
    what = f"{len(report.findings)} rules do not hold" if report.findings else "everything holds"
    return [
        *lines,
        line(
            f"{report.trials} runs of {report.agent} ({report.commits} commits and {report.calls} calls each): ",
            (what, "bad" if report.findings else "good"),
            ".",
        ),
    ]


def _document(report: ChaosReport) -> dict[str, Any]:
    findings = [
        {"rule": f.rule, "tool": f.tool, "says": f.says, "did": f.did, "journal": list(f.journal)}
        for f in report.findings
    ]
    return {
        "agent": report.agent,
        "trials": report.trials,
        "commits": report.commits,
        "calls": report.calls,
        "holds": not report.findings,
        "findings": findings,
        "notes": list(report.notes),
    }
