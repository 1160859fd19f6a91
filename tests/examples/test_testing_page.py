"""The examples of docs/testing.md are programs that print what the page says, and its tables are the suites' own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.testing.conformance import MODEL_RULES, TOOL_RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(import asyncio\n.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_each_program_on_the_page_prints_what_stands_below_it(number: int) -> None:
    program, told = PROGRAMS[number]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        env=ENVIRONMENT,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == told


def test_every_program_on_the_page_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("asyncio.run(main())") == 4


def test_the_store_example_is_a_suite_that_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(import pytest\n.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "test_mine.py").write_text(example)
    (tmp_path / "pytest.toml").write_text('[pytest]\nanyio_mode = "auto"\n')
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "claim", "-p", "no:cacheprovider", "test_mine.py"],
        capture_output=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


@pytest.mark.parametrize(("kind", "rules"), [("tools", TOOL_RULES), ("models", MODEL_RULES)])
def test_the_tables_of_rules_are_those_of_the_suites(kind: str, rules: dict[str, str]) -> None:
    (table,) = re.findall(
        rf"^\| rule for {kind} \|.*?\n\|---\|---\|\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL
    )
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", table, re.MULTILINE)) == dict(rules)
