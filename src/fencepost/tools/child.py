"""The other side of a process tool: this module's `main` is all that a child process does.

Rule 1: it imports the tool's module first, then waits for one request, runs the body once, and ends.
Rule 2: it answers `began` immediately before the body starts. Without it, the parent knows that nothing ran.
Rule 3: it ends by itself: when its parent is gone, when nobody wants it, and at the call's deadline, which the
kernel's timer keeps even if the body never gives the interpreter back.
Rule 4: nothing is tidied up after the answer. What a body leaves running ends with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from fencepost.core.errors import OutcomeUnknown, ToolFailed
from fencepost.core.values import stored
from fencepost.tools.channel import (
    HEAD,
    MAX_REQUEST,
    MAX_WORDS,
    Frame,
    ProcessLimits,
    Request,
    bounded,
    frame,
    head_of,
    named_and_said,
    unraised,
    words,
)
from fencepost.tools.function import FunctionTool

# A spare that nobody used for so long gives its memory back; the next call then starts a fresh one.
IDLE_SECONDS = 300.0
# The run's own deadline comes first; this one is for a parent that is stopped or stuck.
DEADLINE_GRACE = 1.0


def main(descriptor: int, module: str, file: str, name: str, schema: str) -> None:
    """Run one call for the parent at the other end of the socket, then return."""
    channel = socket.socket(fileno=descriptor)
    body, problem = imported(module, file, name, schema)
    channel.sendall(frame(Frame.READY))
    request = received(channel)
    if request is None:
        return
    if body is None:
        channel.sendall(frame(Frame.REFUSED, bounded(problem, MAX_WORDS)))
        return
    channel.sendall(answered(channel, body, request))


def imported(module: str, file: str, name: str, schema: str) -> tuple[FunctionTool | None, str]:
    """The tool of that name in that module, or why it cannot be used."""
    try:
        body = found(module, file, name)
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything when it is imported
        said = named_and_said(unraised(error))
        return None, f"a new process cannot import {module}.{name} ({said})"
    if body.definition.schema != schema:
        return (
            None,
            f"{module}.{name} takes other arguments in a new process than here; restart with the same code",
        )
    return body, ""


def found(module: str, file: str, name: str) -> FunctionTool:
    """The tool of that name in that module; a plain function is made one."""
    value: Any = functools.reduce(getattr, name.split("."), module_of(module, file))
    return value if isinstance(value, FunctionTool) else FunctionTool(value)


def module_of(name: str, file: str) -> ModuleType:
    """The module of that name from that file, also where an import by name would not find it."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if not file or (spec is not None and spec.origin == file):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def received(channel: socket.socket, *, idle: float = IDLE_SECONDS) -> Request | None:
    """The one request, or None when nobody wants anything any more; `idle` is in seconds."""
    channel.settimeout(idle)
    try:
        head = _exactly(channel, HEAD.size)
        if head is None:
            return None
        _, length = head_of(head)
        data = _exactly(channel, length) if length <= MAX_REQUEST else None
    except TimeoutError:
        return None
    channel.settimeout(None)
    return None if data is None else msgspec.json.decode(data, type=Request)


def answered(channel: socket.socket, body: FunctionTool, request: Request) -> bytes:
    """Run the body under its limits; the frame that says what came of it."""
    try:
        prepared = body.prepare(request.arguments)
        call = functools.partial(body.function, **body.values(prepared, request.context))
        confine(request.limits, request.deadline - time.monotonic() + DEADLINE_GRACE)
    except BaseException as error:  # noqa: BLE001 - nothing ran yet, whatever it is
        return frame(Frame.REFUSED, words(error))
    channel.sendall(frame(Frame.BEGAN))
    try:
        value = run(call)
    except ToolFailed as error:
        return frame(Frame.FAILED, words(error))
    except OutcomeUnknown as error:
        return frame(Frame.UNKNOWN, words(error))
    except BaseException as error:  # noqa: BLE001 - foreign code makes one failed call (contract 5.2)
        return frame(Frame.RAISED, unraised(error))
    try:
        kept = stored(value, limit=request.limits.output_bytes)
    except MemoryError:  # the body has ended well: its effect counts, whatever became of its words
        return frame(Frame.TEXT, b"<the result did not fit into the memory of its process>")
    kind = Frame.VALUE if kept.json and not kept.cut else Frame.TEXT
    return frame(kind, kept.text.encode())


def run(call: Callable[[], Any]) -> Any:
    """What the body returns; an async one gets an event loop of its own."""
    value = call()
    if not inspect.isawaitable(value):
        return value

    async def waiting() -> Any:
        return await value

    # Not asyncio.run: it would wait for threads that the body left behind.
    return asyncio.new_event_loop().run_until_complete(waiting())


def confine(limits: ProcessLimits, seconds: float) -> None:
    """Put this process, and all it will start, under its limits; the timer ends it after so many seconds."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    used = int(spent.ru_utime + spent.ru_stime) + 1  # imports are not the call's
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_seconds + used),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    """So many bytes, or None when the other end is gone."""
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionError):  # the parent is gone: nobody to tell
        main(int(sys.argv[1]), *sys.argv[2:])
