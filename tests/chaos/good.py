"""Agents that do everything right: chaos must find nothing in them.

Rule: tools write below the current folder, so that each rehearsal has a world of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from fencepost import Agent, CallContext, FunctionModel, Limits, Reconciled, Tool, tool
from fencepost.core.messages import ModelRequest, Reply
from fencepost.models.scripted import call, calls, say

LIMITS = Limits(6, grace_seconds=0.2)


def agent_of(*tools: Tool, arguments: dict[str, Any] | None = None) -> Agent:
    """An agent that calls each tool once, a step each, and then answers."""

    def next_call(request: ModelRequest) -> Reply:
        if request.step > len(tools):
            return say("done")
        name = tools[request.step - 1].definition.name
        return calls(call(name, id=f"c{request.step}", **(arguments or {"text": "urgent"})))

    return Agent("planted", FunctionModel(next_call), LIMITS, tools=tools)


def put(name: str, text: str) -> None:
    """The file holds this text."""
    Path(name.replace("/", "_")).write_text(text, encoding="utf-8")


def add(name: str, line: str) -> None:
    """The file has one more line."""
    with Path(name).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def lines(name: str) -> list[str]:
    """The lines of a file that may not be there yet."""
    return Path(name).read_text(encoding="utf-8").splitlines() if Path(name).exists() else []


@tool(effect="idempotent")
async def label(text: str, context: CallContext) -> str:
    """Set the label, once for each key."""
    await asyncio.sleep(0)
    put(f"label-{context.key}", text)
    await asyncio.sleep(0)
    return f"label is {text}"


@tool(effect="read", parallel=True)
async def count(text: str) -> int:
    """How many letters there are."""
    await asyncio.sleep(0.01)
    return len(text)


@tool(effect="write")
async def note(text: str) -> str:
    """Write it down."""
    await asyncio.sleep(0)
    add("notes", text)
    return "noted"


@tool(effect="write")
def note_in_a_thread(text: str) -> str:
    """Write it down, in a thread."""
    add("thread-notes", text)
    return "noted"


async def paid(key: str) -> Reconciled:
    """Whether the payment is in the book."""
    return Reconciled("happened", "paid") if key in lines("book") else Reconciled("did_not_happen")


@tool(effect="write", reconcile=paid, operation_key=lambda arguments: f"pay/{arguments['text']}")
async def pay(text: str, context: CallContext) -> str:
    """Pay, and put the key into the book."""
    await asyncio.sleep(0)
    add("book", context.key)
    await asyncio.sleep(0)
    return "paid"


@tool(effect="idempotent", isolation="process")
def label_from_a_process(text: str, context: CallContext) -> str:
    """Set the label, once for each key, in a process of its own."""
    put(f"label-{context.key}", text)
    return f"label is {text}"


@tool(effect="read")
async def ask_another(text: str) -> str:
    """Ask another program, and end it whatever happens."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print('here')", stdout=subprocess.PIPE
    )
    try:
        out, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return out.decode()


def agent() -> Agent:
    """Every good tool in one task."""
    return agent_of(count, label, note, pay, note_in_a_thread)
