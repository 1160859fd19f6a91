"""The README's example is a program, and does what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_example_runs_and_prints_its_journal() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "SUCCEEDED COMPLETED Three anvils are left."
    assert [line.split()[1] for line in lines[1:]] == [
        "Opened",
        "ModelAsked",
        "Replied",
        "CallStarted",
        "CallEnded",
        "ModelAsked",
        "Replied",
        "Stopped",
    ]
