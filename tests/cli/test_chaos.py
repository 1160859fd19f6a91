"""`fencepost chaos` says in plain words which tool does not hold, and how that was seen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fencepost.cli.exits import Exit
from tests.cli.conftest import PATIENCE, ROOT, Command

GOOD = f"{ROOT}/tests/chaos/good.py:agent"
IN_MEMORY = """
from fencepost import Agent, Limits, ScriptedModel, tool

labels = []
print("imported")

@tool(effect="idempotent")
async def label(text: str) -> str:
    labels.append(text)
    return "labelled"

def labels_set():
    return labels

agent = Agent("labeler", ScriptedModel([]), Limits(steps=3), tools=(label,))
"""
WAITING = """
import asyncio, os, pathlib
from fencepost import Agent, Limits, ScriptedModel, tool

@tool(effect="read")
async def wait() -> str:
    pathlib.Path(NUMBERS).write_text(str(os.getpid()))
    await asyncio.sleep(60)

agent = Agent("waiter", ScriptedModel([]), Limits(steps=3), tools=(wait,))
"""


def script(folder: Path, *lines: str) -> str:
    """A file of replies."""
    file = folder / "script.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def test_an_agent_that_holds_ends_with_0_and_each_run_is_told(fencepost: Command, tmp_path: Path) -> None:
    lines = script(tmp_path, '{"calls": [{"name": "count", "arguments": {"text": "abc"}}]}', '"three"')
    done = fencepost("chaos", GOOD, "--script", lines, "--prompt", "how many?")
    assert done.code == Exit.OK, done.out + done.err
    assert "runs of planted (4 commits and 1 calls each): everything holds." in done.out
    assert "the process died just before commit 1" in done.err


def test_a_fault_is_told_with_its_tool_what_was_done_and_the_journal(
    fencepost: Command, tmp_path: Path
) -> None:
    lines = script(tmp_path, '{"calls": [{"name": "label", "arguments": {"text": "urgent"}}]}', '"done"')
    careless = f"{ROOT}/examples/rehearse.py:careless"
    done = fencepost("chaos", careless, "--script", lines)
    assert done.code == Exit.FAILED
    assert "1. label, idempotency_key: label is declared" in done.out
    assert "seen when the process died just before commit 4" in done.out
    assert "7 CallStarted call 1.0 start 2" in done.out
    assert "runs of labeler (5 commits and 1 calls each): 1 rules do not hold." in done.out


def test_a_probe_is_what_the_world_is(fencepost: Command, tmp_path: Path) -> None:
    agents = tmp_path / "agents.py"
    agents.write_text(IN_MEMORY, encoding="utf-8")
    lines = script(tmp_path, '{"calls": [{"name": "label", "arguments": {"text": "urgent"}}]}', '"done"')
    given = ("chaos", f"{agents}:agent", "--script", lines)
    assert fencepost(*given).code == Exit.OK, "files say nothing about a list in memory"
    done = fencepost(*given, "--probe", f"{agents}:labels_set", "--json")
    assert "imported" in done.err
    assert [(found["tool"], found["rule"]) for found in done.document["findings"]] == [
        ("label", "idempotency_key")
    ]


def test_a_script_that_leads_to_no_answer_is_told_as_a_note(fencepost: Command, tmp_path: Path) -> None:
    done = fencepost("chaos", GOOD, "--script", script(tmp_path, '{"calls": [{"name": "count"}]}'), "--json")
    assert done.code == Exit.OK
    assert done.document["holds"] is True
    assert done.document["notes"] == [
        "undisturbed, the task ends FAILED (LLM_ERROR); give a script that leads to an answer"
    ]


def test_what_is_no_agent_script_or_probe_is_refused_before_anything_runs(
    fencepost: Command, tmp_path: Path
) -> None:
    for options, says in (
        (("chaos", "nothing"), "there is no agent 'nothing'"),
        (("chaos", GOOD.replace(":agent", ":LIMITS")), "must be a fencepost.Agent"),
        (("chaos", GOOD, "--script", script(tmp_path, "{")), "line 1 is not JSON"),
        (("chaos", GOOD, "--probe", GOOD.replace(":agent", ":LIMITS")), "cannot be called"),
        (("chaos", GOOD, "--probe", GOOD.replace(":agent", ":nobody")), "has no attribute 'nobody'"),
    ):
        done = fencepost(*options)
        assert done.code == Exit.USAGE, done.err
        assert says in done.err
        assert "commit" not in done.err


def test_an_interrupt_ends_the_rehearsal_too(fencepost: Command, tmp_path: Path) -> None:
    agents, numbers = tmp_path / "agents.py", tmp_path / "numbers"
    os.mkfifo(numbers)
    agents.write_text(f"NUMBERS = {str(numbers)!r}\n{WAITING}", encoding="utf-8")
    lines = script(tmp_path, '{"calls": [{"name": "wait"}]}', '"done"')
    running = fencepost.start("chaos", f"{agents}:agent", "--script", lines)
    rehearsing = int(numbers.read_text(encoding="utf-8"))
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == Exit.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(rehearsing, 0)
