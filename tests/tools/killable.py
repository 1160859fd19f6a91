"""Tools that run in a process of their own; a child process imports this module by name."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Annotated, Any

from msgspec import Meta

from fencepost.core.errors import OutcomeUnknown, ToolFailed
from fencepost.ports import CallContext
from fencepost.tools.channel import ProcessLimits
from fencepost.tools.function import tool

LONG_SECONDS = 60.0
SMALL = ProcessLimits(memory_bytes=512 * 1024**2, cpu_seconds=1, file_bytes=64 * 1024, output_bytes=4096)
CHANNEL = int(sys.argv[1]) if len(sys.argv) == 6 and sys.argv[1].isdigit() else -1


@tool(effect="read", isolation="process")
def double(n: Annotated[int, Meta(ge=0)]) -> dict[str, Any]:
    """Twice the number, and where it was computed."""
    return {"n": 2 * n, "pid": os.getpid(), "parent": os.getppid()}


@tool(effect="read", isolation="process")
async def triple(n: int, context: CallContext) -> list[Any]:
    """Three times the number, and who asks; a thread that it leaves behind keeps nobody waiting."""
    await asyncio.sleep(0)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, LONG_SECONDS)
    return [3 * n, context.key, context.task]


def _end(how: str) -> Any:
    match how:
        case "fails":
            raise ToolFailed("there is no such page")
        case "cannot tell":
            raise OutcomeUnknown("the line went dead")
        case "raises":
            raise ValueError("no\0 \ud800 good" + "!" * 100_000)
        case "exits":
            raise SystemExit(3)
        case "leaves":
            os._exit(3)
        case "kills itself":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stops itself":
            os.kill(os.getpid(), signal.SIGTERM)
        case "waits":
            time.sleep(LONG_SECONDS)
        case "babbles":
            os.write(CHANNEL, b"hello, world" * 10)
            time.sleep(LONG_SECONDS)
        case "lies":
            os.write(CHANNEL, b"V\xff\xff\xff\xff")
            time.sleep(LONG_SECONDS)
        case "no json":
            os.write(CHANNEL, b"V\x00\x00\x00\x02{]")
            time.sleep(LONG_SECONDS)
    return how


reads = tool(name="ends", effect="read", isolation="process")(_end)
writes = tool(name="ends", effect="write", isolation="process")(_end)


@tool(effect="read", isolation="process", process=SMALL)
def takes(what: str) -> Any:
    """Use more of something than is allowed."""
    match what:
        case "memory":
            return len(bytearray(2 * SMALL.memory_bytes))
        case "result memory":
            return "x" * (SMALL.memory_bytes // 2)
        case "processor":
            while True:
                pass
        case "file":
            with tempfile.TemporaryFile() as file:
                file.write(b"x" * (SMALL.file_bytes + 1))
        case "output":
            return "x" * (SMALL.output_bytes + 1)
        case "json":
            return ["x" * 100] * SMALL.output_bytes
    return what


@tool(effect="read", isolation="process")
def returns(kind: str) -> Any:
    """Give back something odd."""
    return {
        "text": "a\0b\ud800",
        "bytes": b"\x00\xff",
        "none": None,
        "big": 10**3000,
        "nan": [float("nan"), -0.0, 1.0, 1e300],
        "set": {3, 1, 2},
        "number": 7,
    }[kind]


@tool(effect="read", isolation="process", timeout=0.3)
def sits() -> None:
    """Take longer than allowed."""
    time.sleep(LONG_SECONDS)


@tool(effect="write", isolation="process")
def lingers(port: int) -> str:
    """Connect to the port, and leave two descendants that hold the connection: a plain one, and a forked daemon."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"begun")
    if os.fork() == 0:
        threading.Event().wait(LONG_SECONDS)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(LONG_SECONDS)
        os._exit(0)
    return "done"


@tool(effect="write", isolation="process")
def listens(port: int) -> str:
    """End when told to."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"begun")
        connection.recv(1)
    return "done"


@tool(effect="write", isolation="process")
def hangs(port: int) -> None:
    """The same, and never end."""
    lingers.function(port)
    time.sleep(LONG_SECONDS)


class Shelf:
    """Where a function lives that is not at the top of its module."""

    @staticmethod
    def book(n: int) -> int:
        """One more."""
        return n + 1

    def borrowed(self, n: int) -> int:
        """A method needs its object."""
        return n


def renamed(n: int) -> int:
    """Here it takes a number."""
    return n
