"""An answer that cites: each claim names a result of this task and the place in it, and the value there is checked.

Run it with `python examples/cited_answer.py`. The model first claims a number that the result does not hold; it is
told so, and gives the right one. It prints:

    refused: True
    SUCCEEDED: payment has 41 errors
    payment has 41 errors, from ev-1.0 at /payment: 41
"""

from __future__ import annotations

import asyncio

from fencepost import Agent, Limits, ScriptedModel, run_task, tool
from fencepost.testing import answer, call, calls


@tool(effect="read")
async def errors() -> dict[str, int]:
    """The errors of all services in the last hour."""
    return {"payment": 41, "cart": 2}


def claim(number: int) -> dict[str, object]:
    """A claim about payment's errors, tied to where it was read."""
    return {
        "text": f"payment has {number} errors",
        "evidence_id": "ev-1.0",
        "pointer": "/payment",
        "value": number,
    }


async def main() -> None:
    """Answer wrongly, then rightly."""
    model = ScriptedModel(
        [
            calls(call("errors")),
            answer("payment has 14 errors", claim(14)),
            answer("payment has 41 errors", claim(41)),
        ]
    )
    agent = Agent("counter", model, Limits(steps=4), tools=(errors,), answer="cited")
    result = await run_task(agent, "which service has most errors?")
    print(f"refused: {any(type(entry.body).__name__ == 'AnswerRejected' for entry in result.entries)}")
    print(f"{result.state.value}: {result.text}")
    assert result.answer is not None
    for each in result.answer.claims:
        print(f"{each.text}, from {each.evidence_id} at {each.pointer}: {bytes(each.value).decode()}")


if __name__ == "__main__":
    asyncio.run(main())
