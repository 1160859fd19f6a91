"""An agent of one's own for the command line: it looks up an item, and asks before it orders more of it.

    fencepost run examples/storekeeper.py:agent "anvil"       # waits: an order is a write, and a write asks
    fencepost approvals list                                  # the exact order, and the commands that answer
    fencepost approvals approve TASK 2.0 --resume             # goes on, orders once, and answers

Its brain is a function of the transcript and keeps nothing between calls, so a task goes on in any process. (A
`ScriptedModel` is for tests: in a new process it would begin its script again.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fencepost import (
    Agent,
    CallContext,
    Finish,
    FunctionModel,
    Limits,
    ModelRequest,
    Reply,
    ToolCall,
    ToolMessage,
    UserMessage,
    tool,
)

Item = Annotated[str, Meta(min_length=1, max_length=40)]
STOCK = {"anvil": 3, "rope": 40}
ENOUGH = 10
# Stands for a supplier: what is written here stays written, whatever becomes of the process.
ORDERS = Path("orders.jsonl")


@tool(effect="read")
async def stock(item: Item) -> dict[str, object]:
    """How many of an item are in store."""
    return {"item": item, "count": STOCK.get(item, 0)}


@tool(effect="write")
def order(item: Item, count: Annotated[int, Meta(ge=1, le=100)], context: CallContext) -> str:
    """Order more of an item."""
    with ORDERS.open("a", encoding="utf-8") as orders:
        orders.write(json.dumps({"item": item, "count": count, "key": context.key}) + "\n")
    return f"ordered {count}"


def decide(request: ModelRequest) -> Reply:
    """What comes next: look, order what is missing, say what was done."""
    item = next(message.text.strip() for message in request.messages if isinstance(message, UserMessage))
    results = [message for message in request.messages if isinstance(message, ToolMessage)]
    if not results:
        return _call(request, "stock", {"item": item})
    if results[-1].failed:
        return Reply(f"Nothing was done about {item}: {results[-1].name} did not run.")
    if results[-1].name == "order":
        return Reply(f"More of {item} is on its way.")
    count = STOCK.get(item, 0)
    if count >= ENOUGH:
        return Reply(f"There is enough of {item}: {count}.")
    return _call(request, "order", {"item": item, "count": ENOUGH - count})


def _call(request: ModelRequest, name: str, arguments: dict[str, object]) -> Reply:
    # An id is new in the task: the number of the step is in it.
    call = ToolCall(f"storekeeper-{request.step}", name, json.dumps(arguments))
    return Reply("", (call,), Finish.TOOL_CALLS)


agent = Agent("storekeeper", FunctionModel(decide), Limits(steps=4), tools=(stock, order))
