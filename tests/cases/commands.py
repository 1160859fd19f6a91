"""The body of a tool that runs a shell command; a child process imports this module by name.

What it starts inherits a connection to a listening test: the connection ends when nobody of the tree is left.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import msgspec

from fencepost import CallContext
from tests.conformance.invariants import EffectLine


def runs(context: CallContext, command: str, port: int, effects: str) -> str:
    """Run the command to its end, and say how it ended."""
    place = (context.step, context.position, context.start)
    line = EffectLine(context.task, "run", *place, context.key, 0, committed=True)
    with Path(effects).open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"begun")
        done = subprocess.run(
            ["sh", "-c", command],
            pass_fds=(connection.fileno(),),
            stdout=subprocess.DEVNULL,
            check=False,
        )
    return f"ended with {done.returncode}"
