"""Reads side by side: three lookups of one reply run at the same time, and the model gets them in its own order.

Run it with `python examples/parallel_reads.py`. The slowest was asked for first; it ends last, and yet its result
comes first in the transcript. It prints:

    ended first: cart, search, payment
    result of payment: 3 errors
    result of search: 2 errors
    result of cart: 1 errors
    SUCCEEDED: payment has most errors
"""

from __future__ import annotations

import asyncio

from fencepost import Agent, Limits, ScriptedModel, ToolMessage, run_task, tool
from fencepost.testing import call, calls, say

ERRORS = {"cart": 1, "search": 2, "payment": 3}
ended: list[str] = []


@tool(effect="read", parallel=True)
async def errors(service: str) -> str:
    """How many errors a service has."""
    await asyncio.sleep(0.02 * ERRORS[service])
    ended.append(service)
    return f"{ERRORS[service]} errors"


async def main() -> None:
    """Ask for all three at once."""
    asked = [call("errors", service=service) for service in ("payment", "search", "cart")]
    model = ScriptedModel([calls(*asked), say("payment has most errors")])
    agent = Agent("reader", model, Limits(steps=3, parallel_calls=3), tools=(errors,))
    result = await run_task(agent, "which service has most errors?")
    print(f"ended first: {', '.join(ended)}")
    results = [message for message in result.messages if isinstance(message, ToolMessage)]
    for service, message in zip(("payment", "search", "cart"), results, strict=True):
        print(f"result of {service}: {message.content}")
    print(f"{result.state.value}: {result.text}")


if __name__ == "__main__":
    asyncio.run(main())
