"""What every tool has to do, whoever wrote it: one rule, one finding (contract 4, 6.7, 8).

Rule 1: definition, arguments and operation key are checked without running the tool.
Rule 2: a read runs with arguments made from its schema; anything else runs only with arguments that were given,
because an effect needs somebody's word.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from fencepost.core.errors import ArgumentsInvalid, JsonInvalid, ToolFailed
from fencepost.core.limits import Limits
from fencepost.core.messages import Effect
from fencepost.core.strictjson import loads
from fencepost.core.values import stored
from fencepost.ports import CallContext, Prepared, Reconciled, Tool
from fencepost.run.foreign import describe
from fencepost.testing.conformance.malformed import Malformed, example, malformed
from fencepost.testing.conformance.report import Finding, Report, broken, holds, unchecked
from fencepost.testing.conformance.running import INTO_SECONDS, Came, Probe, Runs, is_a, seen
from fencepost.testing.conformance.watching import (
    LOOP_PAUSE_MOST,
    Left,
    LoopWatch,
    children,
    end,
    keeping_orphans,
)

TOOL_RULES: Mapping[str, str] = {
    "definition": "it says what it is, the same each time: name, schema, effect, version",
    "strict-arguments": "arguments that break its schema are refused with words, before its body runs",
    "arguments": "arguments that fit are taken, and their order makes no difference",
    "operation-key": "equal arguments name the same effect",
    "ends": "it ends in its time, and what it raises is an Exception",
    "result": "its result is JSON or text and fits the bound",
    "loop": "it does not keep the event loop from others",
    "leaves-nothing": "tasks, threads and child processes do not add up",
    "effect": "it has an effect exactly if it says so",
    "key": "the same idempotency key makes one effect",
    "cancel": "a cancelled call ends within the grace",
    "deadline": "a call that runs out of time ends within the grace",
    "late-effects": "nothing happens after a call was ended",
    "reconcile": "what it says of an earlier start is true",
}
# Twice could be a cache that fills; growth over three runs is a leak.
RUNS = 3
# A refusal is read by a model (contract 4.4). Bytes.
REFUSAL_BYTES_MOST = 4096
# Examples in one sentence.
SHOWN_MOST = 3
SHOWN_CHARS = 120
NO_ARGUMENTS = "no arguments to run it with: give some"
NOT_JSON = "<not JSON:"
OPERATION_KEY_CHARS_MOST = 512


class Times(Struct, frozen=True):
    """How long a suite waits, in seconds: for a whole run, before a deadline, for the end, for late effects.

    `pause_seconds` is the longest for which a call may keep the event loop.
    """

    run_seconds: float
    deadline_seconds: float
    grace_seconds: float
    settle_seconds: float
    pause_seconds: float


async def check_tool(
    tool: Tool,
    *,
    arguments: Mapping[str, Any] | None = None,
    slow: Mapping[str, Any] | None = None,
    probe: Probe | None = None,
    result_bytes: int = Limits(steps=1).result_bytes,
    run_seconds: float = Limits(steps=1).tool_seconds,
    deadline_seconds: float = 0.2,
    grace_seconds: float = Limits(steps=1).grace_seconds,
    settle_seconds: float = 0.5,
    pause_seconds: float = LOOP_PAUSE_MOST,
) -> Report:
    """What the tool does about each of TOOL_RULES.

    `arguments` are some that fit, for a call with an effect on a world made for tests; `slow` are some with which a
    call takes longer than `deadline_seconds`; `probe()` says how much has happened in that world, as anything
    that can be compared. `settle_seconds` is how long late effects are waited for, `pause_seconds` the longest for
    which a call may keep the event loop. A tool runs about ten times.
    """
    times = Times(run_seconds, deadline_seconds, grace_seconds, settle_seconds, pause_seconds)
    suite = _Suite(tool, arguments, slow=slow, probe=probe, result_bytes=result_bytes, times=times)
    findings = {found.rule: found async for found in suite.findings()}
    for rule in TOOL_RULES:
        findings.setdefault(rule, unchecked(rule, suite.why_not))
    return Report("tool", suite.name, tuple(findings[rule] for rule in TOOL_RULES))


class _Suite:
    """The rules over one tool; `why_not` says why those that need a run were not checked."""

    def __init__(
        self,
        tool: Tool,
        arguments: Mapping[str, Any] | None,
        *,
        slow: Mapping[str, Any] | None,
        probe: Probe | None,
        result_bytes: int,
        times: Times,
    ) -> None:
        self.tool, self.probe, self.result_bytes, self.times = tool, probe, result_bytes, times
        self.name = type(tool).__name__  # until its definition says another
        self.given, self.slow = arguments, slow
        self.why_not = NO_ARGUMENTS
        self.runs = Runs(times.grace_seconds)
        self._numbers = itertools.count()
        self._prefix = uuid.uuid4().hex

    async def findings(self) -> AsyncIterator[Finding]:
        """One finding for each rule that could be looked at."""
        schema, found = self._definition()
        yield found
        if schema is None:
            self.why_not = "its definition has to be mended first"
            return
        fitting = dict(self.given) if self.given is not None else example(schema)
        prepared, found = self._prepared(fitting)
        yield found
        yield self._strict(malformed(schema, fitting if prepared is not None else None))
        if prepared is None:
            return
        yield self._operation_key(prepared)
        if self.tool.definition.effect is not Effect.READ and self.given is None:
            self.why_not = (
                "it has an effect, so it runs only with arguments that you give, in a world made for tests"
            )
            return
        async with self._tidy():
            async for found in self._running(prepared):
                yield found

    @asynccontextmanager
    async def _tidy(self) -> AsyncIterator[None]:
        """In the block processes are watched; what the tool leaves then is ended."""
        with keeping_orphans():
            before = children() or frozenset()
            try:
                yield
            finally:
                end((children() or frozenset()) - before)

    # --- without running it ---

    def _definition(self) -> tuple[dict[str, Any] | None, Finding]:
        rule = "definition"
        try:
            first, second = self.tool.definition, self.tool.definition
            self.name, schema = first.name, loads(first.schema)
        except Exception as why:  # noqa: BLE001 - foreign code
            if not isinstance(why, JsonInvalid):
                return None, broken(rule, f"it has none that can be read: {describe(why)}")
            return None, broken(rule, f"its schema is not JSON text ({why})")
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            return None, broken(rule, "its schema does not describe an object; arguments are one JSON object")
        if first.effect not in tuple(Effect):
            return None, broken(rule, f"its effect is {first.effect!r}, not one of read, idempotent, write")
        if first != second:
            return schema, broken(
                rule, "its definition differs from one time to the next, so no task can resume"
            )
        missing = [name for name in ("name", "description", "version", "digest") if not getattr(first, name)]
        if missing:
            return schema, broken(rule, f"its {', '.join(missing)} is empty")
        return schema, holds(rule, f"{first.name} is a tool with the effect {first.effect.value!r}")

    def _prepared(self, fitting: dict[str, Any] | None) -> tuple[Prepared | None, Finding]:
        rule = "arguments"
        if fitting is None:
            return None, unchecked(rule, "no arguments can be made from its schema: give some that fit")
        try:
            first = self.tool.prepare(json.dumps(fitting))
            turned = self.tool.prepare(json.dumps(dict(reversed(fitting.items())), indent=1))
        except ArgumentsInvalid as why:
            if self.given is None:
                return None, unchecked(rule, f"arguments made from its schema do not fit ({why}): give some")
            return None, broken(rule, f"it refused the arguments that were given: {why}")
        except Exception as why:  # noqa: BLE001 - foreign code
            return None, broken(rule, f"it raised {describe(why)} for arguments that fit its schema")
        if not (is_a(first, Prepared) and is_a(turned, Prepared)):
            return None, broken(rule, f"its prepare gave a {type(first).__name__}, not a Prepared")
        if (first.digest, first.canonical) != (turned.digest, turned.canonical):
            return first, broken(rule, "the same arguments in another order have another digest")
        return first, holds(rule, "arguments that fit are taken, in any order")

    def _strict(self, cases: tuple[Malformed, ...]) -> Finding:
        rule = "strict-arguments"
        wrong = [words for case in cases if (words := self._refusal_problem(case)) is not None]
        if not wrong:
            return holds(
                rule, f"{len(cases)} malformed arguments were refused, each with words for the model"
            )
        more = f" and {len(wrong) - SHOWN_MOST} more" if len(wrong) > SHOWN_MOST else ""
        return broken(
            rule, f"{len(wrong)} of {len(cases)} malformed arguments: {'; '.join(wrong[:SHOWN_MOST])}{more}"
        )

    def _refusal_problem(self, case: Malformed) -> str | None:
        what = f"{case.what} ({case.text:.{SHOWN_CHARS}})"
        try:
            self.tool.prepare(case.text)
        except ArgumentsInvalid as why:
            size = len(str(why).encode())
            return (
                None if 0 < size <= REFUSAL_BYTES_MOST else f"{what} was refused with {size} bytes of words"
            )
        except Exception as why:  # noqa: BLE001 - foreign code
            return f"{what} raised {type(why).__name__} instead of ArgumentsInvalid"
        return f"{what} was taken"

    def _operation_key(self, prepared: Prepared) -> Finding:
        rule = "operation-key"
        try:
            first, second = self.tool.operation_key(prepared), self.tool.operation_key(prepared)
        except Exception as why:  # noqa: BLE001 - foreign code
            return broken(rule, f"its operation_key raised {describe(why)}")
        if first != second:
            return broken(
                rule, f"its operation_key says {first!r} and then {second!r} for the same arguments"
            )
        if first is None:
            return holds(rule, "it names no effect, which is allowed")
        if not is_a(first, str) or not 0 < len(first) <= OPERATION_KEY_CHARS_MOST:
            return broken(rule, f"its operation_key is no text of 1 to {OPERATION_KEY_CHARS_MOST} characters")
        return holds(rule, f"equal arguments name the effect {first!r}")

    # --- running it ---

    async def _running(self, prepared: Prepared) -> AsyncIterator[Finding]:
        for found in await self._three_runs(prepared):
            yield found
        for found in await self._effects(prepared):
            yield found
        yield await self._reconciled(prepared)
        for found in await self._stopped(prepared):
            yield found

    def _context(self, key: str | None = None, seconds: float | None = None) -> CallContext:
        number = next(self._numbers)
        return CallContext(
            task="task-conformance",
            tenant="local",
            principal="local/conformance",
            step=number + 1,
            position=0,
            start=1,
            key=key if key is not None else f"{self._prefix}-{number}",
            seconds=self.times.run_seconds if seconds is None else seconds,
        )

    async def _run(self, prepared: Prepared, context: CallContext) -> Came | None:
        return await self.runs.whole(lambda: self.tool.run(prepared, context), seconds=self.times.run_seconds)

    async def _three_runs(self, prepared: Prepared) -> list[Finding]:
        came: list[Came | None] = []
        pauses: list[float] = []
        left: list[Left] = []
        for _ in range(RUNS):
            watch = LoopWatch()
            async with watch.watching():
                came.append(await self._run(prepared, self._context()))
            pauses.append(watch.longest)
            left.append(await self.runs.left())
            if came[-1] is None:
                break
        findings = [self._ended(came), self._loop(min(pauses))]
        if all(each is not None for each in came):
            findings += [self._result(came), await self._left(left[0])]
        return findings

    def _ended(self, came: list[Came | None]) -> Finding:
        rule, most = "ends", f"{self.times.run_seconds:g} s"
        for each in came:
            if each is None:
                return broken(rule, f"it did not end within {most}, nor when it was cancelled then")
            if each.seconds > self.times.run_seconds:
                return broken(rule, f"it did not end within {most}")
            if each.cancelled:
                return broken(rule, "it raised CancelledError although nobody cancelled it")
            if each.raised is not None and not isinstance(each.raised, Exception):
                said = type(each.raised).__name__
                return broken(rule, f"it raised {said}, which is no Exception: it ends the process around it")
            if each.raised is not None and not isinstance(each.raised, ToolFailed):
                return broken(
                    rule,
                    f"it raised {describe(each.raised)} for arguments that fit; raise ToolFailed to say no",
                )
        longest = max(each.seconds for each in came if each is not None)
        return holds(rule, f"{len(came)} calls ended, the longest after {longest:.2g} s")

    def _loop(self, longest: float) -> Finding:
        most = self.times.pause_seconds
        if longest > most:
            return broken(
                "loop",
                f"it kept the event loop for {longest:.2g} s: cancels, timeouts and other tasks wait so long;"
                " write it as a plain function, which gets a thread, or await",
            )
        return holds("loop", f"the event loop was never kept for longer than {most:g} s")

    def _result(self, came: list[Came | None]) -> Finding:
        rule = "result"
        values = [each.value for each in came if each is not None and each.raised is None]
        if not values:
            return unchecked(rule, "it gave no result: every call said no")
        for value in values:
            kept = stored(value, limit=self.result_bytes)
            if NOT_JSON in kept.text:
                at = kept.text.index(NOT_JSON)
                return broken(
                    rule, f"its result holds what has no JSON form: {kept.text[at : at + SHOWN_CHARS]}"
                )
            if kept.cut:
                return broken(
                    rule,
                    f"its result has {kept.size_bytes} bytes and a model is shown {self.result_bytes};"
                    " give a part, or less of each thing",
                )
        return holds(rule, f"its results fit in {self.result_bytes} bytes")

    async def _left(self, first: Left) -> Finding:
        """Whether later runs left more than the first one; what is only about to end has a little time."""
        rule = "leaves-nothing"
        if (await self.runs.left()).more_than(first) is not None:
            await asyncio.sleep(self.times.settle_seconds)
        more = (await self.runs.left()).more_than(first)
        if more is not None:
            return broken(rule, f"each call leaves more {more}")
        return holds(rule, f"{RUNS} calls left no more tasks, threads and processes than one")

    async def _effects(self, prepared: Prepared) -> list[Finding]:
        if self.probe is None:
            why = "give a probe that says how much has happened"
            return [unchecked("effect", why), unchecked("key", why)]
        context = self._context()
        before = await seen(self.probe)
        await self._run(prepared, context)
        once = await seen(self.probe)
        if self.tool.definition.effect is Effect.READ:
            none = unchecked("key", "a read has no effect to repeat")
            if once != before:
                return [
                    broken("effect", f"it says it reads, and the probe saw {before!r} become {once!r}"),
                    none,
                ]
            return [holds("effect", "it says it reads, and the probe saw no change"), none]
        if once == before:
            said = "the probe saw no effect: give arguments that have one, or a probe that sees it"
            return [unchecked("effect", said), unchecked("key", said)]
        had = holds("effect", f"the probe saw {before!r} become {once!r}")
        await self._run(prepared, context)
        twice = await seen(self.probe)
        if twice != once:
            return [had, broken("key", f"two starts with the same key made two effects: the probe saw {once!r}"
                                f" become {twice!r}; keep the key of the call with its effect")]  # fmt: skip
        return [had, holds("key", "two starts with the same key made one effect")]

    async def _reconciled(self, prepared: Prepared) -> Finding:
        rule = "reconcile"
        if not self.tool.definition.reconciles:
            return unchecked(rule, "it has no reconcile, so a person is asked about a lost write")
        done, lost = self._context(), self._context()
        ran = await self._run(prepared, done)
        if ran is None or ran.raised is not None:
            return unchecked(rule, "no call succeeded that it could be asked about")
        said = await self._word(prepared, done)
        if isinstance(said, Finding):
            return said
        if said.verdict == "did_not_happen":
            return broken(
                rule, "it says 'did_not_happen' of a call that happened, which would then run again"
            )
        said = await self._word(prepared, lost)
        if isinstance(said, Finding):
            return said
        if said.verdict == "happened":
            return broken(rule, "it says 'happened' of a call that never started")
        return await self._refuses_later(prepared, lost, said)

    async def _word(self, prepared: Prepared, context: CallContext) -> Reconciled | Finding:
        came = await self.runs.whole(
            lambda: self.tool.reconcile(prepared, context), seconds=self.times.run_seconds
        )
        if came is None:
            return broken("reconcile", f"it did not answer within {self.times.run_seconds:g} s")
        if came.raised is not None:
            return broken("reconcile", f"it raised {describe(came.raised)}")
        if isinstance(came.value, Reconciled):
            return came.value
        return broken("reconcile", f"it answered a {type(came.value).__name__}, not a Reconciled")

    async def _refuses_later(self, prepared: Prepared, lost: CallContext, said: Reconciled) -> Finding:
        """After "did_not_happen" the lost start itself must not take effect any more (ports.Reconciled)."""
        rule = "reconcile"
        if said.verdict != "did_not_happen" or self.probe is None:
            return holds(rule, "it is right about a call that happened and about one that never started")
        before = await seen(self.probe)
        await self._run(prepared, lost)
        if await seen(self.probe) != before:
            return broken(
                rule,
                "it said 'did_not_happen', and the lost start with that key still took effect afterwards",
            )
        return holds(
            rule, "it is right about both, and refuses a start of which it said that it did not happen"
        )

    # --- ending it ---

    async def _stopped(self, prepared: Prepared) -> list[Finding]:
        slow = prepared if self.slow is None else self._slow()
        if isinstance(slow, Finding):
            return [slow]
        if self.tool.threaded:
            why = "its body is a plain function in a thread, which nobody can stop: a timeout only ends the wait"
            late = await self._late(slow) if self.slow is not None else unchecked("late-effects", why)
            return [unchecked("cancel", why), unchecked("deadline", why), late]
        after = INTO_SECONDS if self.slow is not None else 0.0
        findings = [await self._ends("cancel", slow, after=after, seconds=self.times.run_seconds)]
        if self.slow is None:
            findings.append(unchecked("deadline", "give slow arguments, with which a call takes longer"))
        else:
            wait = self.times.deadline_seconds
            findings.append(await self._ends("deadline", slow, after=wait, seconds=wait))
        findings.append(await self._late(slow))
        return findings

    def _slow(self) -> Prepared | Finding:
        try:
            return self.tool.prepare(json.dumps(dict(self.slow or {})))
        except ArgumentsInvalid as why:
            return broken("cancel", f"it refused the slow arguments that were given: {why}")

    async def _ends(self, rule: str, slow: Prepared, *, after: float, seconds: float) -> Finding:
        context = self._context(seconds=seconds)
        stopped, came = await self.runs.cancelled(lambda: self.tool.run(slow, context), after=after)
        if not stopped:
            return unchecked(
                rule, "the call had ended before; give slow arguments, with which it takes longer"
            )
        grace = self.times.grace_seconds
        if came is None:
            return broken(rule, f"it went on for more than {grace:g} s after it was cancelled; let CancelledError"
                          " pass, and clean up in `finally`")  # fmt: skip
        return holds(rule, f"it ended within {grace:g} s of being cancelled")

    async def _late(self, slow: Prepared) -> Finding:
        rule = "late-effects"
        if self.probe is None:
            return unchecked(rule, "give a probe that says how much has happened")
        after = self.times.deadline_seconds if self.slow is not None else 0.0
        context = self._context(seconds=after or self.times.run_seconds)
        stopped, _ = await self.runs.cancelled(lambda: self.tool.run(slow, context), after=after)
        if not stopped:
            return unchecked(
                rule, "the call had ended before; give slow arguments, with which it takes longer"
            )
        before = await seen(self.probe)
        await asyncio.sleep(self.times.settle_seconds)
        now = await seen(self.probe)
        if now != before:
            return broken(rule, f"after the call was ended the probe still saw {before!r} become {now!r}")
        return holds(rule, f"nothing happened for {self.times.settle_seconds:g} s after the call was ended")
