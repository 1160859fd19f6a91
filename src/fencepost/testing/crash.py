"""Die at a named place of the real command line: `python -m fencepost.testing.crash before:3 -- ARGS`.

Rule 1: production code is not touched; the same main runs, and every SqliteStore it opens has our hooks
(pauses.py).
Rule 2: `count` instead of a place runs to the end and says, on the error stream, which places there were. The
command runs in a child process then, because a command may end its process without a word.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from fencepost.testing import pauses
from fencepost.testing.pauses import Pauses, Place

# The composition root, named as text: nothing imports it (docs/architecture.md).
MAIN = "fencepost.app:main"
USAGE = """usage: python -m fencepost.testing.crash PLACE [--main MODULE:FUNCTION] -- ARGS...
  MODULE:FUNCTION   a command as in [project.scripts]: no arguments, it reads sys.argv
  PLACE   before:N, inside:N or after:N for the N-th commit; NAME:N for a named place (append.after:2);
          stop@PLACE to be stopped there instead of killed; count to run on and list the places"""


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and its plan; returns its exit code, or never returns."""
    given, found, rest = _split(arguments)
    if not found or not given:
        print(USAGE, file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    try:
        place = None if given[0] == "count" else Place.parse(given[0])
        command = _command(given[1:])
    except ValueError as why:
        print(f"{why}\n{USAGE}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    if place is None:
        return _count(command, rest)
    pauses.arm(Pauses(place))
    return _run(command, rest)


def _split(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    given = list(arguments)
    if "--" not in given:
        return given, False, []
    at = given.index("--")
    return given[:at], True, given[at + 1 :]


def _command(options: Sequence[str]) -> str:
    if not options:
        return MAIN
    if len(options) != 2 or options[0] != "--main" or ":" not in options[1]:
        raise ValueError(f"what stands before -- is PLACE [--main MODULE:FUNCTION]; got {' '.join(options)}")
    return options[1]


def _count(command: str, arguments: list[str]) -> int:
    """Run the command in a child, print the places it reached, and return its exit code."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)

        def tell(point: str) -> None:
            os.write(writing, f"{point}\n".encode())  # so short a line is written whole, whatever the thread

        pauses.arm(tell)
        sys.exit(_run(command, arguments))
    os.close(writing)
    hooks = Pauses()
    with os.fdopen(reading, encoding="utf-8") as points:
        for point in points:
            hooks(point.rstrip("\n"))
    _, status = os.waitpid(child, 0)
    places = [str(each) for each in hooks.places()]
    print(json.dumps({"places": places}), file=sys.stderr)  # noqa: T201 - this is a command
    return os.waitstatus_to_exitcode(status)


def _run(command: str, arguments: list[str]) -> int:
    module, _, name = command.partition(":")
    run: Callable[[], int | None] = getattr(importlib.import_module(module), name)
    sys.argv = [module, *arguments]  # what a console script would find
    try:
        return run() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
