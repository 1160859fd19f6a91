"""Child processes that can be killed with all they started.

Rule 1: where the kernel allows it, a child lives in a PID namespace of its own. Its first process is a small shell
that only waits; when that is killed, the kernel kills all that is left, double forks included.
Rule 2: where it does not, a child has a process group and a mark in its environment, and killing means the group
and every process that carries the mark, until none is found. A process that drops its environment escapes.
Rule 3: a child dies with its parent (the kernel's parent death signal). That signal comes when the *thread* that
started the child ends, so children are started from the thread of the event loop.
Rule 4: a child that was killed is gone when `Child.gone` returns, not only told to go.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

MARK = "FENCEPOST_CHILD"
# How long a killed tree may take to be gone; a process stuck in the kernel is then left to it.
GONE_SECONDS = 5.0
# Where a process cannot be waited for, it is looked at so often.
POLL_SECONDS = 0.005
# A tree that forks faster than we look is looked for so often.
MAX_SWEEPS = 50
PROBE_SECONDS = 5.0

_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
_USER = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child")
# A first process of a namespace ignores most signals; so the shell is the first, and the child an ordinary one.
_FIRST = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
_BOOT = (
    "import ctypes, json, signal, sys; fd, path, *rest = sys.argv[1:]; sys.path[:] = json.loads(path);"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"  # PR_SET_PDEATHSIG
    "sys.argv[:] = [sys.argv[0], fd, *rest];"
    "import runpy; runpy.run_module('fencepost.tools.child', run_name='__main__')"
)


@functools.cache
def prefix() -> tuple[str, ...]:
    """The command before the interpreter that gives it a namespace; empty where that is not possible."""
    for way in (_NAMESPACE, _USER):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = (*_WITH_PARENT, *way, *_FIRST, "true")
            tried = subprocess.run(  # noqa: S603 - a fixed command
                command, capture_output=True, timeout=PROBE_SECONDS, check=False
            )
            if tried.returncode == 0:
                return (*_WITH_PARENT, *way, *_FIRST)
    return ()


class Child:
    """One child process and our end of its socket. Made by `started`, and killed by `kill` on every path."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, mark: str, *, namespace: bool
    ) -> None:
        self.channel = channel
        self.ready = False  # whether it has said so, and the word was read
        self._process, self._mark, self._namespace = process, mark, namespace
        self._owner = os.getpid(), threading.get_ident()

    @property
    def ended(self) -> bool:
        """Whether the child is known to be over."""
        return self._process.poll() is not None

    @property
    def here(self) -> bool:
        """Whether it lives and was started by this very thread, with which it would end."""
        mine = self._owner == (os.getpid(), threading.get_ident())
        return mine and self.channel.fileno() != -1 and not self.ended

    def kill(self) -> None:
        """Tell the whole tree to end at once, and close the socket; safe to call twice."""
        if self.channel.fileno() == -1:
            return
        self.channel.close()
        if self._owner[0] != os.getpid():
            return  # a fork of ours has only our memory of it
        if not self._namespace:
            sweep(None if self.ended else self._process.pid, self._mark)
            return
        # Not the process we started: it waits for the namespace's first, and that one is gone when the tree is.
        first = _first_of_namespace(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            if first is not None:
                os.kill(first, signal.SIGKILL)
            else:
                self._process.kill()

    async def gone(self, seconds: float = GONE_SECONDS) -> int | None:
        """The exit status as a shell tells it (above 128: a signal), once it is over; None if it is not by then."""
        try:
            async with asyncio.timeout(seconds):
                await self._over()
        except TimeoutError:
            return None
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    async def _over(self) -> None:
        """Return once the process has ended; it is not reaped yet."""
        if self.ended:
            return
        try:
            watched = os.pidfd_open(self._process.pid)
        except OSError:  # no descriptor left, or an old kernel: what the call brought must not be lost for it
            while self._process.poll() is None:  # noqa: ASYNC110 - there is nothing else that could tell us
                await asyncio.sleep(POLL_SECONDS)
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(watched, over.set)
            await over.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)

    def buried(self) -> None:
        """Killed, and waited for without a loop: at the end of the program or of the tool's life."""
        self.kill()
        if self._owner[0] == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GONE_SECONDS)


def started(*arguments: str, way: tuple[str, ...] | None = None) -> Child:
    """A child that runs `fencepost.tools.child` with these arguments; its output goes nowhere.

    `way` is the command that gives it a namespace, () for none, None for what this machine allows.
    """
    way = prefix() if way is None else way
    ours, theirs = socket.socketpair()
    mark = secrets.token_hex(16)
    boot = (sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path))
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and a tool's module and name
            (*way, *boot, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return Child(process, ours, mark, namespace=bool(way))


def sweep(group: int | None, mark: str) -> None:
    """Kill the process group and every process that carries the mark, until none is found."""
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(MAX_SWEEPS):
        marked = [pid for pid in _processes() if _carries(pid, mark)]
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in os.listdir("/proc") if each.isdigit()]  # noqa: PTH208 - names are enough
    return []


def _carries(pid: int, mark: str) -> bool:
    """Whether a living process has the mark; the dead have no environment."""
    with contextlib.suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _first_of_namespace(starter: int) -> int | None:
    """The process that the namespace's starter waits for; None before it is there."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{starter}/task/{starter}/children").read_text().split()[0])
    return None
