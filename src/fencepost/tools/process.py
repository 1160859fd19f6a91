"""A typed function that runs in a child process: `@tool(isolation="process")`.

Rule 1: arguments are validated in the run and again in the child; the body runs once, in a fresh process.
Rule 2: when the run stops waiting (timeout, cancel, lost lease, end of the worker), the child is killed with all it
started (contract 6.7). Also after a result nothing of it lives on.
Rule 3: a child that ended without a verdict after its body began leaves the outcome of a write unknown
(contract 8.3). Before that nothing ran, and the call has merely failed.
Rule 4: one spare child per tool is kept warm, with the tool's module imported; it is used once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import signal
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from fencepost.core.errors import DefinitionInvalid, OutcomeUnknown, ToolFailed
from fencepost.core.messages import Effect
from fencepost.core.values import MAX_WHOLE
from fencepost.ports import CallContext, Prepared
from fencepost.tools.channel import (
    HEAD,
    MAX_WORDS,
    Frame,
    ProcessLimits,
    Request,
    head_of,
    named_and_said,
    request_frame,
)
from fencepost.tools.children import Child, started
from fencepost.tools.function import FunctionTool

# The time of a call made directly, without a run, where the tool has no timeout: that of Limits.tool_seconds.
DIRECT_SECONDS = 60.0
# A spare may have died of idleness or with the thread that started it; a fresh child has no such excuse.
MOST_CHILDREN = 2
# Beside the result itself: words of an exception, where the result may be tiny.
MARGIN = 2 * MAX_WORDS
# A child that died without a word is waited for so long to learn how; its socket closes a little earlier.
STATUS_SECONDS = 1.0
VERDICTS = frozenset({Frame.VALUE, Frame.TEXT, Frame.FAILED, Frame.UNKNOWN, Frame.RAISED, Frame.REFUSED})


class ProcessTool(FunctionTool):
    """A function whose calls each run in a process of their own; satisfies `ports.Tool`."""

    def __init__(
        self, function: Callable[..., Any], *, process: ProcessLimits | None = None, **options: Any
    ) -> None:
        super().__init__(function, **options)
        self._limits = process or ProcessLimits()
        _check(self._limits, f"tool {self._definition.name}")
        self.target = target_of(function, f"tool {self._definition.name}")
        self.spare = Spare((*self.target, self._definition.schema))

    @property
    def threaded(self) -> bool:
        """False: whoever waits may stop waiting, and then the child is killed."""
        return False

    async def run(self, prepared: Prepared, context: CallContext | None, /) -> Any:
        """The function's own result, from a child that is gone when this returns or raises."""
        seconds = context.seconds if context else self._definition.timeout or DIRECT_SECONDS
        request = Request(prepared.canonical, context, time.monotonic() + seconds, self._limits)
        if context is not None:
            return await self._verdict(request)
        async with asyncio.timeout(seconds):  # nobody else watches the time of a direct call
            return await self._verdict(request)

    async def warm(self) -> None:
        """A child waits for the next call, with the tool's module imported."""
        child = self.spare.taken()
        try:
            child.ready = child.ready or await _frame(child, 0) is not None
        except BaseException:
            child.buried()
            raise
        self.spare.put(child)

    async def _verdict(self, request: Request) -> Any:
        asked = request_frame(request)
        for _ in range(MOST_CHILDREN):
            child = self._child()
            status: int | None = None
            try:
                kind, payload = await self._answer(child, asked)
                if kind not in VERDICTS:
                    status = await child.gone(STATUS_SECONDS)
            finally:
                await self._ended(child)
            if kind is not Frame.READY:
                return self._settled(kind, payload, status)
        raise self._failed("nothing ran: its process ended before it could begin")

    async def _ended(self, child: Child) -> None:
        """Kill the child, wait until all of it is gone, and have the next one started soon."""
        child.kill()
        try:
            await asyncio.shield(child.gone())
        finally:
            # Not before: its imports would take the processor from the body, and its start delay the commit.
            asyncio.get_running_loop().call_soon(self.spare.refill)

    def _child(self) -> Child:
        try:
            return self.spare.taken()
        except OSError as error:
            raise self._failed(f"nothing ran: no process could be started ({error})") from None

    async def _answer(self, child: Child, asked: bytes) -> tuple[Frame, bytes]:
        """The child's verdict; BEGAN when there is none, READY when it never came to the body."""
        began = Frame.READY
        try:
            await asyncio.get_running_loop().sock_sendall(child.channel, asked)
            if not child.ready:
                await _frame(child, 0)
            first = await _frame(child, MAX_WORDS)
            if first is None or first[0] is Frame.REFUSED:
                return first or (Frame.READY, b"")
            began = Frame.BEGAN
            return await _frame(child, self._limits.output_bytes + MARGIN) or (began, b"")
        except ConnectionError:
            return began, b""
        except ValueError:  # somebody else wrote to the socket: who knows what has run
            return Frame.BEGAN, b""

    def _settled(self, kind: Frame, payload: bytes, status: int | None) -> Any:
        """The value of a verdict, or the exception it stands for."""
        match kind:
            case Frame.TEXT:
                return payload.decode("utf-8", "replace")
            case Frame.VALUE:
                return self._read(payload)
            case Frame.FAILED:
                raise ToolFailed(payload.decode("utf-8", "replace"))
            case Frame.UNKNOWN:
                raise OutcomeUnknown(payload.decode("utf-8", "replace"))
            case Frame.REFUSED:
                raise self._failed(f"nothing ran: {payload.decode('utf-8', 'replace')}")
            case Frame.RAISED:
                raise self._failed(named_and_said(payload))
            case _:
                raise self._unheard(f"its process {_end(status)} without a result")

    def _read(self, payload: bytes) -> Any:
        try:
            return json.loads(payload)
        except (ValueError, RecursionError):
            raise self._unheard("its process sent something that is no JSON") from None

    def _failed(self, why: str) -> ToolFailed:
        return ToolFailed(f"{self._definition.name} failed: {why}")

    def _unheard(self, why: str) -> Exception:
        """Nobody heard how the body ended: for a write the outcome is unknown."""
        if self._definition.effect is Effect.WRITE:
            return OutcomeUnknown(f"{self._definition.name}: {why}")
        return self._failed(why)


class Spare:
    """At most one child that has imported the tool's module and waits; killed when its tool is forgotten."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments
        self._waiting: list[Child] = []
        weakref.finalize(self, _bury, self._waiting)

    def taken(self) -> Child:
        """The child that waits, or a new one where it does not live or belongs to another thread."""
        with contextlib.suppress(IndexError):  # another thread may be faster
            while True:
                child = self._waiting.pop()
                if child.here:
                    return child
                child.buried()
        return started(*self._arguments)

    def refill(self) -> None:
        """Have a child for the next call, if this machine has room for one."""
        with contextlib.suppress(OSError):  # the call that was, has its verdict; the next one tries again
            if not self._waiting:
                self._waiting.append(started(*self._arguments))

    def put(self, child: Child) -> None:
        """Keep this child for the next call, unless there is one."""
        if self._waiting:
            child.buried()
        else:
            self._waiting.append(child)


def _bury(children: list[Child]) -> None:
    for child in children:
        child.buried()


def target_of(function: Callable[..., Any], where: str) -> tuple[str, str, str]:
    """Module, its file and the name under which another process finds the function, or DefinitionInvalid."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    spec = getattr(sys.modules.get(module or ""), "__spec__", None)
    if module == "__main__":
        module = spec.name if spec is not None else None
    if not module or not name or "<" in name or inspect.ismethod(function):
        place = "in the script itself" if not module else f"as {name}" if name else "without a name"
        raise DefinitionInvalid(
            f'{where}: isolation="process" needs a function that another process can import by module and name, and'
            f" this one is defined {place}; move it to the top of a module"
        )
    file = spec.origin if spec is not None and spec.has_location else None
    return module, file or "", name


def _check(limits: ProcessLimits, where: str) -> None:
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise DefinitionInvalid(f"{where}: process.{name} must be a whole number above 0, got {value!r}")
    if limits.output_bytes > MAX_WHOLE:
        raise DefinitionInvalid(
            f"{where}: process.output_bytes is at most {MAX_WHOLE}, got {limits.output_bytes}"
        )


async def _frame(child: Child, most: int) -> tuple[Frame, bytes] | None:
    """The next frame; None when the other end is gone, ValueError when it is none or has more bytes than that."""
    head = await _exactly(child, HEAD.size)
    if head is None:
        return None
    kind, length = head_of(head)
    if length > most:
        raise ValueError(f"a frame of {length} bytes, {most} are allowed")
    data = await _exactly(child, length)
    return None if data is None else (kind, data)


async def _exactly(child: Child, size: int) -> bytes | None:
    data = bytearray(size)
    room, receive = memoryview(data), asyncio.get_running_loop().sock_recv_into
    at = 0
    while at < size:
        read = await receive(child.channel, room[at:])
        if not read:
            return None
        at += read
    return bytes(data)


def _end(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "went on"
    if status <= 128:
        return f"ended with exit status {status}"
    number = status - 128
    known = {each.value: each.name for each in signal.Signals}
    return f"was ended by {known.get(number, f'signal {number}')}"
