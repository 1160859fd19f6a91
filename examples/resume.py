"""A process dies in the middle of a task, and another one goes on: nothing is asked twice, nothing is sent twice.

Run it with `python examples/resume.py`. A first process runs the task on a SQLite store, sends a letter, and dies
before it can say so. This process takes the task over. Sending is idempotent by the call's key, so the letter box
holds one letter although the tool was started twice. It prints:

    the first process ended with 9
    its journal ends with: CallStarted
    SUCCEEDED: the letter is on its way
    starts of the call: 2
    letters: 1
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fencepost import (
    Agent,
    CallContext,
    FunctionModel,
    Limits,
    Rules,
    SqliteStore,
    resume_task,
    run_task,
    tool,
)
from fencepost.core.messages import ModelRequest, Reply
from fencepost.testing import call, calls, say

TASK = "letter"


def agent_at(folder: Path, *, dies: bool = False) -> Agent:
    """The agent whose letter box is a folder."""

    @tool(effect="idempotent")
    async def send(text: str, context: CallContext) -> str:
        """Send a letter, once for each key."""
        (folder / f"letter-{context.key.replace('/', '_')}").write_text(text, encoding="utf-8")
        if dies:
            os._exit(9)  # as by a power cut: nobody says goodbye
        return "sent"

    def decide(request: ModelRequest) -> Reply:
        """The same words to the same step, in whichever process."""
        return (
            calls(call("send", id="c1", text="hello"))
            if request.step == 1
            else say("the letter is on its way")
        )

    return Agent("clerk", FunctionModel(decide), Limits(steps=3), tools=(send,), boundary=Rules.allow_all())


async def first(folder: Path) -> None:
    """What the first process does, until it dies."""
    await run_task(
        agent_at(folder, dies=True), "send hello", store=SqliteStore(folder / "tasks.db"), task=TASK
    )


async def go_on(folder: Path) -> None:
    """Take the task over and carry it to its end."""
    store = SqliteStore(folder / "tasks.db")
    left = await store.entries("local", TASK)
    print(f"its journal ends with: {type(left[-1].body).__name__}")
    result = await resume_task(agent_at(folder), TASK, store=store, take_over=True)
    print(f"{result.state.value}: {result.text}")
    starts = [entry for entry in result.entries if type(entry.body).__name__ == "CallStarted"]
    print(f"starts of the call: {len(starts)}")
    await store.close()


def main() -> None:
    """Let a process die, then go on in this one."""
    with tempfile.TemporaryDirectory() as name:
        died = subprocess.run([sys.executable, __file__, name], check=False)  # noqa: S603 - this very file
        print(f"the first process ended with {died.returncode}")
        asyncio.run(go_on(Path(name)))
        print(f"letters: {len(list(Path(name).glob('letter-*')))}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first(Path(sys.argv[1])))
    else:
        main()
