"""Whether the process that holds a task's lease is still there, as far as this machine can tell.

Rule 1: only a process of this very host and process namespace is judged, and only its certain absence counts:
when in doubt it is there, and its lease is waited for.
Rule 2: a process is its number *and* its start: numbers are used again.
Rule 3: being wrong costs a takeover, never two writers: the fence is in the store.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from msgspec import Struct

ENDED_STATES = frozenset("ZX")  # a zombie has ended, its parent just has not asked


class Process(Struct, frozen=True):
    """A process as it can be told from every other one on a host."""

    host: str
    number: int
    namespace: str
    start: str
    boot: str
    ended: bool = False


def worker_name(proc: Path = Path("/proc")) -> str:
    """A name for this process as a worker, from which another process can tell whether it is still there."""
    me = this_process(proc)
    if me is None:
        return f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(3)}"
    return f"{me.host}:{me.number}:{me.namespace}-{me.start}-{me.boot}-{secrets.token_hex(3)}"


def this_process(proc: Path = Path("/proc")) -> Process | None:
    """This process, None where the machine has no /proc."""
    return _process(os.getpid(), proc)


def is_gone(worker: str, proc: Path = Path("/proc")) -> bool:
    """Whether the worker of that name was a process of this host that has certainly ended."""
    named = parse_worker(worker)
    here = this_process(proc)
    if named is None or here is None or named.host != here.host:
        return False
    if named.boot and named.boot != here.boot:
        return True
    if named.namespace and named.namespace != here.namespace:
        return False
    found = _process(named.number, proc)
    if found is None:
        return not _answers(named.number)
    return found.ended or (bool(named.start) and found.start != named.start)


def parse_worker(worker: str) -> Process | None:
    """The process that a worker's name speaks of, None for a name of another form."""
    host, _, rest = worker.partition(":")
    number, _, token = rest.partition(":")
    if not host or not number.isascii() or not number.isdigit():
        return None
    parts = token.split("-")
    namespace, start, boot = parts[:3] if len(parts) == 4 else ("", "", "")
    return Process(host, int(number), namespace, start, boot)


def _process(number: int, proc: Path) -> Process | None:
    try:
        stat = (proc / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        namespace = str((proc / "self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and parentheses
    return Process(
        os.uname().nodename, number, namespace, after_name[19], boot, after_name[0] in ENDED_STATES
    )


def _answers(number: int) -> bool:
    """Whether the number is in use, also where /proc hides the processes of others."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
