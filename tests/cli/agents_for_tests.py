"""Agents that the tests name as `agents_for_tests.py:NAME`: small worlds with known endings.

Rule: a model here answers by the number of the step, so that a resumed task meets the same brain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from fencepost import (
    Agent,
    CallContext,
    Limits,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    Reply,
    Rules,
    ScriptedModel,
    tool,
)
from fencepost.models.scripted import answer, call, calls, say, streamed
from fencepost.ports import Sink

LIMITS = Limits(steps=5)
# ESC, OSC 52 (sets the clipboard), a C1 control, a right-to-left override, a zero-width space, a tag letter.
HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\u202egnp\u200b\U000e0041"


class ByStep:
    """Answers step by step from a list."""

    profile = ModelProfile("by-step", input_nano=1000, output_nano=2000)

    def __init__(self, script: Sequence[Reply]) -> None:
        self._script = script

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        reply = self._script[request.step - 1]
        return reply if sink is None else streamed(reply, sink)


def _note(effect: str) -> None:
    """Write a line into the file of effects, at once."""
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as effects:
        effects.write(effect + "\n")


@tool(effect="read")
async def look(place: str) -> dict[str, str]:
    """Look at a place."""
    return {"place": place, "seen": "all is well there"}


@tool(effect="read")
async def look_at_evil(place: str) -> str:
    """Look at what somebody else wrote."""
    print("printed", HOSTILE)  # noqa: T201 - tools print
    return HOSTILE


@tool(effect="read")
async def wait() -> str:
    """Wait until somebody stops it."""
    print("waiting now")  # noqa: T201 - tools print
    await asyncio.Event().wait()
    return "never"


@tool(effect="read")
def hang() -> str:
    """Hang in a thread that nobody can stop."""
    print("hanging now")  # noqa: T201 - tools print
    threading.Event().wait()
    return "never"


@tool(effect="write")
async def write(what: str) -> str:
    """Write a line into a file outside the store."""
    _note(what)
    return f"wrote {what}"


@tool(effect="write")
async def write_and_die(what: str, context: CallContext) -> str:
    """Write a line, and be killed before anybody hears of it, the first time."""
    _note(what)
    if context.start == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"wrote {what}"


@tool(effect="read")
async def look_and_die(context: CallContext) -> str:
    """Be killed while looking, the first time."""
    if context.start == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "looked at the second start"


TOOLS = (look, look_at_evil, wait, hang, write, write_and_die, look_and_die)
OWN_APPROVAL = Rules.read("self_approval = true\n")


def _agent(name: str, *script: Reply, rules: Rules = OWN_APPROVAL, limits: Limits = LIMITS) -> Agent:
    return Agent(name, ByStep(script), limits, tools=TOOLS, boundary=rules)


def plain() -> Agent:
    return _agent("plain", calls(call("look", id="a", place="here"), text="I look"), say("all is well"))


def cited() -> Agent:
    claim = {
        "text": "all is well here",
        "evidence_id": "ev-1.0",
        "pointer": "/seen",
        "value": "all is well there",
    }
    script = (calls(call("look", id="a", place="here")), answer("It is fine.", claim, id="b"))
    return Agent("cited", ByStep(script), LIMITS, tools=TOOLS, answer="cited")


def hostile() -> Agent:
    asked = calls(call("look_at_evil", id="a", place=HOSTILE), call(f"evil{HOSTILE}", id="b"), text=HOSTILE)
    return _agent("hostile", asked, say(HOSTILE))


def asks() -> Agent:
    return _agent("asks", calls(call("write", id="a", what="one")), say("written"))


def asks_evil() -> Agent:
    return _agent("asks-evil", calls(call("write", id="a", what=HOSTILE + "x" * 3000)), say("written"))


def asks_twice() -> Agent:
    both = calls(call("write", id="a", what="one"), call("write", id="b", what="two"))
    return _agent("asks-twice", both, say("written"))


def asks_others() -> Agent:
    return _agent("asks-others", calls(call("write", id="a", what="one")), say("written"), rules=Rules())


def waits() -> Agent:
    return _agent("waits", calls(call("wait", id="a")), say("not reached"))


def hangs() -> Agent:
    return _agent("hangs", calls(call("hang", id="a")), say("not reached"))


def loses_a_write() -> Agent:
    script = (calls(call("write_and_die", id="a", what="one")), say("written"))
    return _agent("loses-a-write", *script, rules=Rules.allow_all())


def dies() -> Agent:
    return _agent("dies", calls(call("look_and_die", id="a")), say("survived"))


def unreachable() -> Agent:
    return Agent("unreachable", ScriptedModel([ModelFailed(f"no route to {HOSTILE}", kind="auth")]), LIMITS)


def out_of_steps() -> Agent:
    script = (calls(call("look", id="a", place="here")), say("never asked for"))
    return _agent("out-of-steps", *script, limits=Limits(steps=1))


not_an_agent = 7


def needs_arguments(name: str) -> str:
    return name


async def is_async() -> Agent:
    return plain()


def breaks() -> Agent:
    message = "there is nothing to see"
    raise RuntimeError(message)


def no_steps() -> Agent:
    return _agent("no-steps", say("x"), limits=Limits(steps=0))
