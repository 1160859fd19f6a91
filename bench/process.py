"""What a process of its own costs a tool call: `python -m bench.process [--rounds N]`.

Each figure is one call, milliseconds from asking to the verdict, by which the child and all it started are gone.

thread    the same function in a thread of this process, which nobody could kill
by hand   a new interpreter that imports the same module, runs the function and prints JSON: no deadline, no limits,
          no kill of what it starts
cold      a process tool whose child has to be started first
warm      a process tool with a spare child, as it is for every call but the first
1 MB      the same with a result of 1 MB
kill      from the cancel of a call until it and a twice forked descendant are gone
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.measure import finish, median, rounds, table
from fencepost import tool
from fencepost.ports import CallContext
from fencepost.tools.function import FunctionTool

CONTEXT = CallContext("t1", "local", "me", step=1, position=0, start=1, key="t1:1.0", seconds=60.0)
MEGABYTE = 1_000_000
BY_HAND = "import json; from bench.process import double; print(json.dumps(double(4)))"


def double(n: int) -> dict[str, int]:
    """Twice the number."""
    return {"n": 2 * n}


def much(n: int) -> str:
    """So many bytes."""
    return "x" * n


def resident(n: int) -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hangs(port: int) -> None:
    """Tell the port that it began, leave a descendant, and never end."""
    import socket

    connection = socket.create_connection(("127.0.0.1", port))
    if os.fork() == 0:
        os.setsid()
        os.fork()
    connection.sendall(b".")
    time.sleep(60)


def isolated(function: Callable[..., Any]) -> FunctionTool:
    """The function as a process tool without a spare."""
    return tool(effect="read", isolation="process")(function)


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def ask(named: Any, n: int) -> Callable[[], Awaitable[Any]]:
    """One call as the loop makes it."""
    return lambda: named.run(named.prepare(f'{{"n":{n}}}'), CONTEXT)


async def warm(named: FunctionTool, n: int) -> float:
    """Seconds of a call with a spare."""
    await named.warm()
    return await timed(ask(named, n))


async def killed(named: FunctionTool) -> float:
    """Seconds from a cancel until the whole tree is gone."""
    begun = asyncio.Event()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    async with server:
        await named.warm()
        port = server.sockets[0].getsockname()[1]
        call = asyncio.ensure_future(named.run(named.prepare(f'{{"port":{port}}}'), CONTEXT))
        await begun.wait()
        began = time.perf_counter()
        call.cancel()
        await asyncio.wait((call,))
        return time.perf_counter() - began


def by_hand() -> float:
    """Seconds of a new interpreter for one call."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", BY_HAND], capture_output=True, check=True)
    json.loads(done.stdout)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    count = parser.parse_args().rounds
    threaded, one, big, stuck = tool(effect="read")(double), isolated(double), isolated(much), isolated(hangs)
    subjects: dict[str, Callable[[], float]] = {
        "thread": lambda: asyncio.run(timed(ask(threaded, 4))),
        "by hand": by_hand,
        "cold": lambda: asyncio.run(timed(ask(isolated(double), 4))),
        "warm": lambda: asyncio.run(warm(one, 4)),
        "1 MB": lambda: asyncio.run(warm(big, MEGABYTE)),
        "kill": lambda: asyncio.run(killed(stuck)),
    }
    taken = rounds(subjects, count)
    figures = {name: median(values) * 1000 for name, values in taken.items()}
    memory = asyncio.run(ask(isolated(resident), 0)()) / 1e6  # type: ignore[arg-type]
    table(["call", "ms, median", "ms, best"], [(n, figures[n], min(v) * 1000) for n, v in taken.items()])
    print(f"\na spare holds {memory:.0f} MB")
    finish("process", {"milliseconds": figures, "spare_megabytes": memory})


if __name__ == "__main__":
    main()
