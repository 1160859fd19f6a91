"""Each case of the kinds below has a test of its number, or a row that says which rule puts it out of reach."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
# The first and the last case of each kind that is covered.
KINDS = {
    "K01 calls and results": (1, 5),
    "K02 incomplete output": (6, 10),
    "K03 arguments": (11, 15),
    "K04 identity of calls": (16, 19),
    "K08 cancels and ends that race": (42, 46),
    "K09 timeouts and blocking": (47, 50),
    "K10 loops, limits and stop reasons": (51, 57),
    "K17 hostile or extreme values": (93, 99),
    "K18 storage": (100, 104),
    "K19 concurrency inside one task": (105, 107),
}


def cases() -> set[int]:
    return {case for first, last in KINDS.values() for case in range(first, last + 1)}


def with_tests() -> set[int]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("test_*.py")))
    return {int(number) for number in re.findall(r"^(?:async )?def test_o(\d+)_", text, re.MULTILINE)}


def rows() -> list[list[str]]:
    lines = (HERE / "not_applicable.md").read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| O-")
    ]


def test_every_case_is_tested_or_listed_with_the_rule_that_says_why_not() -> None:
    listed = {int(row[0].removeprefix("O-")) for row in rows()}
    assert cases() - with_tests() - listed == set()
    assert (with_tests() | listed) - cases() == set(), "a number that is no case of these kinds"


def test_every_row_names_a_rule_of_the_contract() -> None:
    for row in rows():
        assert re.match(r"\d+\.\d+: ", row[2]), row
