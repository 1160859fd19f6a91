"""Journals of many shapes, written by the real program: what is replayed, kept as golden files, and damaged.

Rule 1: each shape is played over a memory store, with scripted replies; nothing waits longer than a few milliseconds.
Rule 2: `python -m tests.golden.shapes FOLDER` writes the files that are not there yet. A golden file is never written
again: it is what a version of Fencepost left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fencepost import (
    Agent,
    Entry,
    FunctionModel,
    Limits,
    MemoryStore,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    OutcomeUnknown,
    Reconciled,
    Recovery,
    Reply,
    ScriptedModel,
    ToolCall,
    ToolFailed,
    resume_task,
    run_task,
    tool,
)
from fencepost.core.entries import Opened
from fencepost.core.messages import ToolDefinition
from fencepost.ports import Authorization
from fencepost.service import tasks
from fencepost.service.replay.files import write_journal
from fencepost.testing import answer, call, calls, say
from fencepost.testing.pauses import Crashed, Pauses, Place, crash

TASK = "task-golden"
TIDY = "Keep the store tidy."
# When all of it happens. Seconds since 1970.
MOMENT = 1_750_000_000.0
TINY_SECONDS = 0.02


class AllowAll:
    """Rules that allow everything, or what is named otherwise."""

    version = "rules-1"
    self_approval = True

    def __init__(self, **words: str) -> None:
        self.words = words

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        word = self.words.get(definition.name, "allow")
        return Authorization(word, f"the rules say {word}", self.version)


@tool(effect="read")
async def stock(item: str) -> dict[str, Any]:
    """How many of an item are in store."""
    return {"item": item, "count": 3, "price": 1.5, "tags": ["a", "ü"]}


@tool(effect="read", parallel=True)
async def peek(n: int) -> str:
    """Look at one of several, the later ones faster."""
    await asyncio.sleep(TINY_SECONDS / (n + 1))
    if n == 1:
        raise ToolFailed("nothing to see")
    return f"peeked {n}"


@tool(effect="write")
async def order(item: str) -> str:
    """Order more of an item."""
    return f"ordered {item}"


@tool(effect="write")
async def ship(item: str) -> str:
    """Send an item; nobody hears whether it arrived."""
    raise OutcomeUnknown("the line went dead")


@tool(effect="read", timeout=TINY_SECONDS)
async def slow() -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return "never"


@tool(effect="read")
async def big() -> str:
    """Return more than a model should see."""
    return "word " * 4000


TOOLS = (stock, peek, order, ship, slow, big)
NARROW = ModelProfile("golden", input_nano=3, output_nano=15, max_output_tokens=256, context_tokens=2500)
PROFILE = ModelProfile("golden", input_nano=3, output_nano=15, max_output_tokens=256)


def agent(script: Sequence[Any], *, tools: Sequence[Any] = TOOLS, **more: Any) -> Agent:
    """The agent of these journals."""
    more.setdefault("limits", Limits(steps=120, grace_seconds=TINY_SECONDS, result_bytes=2000))
    more.setdefault("boundary", AllowAll())
    more.setdefault("instructions", "Keep the store.")
    return Agent("keeper", ScriptedModel(script, profile=PROFILE), tools=tools, **more)


async def reads() -> tuple[Entry, ...]:
    """Reads, refused arguments, an unknown tool, a failed and a repeated call, a big result."""
    script = [
        calls(call("stock", item="anvil"), call("big")),
        calls(call("stock", item=7), call("nothing", x=1)),
        calls(ToolCall("raw", "stock", '{"item": "a", "item": "b"}')),
        say("Three."),
    ]
    return (await run(agent(script), "How many?", store=a_store())).entries


async def approvals() -> tuple[Entry, ...]:
    """One call approved, one rejected, after both were asked about in one reply."""
    store = a_store()
    script = [calls(call("order", item="a"), call("order", item="b")), say("Ordered a.")]
    made = agent(script, boundary=AllowAll(order="ask"))
    await run(made, "Order.", store=store)
    await tasks.decide_approval(store, TASK, "1.0", approve=True, by="local/boss")
    await tasks.decide_approval(store, TASK, "1.1", approve=False, by="local/boss", reason="too many")
    return (await resume(made, TASK, store=store)).entries


async def crashed() -> tuple[Entry, ...]:
    """The process dies after its second commit, and again after its fourth; reads run again."""
    store = a_store()
    script: list[Any] = [calls(call("stock", item="a")), calls(call("stock", item="b")), say("Done.")]
    for nth in (2, 4):
        dying = store.another(hooks=Pauses(Place("append.after", nth), crash))
        with contextlib.suppress(Crashed):
            if await store.tasks("local"):
                await resume(by_step(script), TASK, store=dying, take_over=True)
            else:
                await run(by_step(script), "Look twice.", store=dying)
            raise AssertionError("it was to die")
    return (await resume(by_step(script), TASK, store=store, take_over=True)).entries


def a_store() -> MemoryStore:
    """A store in which it is always the same moment."""
    return MemoryStore(now=lambda: MOMENT)


run = functools.partial(run_task, worker="worker", task=TASK)
resume = functools.partial(resume_task, worker="worker")


def by_step(script: Sequence[Any], **more: Any) -> Agent:
    """The agent, with a model that answers by the number of the step."""

    def said(request: ModelRequest) -> Reply:
        reply: Reply = script[request.step - 1]
        return reply

    made = agent([], **more)
    return dataclasses.replace(made, model=FunctionModel(said, profile=PROFILE))


async def cancelled() -> tuple[Entry, ...]:
    """Somebody cancels while a write waits for approval."""
    store = a_store()
    made = agent([calls(call("stock", item="a"), call("order", item="a"))], boundary=AllowAll(order="ask"))
    await run(made, "Order.", store=store)
    await tasks.cancel(store, TASK, by="local/boss")
    return await store.entries("local", TASK)


async def parallel() -> tuple[Entry, ...]:
    """Five reads side by side, two at a time, that end in another order than they began; one fails."""
    script = [
        calls(*(call("peek", n=n) for n in range(5))),
        calls(call("slow"), call("peek", n=7)),
        say("Seen."),
    ]
    limits = Limits(steps=5, grace_seconds=TINY_SECONDS, parallel_calls=2)
    return (await run(agent(script, limits=limits), "Peek.", store=a_store())).entries


async def cited() -> tuple[Entry, ...]:
    """An answer that cites wrongly is told so, and one that cites rightly ends the task."""
    claim = {"text": "three are left", "evidence_id": "ev-1.0", "pointer": "/count", "value": 3}
    script = [
        calls(call("stock", item="a")),
        answer("Three are left.", {**claim, "value": 4}),
        calls(call("answer", summary=1)),
        answer("Three are left.", claim),
    ]
    limits = Limits(steps=9, answer_tries=4)
    made = agent(script, answer="cited", limits=limits)
    return (await run(made, "How many?", store=a_store())).entries


async def unknown() -> tuple[Entry, ...]:
    """Nobody knows whether a write happened: people say that it did not, it runs again, then that it did."""
    store, made = a_store(), agent([calls(call("ship", item="a")), say("Shipped.")])
    await run(made, "Ship.", store=store)
    await tasks.resolve_outcome(store, TASK, "1.0", "did_not_happen", by="local/boss")
    await resume(made, TASK, store=store)
    await tasks.resolve_outcome(store, TASK, "1.0", "happened", content="arrived", by="local/boss")
    return (await resume(made, TASK, store=store)).entries


async def failing() -> tuple[Entry, ...]:
    """A model that is busy, breaks off, and is busy for good."""
    busy = ModelFailed("busy", kind="status", status=429, retriable=True, retry_after=0.0)
    script = [busy, calls(call("stock", item="a")), ValueError("no such thing")]
    return (await run(agent(script), "Try.", store=a_store())).entries


async def long() -> tuple[Entry, ...]:
    """A hundred steps."""
    script: list[Any] = [calls(call("stock", item=f"item {n}")) for n in range(99)]
    made = agent([*script, say("All seen.")], limits=Limits(steps=100, tool_calls=100))
    return (await run(made, "Count.", store=a_store())).entries


class Till:
    """A write tool whose operations have names, and which can say afterwards what became of each."""

    def __init__(self, **verdicts: str) -> None:
        lost = dict(verdicts)

        async def said(key: str, arguments: Mapping[str, Any]) -> Reconciled:
            name = str(arguments["name"])
            return Reconciled(verdicts[name], {"paid": name} if verdicts[name] == "happened" else None)

        @tool(effect="write", operation_key=lambda given: f"pay {given['name']}", reconcile=said)
        async def pay(name: str) -> dict[str, str]:
            """Pay somebody; the first time the line goes dead."""
            if lost.pop(name, ""):
                raise OutcomeUnknown("the line went dead")
            return {"paid": name}

        self.pay = pay


async def reconciled() -> tuple[Entry, ...]:
    """The tool itself says what became of lost writes; the same operation again takes what it brought."""
    till = Till(ann="did_not_happen", bob="happened")
    script = [
        calls(call("pay", name="ann"), call("pay", name="bob")),
        calls(call("pay", name="ann")),
        say("Paid."),
    ]
    limits = Limits(steps=5)
    return (await run(agent(script, tools=(till.pay,), limits=limits), "Pay.", store=a_store())).entries


async def accepted() -> tuple[Entry, ...]:
    """An operator accepts a changed definition while the task waits, and it goes on with that."""
    store = a_store()
    script = [calls(call("order", item="a")), say("Ordered.")]
    before = by_step(script, boundary=AllowAll(order="ask"))
    await run(before, "Order.", store=store)
    after = by_step(script, boundary=AllowAll(order="ask"), instructions=TIDY)
    await tasks.accept_definition(store, TASK, after, by="local/boss")
    await tasks.decide_approval(store, TASK, "1.0", approve=True, by="local/boss")
    return (await resume(after, TASK, store=store)).entries


async def released() -> tuple[Entry, ...]:
    """A worker shuts down while it asks the model, and another one goes on."""
    store = a_store()

    async def waits(request: ModelRequest) -> Reply:
        running.cancel()
        await asyncio.Event().wait()
        return say("never")

    made = dataclasses.replace(agent([]), model=FunctionModel(waits, profile=PROFILE))
    running = asyncio.create_task(run(made, "Wait.", store=store))
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return (await resume(by_step([say("Done.")]), TASK, store=store)).entries


async def elided() -> tuple[Entry, ...]:
    """Old results are left out, so that the requests fit what the model takes."""
    script: list[Any] = [calls(call("big"), usage=None) for _ in range(4)]
    script = [*script, calls(call("stock", item="a"), usage=None), say("Enough.")]
    recovery = Recovery(repeats=9)
    made = agent(script, limits=Limits(steps=9, result_bytes=2000), recovery=recovery)
    made = dataclasses.replace(made, model=ScriptedModel(script, profile=NARROW))
    return (await run(made, "Read.", store=a_store())).entries


SHAPES: dict[str, Callable[[], Awaitable[tuple[Entry, ...]]]] = {
    shape.__name__: shape
    for shape in (
        reads,
        approvals,
        crashed,
        cancelled,
        parallel,
        cited,
        unknown,
        failing,
        reconciled,
        accepted,
        released,
        elided,
        long,
    )
}


def profile_of(name: str) -> ModelProfile:
    """The profile of the model that a shape asks."""
    return NARROW if name == "elided" else PROFILE


def agent_of(name: str, opened: Opened) -> Agent:
    """The agent that a shape is of, in the end, with a model that has nothing to say."""
    more: dict[str, Any] = {"answer": opened.answer, "limits": opened.limits, "recovery": opened.recovery}
    if name == "reconciled":
        more["tools"] = (Till().pay,)
    if name == "accepted":
        more["instructions"] = TIDY
    return dataclasses.replace(agent([], **more), model=ScriptedModel([], profile=profile_of(name)))


def main(folder: Path) -> None:
    """Write the files that are missing; a hundred steps are replayed as they are made, and not kept."""
    for name, shape in SHAPES.items():
        if name == "long":
            continue
        path = folder / f"{name}.jsonl"
        if not path.exists():
            path.write_bytes(write_journal(TASK, asyncio.run(shape()), profile_of(name)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
