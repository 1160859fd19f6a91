"""Chaos before it happens: the same task through every crash point, cancel, timeout and spoilt reply.

Run it with `python examples/rehearse.py`, or either agent with `fencepost chaos examples/rehearse.py:careful --script
examples/rehearse.jsonl` (and `:careless`). Both agents set a label; one of them forgets the key of its call. No good
run shows that; a crash does. It prints:

    careful: 0 rules do not hold
    careless: 1 rules do not hold
    careless: label, idempotency_key, seen when the process died just before commit 4
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fencepost import Agent, CallContext, Limits, ScriptedModel, Tool, tool
from fencepost.testing.chaos import chaos, read_script

SCRIPT = Path(__file__).with_name("rehearse.jsonl")


@tool(effect="idempotent", name="label")
async def keeps_its_key(text: str, context: CallContext) -> str:
    """Set a label, once for each key."""
    await asyncio.sleep(0)
    _write(f"label-{context.key.replace('/', '_')}", "w", text)
    return "labelled"


@tool(effect="idempotent", name="label")
async def forgets_its_key(text: str) -> str:
    """Set a label, once for each start."""
    await asyncio.sleep(0)
    _write("labels", "a", f"{text}\n")
    return "labelled"


def _write(name: str, mode: str, text: str) -> None:
    with Path(name).open(mode, encoding="utf-8") as file:
        file.write(text)


def agent_with(label: Tool) -> Agent:
    """An agent that is asked by a script, so its own model is never heard."""
    return Agent("labeler", ScriptedModel([]), Limits(steps=3), tools=(label,))


def careful() -> Agent:
    """The agent that does it right."""
    return agent_with(keeps_its_key)


def careless() -> Agent:
    """The agent that does not."""
    return agent_with(forgets_its_key)


def main() -> None:
    """Rehearse both."""
    script = read_script(SCRIPT.read_text(encoding="utf-8"))
    for make in (careful, careless):
        report = chaos(make, script=script)
        print(f"{make.__name__}: {len(report.findings)} rules do not hold")
        for found in report.findings:
            print(f"{make.__name__}: {found.tool}, {found.rule}, seen when {found.did}")


if __name__ == "__main__":
    main()
