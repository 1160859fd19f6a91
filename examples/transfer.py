"""A write that may be lost half-way: `reconcile` looks what became of it, and `operation_key` keeps it single.

Run it with `python examples/transfer.py`. The bank books the first transfer and the connection breaks before it can
say so. Nobody guesses: the tool's `reconcile` asks the bank for the call's key. When the model asks for the same
invoice again, the operation key says that it is paid. It prints:

    step 1: {"paid":12}
    step 2: {"paid":12}
    SUCCEEDED: invoice 7 is paid
    booked: 12
"""

from __future__ import annotations

import asyncio

from fencepost import (
    Agent,
    CallContext,
    Limits,
    OutcomeUnknown,
    Reconciled,
    Rules,
    ScriptedModel,
    ToolMessage,
    run_task,
    tool,
)
from fencepost.testing import call, calls, say

# Stands for the bank: what was booked, by idempotency key.
bank: dict[str, int] = {}


async def look(key: str) -> Reconciled:
    """What the bank knows of the call's key."""
    if key in bank:
        return Reconciled("happened", {"paid": bank[key]})
    return Reconciled("did_not_happen")


@tool(effect="write", reconcile=look, operation_key=lambda arguments: f"invoice/{arguments['invoice']}")
async def transfer(invoice: int, amount: int, context: CallContext) -> dict[str, int]:
    """Pay an invoice."""
    bank[context.key] = amount
    raise OutcomeUnknown("the connection broke before the bank answered")


async def main() -> None:
    """Pay the same invoice twice."""
    twice = [calls(call("transfer", invoice=7, amount=12)), calls(call("transfer", invoice=7, amount=12))]
    model = ScriptedModel([*twice, say("invoice 7 is paid")])
    agent = Agent("payer", model, Limits(steps=4), tools=(transfer,), boundary=Rules.allow_all())
    result = await run_task(agent, "pay invoice 7")
    results = [message for message in result.messages if isinstance(message, ToolMessage)]
    for step, message in enumerate(results, 1):
        print(f"step {step}: {message.content}")
    print(f"{result.state.value}: {result.text}")
    print(f"booked: {', '.join(str(amount) for amount in bank.values())}")


if __name__ == "__main__":
    asyncio.run(main())
