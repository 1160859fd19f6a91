"""A process that uses a store until it is killed, and says on its output what was acknowledged.

`python -m tests.stores.victim PATH POINT:N` dies by SIGKILL the N-th time the hook POINT is reached;
`python -m tests.stores.victim PATH run:TASK:N` makes N commits of one task, or until it is fenced;
with `:BYTES` behind it no file may grow larger than that.
"""

# ruff: noqa: T201 - what it prints is how it speaks

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections import Counter

from fencepost.core.errors import Fenced, StoreFull
from fencepost.ports import AuditRecord, Beat
from fencepost.stores.sqlite import SqliteStore
from fencepost.testing.facts import TENANT, asked, claimed_again, ended, held, new_task
from fencepost.testing.store_interventions import approved
from fencepost.testing.store_sides import late_record


def say(*words: object) -> None:
    print(*words, flush=True)


async def everything(path: str, point: str, nth: int) -> None:
    """Every kind of write, in an order in which each is possible, until the hook kills us."""
    reached: Counter[str] = Counter()

    def die(at: str) -> None:
        reached[at] += 1
        if at == point and reached[at] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteStore(path, hooks=die)
    await store.open_task(new_task())
    say("opened")
    holder = await claimed_again(store)
    say("claimed")
    for step in range(8):
        await holder.append(asked(step), ended(step), artifacts=((f"d-{step}", b"x" * 5000),))
        say("appended", holder.seq)
    store.beat([Beat(TENANT, "t-1", 1, 5.0)], lease_seconds=30)
    say("beat")
    await store.record_late(late_record())
    say("late")
    await store.audit(AuditRecord(TENANT, "eve", "approve", "t-1", "refused"))
    say("audited")
    await holder.wait()
    say("appended", holder.seq)
    row, _ = await store.intervene(TENANT, "t-1", "bob", lambda *_: approved())
    say("appended", row.seq)
    again = await claimed_again(store)
    await store.release(again.lease, seconds=0)
    say("released")
    old = await held(store, "old", tenant="other")
    await old.stop()
    await store.prune("other", older_than=0.0)
    say("pruned")


async def run(path: str, task: str, steps: int, largest: int | None = None) -> None:
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    store = SqliteStore(path)
    holder = await held(store, task)
    try:
        for step in range(steps):
            await holder.append(asked(step), ended(step))
            say("appended", holder.seq)
    except Fenced:
        say("fenced", holder.seq)
    except StoreFull:
        say("full", holder.seq)
    await store.close()


if __name__ == "__main__":
    what, name, *numbers = sys.argv[2].split(":")
    if what == "run":
        asyncio.run(run(sys.argv[1], name, *map(int, numbers)))
    else:
        asyncio.run(everything(sys.argv[1], what, int(name)))
