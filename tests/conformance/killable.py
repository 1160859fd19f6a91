"""Bodies of process tools; a child process imports this module by name.

Each tells a listening test that it began, and leaves a twice forked grandchild that holds the same connection: the
connection ends when nobody of the tree is left.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import msgspec

from fencepost import CallContext
from tests.conformance.invariants import EffectLine

HUNG_SECONDS = 60.0


def begins(context: CallContext, *, port: int, effects: str, n: int) -> socket.socket:
    """Write the line of this effect, connect to the test, and leave a grandchild behind."""
    line = EffectLine(
        context.task, "act", context.step, context.position, context.start, context.key, n, committed=True
    )
    with Path(effects).open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"begun")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            time.sleep(HUNG_SECONDS)
        os._exit(0)
    return connection


def sits(context: CallContext, port: int, effects: str, n: int = 0) -> str:
    """Never gives the interpreter back for long."""
    with begins(context, port=port, effects=effects, n=n):
        time.sleep(HUNG_SECONDS)
    return "late news"


def spins(context: CallContext, port: int, effects: str, n: int = 0) -> str:
    """Uses a processor and never gives the interpreter lock back."""
    with begins(context, port=port, effects=effects, n=n):
        sum(range(10**12))
    return "late news"


async def swallows(context: CallContext, port: int, effects: str, n: int = 0) -> str:
    """Takes every cancel for a joke."""
    with begins(context, port=port, effects=effects, n=n):
        while True:
            try:
                await asyncio.sleep(HUNG_SECONDS)
            except asyncio.CancelledError:
                continue


def answers(context: CallContext, port: int, effects: str, n: int = 0) -> str:
    """Ends well, and leaves its grandchild."""
    begins(context, port=port, effects=effects, n=n)
    return f"act {n}"


def dies(context: CallContext, port: int, effects: str, n: int = 0) -> str:
    """Is gone before it could say anything."""
    begins(context, port=port, effects=effects, n=n)
    os._exit(7)
