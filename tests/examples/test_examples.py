"""Each example prints what its header promises, line for line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISING = sorted(
    path.name
    for path in (ROOT / "examples").glob("*.py")
    if "It prints:" in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
)


def promised(name: str) -> list[str]:
    """The lines that the header of an example says it prints."""
    header = ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text(encoding="utf-8"))) or ""
    block = header.partition("It prints:")[2]
    return [line.removeprefix("    ") for line in block.splitlines() if line.startswith("    ")]


def test_there_are_examples_that_promise_what_they_print() -> None:
    assert {"approvals.py", "cited_answer.py", "parallel_reads.py", "resume.py", "transfer.py"} <= set(
        PROMISING
    )


@pytest.mark.parametrize("name", PROMISING)
def test_an_example_prints_what_its_header_promises(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == promised(name)
    assert list(tmp_path.iterdir()) == [], "an example leaves files where it was started"
