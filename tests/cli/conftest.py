"""How the tests talk to the command: in this process where only words matter, else as the real program.

Rule: each test has a home, a store and an environment of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fencepost.app import App
from fencepost.cli.program import run_program

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).with_name("agents_for_tests.py")
# A process that says nothing for so long hangs. Seconds; ten times what the slowest needs.
PATIENCE = 30.0


class Done(Struct, frozen=True):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def task(self) -> str:
        """The id of the task that was begun."""
        return next(line.split()[1] for line in self.err.splitlines() if line.startswith("task"))


class Command:
    """The command with its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        self.effects = folder / "effects"
        self.environment: dict[str, str] = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONWARNINGS": "error",
            "FENCEPOST_STORE": str(self.store),
            "EFFECTS": str(self.effects),
        }
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, **environment: str) -> Done:
        """Run the command in this process."""
        out, err = io.StringIO(), io.StringIO()
        settings = {**self.environment, **environment}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_program(arguments, App(settings), out, err)
        return Done(code, out.getvalue(), err.getvalue())

    def run(self, agent: str, *arguments: str, prompt: str = "look around") -> Done:
        """Run one of the agents for tests in this process."""
        return self("run", f"{AGENTS}:{agent}", prompt, *arguments)

    def process(self, *arguments: str, stdin: str | None = None, **environment: str) -> Done:
        """Run the real program to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "fencepost", *arguments], env={**self.environment, **environment},
            cwd=self.folder, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the real program."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", *arguments], env=self.environment, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=_hear_signals,  # noqa: PLW1509 - the tests have no threads
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def fencepost(tmp_path: Path) -> Iterator[Command]:
    """The command, with a home and a store of its own."""
    command = Command(tmp_path)
    os.environ["EFFECTS"] = str(command.effects)  # the agents for tests read it, also in this process
    yield command
    del os.environ["EFFECTS"]
    command.close()


def _hear_signals() -> None:
    """A signal that is ignored where the tests run (nohup, a background job) would be ignored by the program too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def heard(process: subprocess.Popen[str], words: str) -> str:
    """What the process said on stderr up to the line that holds the words; fails when it ends before."""
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if words in line:
            return "".join(said)
    raise AssertionError(f"the program ended without saying {words!r}:\n{''.join(said)}")


class Terminal:
    """The real program on a terminal of its own."""

    def __init__(self, command: Command, *arguments: str, columns: int = 100, **environment: str) -> None:
        child, self._mine = _terminal(columns)
        settings: Mapping[str, str] = {**command.environment, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", *arguments], env=settings, cwd=command.folder, stdin=child,
            stdout=child, stderr=child, start_new_session=True, close_fds=True,
            preexec_fn=_take_the_terminal,  # noqa: PLW1509 - the tests have no threads
        )  # fmt: skip
        os.close(child)
        self.seen = ""

    def until(self, words: str) -> str:
        """Read on until the words were shown."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.seen:
            assert time.monotonic() < deadline, f"{words!r} was not shown in:\n{self.seen}"
            assert self._more(deadline), f"the program ended without showing {words!r}:\n{self.seen}"
        return self.seen

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._mine, keys.encode())

    def end(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._mine)

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._mine], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._mine, 65536)
        except OSError:  # the other side was closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)


def _take_the_terminal() -> None:
    _hear_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _terminal(columns: int) -> tuple[int, int]:
    mine, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    return child, mine
