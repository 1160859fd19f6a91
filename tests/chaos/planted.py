"""Tools with one fault each; chaos must name the tool and the rule of each of them.

Rule: a fault is one that a good run does not show; what else a tool does, it does right.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from typing import Any

from msgspec.structs import replace

from fencepost import Agent, CallContext, Reconciled, ToolFailed, tool
from fencepost.core.messages import ToolDefinition
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Prepared
from fencepost.testing.chaos.script import StepModel
from tests.chaos.good import LIMITS, add, agent_of, lines, put

_numbers = itertools.count(1)
_background: set[asyncio.Task[None]] = set()


@tool(effect="idempotent")
async def ignores_its_key(text: str) -> str:
    """Adds a line at each start, whatever its key."""
    add("labels", text)
    await asyncio.sleep(0)
    return "labelled"


@tool(effect="read")
async def swallows_cancel(text: str) -> str:
    """Takes a cancel for a failed try, and tries again for longer than anybody waits."""
    tries = 1
    while tries:
        try:
            await asyncio.sleep(0.01 if tries == 1 else 0.2)
            tries -= 1
        except asyncio.CancelledError:
            tries = 8
    return "at last"


@tool(effect="read")
async def blocks_the_loop(text: str) -> str:
    """Waits without letting anybody else work."""
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the fault
    return "late for all"


@tool(effect="idempotent")
async def writes_after_its_timeout(text: str, context: CallContext) -> str:
    """Starts its write in the background, and does not end it with the call."""

    async def write() -> None:
        await asyncio.sleep(0.05)
        put(f"late-{context.key}", text)

    writing = asyncio.create_task(write())
    _background.add(writing)
    writing.add_done_callback(_background.discard)
    await asyncio.shield(writing)
    return "written"


@tool(effect="read")
async def leaks_a_process(text: str) -> str:
    """Starts a program and forgets it when it fails to answer in time."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(0.4)", start_new_session=True
    )
    await asyncio.sleep(0)
    if child.returncode is not None:
        await child.wait()
    return "started"


@tool(effect="read")
async def returns_everything(text: str) -> str:
    """Returns a whole table where a line was asked for."""
    await asyncio.sleep(0)
    return "row\n" * 1_000_000


@tool(effect="write", operation_key=lambda arguments: f"{arguments['text']}/{next(_numbers)}")
async def renames_its_operation(text: str) -> str:
    """Names the same operation differently at each start."""
    await asyncio.sleep(0)
    add("operations", text)
    return "done"


class ReadsArguments:
    """A tool by hand around a good one; what it makes of its arguments is the fault."""

    threaded = False

    def __init__(self, name: str) -> None:
        self.definition: ToolDefinition = replace(_counted.definition, name=name)

    def prepare(self, arguments: str, /) -> Prepared:
        """The arguments as the good tool reads them."""
        return _counted.prepare(arguments)

    def operation_key(self, prepared: Prepared, /) -> str | None:
        """None."""
        return None

    async def run(self, prepared: Prepared, context: CallContext, /) -> Any:
        """What the good tool does."""
        return await _counted.run(prepared, context)

    async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
        """Nothing is known."""
        return Reconciled("cannot_tell")


@tool(effect="read", name="reads_anything")
async def _counted(text: str) -> int:
    """How many letters there are."""
    await asyncio.sleep(0)
    return len(text)


class ReadsAnything(ReadsArguments):
    """Mends what is broken, so a reply that was cut runs."""

    def prepare(self, arguments: str, /) -> Prepared:
        """Arguments, however broken."""
        return super().prepare(arguments if arguments.endswith("}") else arguments + "}")


class NeverTheSameArguments(ReadsArguments):
    """Puts a number into its canonical arguments that is another one each time."""

    def prepare(self, arguments: str, /) -> Prepared:
        """The arguments and a number."""
        prepared = super().prepare(arguments)
        number = next(_numbers)
        return replace(prepared, canonical=f'{{"number":{number},"text":"a"}}', digest=f"{number:064}")


@tool(effect="read")
async def writes_as_a_read(text: str) -> int:
    """Keeps a count of what it was asked, and says that it only reads."""
    add("asked", text)
    await asyncio.sleep(0)
    return len(lines("asked"))


async def _never_happened(key: str) -> Reconciled:
    """Says what is easiest."""
    return Reconciled("did_not_happen")


async def _always_happened(key: str) -> Reconciled:
    """Says what is easiest."""
    return Reconciled("happened", "paid")


@tool(effect="write", reconcile=_never_happened)
async def pays_twice(text: str) -> str:
    """Pays, and its reconcile never knows of it."""
    add("payments", text)
    await asyncio.sleep(0)
    return "paid"


@tool(effect="write", reconcile=_always_happened)
async def never_pays(text: str) -> str:
    """Pays, and its reconcile says so when nothing was paid."""
    await asyncio.sleep(0)
    add("payments", text)
    return "paid"


async def _cannot_look(key: str) -> Reconciled:
    """Looks where nothing is."""
    raise LookupError(key)


@tool(effect="write", reconcile=_cannot_look)
async def cannot_look(text: str) -> str:
    """Pays, and its reconcile fails when it is needed."""
    await asyncio.sleep(0)
    add("payments", text)
    return "paid"


class Alarm(BaseException):
    """No Exception, so nobody expects it."""


@tool(effect="read")
async def raises_an_alarm(text: str) -> str:
    """Raises what is no Exception."""
    await asyncio.sleep(0)
    raise Alarm(text)


@tool(effect="read")
async def exits_the_process(text: str) -> str:
    """Ends the process, as a library for commands may."""
    await asyncio.sleep(0)
    os._exit(3)


@tool(effect="read")
async def hangs_when_asked_to_end(text: str) -> str:
    """Cleans up forever, holding the loop: no timeout of the runtime can reach that."""
    try:
        await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        time.sleep(60)  # noqa: ASYNC251 - the fault
    return text


@tool(effect="write")
async def fails_honestly(text: str) -> str:
    """Fails as a tool should; no fault."""
    await asyncio.sleep(0)
    raise ToolFailed("the label printer is out of paper")


@tool(effect="idempotent")
async def refuses_its_own_key(text: str, context: CallContext) -> str:
    """Takes a second start with the same key for a mistake."""
    if lines(context.key.replace("/", "_")):
        raise ToolFailed("this was done before")
    await asyncio.sleep(0)
    put(context.key, text)
    return "done"


@tool(effect="idempotent", parallel=True)
async def counts_side_by_side(text: str) -> str:
    """Adds a line at each start; beside another call nobody sees whose it is."""
    add("side-by-side", text)
    await asyncio.sleep(0.01)
    return "counted"


@tool(effect="read")
async def ends_with_a_child(text: str) -> str:
    """Ends the process and leaves a child that holds what it inherited."""
    if os.fork() == 0:
        time.sleep(2)  # noqa: ASYNC251 - the fault
        os._exit(0)
    os._exit(4)


def side_by_side() -> Agent:
    """Two calls of one tool in one reply."""
    replies = [calls(*(call("counts_side_by_side", id=name, text=name) for name in ("a", "b"))), say("done")]
    return Agent("beside", StepModel(replies), LIMITS, tools=(counts_side_by_side,))


FAULTS: dict[str, tuple[str, Any]] = {
    "idempotency_key": ("ignores_its_key", ignores_its_key),
    "cancel_swallowed": ("swallows_cancel", swallows_cancel),
    "blocks_loop": ("blocks_the_loop", blocks_the_loop),
    "late_effect": ("writes_after_its_timeout", writes_after_its_timeout),
    "leaves_process": ("leaks_a_process", leaks_a_process),
    "output": ("returns_everything", returns_everything),
    "same_operation": ("renames_its_operation", renames_its_operation),
    "same_arguments": ("never_the_same", NeverTheSameArguments("never_the_same")),
    "strict_arguments": ("reads_anything", ReadsAnything("reads_anything")),
    "read": ("writes_as_a_read", writes_as_a_read),
    "reconcile, of what was done": ("pays_twice", pays_twice),
    "reconcile, of what was not": ("never_pays", never_pays),
    "reconcile, that fails": ("cannot_look", cannot_look),
    "raises": ("raises_an_alarm", raises_an_alarm),
    "same_end": ("refuses_its_own_key", refuses_its_own_key),
    "process, ended with a child": ("ends_with_a_child", ends_with_a_child),
    "process, ended": ("exits_the_process", exits_the_process),
    "process, hung": ("hangs_when_asked_to_end", hangs_when_asked_to_end),
}


def agent(fault: str) -> Agent:
    """An agent with the tool of this fault."""
    return agent_of(FAULTS[fault][1])
