"""Durable steps per second of the SQLite store beside raw fenced appends of the same rows, in one run.

Run: python -m bench.sqlite [--rounds N] [--steps N] [--folder DIR] [--quick]

A step is what the loop commits for one call: [Replied, CallStarted], then [CallEnded, ModelAsked]: two
commits, four entries. Everything is written to new files of one folder with the store's schema and settings.

raw      the fence and the rows and nothing else: BEGIN IMMEDIATE, UPDATE tasks ... RETURNING, two INSERTs,
         COMMIT, one commit after another; bodies encoded and chain heads computed beforehand
gathered the same statements of all runs in one transaction, a savepoint each: the most gathering could reach
store    SqliteStore.append, called by so many runs at once
loop     run_task on a SqliteStore: the model, the tool and the loop are in the figure

Target: the store makes at least 0.8 of the raw steps, alone and at once; bytes per step do not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from bench.loop import agent
from bench.measure import finish, median, rounds, table
from fencepost import run_task
from fencepost.core.entries import (
    AdmittedCall,
    CallEnded,
    CallStarted,
    CallStatus,
    EntryBody,
    ModelAsked,
    Replied,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.messages import Finish, Usage
from fencepost.ports import Totals
from fencepost.stores.sqlite import SqliteStore
from fencepost.stores.sqlite.connection import BUSY_SECONDS, Opener
from fencepost.testing.facts import TENANT, Holder, held

RESULT = "r" * 300
DIGEST = "d" * 64
AT_ONCE = (1, 8, 32)
LENGTHS = (100, 400, 1600)

# The fence in its plainest form; the columns are those the store's own statement sets.
FENCE = """
UPDATE tasks SET seq = seq + 2, chain = ?, updated_at = ?, seconds = ?,
  tokens = ?, cost_nano = ?, steps = ?, calls = ?
WHERE tenant = ? AND id = ? AND epoch = ? AND seq = ? AND state = 'RUNNING' RETURNING number
"""
ENTRY = """
INSERT INTO entries (task, seq, epoch, at, by, attempt, commit_id, seconds, kind, v, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def commits_of(step: int) -> tuple[tuple[EntryBody, ...], ...]:
    """The two commits of one step."""
    call = AdmittedCall(f"call_{step}", f"call_{step}", "query_metrics", '{"service":"payment"}', DIGEST)
    usage = Usage(input_tokens=900, output_tokens=40)
    return (
        (
            Replied(step, 1, Finish.TOOL_CALLS, "", (call,), usage=usage, charged_tokens=940, model="bench"),
            CallStarted(step, 0, 1, f"{TENANT}/t/{step}.0"),
        ),
        (
            CallEnded(step, 0, CallStatus.OK, RESULT, digest=DIGEST, size_bytes=len(RESULT)),
            ModelAsked(step + 1, 1, 5000, model="bench"),
        ),
    )


# --- raw -------------------------------------------------------------------------------------------------

Append = tuple[tuple[object, ...], list[tuple[object, ...]]]  # values of the fence, and of its entries


def raw_appends(task: str, steps: int) -> Iterator[Append]:
    """The values of every append of one task, in order."""
    seq, chain = 1, "0" * 64
    for step in range(1, steps + 1):
        for number, bodies in enumerate(commits_of(step)):
            entries: list[tuple[object, ...]] = []
            for body in bodies:
                data = encode_body(body)
                chain = link(chain, kind_of(body), data)
                place = seq + len(entries) + 1
                commit_id = f"{task}-{step}-{number}"
                entries.append((place, 1, 1e9, "w", 1, commit_id, 1.5, kind_of(body), 1, data))
            yield (chain, 1e9, 1.5, 940 * step, 0, step, step, TENANT, task, 1, seq), entries
            seq += len(entries)


def raw_append(db: apsw.Connection, append: Append) -> None:
    """One fenced append; the transaction is the caller's."""
    values, entries = append
    (found,) = db.execute(FENCE, values).fetchall()
    for entry in entries:
        db.execute(ENTRY, (found[0], *entry)).fetchall()


def raw(folder: Path, steps: int, runs: int) -> float:
    """Seconds a step, one commit after another."""
    return raw_seconds(folder, steps, runs, gathered=False)


def gathered(folder: Path, steps: int, runs: int) -> float:
    """Seconds a step, all runs in one transaction each time."""
    return raw_seconds(folder, steps, runs, gathered=True)


def raw_seconds(folder: Path, steps: int, runs: int, *, gathered: bool) -> float:
    """Seconds a step of raw appends to a new file."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place, "raw.db")
        asyncio.run(prepare(path, runs))
        db = Opener(path, busy_seconds=BUSY_SECONDS, vfs=None).another()
        turns = list(zip(*(raw_appends(f"t-{run}", steps) for run in range(runs)), strict=True))
        began = time.perf_counter()
        for turn in turns:
            if gathered:
                db.execute("BEGIN IMMEDIATE").fetchall()
                for append in turn:
                    db.execute("SAVEPOINT member").fetchall()
                    raw_append(db, append)
                    db.execute("RELEASE member").fetchall()
                db.execute("COMMIT").fetchall()
                continue
            for append in turn:
                db.execute("BEGIN IMMEDIATE").fetchall()
                raw_append(db, append)
                db.execute("COMMIT").fetchall()
        seconds = time.perf_counter() - began
        db.close()
    return seconds / (steps * runs)


async def prepare(path: Path, runs: int) -> None:
    """A store with so many claimed tasks."""
    store = SqliteStore(path)
    for run in range(runs):
        await held(store, f"t-{run}", lease_seconds=None)
    await store.close()


# --- ours ------------------------------------------------------------------------------------------------


async def work(holder: Holder, steps: Sequence[tuple[tuple[EntryBody, ...], ...]]) -> None:
    """One run as the loop writes it."""
    for step, commits in enumerate(steps, 1):
        totals = Totals(tokens=940 * step, steps=step, calls=step)
        for bodies in commits:
            await holder.append(*bodies, seconds=1.5, totals=totals)


def store(folder: Path, steps: int, runs: int) -> float:
    """Seconds a step through SqliteStore.append."""

    async def main(path: Path) -> float:
        opened = SqliteStore(path)
        holders = [await held(opened, f"t-{run}", lease_seconds=None) for run in range(runs)]
        bodies = [commits_of(step) for step in range(1, steps + 1)]
        began = time.perf_counter()
        await asyncio.gather(*(work(holder, bodies) for holder in holders))
        seconds = time.perf_counter() - began
        await opened.close()
        return seconds / (steps * runs)

    with tempfile.TemporaryDirectory(dir=folder) as place:
        return asyncio.run(main(Path(place, "store.db")))


def loop(folder: Path, steps: int, runs: int) -> float:
    """Seconds a step of whole tasks."""

    async def main(path: Path) -> float:
        opened = SqliteStore(path)
        made = agent(steps)
        began = time.perf_counter()
        await asyncio.gather(*(run_task(made, "go", store=opened) for _ in range(runs)))
        seconds = time.perf_counter() - began
        await opened.close()
        return seconds / (steps * runs)

    with tempfile.TemporaryDirectory(dir=folder) as place:
        return asyncio.run(main(Path(place, "loop.db")))


def bytes_per_step(folder: Path, steps: int) -> float:
    """What a step adds to the file, of a task so many steps long."""

    async def fill(path: Path, count: int) -> None:
        opened = SqliteStore(path)
        holder = await held(opened, lease_seconds=None)
        await work(holder, [commits_of(step) for step in range(1, count + 1)])
        await opened.close()

    with tempfile.TemporaryDirectory(dir=folder) as place:
        empty, full = Path(place, "empty.db"), Path(place, "full.db")
        asyncio.run(fill(empty, 0))
        asyncio.run(fill(full, steps))
        return (full.stat().st_size - empty.stat().st_size) / steps


def main() -> None:
    """Measure, print, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=800, help="of all runs together, in each round")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a RAM disk says nothing")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    options = parser.parse_args()
    count, steps = (1, 64) if options.quick else (options.rounds, options.steps)
    ways: dict[str, Callable[[Path, int, int], float]] = {
        "raw": raw, "gathered": gathered, "store": store, "loop": loop,
    }  # fmt: skip
    rows, results = [], {}
    for runs in AT_ONCE:
        each = max(1, steps // runs)
        subjects: dict[str, Callable[[], float]] = {
            name: functools.partial(way, options.folder, each, runs) for name, way in ways.items()
        }
        taken = rounds(subjects, count)
        rate = {name: 1 / median(seconds) for name, seconds in taken.items()}
        pairs = {
            name: median([base / mine for base, mine in zip(taken["raw"], taken[name], strict=True)])
            for name in ways
        }
        of_gathered = median([b / m for b, m in zip(taken["gathered"], taken["store"], strict=True)])
        rows.append([runs, *(round(rate[name]) for name in ways), pairs["store"], of_gathered, pairs["loop"]])
        results[str(runs)] = {
            "steps_per_second": {name: round(value) for name, value in rate.items()},
            "store_of_raw": round(pairs["store"], 3),
            "store_of_gathered": round(of_gathered, 3),
            "loop_of_raw": round(pairs["loop"], 3),
        }
    headings = ["runs", *(f"{name} steps/s" for name in ways), "store/raw", "store/gathered", "loop/raw"]
    table(headings, rows)
    sizes = {str(length): round(bytes_per_step(options.folder, length)) for length in LENGTHS}
    print()
    table(["steps", "bytes a step"], list(sizes.items()))
    finish("sqlite", {"runs": results, "bytes_per_step": sizes})


if __name__ == "__main__":
    main()
