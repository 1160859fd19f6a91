"""Kill the job of payments.py at every place there is, carry it on in a new process, and say how that ended.

Rules: one forked child for each process that may die, from a parent that has no threads and opens no store;
places are discovered by running the job once; after a kill the job is carried on as a person at the keyboard
would: run again, look at the file when the task asks what became of a payment, say so, run again. No payment
is made here. `python -m tests.crash.matrix FOLDER` prints one JSON line for each trial, after one with the
places.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fencepost.core.entries import CallEnded, CallStarted, Replied, Stopped
from fencepost.core.errors import StoreFailed
from fencepost.service.tasks import resolve_outcome
from fencepost.stores import sqlite
from fencepost.testing import pauses
from fencepost.testing.pauses import Pauses, Place
from tests.crash import payments

# A job asks about two payments; more rounds than this mean that it goes round in circles.
ROUNDS_MOST = 6


def in_child(work: Callable[[], dict[str, Any]], place: Place | None = None) -> dict[str, Any] | None:
    """What the work returned in a process of its own, or None when SIGKILL ended that process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            hooks = Pauses(place)
            pauses.arm(hooks)
            done = work()
            done["places"], done["reached"] = [str(each) for each in hooks.places()], hooks.reached
            os.write(writing, json.dumps(done).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(f"a child ended with status {status}")
    told: dict[str, Any] = json.loads(answer)
    return told


def carry_on(folder: Path, *, reads_only: bool) -> dict[str, Any]:
    """Run the job in this process."""
    result = asyncio.run(payments.carry_on(folder, reads_only=reads_only))
    return {
        "outcome": result.outcome,
        "text": result.text,
        "state": result.state.value,
        "asks": [f"{ask.step}.{ask.position}" for ask in result.asks],
    }


def look_and_say(folder: Path, asks: Iterable[str]) -> dict[str, Any]:
    """Answer each question about an outcome by what the file of payments says."""
    said = {}

    async def answer() -> None:
        store = sqlite.SqliteStore(folder / "store.db")
        try:
            for where in asks:
                paid = any(
                    line.startswith(f"{payments.TASK}:{where} ")
                    for line in payments.lines(folder / "payments")
                )
                said[where] = "happened" if paid else "did_not_happen"
                content = f"paid {payments.PAID[where]}" if paid else ""
                await resolve_outcome(
                    store, payments.TASK, where, said[where], content=content, by=payments.APPROVER
                )
        finally:
            await store.close()

    asyncio.run(answer())
    return said


def trial(folder: Path, kills: tuple[Place, ...], *, reads_only: bool) -> dict[str, Any]:
    """Kill the job at these places, one process each, carry it on to its end, and say how that went."""
    folder.mkdir()
    died = [in_child(lambda: carry_on(folder, reads_only=reads_only), place) is None for place in kills]
    left = payments.lines(folder / "payments")
    told: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    for _ in range(ROUNDS_MOST):
        found = in_child(lambda: carry_on(folder, reads_only=reads_only))
        assert found is not None
        told = found
        if not told["asks"]:
            break
        said = in_child(partial(look_and_say, folder, told["asks"]))
        assert said is not None
        resolved.update({where: said[where] for where in told["asks"]})
    journal = in_child(lambda: {"problems": asyncio.run(problems(folder))})
    assert journal is not None
    return {
        "kills": [str(place) for place in kills],
        "died": died,
        "text": told["text"],
        "state": told["state"],
        "resolved": resolved,
        "left": left,
        "payments": payments.lines(folder / "payments"),
        "labels": sorted(p.name for p in (folder / "labels").glob("*")),
        "label_requests": payments.lines(folder / "label-requests"),
        "problems": journal["problems"],
    }


async def problems(folder: Path) -> list[str]:
    """What is wrong with the job's journal, and with the effects it has no start for."""
    store = sqlite.SqliteStore(folder / "store.db")
    try:
        found = [await store.verify("local", payments.TASK)]
        entries = await store.entries("local", payments.TASK)
    except StoreFailed as why:
        return [str(why)]
    finally:
        await store.close()
    bodies = [entry.body for entry in entries]
    if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        found.append("the seqs have gaps")
    if [type(body) is Stopped for body in bodies].count(True) != 1 or type(bodies[-1]) is not Stopped:
        found.append("there is not exactly one terminal entry, last")
    asked = [(b.step, i) for b in bodies if isinstance(b, Replied) for i in range(len(b.calls))]
    ended = [(b.step, b.position) for b in bodies if isinstance(b, CallEnded)]
    if sorted(asked) != sorted(ended):
        found.append(f"calls {asked} and results {ended} do not match one to one")
    started = {b.key for b in bodies if isinstance(b, CallStarted)}
    effects = {line.split()[0] for line in payments.lines(folder / "payments")}
    if not effects <= started:
        found.append(f"effects without a started entry: {effects - started}")
    return [each for each in found if each]


def main(arguments: list[str]) -> int:
    """Print the places, then one line for each trial: every place, those of `--at=`, or `--pairs` of them."""
    reads_only, pairs = "--reads" in arguments, "--pairs" in arguments
    folder = Path(next(each for each in arguments if not each.startswith("--")))
    (folder / "whole").mkdir()
    whole = in_child(lambda: carry_on(folder / "whole", reads_only=reads_only))
    assert whole is not None
    places = [Place.parse(each) for each in whole["places"]]
    _tell({"places": whole["places"], "reached": whole["reached"], "text": whole["text"]})
    kills: list[tuple[Place, ...]] = [(each,) for each in places]
    if chosen := [Place.parse(each.removeprefix("--at=")) for each in arguments if each.startswith("--at=")]:
        kills = [(each,) for each in chosen]
    if pairs:
        kills = [(a, b) for a in places for b in places if _is_in_pairs(a, b)]
    for number, each in enumerate(kills):
        _tell(trial(folder / f"trial-{number}", each, reads_only=reads_only))
    return 0


def _is_in_pairs(first: Place, second: Place) -> bool:
    """Whether two kills are tried together: just before a commit is where the effect before it ended."""
    return {first.point, second.point}.isdisjoint({"before", "inside"})


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
