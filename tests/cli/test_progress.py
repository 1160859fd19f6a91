"""Bars and streaming text on a terminal; plain lines without one, without colors, or where it is narrow."""

from __future__ import annotations

import re

import pytest

from fencepost.cli.answers import budgets
from fencepost.cli.text import is_hidden
from fencepost.core.limits import Limits
from tests.cli.conftest import AGENTS, Command, Terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def shown_on(fencepost: Command, agent: str, columns: int = 100, /, **environment: str) -> str:
    """Everything a run wrote to a terminal, Ctrl-C pressed once its tool waits."""
    terminal = Terminal(fencepost, "run", f"{AGENTS}:{agent}", "look", columns=columns, **environment)
    try:
        if agent == "waits":
            terminal.until("waiting now")
            if columns >= 40 and not environment:
                terminal.until("running 1.0 wait")
            terminal.press("\x03")
        terminal.end()
    finally:
        terminal.close()
    return terminal.seen


@pytest.mark.parametrize("columns", [60, 100])
def test_a_terminal_sees_the_call_in_progress_and_bars_for_its_budgets(
    fencepost: Command, columns: int
) -> None:
    seen = shown_on(fencepost, "waits", columns)
    for words in ("▸ running 1.0 wait", "steps 1/5", "calls 1/50", "tokens 15/500,000", "seconds 0.", "█"):
        assert words in seen
    rows = [row for part in ESCAPES.sub("", seen).split("\n") for row in part.split("\r")]
    assert max(map(len, rows)) <= columns


@pytest.mark.parametrize("reason", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colors_a_terminal_sees_plain_lines(fencepost: Command, reason: dict[str, str]) -> None:
    seen = shown_on(fencepost, "waits", 100, **reason)
    assert "1.0 wait {}" in seen
    assert "▸" not in seen
    assert "\x1b" not in seen


def test_a_narrow_terminal_sees_lines_and_no_bars(fencepost: Command) -> None:
    seen = shown_on(fencepost, "plain", 30)
    assert "▸" not in seen
    rows = [ESCAPES.sub("", row).rstrip("\r") for row in seen.split("\n")]
    assert max(len(row) for row in rows if "fencepost show" not in row) <= 30


def test_what_tools_print_and_results_say_reaches_a_terminal_harmless(fencepost: Command) -> None:
    seen = shown_on(fencepost, "hostile")
    assert "\x1b]" not in seen
    left = ESCAPES.sub("", seen)
    assert not any(is_hidden(char) for char in left if char not in "\r\n")
    assert "printed" in left


def test_a_budget_shows_what_was_used_of_what_is_allowed() -> None:
    limits = Limits(steps=4, tokens=1000, cost_nano=2_000_000_000)
    steps, calls, tokens, cost, seconds = budgets(
        limits, steps=4, calls=0, tokens=1, cost_nano=1_700_000_000, seconds=59.96
    )
    assert (steps.bar(), steps.style, steps.told) == ("██████████", "bad", "4/4")
    assert (calls.bar(), calls.style, calls.told) == ("░░░░░░░░░░", "good", "0/50")
    assert tokens.bar() == "█░░░░░░░░░", "something used is never shown as nothing"
    assert (cost.bar(), cost.style, cost.told) == ("████████░░", "warn", "1.7/2")
    assert seconds.told == "60.0/600"


def test_an_unknown_cost_is_said_to_be_unknown() -> None:
    cost = budgets(Limits(steps=1), steps=0, calls=0, tokens=0, cost_nano=None, seconds=0)[3]
    assert (cost.told, cost.bar()) == ("unknown", "")
