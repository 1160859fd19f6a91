"""Breadth first through every world, each looked at once; the shortest way to a broken rule comes back.

Nothing is sampled: a search ends when no new world is found, or at the first one that breaks a rule.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from fencepost.core.lifecycle import TERMINAL, TaskState, state_after
from tests.core.explore.judge import RULES as JOURNAL_RULES
from tests.core.explore.machine import Machine
from tests.core.explore.world import NOBODY, Script, Step, Universe, World, same

RULES = JOURNAL_RULES | {
    "row": "the task's row says what its journal says",
    "fence": "a run that lost its task holds an epoch below the row's",
    "fenced": "an append of a run that lost its task changes nothing",
    "epoch": "the epoch grows with every claim, takeover, cancel and decision, and never shrinks",
    "terminal": "a state that ends a task is never left, and its journal never grows",
    "started first": "nothing of a write is in the outside world before its CallStarted is committed",
    "once": "the write reaches the outside world at most once",
    "true": "a write that the journal calls done was done",
    "totals": "a commit's totals are the sums over the journal",
    "waits": "a commit says what the task waits for",
    "expired": "no write starts on an approval that has expired",
    "stuck": "a world without a next step is over",
    "hopeless": "from every world some way leads to an end without a death or a cancel",
}


class Found(NamedTuple):
    """A broken rule: its names, the shortest way there, and the journal that was left behind."""

    broken: tuple[str, ...]
    way: tuple[str, ...]
    journal: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"broken: {', '.join(f'{name} ({RULES[name]})' for name in self.broken)}", "the way there:"]
        lines += [f"  {label}" for label in self.way]
        lines += ["the journal:"] + [f"  {seq} {line}" for seq, line in enumerate(self.journal, 1)]
        return "\n".join(lines)


class Search(NamedTuple):
    """What a search saw. `ends` counts the worlds that are over, by state."""

    worlds: int
    edges: int
    journals: int
    seconds: float
    ends: dict[TaskState, int]
    found: Found | None

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.ends.items()))
        return (
            f"{self.worlds} worlds, {self.edges} edges, {self.journals} journals,"
            f" {self.seconds:.1f} s; over: {ends or 'none'}"
        )


class _Graph:
    """The worlds found so far, how each was first reached, and where each leads."""

    def __init__(self, first: World) -> None:
        self.worlds = [first]
        self.number_of = {first: 0}
        self.parent = array("q", [-1])
        self.labels = [""]
        self.sources, self.targets = array("q"), array("q")
        self.edges = 0

    def add(self, source: int, step: Step) -> tuple[int, bool]:
        """The number of the world after a step, and whether it is new."""
        world = same(step.world)
        number = self.number_of.get(world)
        new = number is None
        if number is None:
            number = self.number_of[world] = len(self.worlds)
            self.worlds.append(world)
            self.parent.append(source)
            self.labels.append(step.label)
        if not step.forced:
            self.sources.append(source)
            self.targets.append(number)
        self.edges += 1
        return number, new

    def way(self, number: int) -> tuple[str, ...]:
        """The labels from the first world to this one."""
        labels = []
        while number > 0:
            labels.append(self.labels[number])
            number = self.parent[number]
        return tuple(labels[::-1])

    def hopeless(self) -> int | None:
        """A world from which no way leads to an end, if there is one."""
        before: list[list[int]] = [[] for _ in self.worlds]
        for source, target in zip(self.sources, self.targets, strict=True):
            before[target].append(source)
        todo = [n for n, world in enumerate(self.worlds) if world.state in TERMINAL]
        reached = bytearray(len(self.worlds))
        for number in todo:
            reached[number] = 1
        while todo:
            for source in before[todo.pop()]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        missed = reached.find(0)
        return None if missed < 0 else missed


def search(machine: Machine, script: Script, rules: Collection[str] = RULES.keys()) -> Search:
    """Every world that can be reached, or the nearest one that breaks one of the rules."""
    began = time.perf_counter()
    universe = Universe(machine, script)
    graph = _Graph(universe.first())
    found, at = None, 0
    while at < len(graph.worlds) and found is None:
        found = _look(universe, graph, at, rules)
        at += 1
    if found is None and "hopeless" in rules and (missed := graph.hopeless()) is not None:
        found = _found(universe, graph, missed, ("hopeless",))
    ends = Counter(world.state for world in graph.worlds if world.state in TERMINAL)
    seconds = time.perf_counter() - began
    return Search(len(graph.worlds), graph.edges, len(universe.journals), seconds, dict(ends), found)


def _look(universe: Universe, graph: _Graph, at: int, rules: Collection[str]) -> Found | None:
    world, stepped = graph.worlds[at], False
    for step in universe.steps(world):
        stepped = True
        number, new = graph.add(at, step)
        broken = {*step.broken, *_broken_by(universe, world, step)}
        if new:
            broken.update(_broken_in(universe, step.world))
        if not broken.isdisjoint(rules):
            graph.parent[number], graph.labels[number] = at, step.label
            return _found(universe, graph, number, tuple(sorted(broken)))
    if not stepped and world.state not in TERMINAL and "stuck" in rules:
        return _found(universe, graph, at, ("stuck",))
    return None


def _broken_by(universe: Universe, world: World, step: Step) -> Iterator[str]:
    """The rules that a step breaks; the entries it added are read as the contract reads them."""
    after = step.world
    grew = after.journal != world.journal
    if grew:
        yield from _new_entries(universe, world.journal, after.journal)
    if after.epoch < world.epoch or (step.moves and after.epoch == world.epoch):
        yield "epoch"
    if world.state in TERMINAL and (grew or after.state is not world.state):
        yield "terminal"


def _new_entries(universe: Universe, before: int, after: int) -> Iterator[str]:
    while after != before and after >= 0:
        yield from universe.journals[after].broken
        after = universe.journals[after].parent


def _broken_in(universe: Universe, world: World) -> Iterator[str]:
    """The rules about a moment that it breaks."""
    journal = universe.journals[world.journal]
    reading = journal.reading
    over = None if reading.reason is None else state_after(reading.reason)
    waits = world.state is TaskState.WAITING_APPROVAL
    if (world.state if world.state in TERMINAL else None) is not over or waits != bool(reading.waits):
        yield "row"
    for epoch, number in world.workers:
        if (epoch, number) == NOBODY or epoch < world.epoch:
            continue
        worker = universe.workers[number]
        if epoch > world.epoch or world.state is not TaskState.RUNNING or worker.seq != journal.length:
            yield "fence"
    if world.effects > 1:
        yield "once"
    if world.effects and not reading.starts:
        yield "started first"
    if reading.done > world.effects:
        yield "true"


def _found(universe: Universe, graph: _Graph, number: int, broken: tuple[str, ...]) -> Found:
    journal = universe.bodies(graph.worlds[number].journal)
    return Found(broken, graph.way(number), tuple(map(_line, journal)))


def _line(body: object) -> str:
    """An entry in a few words."""
    name, words = type(body).__name__, []
    for field in (
        "step",
        "position",
        "start",
        "attempt",
        "status",
        "decision",
        "verdict",
        "reason",
        "content",
    ):
        value = getattr(body, field, None)
        if value not in (None, ""):
            words.append(f"{field}={value}")
    return f"{name} {' '.join(words)}"
