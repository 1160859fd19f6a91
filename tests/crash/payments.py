"""A job whose effects are counted from outside: two approved payments, a label, two lookups side by side.

Rules: the model answers by the step of the request, so that it says the same after any crash; the payment
tool appends to a file that no store knows; the label is written under its idempotency key, as an outside
system would; every tool says `reach` before and after its effect.

`python -m tests.crash.payments FOLDER` carries the job as far as it goes and prints how that ended, as JSON.
It takes over whatever an earlier process left, and approves as a second person. `--reads` is the same job,
reading only; `--lease` holds a lease that runs out.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from fencepost.core.errors import TaskNotFound
from fencepost.core.limits import Limits
from fencepost.core.messages import Effect, ModelRequest, Reply, ToolDefinition, ToolMessage
from fencepost.models.function import FunctionModel
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Authorization, CallContext
from fencepost.run.agent import Agent
from fencepost.run.running import Result, open_task, resume
from fencepost.service.tasks import decide_approval
from fencepost.stores import sqlite
from fencepost.testing.pauses import reach
from fencepost.tools.function import FunctionTool, tool

TASK = "job"
APPROVER = "local/second-person"
LEASE_SECONDS = 60.0  # a second worker whose clock is an hour ahead finds it over
PAID = {"2.0": 5, "3.0": 7}  # what each call pays, by its place in the task
ANSWER = "stock of bolts is 5 | stock of nuts is 4 | paid 5 | label is urgent | paid 7"
ANSWER_OF_READS = "stock of bolts is 5 | stock of nuts is 4 | stock of gears is 5"


class WritesAsk:
    """Payments need a person; the rest is allowed."""

    version = "payments-1"
    self_approval = False

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        verdict = "ask" if definition.effect is Effect.WRITE else "allow"
        return Authorization(verdict, "payments are approved by a person", self.version)


def agent(folder: Path, *, reads_only: bool = False) -> Agent:
    """The job's agent, with its effects below the folder."""
    steps = _reads if reads_only else _job
    return Agent("payments", FunctionModel(steps), Limits(6), tools=_tools(folder), boundary=WritesAsk())


def _said(request: ModelRequest) -> str:
    return " | ".join(m.content for m in request.messages if isinstance(m, ToolMessage))


def _job(request: ModelRequest) -> Reply:
    match request.step:
        case 1:
            return calls(call("stock", id="s1", part="bolts"), call("stock", id="s2", part="nuts"))
        case 2:
            return calls(call("pay", id="p1", amount=5), call("label", id="l1", text="urgent"))
        case 3:
            return calls(call("pay", id="p2", amount=7))
    return say(_said(request))


def _reads(request: ModelRequest) -> Reply:
    match request.step:
        case 1:
            return calls(call("stock", id="s1", part="bolts"), call("stock", id="s2", part="nuts"))
        case 2:
            return calls(call("stock", id="s3", part="gears"))
    return say(_said(request))


def _tools(folder: Path) -> tuple[FunctionTool, ...]:
    @tool(effect="read", parallel=True)
    async def stock(part: str) -> str:
        """How many there are."""
        reach("stock.effect.before")
        await asyncio.sleep(0)
        reach("stock.effect.after")
        return f"stock of {part} is {len(part)}"

    @tool(effect="write")
    async def pay(amount: int, context: CallContext) -> str:
        """Pay so much, once."""
        reach("pay.effect.before")
        _append(folder / "payments", f"{context.key} {amount}")
        reach("pay.effect.after")
        return f"paid {amount}"

    @tool(effect="idempotent")
    async def label(text: str, context: CallContext) -> str:
        """Set the label."""
        reach("label.effect.before")
        _append(folder / "label-requests", context.key)
        _once(folder / "labels" / context.key, text)
        reach("label.effect.after")
        return f"label is {text}"

    return stock, pay, label


def _append(path: Path, line: str) -> None:
    written = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(written, f"{line}\n".encode())
    finally:
        os.close(written)


def _once(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lines(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


async def carry_on(folder: Path, *, reads_only: bool = False, lease_seconds: float | None = None) -> Result:
    """Take the job over and carry it on until it is over or waits for somebody who knows an outcome."""
    store = sqlite.SqliteStore(folder / "store.db")
    try:
        mine = agent(folder, reads_only=reads_only)
        try:
            await store.row("local", TASK)
        except TaskNotFound:
            await open_task(mine, "pay the two bills", store=store, task=TASK)
        while True:
            result = await resume(mine, TASK, store=store, take_over=True, lease_seconds=lease_seconds)
            questions = [ask for ask in result.asks if ask.about == "approval"]
            if result.outcome != "waiting" or not questions:
                return result
            for ask in questions:
                where = f"{ask.step}.{ask.position}"
                await decide_approval(store, TASK, where, approve=True, by=APPROVER, digest=ask.digest)
    finally:
        await store.close()


def main() -> int:
    """Carry the job in this folder on, and print how that ended."""
    arguments = sys.argv[1:]
    reads_only = "--reads" in arguments
    folder = Path(next(each for each in arguments if not each.startswith("--")))
    lease_seconds = LEASE_SECONDS if "--lease" in arguments else None
    result = asyncio.run(carry_on(folder, reads_only=reads_only, lease_seconds=lease_seconds))
    told: dict[str, Any] = {
        "outcome": result.outcome,
        "text": result.text,
        "state": result.state.value,
        "asks": [f"{ask.step}.{ask.position}" for ask in result.asks],
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
