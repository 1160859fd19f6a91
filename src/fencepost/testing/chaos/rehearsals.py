"""Chaos for an agent of yours: its task through every crash point, cancel, timeout and spoilt reply.

Rule 1: each rehearsal runs in a child process of its own, in an empty folder, with the agent made anew, so that
one cannot disturb the next, and a tool that ends or hangs its process ends one rehearsal.
Rule 2: what is wrong is said once for each rule and tool, with the shortest journal that shows it.
Rule 3: undisturbed runs come first, twice; when these do not hold, nothing else is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from fencepost.core.lifecycle import TaskState
from fencepost.models.scripted import Line
from fencepost.models.wrappers import Fault
from fencepost.run.agent import Agent
from fencepost.run.foreign import describe
from fencepost.testing.chaos.facts import JOURNAL, UNDISTURBED, WORLD_CHARS, Finding, Plan, Ran, Report, Seen
from fencepost.testing.chaos.script import REPEATED, StepModel
from fencepost.testing.chaos.stage import Probe
from fencepost.testing.chaos.trial import BLOCK_SECONDS, rehearse

# One rehearsal takes milliseconds; one that takes so long hangs. Seconds.
TRIAL_SECONDS = 20.0
# A body with more awaits is disturbed at the first ones; the later ones are like them.
PAUSES_MOST = 3
# What follows from other rules; said only of a tool of which nothing closer is known.
CONSEQUENCES = frozenset({"same_world", "same_end"})
# How often a silent rehearsal is looked at. Seconds.
LOOK_SECONDS = 0.25
PROMPT = "rehearse"
PR_SET_PDEATHSIG = 1  # linux/prctl.h: who rehearses does not outlive who asked for it
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphans of our children become our children


class Broken(Struct, frozen=True):
    """A rehearsal that came to no end of its own, and the last thing it said."""

    plan: Plan
    how: str
    last: str
    journal: tuple[str, ...]


def chaos(
    make: Callable[[], Agent],
    *,
    script: Sequence[Line | str] | None = None,
    prompt: str = PROMPT,
    probe: Probe | None = None,
    seconds: float = TRIAL_SECONDS,
    tell: Callable[[str], None] | None = None,
) -> Report:
    """What does not hold of the agent under every disturbance.

    `make` is called for each rehearsal, in an empty folder. `script` has one reply for each step; without it the
    agent's own model is asked, which must say the same to the same request. `probe` returns what the tools have
    done to the world, as plain values; without it the files below the current folder are looked at. A rehearsal
    gets `seconds`. `tell` hears each plan before it is tried.
    """
    rehearsals = _Rehearsals(make, script, prompt=prompt, probe=probe, seconds=seconds, tell=tell)
    first = rehearsals.run(UNDISTURBED)
    if isinstance(first, Broken):
        return rehearsals.report(first, None)
    second = rehearsals.run(UNDISTURBED)
    if isinstance(second, Broken):
        return rehearsals.report(second, None)
    rehearsals.judge_pair(first, second)
    for plan in plans(first):
        seen = rehearsals.run(plan)
        if isinstance(seen, Broken):
            rehearsals.broken(seen)
        else:
            rehearsals.compare(first, seen)
    return rehearsals.report(None, first)


def plans(seen: Seen) -> Iterator[Plan]:
    """Every disturbance there is for an agent whose undisturbed run was seen."""
    for nth in range(1, seen.commits + 1):
        yield Plan("crash_before", nth)
        yield Plan("crash_after", nth)
        yield Plan("cancel", nth)
    for ran in seen.runs:
        yield Plan("crash_at", call=ran.call, tool=ran.tool)
        for pause in range(1, min(ran.pauses, PAUSES_MOST) + 1):
            for kind in ("crash_in", "cancel_in", "timeout_in"):
                yield Plan(kind, call=ran.call, tool=ran.tool, pause=pause)
    for step in range(1, seen.steps + 1):
        for fault in Fault:
            yield Plan("reply", step=step, fault=fault.name)
        if step > 1:
            yield Plan("reply", step=step, fault=REPEATED)


class _Rehearsals:
    """All rehearsals of one agent, and what they found so far."""

    def __init__(
        self,
        make: Callable[[], Agent],
        script: Sequence[Line | str] | None,
        *,
        prompt: str,
        probe: Probe | None,
        seconds: float,
        tell: Callable[[str], None] | None,
    ) -> None:
        self._make, self._script, self._prompt, self._probe = make, script, prompt, probe
        self._seconds, self._tell = seconds, tell
        self._found: dict[tuple[str, str], Finding] = {}
        self._notes: list[str] = []
        self._trials, self._same_world = 0, True

    def run(self, plan: Plan) -> Seen | Broken:
        """One rehearsal, in a process of its own; its own problems are kept."""
        self._trials += 1
        if self._tell is not None:
            self._tell(plan.words)
        with tempfile.TemporaryDirectory(prefix="fencepost-chaos-", ignore_cleanup_errors=True) as folder:
            seen = _in_a_child(lambda tell: self._rehearsal(plan, Path(folder), tell), plan, self._seconds)
        if isinstance(seen, Seen):
            for problem in seen.problems:
                self._keep(problem.rule, problem.tool, problem.says, seen.plan, _shown(seen, problem.tool))
        return seen

    def _rehearsal(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Seen:
        os.chdir(folder)
        agent = self._make()
        if self._script is not None:
            agent = dataclasses.replace(agent, model=StepModel(self._script))
        return asyncio.run(
            rehearse(agent, plan, prompt=self._prompt, probe=self._probe, folder=folder, tell=tell)
        )

    def judge_pair(self, first: Seen, second: Seen) -> None:
        """What two undisturbed runs show together."""
        if first.state != TaskState.SUCCEEDED.value:
            self._notes.append(
                f"undisturbed, the task ends {first.state} ({first.reason}); give a script that leads to an answer"
            )
        if first.world != second.world:
            self._same_world = False
            self._notes.append(
                "two undisturbed runs leave different worlds, so worlds are not compared; give a probe that tells what"
                f" was done and leaves out times and random names: {first.world:.{WORLD_CHARS}}"
                f" and {second.world:.{WORLD_CHARS}}"
            )
        if first.journal != second.journal:
            self._notes.append(
                "two undisturbed runs have different journals: a tool or the script is not steady"
            )
        for one, other in zip(first.runs, second.runs, strict=False):
            longest = min(one.longest, other.longest)
            if one.tool == other.tool and longest > BLOCK_SECONDS:
                self._keep(
                    "blocks_loop",
                    one.tool,
                    f"{one.tool} blocks the event loop for {longest:.1f} s: no timeout, cancel or sign of life gets"
                    " through meanwhile; await, or make it a plain function, which runs in a thread",
                    first.plan,
                    _shown(first, one.tool),
                )

    def compare(self, undisturbed: Seen, seen: Seen) -> None:
        """What a death changed that it must not change."""
        if not seen.comparable or seen.problems:  # where a problem was seen, it is known why
            return
        if (seen.state, seen.reason) != (undisturbed.state, undisturbed.reason):
            says = f"the task ends {seen.state} ({seen.reason}) instead of {undisturbed.state} ({undisturbed.reason})"
            self._keep("same_end", _cut_tool(seen), says, seen.plan, seen.journal)
        elif other := [
            c for c, status in seen.statuses.items() if undisturbed.statuses.get(c, status) != status
        ]:
            tool, was, now = seen.calls[other[0]], undisturbed.statuses[other[0]], seen.statuses[other[0]]
            says = (
                f"a call of {tool} ends {now} instead of {was} when it is started again after a crash; to the same key"
                " it should answer the same"
            )
            self._keep("same_end", tool, says, seen.plan, _shown(seen, tool))
        elif self._same_world and seen.world != undisturbed.world:
            tool = _cut_tool(seen)
            says = (
                f"the world is another one than after an undisturbed run: {seen.world:.{WORLD_CHARS}} instead of"
                f" {undisturbed.world:.{WORLD_CHARS}}; the call that was cut was one of {tool or 'no tool'}"
            )
            self._keep("same_world", tool, says, seen.plan, seen.journal)

    def broken(self, broken: Broken) -> None:
        """Keep what ended or hung the process."""
        tool = broken.last.rpartition(" of ")[2].removesuffix(" was at work") if " of " in broken.last else ""
        self._keep(
            "process",
            tool,
            f"{broken.how}; before that, {broken.last or 'nothing was done'}",
            broken.plan,
            broken.journal,
        )

    def report(self, broken: Broken | None, undisturbed: Seen | None) -> Report:
        """All that was found."""
        if broken is not None:
            self.broken(broken)
            self._notes.append("an undisturbed run does not hold, so nothing else was tried")
        commits, calls = (0, 0) if undisturbed is None else (undisturbed.commits, len(undisturbed.runs))
        named = {tool for rule, tool in self._found if rule not in CONSEQUENCES}
        found = tuple(
            each
            for (rule, tool), each in self._found.items()
            if rule not in CONSEQUENCES or tool not in named
        )
        return Report(self._make().name, self._trials, commits, calls, found, tuple(self._notes))

    def _keep(self, rule: str, tool: str, says: str, plan: Plan, journal: tuple[str, ...]) -> None:
        known = self._found.get((rule, tool))
        if known is None or len(journal) < len(known.journal):
            self._found[rule, tool] = Finding(rule, tool, says, plan.words, journal)


def _shown(seen: Seen, tool: str) -> tuple[str, ...]:
    """The journal up to the last entry about a call of this tool."""
    calls = {call for call, name in seen.calls.items() if name == tool}
    about = [
        number
        for number, line in enumerate(seen.journal, 1)
        if f" {tool}(" in line or any(f" call {call} " in line for call in calls)
    ]
    return seen.journal[: about[-1]] if about else seen.journal


def _cut_tool(seen: Seen) -> str:
    """The tool of the call that was cut, or was started twice."""
    if seen.plan.tool:
        return seen.plan.tool
    again: list[Ran] = [ran for ran in seen.runs if ran.start > 1]
    return again[0].tool if again else ""


# -- processes


def _in_a_child(work: Callable[[Callable[[str], None]], Seen], plan: Plan, seconds: float) -> Seen | Broken:
    """What the work returns in a child process; Broken when that process ends or takes too long."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # A thread that holds a lock now would hold it for ever in the child, which uses nothing of it and is ended
        # when its time is over.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _child(work, writing)
    os.close(writing)
    try:
        return _listen(reading, child, plan, seconds)
    except BaseException:
        _end(child)  # whoever interrupts us wants an end of this, too
        raise
    finally:
        os.close(reading)


def _child(work: Callable[[Callable[[str], None]], Seen], writing: int) -> None:
    """Do the work and leave; never returns."""
    code = 1
    try:
        os.setsid()
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)

        def say(kind: bytes, words: bytes) -> None:
            data = kind + words.replace(b"\n", b" ") + b"\n"
            while data:
                data = data[os.write(writing, data) :]

        try:
            say(b"=", msgspec.json.encode(work(lambda words: say(b".", words.encode("utf-8", "replace")))))
            code = 0
        except BaseException as why:  # noqa: BLE001 - the parent is told, whatever it is
            say(b"!", describe(why).encode())
    finally:
        os._exit(code)


def _listen(reading: int, child: int, plan: Plan, seconds: float) -> Seen | Broken:
    """The result of the child; what it says before is kept, for the case that it does not end well."""
    deadline, data, last = time.monotonic() + seconds, b"", ""
    journal: list[str] = []
    ended = False
    while True:
        left = deadline - time.monotonic()
        ready = select.select([reading], [], [], min(LOOK_SECONDS, max(0.0, left)))[0]
        if not ready and not ended and left > 0:
            ended = _has_ended(
                child
            )  # then what it said is in the pipe, which a process it left may hold open
            continue
        chunk = os.read(reading, 65536) if ready else b""
        data += chunk
        *lines, data = data.split(b"\n")
        for line in lines:
            words = line[1:].decode("utf-8", "replace")
            if line[:1] == b"=":
                _bury(child)
                return msgspec.json.decode(line[1:], type=Seen)
            if line[:1] == b"!":
                _bury(child)
                return Broken(plan, f"the rehearsal ended with {words}", last, tuple(journal))
            if words.startswith(JOURNAL):
                journal.append(words.removeprefix(JOURNAL))
            else:
                last = words
        if not chunk and (ready or ended):
            status = _bury(child)
            how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
            return Broken(plan, f"the process ended {how}", last, tuple(journal))
        if left <= 0:
            _end(child)
            return Broken(plan, f"the rehearsal did not end within {seconds:g} s", last, tuple(journal))


def _end(child: int) -> None:
    """Kill the child with the group that it made for itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        _bury(child)


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _bury(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
