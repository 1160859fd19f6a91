"""One run of a configured program: no shell, a deadline, bounded output, nothing left behind.

The program gets its own session, so that its whole process group is killed on timeout and on cancel. After
a SIGKILL of ourselves only the kernel helps: with `dies_with_us` it kills the program (not its children) when
we end, where util-linux's setpriv is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO

import msgspec

from fencepost.agents.incident.sources.errors import Unavailable

DRAIN_SECONDS = 1.0  # after the end, for what is still in the pipes; a child left behind may hold them open
REAP_SECONDS = 5.0  # a killed process that is not gone by then hangs in the kernel; waiting longer is no use


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended: its exit code (negative: the signal) and the first part of what it wrote."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    cut: bool


class TimedOut(Exception):
    """The program ran past its deadline and was killed with its group."""


async def run_program(
    argv: Sequence[str],
    *,
    seconds: float,
    output_bytes: int,
    environment: Mapping[str, str],
    dies_with_us: bool = False,
) -> Finished:
    """The program has ended by itself, or `TimedOut` was raised and its process group was killed.

    Output past `output_bytes` a stream is read and dropped. Standard input is empty. Raises `Unavailable`
    when it cannot be started. A child that the program left behind is let be: starting one may be its work.
    """
    async with _pipe(output_bytes) as (stdout, out), _pipe(output_bytes) as (stderr, err):
        try:
            process = await asyncio.create_subprocess_exec(
                *(_bound_to_us(argv, environment) if dies_with_us else argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as failure:
            raise Unavailable(
                f"{argv[0]!r} could not be started ({reason(failure)}); check that it is there."
            ) from None
        out.close()
        err.close()
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            raise TimedOut from None
        finally:
            await _end(process)
        await asyncio.wait([stdout.ended, stderr.ended], timeout=DRAIN_SECONDS)
        return Finished(
            exit_code=code,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            cut=stdout.cut or stderr.cut,
        )


def _bound_to_us(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments that start the program so that it is killed when this thread's process ends.

    Raises FileNotFoundError when the program is not there, which setpriv would only say by an exit code.
    """
    program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return tuple(argv)
    return (setpriv, "--pdeathsig", "KILL", "--", program, *argv[1:])


def reason(failure: BaseException) -> str:
    """The system's words for a failure, without its paths."""
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return type(failure).__name__


class _Head(asyncio.Protocol):
    """The first bytes of a stream; the rest is read, so that the writer is not blocked, and dropped."""

    def __init__(self, bytes_max: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bytes_max = bytes_max

    def data_received(self, data: bytes) -> None:
        room = self._bytes_max - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


@asynccontextmanager
async def _pipe(bytes_max: int) -> AsyncIterator[tuple[_Head, BinaryIO]]:
    """Our end as a `_Head` and the program's end; both are closed on leaving.

    asyncio's own pipes are not used: with them, waiting for a program also waits for every child that
    inherited its output.
    """
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as writer:
        transport, head = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _Head(bytes_max), os.fdopen(ours, "rb")
        )
        try:
            yield head, writer
        finally:
            transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """The program is over: if it had not ended by itself, it and its whole group were killed."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_SECONDS):
            await process.wait()
