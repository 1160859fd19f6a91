"""`conformance`: whether a tool or a model of your own keeps the rules, in one sentence a rule.

Rule: the command only prints; what is checked, and how, is `fencepost.testing.conformance`.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import click

from fencepost.cli.application import ConformanceReport
from fencepost.cli.command import Desk, command
from fencepost.cli.exits import Exit
from fencepost.cli.page import Line, line

# What a verdict is printed as, with its style; the column is as wide as the longest.
VERDICTS = {"holds": ("holds", "good"), "broken": ("BROKEN", "bad"), "unchecked": ("unchecked", "warn")}
VERDICT_WIDTH = 11


def _object(_: click.Context, option: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as why:
        raise click.BadParameter(f"it is not JSON ({why})") from None
    if not isinstance(found, dict):
        raise click.BadParameter("it must be one JSON object of arguments")
    return found


@click.command()
@click.argument("subject")
@click.option(
    "--arguments", metavar="JSON", callback=_object, help="Arguments that fit; the tool runs with them."
)
@click.option("--slow", metavar="JSON", callback=_object, help="Arguments with which a call takes long.")
@click.option(
    "--probe", metavar="PLACE", help="A function that says how much has happened, as a number, say."
)
@click.option("--cut", metavar="PLACE", help="A model: the same one before a stream that ends half-way.")
@command
async def conformance(
    desk: Desk,
    subject: str,
    *,
    arguments: dict[str, Any] | None,
    slow: dict[str, Any] | None,
    probe: str | None,
    cut: str | None,
) -> int:
    """Check a tool or a model of your own, rule by rule.

    SUBJECT is module:attribute or file.py:attribute: a tool or a model, or a function without arguments that
    returns one; each PLACE is written the same way. A read runs with arguments made from its schema. A tool with an
    effect runs only with --arguments, about ten times: give it a world made for tests. A model is asked about five
    times.
    """
    report = await desk.app.conformance(subject, arguments=arguments, slow=slow, probe=probe, cut=cut)
    if desk.json:
        desk.show(_document(report))
    else:
        desk.out.put(_lines(report))
    return Exit.FAILED if report.broken else Exit.OK


def _lines(report: ConformanceReport) -> list[Line]:
    lines = []
    for (verdict, said), found in itertools.groupby(report.findings, lambda each: (each.verdict, each.said)):
        word, style = VERDICTS[verdict]  # rules that one sentence is about share a line
        rules = ", ".join(each.rule for each in found)
        lines.append(line((f"{word:<{VERDICT_WIDTH}}", style), (rules, "strong"), ": ", said))
    count = {verdict: sum(each.verdict == verdict for each in report.findings) for verdict in VERDICTS}
    told = f"{count['holds']} hold, {count['broken']} broken, {count['unchecked']} unchecked"
    return [*lines, line(f"{len(report.findings)} rules for the {report.kind} {report.subject}: {told}.")]


def _document(report: ConformanceReport) -> dict[str, Any]:
    findings = [{"rule": f.rule, "verdict": str(f.verdict), "said": f.said} for f in report.findings]
    return {
        "kind": report.kind,
        "subject": report.subject,
        "holds": not report.broken,
        "findings": findings,
    }
