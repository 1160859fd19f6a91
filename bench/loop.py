"""The cost of a step without a store: our loop beside a hand-written asyncio loop, in one run.

Run: python -m bench.loop [--rounds N] [--quick]

All ask an async model and run one async tool per step, with the same replies and the same results. `floor` is the
hand-written loop of the target: it validates arguments with msgspec and keeps messages in a list, and does nothing
else. `careful` is that loop with deadlines, limits, unique ids and no duplicate keys; neither has a journal.
Target: at most 3 times the floor per step, and flat.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bench.measure import finish, median, rounds, table
from fencepost import Agent, Finish, Limits, MemoryStore, ModelProfile, Reply, ToolCall, Usage, run_task, tool

USAGE = Usage(input_tokens=10, output_tokens=5)
RESULT = "r" * 94


def arguments(i: int) -> str:
    """The arguments of step i as a provider writes them."""
    return f'{{"x": {i}, "note": "step 0"}}'


# --- the hand-written loop


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What the floor validates with."""

    x: int
    note: str


_decode = msgspec.json.Decoder(Arguments).decode


async def work(x: int, note: str) -> str:
    """Do one unit of work."""
    await asyncio.sleep(0)
    return f"{RESULT}{x:06d}"


async def floor_model(i: int, steps: int) -> dict[str, Any]:
    """Reply i of the script as a message."""
    await asyncio.sleep(0)
    if i == steps:
        return {"role": "assistant", "content": "done"}
    called = {"id": f"call_{i}", "name": "work", "arguments": arguments(i)}
    return {"role": "assistant", "content": "", "tool_calls": [called]}


async def floor(steps: int) -> str:
    """The loop anybody would write first."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    tools = {"work": work}
    i = 0
    while True:
        reply = await floor_model(i, steps)
        i += 1
        messages.append(reply)
        if "tool_calls" not in reply:
            return str(reply["content"])
        for called in reply["tool_calls"]:
            parsed = _decode(called["arguments"])
            result = await tools[called["name"]](parsed.x, parsed.note)
            messages.append({"role": "tool", "tool_call_id": called["id"], "content": result})


class Spent(Exception):
    """A limit of the careful loop was crossed."""


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


_strict = json.JSONDecoder(object_pairs_hook=no_duplicates).decode


async def careful(steps: int) -> str:
    """The same loop after its first incidents: deadlines, limits, unique ids, no duplicate keys; still no journal."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    tools = {"work": work}
    seen: set[str] = set()
    i = made = 0
    async with asyncio.timeout(600):
        while i <= steps:
            async with asyncio.timeout(120):
                reply = await floor_model(i, steps)
            i += 1
            messages.append(reply)
            if "tool_calls" not in reply:
                return str(reply["content"])
            for called in reply["tool_calls"]:
                if called["id"] in seen or made >= steps:
                    raise Spent(called["id"])
                seen.add(called["id"])
                made += 1
                parsed = msgspec.convert(_strict(called["arguments"]), Arguments)
                async with asyncio.timeout(60):
                    result = await tools[called["name"]](parsed.x, parsed.note)
                messages.append({"role": "tool", "tool_call_id": called["id"], "content": result})
    raise Spent("steps")


# --- ours


class Script:
    """The same script behind the Model port."""

    profile = ModelProfile("script", input_nano=0, output_nano=0)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    async def reply(self, request: Any, sink: Any, /) -> Reply:
        """Reply `request.step` of the script."""
        await asyncio.sleep(0)
        i = request.step - 1
        if i == self.steps:
            return Reply("done", usage=USAGE)
        return Reply("", (ToolCall(f"call_{i}", "work", arguments(i)),), Finish.TOOL_CALLS, usage=USAGE)


WORK = tool(effect="read")(work)


@functools.cache
def agent(steps: int) -> Agent:
    """The agent for so many steps, defined once like any agent."""
    limits = Limits(steps=steps + 1, tool_calls=steps, tokens=10**9)
    return Agent("bench", Script(steps), limits, tools=(WORK,))


async def ours(steps: int) -> str:
    """One task in memory."""
    result = await run_task(agent(steps), "go", store=MemoryStore())
    return result.text


def timed(job: Callable[[], Awaitable[Any]]) -> float:
    """Seconds one job takes in a loop that is already running."""

    async def main() -> float:
        gc.collect()
        began = time.perf_counter()
        await job()
        return time.perf_counter() - began

    return asyncio.run(main())


def many(loop: Callable[[int], Awaitable[str]], steps: int, count: int) -> Callable[[], Awaitable[None]]:
    """`count` runs of `steps` steps at once."""

    async def job() -> None:
        for text in await asyncio.gather(*(loop(steps) for _ in range(count))):
            assert text == "done"

    return job


def peak_kb() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure, print, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds, to see that it works")
    options = parser.parse_args()
    count = 3 if options.quick else options.rounds
    rows: list[list[object]] = []
    ratios: dict[str, float] = {}
    to_careful: dict[str, float] = {}
    steps_us: dict[str, float] = {}
    for name, steps, at_once in (("10", 10, 1), ("100", 100, 1), ("400", 400, 1), ("1000x10", 10, 1000)):
        repeat = max(1, 400 // steps) if at_once == 1 else 1
        before = peak_kb()

        def subject(
            loop: Callable[[int], Awaitable[str]], n: int = steps, k: int = at_once, r: int = repeat
        ) -> float:
            async def job() -> None:
                for _ in range(r):
                    await many(loop, n, k)()

            return timed(job) / (n * k * r)

        loops = {"floor": floor, "careful": careful, "ours": ours}
        taken = rounds({of: functools.partial(subject, loop) for of, loop in loops.items()}, count)
        ratios[name], steps_us[name] = ratio(taken, "floor"), median(taken["ours"]) * 1e6
        to_careful[name] = ratio(taken, "careful")
        grown = (peak_kb() - before) / at_once if at_once > 1 else 0.0
        costs = [median(taken[of]) * 1e6 for of in loops]
        rows.append([name, *costs, ratios[name], to_careful[name], grown or "-"])
    table(["steps", "floor µs/step", "careful", "ours", "ours/floor", "ours/careful", "KB a run"], rows)
    finish(
        "loop",
        {
            "ratios": ratios,
            "ratios_to_careful": to_careful,
            "us_per_step": steps_us,
            "flat": steps_us["400"] / steps_us["100"],
        },
    )


def ratio(taken: dict[str, list[float]], to: str) -> float:
    """The median of ours over another, round by round."""
    return median([mine / theirs for mine, theirs in zip(taken["ours"], taken[to], strict=True)])


if __name__ == "__main__":
    main()
