"""`fencepost completion` prints a script with which a shell completes what this very program has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.cli.exits import Exit
from fencepost.cli.program import COMMANDS
from tests.cli.conftest import Command

SHELLS = ("bash", "zsh", "fish")
# A bash function that completes the words it is given, as pressing the tab key after them would.
PRESS_TAB = """
eval "$(fencepost completion bash)"
press_tab() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _fencepost_completion "$1"; echo "${COMPREPLY[@]}"
}
"""


def on_the_path(fencepost: Command) -> dict[str, str]:
    """An environment in which the real program is called `fencepost`."""
    program = fencepost.folder / "bin" / "fencepost"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fencepost "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {**fencepost.environment, "PATH": f"{program.parent}:{fencepost.environment['PATH']}"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_this_program_what_fits(fencepost: Command, shell: str) -> None:
    done = fencepost("completion", shell)
    assert done.code == Exit.OK, done.err
    assert f"_FENCEPOST_COMPLETE={shell}_complete" in done.out
    assert fencepost("completion", shell, "--json").document == {
        "shell": shell,
        "script": done.out.rstrip("\n"),
    }


def test_another_shell_is_refused_with_those_there_are(fencepost: Command) -> None:
    done = fencepost("completion", "csh")
    assert done.code == Exit.USAGE
    assert all(shell in done.err for shell in SHELLS)


@pytest.mark.parametrize(
    ("typed", "fits"),
    [
        ("fencepost re", {name for name in COMMANDS if name.startswith("re")}),
        ("fencepost completion ", set(SHELLS)),
        ("fencepost list --li", {"--limit"}),
        ("fencepost approvals app", {"approve"}),
        ("fencepost nothing", set()),
    ],
)
def test_bash_completes_commands_options_and_choices(fencepost: Command, typed: str, fits: set[str]) -> None:
    words = " ".join(f'"{word}"' for word in typed.split(" "))
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{PRESS_TAB}\npress_tab {words}"],
        env=on_the_path(fencepost),
        cwd=fencepost.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(ran.stdout.split()) == fits
    assert ran.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_the_same_answer(fencepost: Command, shell: str) -> None:
    asked = {"zsh": ("fencepost canc", "1"), "fish": ("fencepost canc", "canc")}[shell]
    ran = subprocess.run(
        [sys.executable, "-m", "fencepost"],
        env={
            **fencepost.environment,
            "_FENCEPOST_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": asked[0],
            "COMP_CWORD": asked[1],
        },
        cwd=Path(fencepost.folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "cancel" in ran.stdout
    assert "run" not in ran.stdout.split()
