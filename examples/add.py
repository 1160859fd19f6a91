"""A strict tool: `add` takes two whole numbers from 0 to 100 and nothing else.

Run it with `python examples/add.py`: it shows what the tool tells a model about itself, which calls it
accepts, and what it answers to the ones it refuses. Refused calls run nothing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from fencepost import ArgumentsInvalid, CallContext, tool

Small = Annotated[int, Meta(ge=0, le=100)]


@tool(effect="read", parallel=True)
async def add(a: Small, b: Small) -> int:
    """Add two whole numbers from 0 to 100.

    Args:
        a: the first number
        b: the second number
    """
    return a + b


CALLS = (
    '{"a": 2, "b": 3}',
    '{"b": 0, "a": 100.0}',
    '{"a": 2}',
    '{"a": 2, "b": "3"}',
    '{"a": 2, "b": true}',
    '{"a": 2, "b": 3.5}',
    '{"a": 2, "b": 101}',
    '{"a": 2, "b": 3, "c": 4}',
    '{"a": 2, "a": 3, "b": 4}',
    '{"a": 2, "b": NaN}',
    "[2, 3]",
    '{"a": 2, "b": 3',
)


async def main() -> None:
    """Print what becomes of each call."""
    print(f"schema   {add.definition.schema}")
    context = CallContext("task", "tenant", "me", step=1, position=0, start=1, key="example", seconds=60.0)
    for arguments in CALLS:
        try:
            prepared = add.prepare(arguments)
        except ArgumentsInvalid as refusal:
            print(f"refused  {arguments}\n         {refusal}")
            continue
        print(f"accepted {arguments} as {prepared.canonical}: {await add.run(prepared, context)}")


if __name__ == "__main__":
    asyncio.run(main())
