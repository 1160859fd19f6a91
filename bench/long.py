"""A long task with large results: memory, file and cost per step, from its beginning to its end.

Run: python -m bench.long [--steps N] [--bytes N] [--folder DIR] [--quick]

One task of N steps on a SqliteStore; each step calls one tool, whose result is as large as `--bytes` says and different
each time. The model sees 2 KiB of it, the whole is kept as an artifact. In each tenth of the task: resident memory at
its end, milliseconds a step, and the size of the file with its log, over the bytes of the results so far.

Targets: memory grows by what the model sees and the facts around it, a few KB a step, and not by whole results; the
file is at most 1.5 times the data, its log aside; the last tenth costs what the second does. The first fills caches.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import finish, table
from fencepost import Agent, Finish, Limits, ModelProfile, Reply, ToolCall, Usage, run_task, tool
from fencepost.stores.sqlite import SqliteStore

SHOWN_BYTES = 2048
PARTS = 10
USAGE = Usage(input_tokens=10, output_tokens=5)
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Watched:
    """A model that calls the tool `steps` times, and notes time and memory at the end of each part."""

    profile = ModelProfile("script", input_nano=0, output_nano=0)

    def __init__(self, steps: int, files: list[Path]) -> None:
        self.steps, self.files = steps, files
        self.marks: list[tuple[int, float, int, int, int]] = []

    async def reply(self, request: Any, sink: Any, /) -> Reply:
        """Reply `request.step` of the script."""
        done = request.step - 1
        if done % (self.steps // PARTS) == 0:
            gc.collect()
            data, log = (file.stat().st_size if file.exists() else 0 for file in self.files)
            self.marks.append((done, time.perf_counter(), resident(), data, log))
        if done == self.steps:
            return Reply("done", usage=USAGE)
        call = ToolCall(f"call_{done}", "work", f'{{"number": {done}}}')
        return Reply("", (call,), Finish.TOOL_CALLS, usage=USAGE)


def worker(size: int) -> Any:
    """The tool whose results are so many bytes, none like another."""

    @tool(effect="read")
    async def work(number: int) -> str:
        """A large result."""
        return f"{number:08d}" * (size // 8)

    return work


async def run(path: Path, steps: int, size: int) -> Watched:
    """The whole task, on a store of its own."""
    store = SqliteStore(path)
    model = Watched(steps, [path, path.with_name(path.name + "-wal")])
    limits = Limits(
        steps + 1, tool_calls=steps, tokens=10**12, task_seconds=36_000.0, result_bytes=SHOWN_BYTES
    )
    agent = Agent("bench", model, limits, tools=(worker(size),))
    result = await run_task(agent, "go", store=store)
    assert result.text == "done", result.reason
    await store.close()
    return model


def main() -> None:
    """Measure, print, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where the store is written; it needs steps x bytes x 1.1")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, to see that it works")
    options = parser.parse_args()
    steps, size = (options.steps // 10 if options.quick else options.steps), options.bytes
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "store.db"
        marks = asyncio.run(run(path, steps, size)).marks
        final = path.stat().st_size
    rows, costs = [], []
    for before, after in itertools.pairwise(marks):
        costs.append((after[1] - before[1]) / (after[0] - before[0]) * 1e3)
        data = after[0] * size
        rows.append([after[0], after[2] / 1e6, costs[-1], after[3] / data, after[4] / 1e6])
    table(["steps", "memory MB", "ms/step", "file/data", "log MB"], rows)
    grown = marks[-1][2] - marks[1][2]
    shown = (marks[-1][0] - marks[1][0]) * SHOWN_BYTES
    finish(
        "long",
        {
            "steps": steps,
            "result_bytes": size,
            "file_to_data": final / (steps * size),
            "grown_mb": grown / 1e6,
            "shown_mb": shown / 1e6,
            "grown_bytes_per_step": grown / (marks[-1][0] - marks[1][0]),
            "ms_per_step": sorted(costs)[len(costs) // 2],
            "last_to_second": costs[-1] / costs[1],
        },
    )


if __name__ == "__main__":
    main()
