"""The suite for tools tells good tools from bad ones (contract 4, 6.7, 8).

Rule of this file: a bad tool is a good one with one fault, and the suite names the rule it breaks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from msgspec import Meta
from msgspec.structs import replace

from fencepost import tool
from fencepost.core.canonical import canonical, digest
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid, ToolFailed
from fencepost.core.messages import ToolDefinition
from fencepost.ports import CallContext, Prepared, Reconciled, Tool
from fencepost.testing.conformance import TOOL_RULES, ConformanceBroken, Verdict, check_tool
from fencepost.tools.declared import DeclaredTool

# The suite waits in real time for what must not happen; these waits are as short as a busy machine allows.
QUICK: dict[str, Any] = {
    "run_seconds": 20.0, "deadline_seconds": 0.05, "grace_seconds": 20.0, "settle_seconds": 0.05,
}  # fmt: skip
ITEM = {"item": "a"}


class World:
    """Where effects happen; `done` is what tools wait for that would otherwise wait for ever."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.refused: set[str] = set()
        self.background: set[asyncio.Task[None]] = set()
        self.done = threading.Event()

    def probe(self) -> int:
        return len(self.keys)

    def last_look(self, looks: int) -> Callable[[], int]:
        """A probe; what waits for `done` goes on after so many looks, so that it is late on any machine."""
        left = iter(range(looks - 1, -1, -1))

        def probe() -> int:
            if next(left, 0) == 0:
                self.done.set()
            return len(self.keys)

        return probe


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.done.set()


@tool(effect="read")
async def stock(item: Annotated[str, Meta(min_length=1)], depth: int = 0) -> dict[str, Any]:
    """How many of an item are in store."""
    return {"item": item, "count": 3}


class Around:
    """A tool like another, whose parts a subclass spoils."""

    threaded = False

    def __init__(self, inner: Tool = stock) -> None:
        self.inner = inner

    @property
    def definition(self) -> ToolDefinition:
        return self.inner.definition

    def prepare(self, arguments: str, /) -> Prepared:
        return self.inner.prepare(arguments)

    def operation_key(self, prepared: Prepared, /) -> str | None:
        return self.inner.operation_key(prepared)

    def run(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Any]:
        return self.inner.run(prepared, context)

    def reconcile(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Reconciled]:
        return self.inner.reconcile(prepared, context)


# --- good tools --------------------------------------------------------------------------------------------


async def test_a_plain_read_keeps_every_rule_that_can_be_checked() -> None:
    report = await check_tool(stock, probe=lambda: 0, **QUICK)
    report.check()
    assert tuple(found.rule for found in report.findings) == tuple(TOOL_RULES)
    held = {found.rule for found in report.findings if found.verdict is Verdict.HOLDS}
    assert held == {
        "definition", "strict-arguments", "arguments", "operation-key", "ends", "result", "loop",
        "leaves-nothing", "effect",
    }  # fmt: skip


async def test_a_sync_tool_is_not_blamed_for_a_thread_that_nobody_can_stop() -> None:
    @tool(effect="read")
    def look(place: str) -> str:
        """What is there."""
        return place

    report = await check_tool(look, **QUICK)
    report.check()
    assert report.verdict("cancel") is Verdict.UNCHECKED
    assert "a thread, which nobody can stop" in report.said("deadline")


def careful(world: World) -> Tool:
    """A write that keeps every rule there is."""

    def happened(key: str) -> str:
        if key in world.keys:
            return "happened"
        world.refused.add(key)
        return "did_not_happen"

    @tool(reconcile=happened, operation_key=lambda arguments: f"order {arguments['item']}")
    async def order(item: str, context: CallContext, *, wait: bool = False) -> str:
        """Order one."""
        if wait:
            await asyncio.get_running_loop().create_future()
        if context.key in world.refused:
            raise ToolFailed("this order was given up")
        if context.key not in world.keys:
            world.keys.append(context.key)
        return "ordered"

    return order


async def test_a_careful_write_holds_every_rule(world: World) -> None:
    report = await check_tool(
        careful(world), arguments=ITEM, slow={**ITEM, "wait": True}, probe=world.probe, **QUICK
    )
    assert {found.rule: found.verdict for found in report.findings} == dict.fromkeys(
        TOOL_RULES, Verdict.HOLDS
    )


async def test_an_async_probe_is_awaited(world: World) -> None:
    async def probe() -> int:
        return world.probe()

    report = await check_tool(careful(world), arguments=ITEM, probe=probe, **QUICK)
    assert report.verdict("key") is Verdict.HOLDS


async def test_a_probe_that_fails_is_the_users_to_mend(world: World) -> None:
    def probe() -> int:
        raise OSError("no such file")

    with pytest.raises(DefinitionInvalid, match="the probe failed with OSError: no such file"):
        await check_tool(careful(world), arguments=ITEM, probe=probe, **QUICK)


async def test_a_write_without_arguments_does_not_run(world: World) -> None:
    report = await check_tool(careful(world), probe=world.probe, **QUICK)
    report.check()
    assert world.keys == []
    assert "runs only with arguments that you give" in report.said("key")


async def test_a_tool_that_was_declared_by_a_schema_is_checked_like_any_other() -> None:
    async def find(arguments: dict[str, Any], _: CallContext) -> str:
        return str(arguments["count"])

    schema = {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
            "kind": {"enum": ["a", "b"]},
            "tags": {
                "type": "array",
                "items": {"type": "string", "maxLength": 3},
                "minItems": 1,
                "maxItems": 2,
            },
            "window": {
                "type": "object",
                "properties": {"start": {"type": "string", "format": "date-time"}, "end": {"type": "null"}},
                "required": ["start", "end"],
                "additionalProperties": False,
            },
        },
        "required": ["count", "kind", "tags", "window"],
    }
    declared = DeclaredTool("find", find, schema=schema, description="Find.", effect="read")
    report = await check_tool(declared, **QUICK)
    report.check()
    assert report.verdict("strict-arguments") is Verdict.HOLDS


async def test_arguments_that_cannot_be_made_from_a_schema_have_to_be_given() -> None:
    @tool(effect="read")
    async def look(place: Annotated[str, Meta(pattern="^[A-Z]{3}-[0-9]+$")]) -> str:
        """What is there."""
        return place

    report = await check_tool(look, **QUICK)
    report.check()
    assert "give some" in report.said("arguments")
    assert report.verdict("ends") is Verdict.UNCHECKED
    assert (await check_tool(look, arguments={"place": "ABC-1"}, **QUICK)).verdict("ends") is Verdict.HOLDS


# --- definitions and arguments -----------------------------------------------------------------------------


class Changing(Around):
    _numbers = itertools.count()

    @property
    def definition(self) -> ToolDefinition:
        return replace(self.inner.definition, version=str(next(self._numbers)))


class Unreadable(Around):
    @property
    def definition(self) -> ToolDefinition:
        raise KeyError("name")


class Unprepared(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        self.inner.prepare(arguments)
        return arguments  # type: ignore[return-value]


class NotJson(Around):
    @property
    def definition(self) -> ToolDefinition:
        return replace(self.inner.definition, schema="{")


class NotAnObject(Around):
    @property
    def definition(self) -> ToolDefinition:
        return replace(self.inner.definition, schema='{"type": "string"}')


class OddEffect(Around):
    @property
    def definition(self) -> ToolDefinition:
        return replace(self.inner.definition, effect="looks")


class NoDigest(Around):
    @property
    def definition(self) -> ToolDefinition:
        return replace(self.inner.definition, digest="")


class Coercing(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        try:
            return self.inner.prepare(arguments)
        except ArgumentsInvalid as why:
            try:
                found = json.loads(arguments)
                found["depth"] = int(found["depth"])
            except (ValueError, KeyError, TypeError):
                raise why from None
            return self.inner.prepare(json.dumps(found))


class Lenient(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        try:
            return self.inner.prepare(arguments)
        except ArgumentsInvalid:
            return self.inner.prepare('{"item": "a"}')


class Wordless(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        try:
            return self.inner.prepare(arguments)
        except ArgumentsInvalid:
            raise ArgumentsInvalid("") from None


class OrderMatters(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        return replace(self.inner.prepare(arguments), digest=digest(canonical(arguments)))


class RefusesAll(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        raise ArgumentsInvalid("no")


class Bursts(Around):
    def prepare(self, arguments: str, /) -> Prepared:
        raise KeyError("depth")


class RandomKey(Around):
    _numbers = itertools.count()

    def operation_key(self, prepared: Prepared, /) -> str | None:
        return f"effect {next(self._numbers)}"


class NumberKey(Around):
    def operation_key(self, prepared: Prepared, /) -> str | None:
        return 7  # type: ignore[return-value]


class BurstingKey(Around):
    def operation_key(self, prepared: Prepared, /) -> str | None:
        raise KeyError("item")


@pytest.mark.parametrize(
    ("bad", "rule", "said"),
    [
        (Changing, "definition", "differs from one time to the next"),
        (Unreadable, "definition", "it has none that can be read: KeyError"),
        (Unprepared, "arguments", "its prepare gave a str, not a Prepared"),
        (NotJson, "definition", "not JSON text"),
        (NotAnObject, "definition", "does not describe an object"),
        (OddEffect, "definition", "not one of read, idempotent, write"),
        (NoDigest, "definition", "digest is empty"),
        (Coercing, "strict-arguments", 'depth = true ({"item": "a", "depth": true}) was taken'),
        (Lenient, "strict-arguments", "was taken"),
        (Wordless, "strict-arguments", "with 0 bytes of words"),
        (OrderMatters, "arguments", "another digest"),
        (RefusesAll, "arguments", "it refused the arguments that were given: no"),
        (Bursts, "arguments", "KeyError"),
        (Bursts, "strict-arguments", "raised KeyError instead of ArgumentsInvalid"),
        (RandomKey, "operation-key", "says 'effect 0' and then 'effect 1'"),
        (NumberKey, "operation-key", "is no text"),
        (BurstingKey, "operation-key", "raised KeyError"),
    ],
)
async def test_what_is_wrong_before_a_tool_runs_is_named(bad: type[Around], rule: str, said: str) -> None:
    report = await check_tool(bad(), arguments=ITEM, **QUICK)
    assert report.verdict(rule) is Verdict.BROKEN
    assert said in report.said(rule)
    with pytest.raises(ConformanceBroken, match=rule):
        report.check()


async def test_a_report_knows_only_its_rules() -> None:
    report = await check_tool(stock, **QUICK)
    with pytest.raises(KeyError, match="no rule 'speed'"):
        report.verdict("speed")
    with pytest.raises(KeyError, match="no rule 'speed'"):
        report.said("speed")


# --- running -----------------------------------------------------------------------------------------------

Body = Callable[[World], Awaitable[Any]]


def reading(world: World, body: Body) -> Tool:
    """A read that does what the body does."""

    @tool(effect="read")
    async def bad(item: str) -> Any:
        """Do it."""
        return await body(world)

    return bad


async def leaves(_: World) -> None:
    raise SystemExit(3)


async def bursts(_: World) -> None:
    raise ZeroDivisionError("by zero")


async def cancels(_: World) -> None:
    raise asyncio.CancelledError


async def hangs(_: World) -> None:
    await asyncio.get_running_loop().create_future()


async def floods(_: World) -> str:
    return "x" * 100_000


async def odd(_: World) -> dict[str, object]:
    return {"found": object()}


async def blocks(world: World) -> None:
    world.done.wait(0.1)


async def starts_threads(world: World) -> None:
    threading.Thread(target=world.done.wait, name="left behind").start()


async def starts_tasks(world: World) -> None:
    world.background.add(asyncio.create_task(asyncio.sleep(60), name="left behind"))


async def writes(world: World) -> None:
    world.keys.append("")


@pytest.mark.parametrize(
    ("body", "rule", "said"),
    [
        (leaves, "ends", "it raised SystemExit, which is no Exception"),
        (bursts, "ends", "ZeroDivisionError: by zero"),
        (cancels, "ends", "although nobody cancelled it"),
        (hangs, "ends", "it did not end within 0.3 s"),
        (floods, "result", "100000 bytes"),
        (odd, "result", "has no JSON form: <not JSON: builtins.object>"),
        (blocks, "loop", "it kept the event loop for 0.1"),
        (starts_threads, "leaves-nothing", "each call leaves more threads: left behind, left behind"),
        (starts_tasks, "leaves-nothing", "each call leaves more asyncio tasks: left behind"),
        (writes, "effect", "it says it reads, and the probe saw"),
    ],
)
async def test_what_goes_wrong_while_a_tool_runs_is_named(
    world: World, body: Body, rule: str, said: str
) -> None:
    times = {**QUICK, "run_seconds": 0.3, "pause_seconds": 0.08 if body is blocks else 1.0}
    report = await check_tool(reading(world, body), probe=world.probe, **times)
    assert report.verdict(rule) is Verdict.BROKEN, report
    assert said in report.said(rule)
    assert [found.rule for found in report.broken] == [rule]


def _asleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


async def test_a_process_that_is_left_behind_is_named_and_ended(world: World) -> None:
    started: list[subprocess.Popen[bytes]] = []

    async def forks(_: World) -> None:
        started.append(_asleep())

    report = await check_tool(reading(world, forks), **QUICK)
    assert report.verdict("leaves-nothing") is Verdict.BROKEN
    assert "each call leaves more processes: sleep" in report.said("leaves-nothing")
    assert {process.wait(timeout=10) for process in started} == {-9}


async def test_a_daemon_is_found_although_its_parent_has_ended() -> None:
    @tool(effect="read")
    def daemonizes(item: str) -> None:
        """Leave a daemon behind."""
        subprocess.run(["sh", "-c", "setsid sleep 60 & :"], check=True)

    report = await check_tool(daemonizes, **QUICK)
    assert "sleep" in report.said("leaves-nothing")


# --- effects, keys, ends -----------------------------------------------------------------------------------


async def test_two_effects_for_one_key_are_named(world: World) -> None:
    @tool(effect="idempotent")
    async def order(item: str) -> str:
        """Order one."""
        world.keys.append(item)
        return "ordered"

    report = await check_tool(order, arguments=ITEM, probe=world.probe, **QUICK)
    assert [found.rule for found in report.broken] == ["key"]


async def test_an_effect_the_probe_does_not_see_is_unchecked(world: World) -> None:
    report = await check_tool(careful(world), arguments=ITEM, probe=lambda: 0, **QUICK)
    assert report.verdict("effect") is Verdict.UNCHECKED
    assert report.verdict("key") is Verdict.UNCHECKED


async def test_a_tool_that_swallows_its_cancel_is_named(world: World) -> None:
    release = asyncio.Event()

    async def holds_on(_: World) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    bad = reading(world, holds_on)
    times = {**QUICK, "run_seconds": 0.2, "grace_seconds": 0.05}
    report = await check_tool(bad, slow=ITEM, **times)
    for rule in ("ends", "cancel", "deadline"):
        assert report.verdict(rule) is Verdict.BROKEN
    assert "it went on for more than 0.05 s after it was cancelled" in report.said("cancel")
    release.set()  # or the loop would wait for it when it closes


async def test_an_effect_after_the_end_of_a_call_is_named(world: World) -> None:
    async def later() -> None:
        while not world.done.is_set():  # noqa: ASYNC110 - the probe sets it, which is no coroutine
            await asyncio.sleep(0)
        world.keys.append("late")

    @tool
    async def order(item: str) -> str:
        """Order one when it is cancelled."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            world.background.add(asyncio.create_task(later()))
        return "never"

    times = {**QUICK, "run_seconds": 0.05, "settle_seconds": 0.2}
    probe = world.last_look(3)  # two for an effect that is not seen, one when the call was ended
    report = await check_tool(order, arguments=ITEM, slow=ITEM, probe=probe, **times)
    assert "after the call was ended the probe still saw" in report.said("late-effects")


async def test_a_thread_that_writes_after_its_time_is_named(world: World) -> None:
    @tool
    def order(item: str, *, wait: bool = False) -> str:
        """Order one, late."""
        if wait:
            world.done.wait()
        world.keys.append(item)
        return "ordered"

    times = {**QUICK, "settle_seconds": 0.5}
    slow = {**ITEM, "wait": True}
    probe = world.last_look(4)  # two for the effect, one for the key, one when the call was ended
    report = await check_tool(order, arguments=ITEM, slow=slow, probe=probe, **times)
    assert report.verdict("late-effects") is Verdict.BROKEN


async def test_slow_arguments_have_to_fit_and_to_be_slow(world: World) -> None:
    report = await check_tool(stock, slow={"item": 1}, **QUICK)
    assert "it refused the slow arguments" in report.said("cancel")
    report = await check_tool(stock, slow=ITEM, probe=world.probe, **QUICK)
    for rule in ("cancel", "deadline", "late-effects"):
        assert "the call had ended before" in report.said(rule)


# --- reconcile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (lambda key, world: "did_not_happen", "it says 'did_not_happen' of a call that happened"),
        (lambda key, world: "happened", "it says 'happened' of a call that never started"),
        (lambda key, world: "perhaps", "it raised ToolFailed"),
        (
            lambda key, world: "happened" if key in world.keys else "did_not_happen",
            "the lost start with that key still took effect",
        ),
    ],
)
async def test_a_reconcile_that_is_not_right_is_named(
    world: World, word: Callable[[str, World], str], said: str
) -> None:
    @tool(reconcile=lambda key: word(key, world))
    async def order(item: str, context: CallContext) -> str:
        """Order one."""
        if context.key not in world.keys:
            world.keys.append(context.key)
        return "ordered"

    report = await check_tool(order, arguments=ITEM, probe=world.probe, **QUICK)
    assert [found.rule for found in report.broken] == ["reconcile"]
    assert said in report.said("reconcile")


async def test_a_reconcile_that_never_answers_or_answers_nonsense_is_named(world: World) -> None:
    class Odd(Around):
        async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
            return "happened"  # type: ignore[return-value]

    class Hangs(Around):
        async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
            while not world.done.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    continue
            return Reconciled("happened")

    order = careful(world)
    assert "answered a str" in (await check_tool(Odd(order), arguments=ITEM, **QUICK)).said("reconcile")
    times = {**QUICK, "run_seconds": 0.1, "grace_seconds": 0.05}
    report = await check_tool(Hangs(order), arguments=ITEM, **times)
    assert "did not answer within 0.1 s" in report.said("reconcile")
    world.done.set()  # or the loop would wait for it when it closes
