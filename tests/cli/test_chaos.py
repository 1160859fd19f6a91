"""`fencepost chaos` says in plain words which tool does not hold, and how that was seen."""

from __future__ import annotations

from pathlib import Path

from fencepost.cli.exits import Exit
from tests.cli.conftest import ROOT, Command

GOOD = f"{ROOT}/tests/chaos/good.py:agent"


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
