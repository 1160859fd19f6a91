"""One small world as a value, and every step that can be taken from it.

The task has three steps with two parallel reads, a write that asks, and an answer (`SCRIPTS`). The actors:
two workers that may each die at any point and come back, a person who may cancel at any time, people who may
answer, and time, which may pass the end of a question or of an approval.

Rule 1: a world holds all that the next steps depend on and nothing else; equal worlds are one world.
Rule 2: a step is what no other actor can interrupt: one commit, one act, one effect in the outside world.
Rule 3: what a worker does in memory between two steps is seen by nobody, so it belongs to the step before it.
The program of a worker is that of run/loop.py: note, merge with the next intent, commit, perform, note.

What makes the world smaller without leaving anything out:

- The workers are alike, so a world with their places exchanged is the same world.
- Epochs are only ever compared, so they are renumbered in order (`same`).
- A lease may end at any time, so every RUNNING task may be taken over and no clock of leases is needed.
- Attempts are only compared with the most there may be, so they are not counted beyond it.
- A task that is over is neither claimed nor asked about: neither attempts nor time matter to it.
- Runs that folded the same facts, and see their calls and their request alike, go on alike.
- A run that lost its task and waits for a reply or for bodies that have had their effect can do nothing that
  anybody sees before its next commit, and nobody can change what it hears. Whether it hears it now or later,
  among whatever else, is the same: it hears it now. (It does so once, so nothing is put off for ever.)
- Reading changes nothing outside, so only the end of a read is a step, not its effect.
- The time of the store matters only to questions and to approvals not yet used, so it moves only while there
  is one: 0, then 1, when whatever was asked at 0 has expired.

What is assumed: a person who says "it did not happen" has looked, and nobody is doing it any more; they say
so once (each time, the task starts over, so a second time shows nothing new). A run reads the clock when it
builds a commit: a start may become durable that much later than its approval's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, assert_never

from fencepost.core.decide import (
    AskModel,
    AskPeople,
    AwaitCalls,
    Reconcile,
    Record,
    Rest,
    StartCalls,
    Stop,
)
from fencepost.core.entries import (
    ApprovalAsked,
    Ask,
    CallEnded,
    CallStarted,
    CallStatus,
    Entry,
    EntryBody,
    ModelAsked,
    Replied,
)
from fencepost.core.lifecycle import TERMINAL, TaskState, state_after
from fencepost.core.messages import Effect
from fencepost.core.state import State, effect_of
from fencepost.ports import Change, Commit
from fencepost.stores import rules
from tests.core import tables
from tests.core.explore.judge import Reading, read
from tests.core.explore.machine import Machine, Passed, Refused, Row, Written, totals_of

# Claims in a row before the task is given up; the product takes 5, the third one shows what a fourth would.
ATTEMPTS_MOST = 2
OPENED = tables.opened(
    tools=(
        tables.tool("read", Effect.READ, parallel=True),
        tables.tool("write", Effect.WRITE),
    ),
    steps=3,
)
Script = tuple[Callable[..., Replied], ...]
_READS = (tables.call("read", n=1), tables.call("read", n=2))
SCRIPTS: dict[str, Script] = {
    "reads, then a write": (
        partial(tables.replied, 1, *_READS),
        partial(tables.replied, 2, tables.asking("write", n=1)),
        partial(tables.replied, 3, text="done"),
    ),
    "reads and a write in one reply": (
        partial(tables.replied, 1, *_READS, tables.asking("write", n=1)),
        partial(tables.replied, 2, tables.call("read", n=3)),
        partial(tables.replied, 3, text="done"),
    ),
}


class Flight(NamedTuple):
    """A call whose body runs. `begun` False: nothing of it has reached the outside world yet."""

    position: int
    done: bool


class Worker(NamedTuple):
    """A run in progress.

    `run` is what it has folded (`Universe.state`), `pending` what it has noted and not committed. `at` is
    where its program is: "commit" (and then `then`), "begin", "model", "await" or "give_up". `lapsed` says
    that its lease ended, which it sees by its own clock. `passed` is for fences that are none.
    """

    seq: int
    run: int
    pending: tuple[EntryBody, ...] = ()
    at: str = "await"
    then: str = ""
    to: TaskState = TaskState.RUNNING
    positions: tuple[int, ...] = ()
    flights: tuple[Flight, ...] = ()
    built: int = 0
    passed: bool = False
    lapsed: bool = False


NOBODY = (-1, -1)


class World(NamedTuple):
    """A moment. `workers` are pairs of an epoch and the number of a Worker, NOBODY for a free place.

    `effects` is how often the write reached the outside world; `held` the journal under which a broken cancel
    passed its check, -1 where there is none.
    """

    journal: int
    state: TaskState
    epoch: int
    attempts: int
    workers: tuple[tuple[int, int], tuple[int, int]]
    held: int = -1
    now: int = 0
    effects: int = 0


class Step(NamedTuple):
    """One edge: who did what, the world after it, and the rules it broke.

    `moves` says that it is an act after which the epoch must be a later one; `forced` that a death or a
    cancel did it, on which nobody may count to come to an end.
    """

    label: str
    world: World
    broken: tuple[str, ...] = ()
    moves: bool = False
    forced: bool = False


class Journal(NamedTuple):
    """A node in the tree of all journals that occur."""

    parent: int
    body: EntryBody
    length: int
    reading: Reading
    broken: tuple[str, ...]


class Universe:
    """The tree of journals and of runs, and the steps between worlds."""

    def __init__(self, machine: Machine, script: Script) -> None:
        self.machine, self.script = machine, script
        self.journals: list[Journal] = []
        self._journal_of: dict[tuple[int, EntryBody], int] = {}
        self._facts: dict[tuple[int, EntryBody], int] = {}
        self._runs: list[tuple[int, State]] = []
        self._run_of: dict[object, int] = {}
        self._claims: dict[int, int] = {}
        self._noted: dict[tuple[int, EntryBody], int] = {}
        self.workers: list[Worker] = []
        self._worker_of: dict[Worker, int] = {}
        self._advanced: dict[tuple[Worker, int], Worker | None] = {}
        self._changes: dict[tuple[str, int, TaskState, int], Change | None] = {}
        self._calls: dict[tuple[int, TaskState], list[tuple[str, str]]] = {}

    # -- what is shared between worlds

    def first(self) -> World:
        """The task as it was opened."""
        journal = self.journal(-1, OPENED)
        return World(journal, TaskState.PENDING, 0, 0, (NOBODY, NOBODY))

    def journal(self, parent: int, body: EntryBody) -> int:
        """The number of the journal that is another one and one more entry."""
        key = (parent, body)
        known = self._journal_of.get(key)
        if known is None:
            before = self.journals[parent].reading if parent >= 0 else Reading()
            reading, broken = read(before, body)
            known = self._journal_of[key] = len(self.journals)
            self.journals.append(Journal(parent, body, reading.length, reading, broken))
        return known

    def bodies(self, journal: int) -> list[EntryBody]:
        """A journal from entry 1 on."""
        found = []
        while journal >= 0:
            node = self.journals[journal]
            found.append(node.body)
            journal = node.parent
        return found[::-1]

    def entries(self, journal: int) -> tuple[Entry, ...]:
        """A journal as a store gives it."""
        return tables.journal(*self.bodies(journal))

    def worker(self, worker: Worker) -> int:
        """The number of a worker, equal for equal ones."""
        known = self._worker_of.get(worker)
        if known is None:
            known = self._worker_of[worker] = len(self.workers)
            self.workers.append(worker)
        return known

    def state(self, run: int) -> State:
        """What a run has folded."""
        return self._runs[run][1]

    def _run(self, facts: int, state: State) -> int:
        """The number of a run that has folded these facts and sees its calls and its request like this."""
        key = (facts, state.open, state.asked)
        known = self._run_of.get(key)
        if known is None:
            known = self._run_of[key] = len(self._runs)
            self._runs.append((facts, state))
        return known

    def _fact(self, before: int, body: EntryBody) -> int:
        return self._facts.setdefault((before, body), len(self._facts))

    def _claimed(self, journal: int) -> int:
        known = self._claims.get(journal)
        if known is None:
            facts, state = -1, State()
            for body in self.bodies(journal):
                facts, state = self._fact(facts, body), self.machine.apply(state, body)
            known = self._claims[journal] = self._run(facts, self.machine.resumed(state, tables.PROFILE))
        return known

    def _note(self, worker: Worker, *bodies: EntryBody) -> Worker:
        run = worker.run
        for body in bodies:
            key = (run, body)
            if key not in self._noted:
                facts, state = self._runs[run]
                self._noted[key] = self._run(self._fact(facts, body), self.machine.apply(state, body))
            run = self._noted[key]
        return worker._replace(run=run, pending=(*worker.pending, *bodies))

    def _reply(self, worker: Worker) -> Worker:
        asked = self.state(worker.run).asked
        assert asked is not None, "a run that waits for a reply has asked for it"
        return self._note(worker, self.script[asked.step - 1](attempt=asked.attempt))

    def _begin(self, worker: Worker, now: int) -> Worker | None:
        """The worker whose calls run: one is awaited in place, several fly while it decides on."""
        state, positions = self.state(worker.run), worker.positions
        flights = tuple(
            Flight(p, effect_of(state, state.open[p].call) is not Effect.WRITE) for p in positions
        )
        begun = worker._replace(positions=(), flights=(*worker.flights, *flights), at="await")
        return begun if len(begun.flights) == 1 else self.advance(begun, now)

    def _lose(self, worker: Worker, position: int, cause: str) -> Worker:
        facts, state = self._runs[worker.run]
        return worker._replace(run=self._run(facts, self.machine.lost(state, (position,), cause=cause)))

    # -- the program of a worker, from one step to the next (run/loop.py)

    def advance(self, worker: Worker, now: int) -> Worker | None:
        """The worker at its next step, or None when its run is over."""
        key = (worker, now)
        if key not in self._advanced:
            self._advanced[key] = self._advance(worker, now)
        return self._advanced[key]

    def _advance(self, worker: Worker, now: int) -> Worker | None:
        while True:
            state = self.state(worker.run)
            move = self.machine.decide(state, 0.0)
            match move:
                case Record(bodies):
                    worker = self._note(worker, *bodies)
                case StartCalls(positions):
                    if (asked := _expired(state, positions, now)) is not None:
                        worker = self._note(worker, asked)
                        continue
                    worker = self._note(worker, *(_starting(state, p) for p in positions))
                    approved = any(state.open[p].asked is not None for p in positions)
                    worker = worker._replace(positions=positions, built=now if approved else 0)
                    commits, performs = partial(_commit, worker, "begin"), partial(_perform, worker)
                    started: Worker = self.machine.intent(commits, performs)
                    return started
                case AskModel():
                    asks = ModelAsked(
                        move.step, move.attempt, move.reserved_tokens, move.reserved_nano, "model"
                    )
                    return _commit(self._note(worker, asks), "model")
                case AwaitCalls():
                    return _commit(worker, "await") if worker.pending else worker._replace(at="await")
                case AskPeople(positions, about):
                    asks_people = ApprovalAsked(tuple(_question(state, p, about, now) for p in positions))
                    worker = self._note(worker, asks_people)
                    return _commit(worker, "end", TaskState.WAITING_APPROVAL)
                case Stop(reason, detail, answer, kept):
                    assert not worker.flights, "no limit of this world stops it while calls are in flight"
                    bodies = self.machine.closing(state, reason, detail=detail, answer=answer, partial=kept)
                    return _commit(self._note(worker, *bodies), "end", state_after(reason))
                case Rest(why):
                    to = TaskState.WAITING_APPROVAL if why == "waits" else TaskState.RUNNING
                    return _commit(worker, "end", to) if worker.pending else None
                case Reconcile():
                    raise AssertionError("no tool of this world reconciles")
                case _:
                    assert_never(move)

    # -- the steps from a world

    def steps(self, world: World) -> Iterator[Step]:
        """Everything that anybody can do now, or only what one old run does that nobody else can tell."""
        for place in (0, 1):
            if self._minds_itself(world, place):
                yield from self._work(world, place)
                return
        for place in (0, 1):
            if world.workers[place] == NOBODY:
                if place == 0 or world.workers[0] != NOBODY:
                    yield from self._claim(world, place)
            else:
                yield from self._work(world, place)
        yield from self._people(world)

    def _minds_itself(self, world: World, place: int) -> bool:
        """Whether a run that lost its task only listens: until it commits it touches nothing else."""
        epoch, number = world.workers[place]
        if number < 0 or epoch == world.epoch:
            return False
        worker = self.workers[number]
        return worker.at == "model" or (
            worker.at == "await" and all(flight.done for flight in worker.flights)
        )

    def _claim(self, world: World, place: int) -> Iterator[Step]:
        if not rules.claimable(world.state, not_before=None, lease_until=0.0, now=1.0, take_over=False):
            return
        seq, epoch = self.journals[world.journal].length, world.epoch + 1
        attempt = min(world.attempts, ATTEMPTS_MOST) + 1
        claimed = Worker(seq, self._claimed(world.journal), at="give_up")
        worker = claimed if attempt > ATTEMPTS_MOST else self.advance(claimed, world.now)
        lapsed = world
        other, number = world.workers[1 - place]
        if number >= 0:
            lapsed = self._place(world, 1 - place, other, self.workers[number]._replace(lapsed=True))
        after = lapsed._replace(state=TaskState.RUNNING, epoch=epoch, attempts=attempt)
        yield Step("a worker claims the task", self._place(after, place, epoch, worker), moves=True)

    def _work(self, world: World, place: int) -> Iterator[Step]:
        epoch, number = world.workers[place]
        worker = self.workers[number]
        name = _name(world, epoch)
        yield Step(f"{name} dies", self._place(world, place, epoch, None), forced=True)
        for flight in worker.flights:
            if not flight.done:
                landed = _flown(worker, flight, flight._replace(done=True))
                after = world._replace(effects=world.effects + 1)
                yield Step(f"{name}: the write happens", self._place(after, place, epoch, landed))
        match worker.at:
            case "commit":
                yield self._append(world, place, epoch, worker)
            case "begin":
                if not worker.lapsed:  # the local lease is looked at immediately before (contract 7.2)
                    begun = self._begin(worker, world.now)
                    yield Step(f"{name} begins", self._place(world, place, epoch, begun))
            case "model":
                heard = self.advance(self._reply(worker), world.now)
                yield Step(f"{name} gets a reply", self._place(world, place, epoch, heard))
            case "await":
                yield from self._landings(world, place, epoch, worker)
            case "give_up":
                yield self._give_up(world, place, epoch, worker)

    def _landings(self, world: World, place: int, epoch: int, worker: Worker) -> Iterator[Step]:
        state = self.state(worker.run)
        for flight in worker.flights:
            call = state.open[flight.position]
            left = _flown(worker, flight, None)
            if effect_of(state, call.call) is Effect.WRITE:
                lost = self.advance(self._lose(left, flight.position, "timeout"), world.now)
                label = f"{_name(world, epoch)}: the write times out"
                yield Step(label, self._place(world, place, epoch, lost))
            if flight.done:
                step = state.steps
                noted = self._note(left, tables.ended(step, flight.position, CallStatus.OK, "result"))
                label = f"{_name(world, epoch)} hears the end of {step}.{flight.position}"
                yield Step(label, self._place(world, place, epoch, self.advance(noted, world.now)))

    def _append(self, world: World, place: int, epoch: int, worker: Worker) -> Step:
        state = self.state(worker.run)
        waits = worker.to is TaskState.WAITING_APPROVAL
        commit = Commit(
            "local", "task", epoch, worker.seq, (TaskState.RUNNING,), worker.to, worker.pending, "id", "worker",
            1, 0.0, totals_of(state), waiting_for=state.waits_for if waits else "",
        )  # fmt: skip
        row = self._row(world)
        outcome = self.machine.append(row, commit, worker.passed)
        label = f"{_name(world, epoch)} commits {' '.join(type(b).__name__ for b in worker.pending)}"
        match outcome:
            case Passed():
                checked = self._place(world, place, epoch, worker._replace(passed=True))
                return Step(f"{label}: the check is passed", checked)
            case Refused():
                results = tuple(b for b in worker.pending if isinstance(b, CallEnded))
                late = self.machine.late(results)
                after = self._grown(world, late)
                stray = ("fenced",) if late else ()
                return Step(f"{label}: fenced", self._place(after, place, epoch, None), stray)
            case Written(row_after):
                after = self._grown(world, worker.pending, row_after)
                stray = () if epoch == world.epoch else ("fenced",)
                broken = (*stray, *self._wrong_commit(after, commit, worker))
                seq = worker.seq + len(worker.pending)
                rested = worker._replace(seq=seq, pending=(), at=worker.then, then="", built=0, passed=False)
                left = None if worker.then == "end" else rested
                return Step(label, self._place(after, place, epoch, left), broken)
            case _:
                assert_never(outcome)

    def _wrong_commit(self, world: World, commit: Commit, worker: Worker) -> Iterator[str]:
        """What is wrong with what a commit says beside its entries."""
        reading = self.journals[world.journal].reading
        if commit.totals.tokens != reading.charged:
            yield "totals"
        if commit.waiting_for != reading.waits:
            yield "waits"
        started = {b.position for b in worker.pending if isinstance(b, CallStarted)}
        for position in started:
            ask = self.state(worker.run).open[position].asked
            if ask is not None and ask.expires_at is not None and worker.built >= ask.expires_at:
                yield "expired"

    def _give_up(self, world: World, place: int, epoch: int, worker: Worker) -> Step:
        after = world
        if world.state not in TERMINAL:
            change = self.machine.too_many_attempts(tables.folded(*self.bodies(world.journal)))
            after = self._intervened(world, change, self._row(world))
        grew = after.journal != world.journal
        return Step(f"{_name(world, epoch)} gives up", self._place(after, place, epoch, None), moves=grew)

    # -- people and time

    def _people(self, world: World) -> Iterator[Step]:
        yield self._cancel(world)
        if world.now == 0 and self._may_expire(world):
            yield Step("time passes", world._replace(now=1))
        if world.state is not TaskState.WAITING_APPROVAL:
            return
        row = self._row(world)
        said = [(act, call) for act, call in self._questions(world) if self._may_say(world, act)]
        for act, call in (*said, ("expired", "")):
            change = self._change(world, act, call)
            if change is not None:
                label = f"a person says {act} of {call}" if call else "the question expires"
                yield Step(label, self._intervened(world, change, row), moves=True)

    def _may_expire(self, world: World) -> bool:
        calls = self.journals[world.journal].reading.calls
        return any(call.waits == "approval" or (call.asks and call.yes and not call.starts) for call in calls)

    def _questions(self, world: World) -> list[tuple[str, str]]:
        reading = self.journals[world.journal].reading
        about = {
            "approval": ("approved", "rejected"),
            "outcome": ("happened", "did_not_happen", "cannot_tell"),
        }
        return [
            (act, f"{reading.steps}.{position}")
            for position, call in enumerate(reading.calls)
            for act in about.get(call.waits, ())
        ]

    def _may_say(self, world: World, act: str) -> bool:
        """People say what is so: nobody is believed to have looked who has not."""
        if act == "happened":
            return world.effects > 0
        if act == "did_not_happen":
            doing = any(map(self._is_writing, self._awake(world)))
            starts = max(call.starts for call in self.journals[world.journal].reading.calls)
            return world.effects == 0 and not doing and starts == 1
        return True

    def _is_writing(self, worker: Worker) -> bool:
        """Whether a body of the write runs or is about to."""
        calls = self.state(worker.run).open
        about_to = any(calls[p].call.name == "write" for p in worker.positions if worker.at == "begin")
        return (about_to and not worker.lapsed) or any(not flight.done for flight in worker.flights)

    def _awake(self, world: World) -> list[Worker]:
        return [self.workers[number] for _, number in world.workers if number >= 0]

    def _change(self, world: World, act: str, call: str) -> Change | None:
        key = (f"{act} {call}", world.journal, world.state, world.now)
        if key not in self._changes:
            machine, row, now = self.machine, self._row(world), float(world.now)
            entries = self.entries(world.journal)
            match act:
                case "cancel":
                    change = machine.cancel(entries, row, now)
                case "approved" | "rejected":
                    change = machine.approve(entries, row, now, call=call, yes=act == "approved")
                case "expired":
                    change = machine.expire(entries, row, now)
                case _:
                    change = machine.resolve(entries, row, now, call=call, verdict=act)
            self._changes[key] = change
        return self._changes[key]

    def _cancel(self, world: World) -> Step:
        passed = world.held >= 0  # only where a broken store let it look before it wrote
        held = world.held if passed else world.journal
        change = self._change(world._replace(journal=held), "cancel", "")
        after = world._replace(held=-1)
        if change is None:
            return Step("a person cancels what is over", after, forced=True)
        outcome = self.machine.intervene(self._row(world), change, self.journals[held].length, passed)
        match outcome:
            case Passed():
                return Step("a person is about to cancel", world._replace(held=held), forced=True)
            case Refused():
                return Step("a cancel must look again", after, forced=True)
            case Written():
                after = self._grown(after, change.bodies, outcome.row)
                return Step("a person cancels", after, moves=True, forced=True)
        assert_never(outcome)

    def _intervened(self, world: World, change: Change, row: Row) -> World:
        outcome = self.machine.intervene(row, change, row.seq, False)
        if isinstance(outcome, Passed):
            outcome = self.machine.intervene(row, change, row.seq, True)
        assert isinstance(outcome, Written)
        return self._grown(world, change.bodies, outcome.row)

    # -- from parts to a world

    def _row(self, world: World) -> Row:
        return Row(world.state, world.epoch, self.journals[world.journal].length, world.attempts)

    def _grown(self, world: World, bodies: tuple[EntryBody, ...], row: Row | None = None) -> World:
        journal = world.journal
        for body in bodies:
            journal = self.journal(journal, body)
        if row is None:
            return world._replace(journal=journal)
        return world._replace(journal=journal, state=row.state, epoch=row.epoch, attempts=row.attempts)

    def _place(self, world: World, place: int, epoch: int, worker: Worker | None) -> World:
        one = NOBODY if worker is None else (epoch, self.worker(worker))
        other = world.workers[1 - place]
        return world._replace(workers=(one, other) if place == 0 else (other, one))


def same(world: World) -> World:
    """The one world that stands for all that differ only in what no later step can tell apart."""
    (first, one), (second, two) = world.workers
    order = {number: i for i, number in enumerate(sorted({world.epoch, first, second} - {-1}))}
    order[-1] = -1
    pairs = sorted(((order[first], one), (order[second], two)), reverse=True)
    over = world.state in TERMINAL
    return world._replace(
        epoch=order[world.epoch],
        attempts=0 if over else world.attempts,
        now=0 if over else world.now,
        workers=(pairs[0], pairs[1]),
    )


def _name(world: World, epoch: int) -> str:
    return "the run" if epoch == world.epoch else "an old run"


def _commit(worker: Worker, then: str, to: TaskState = TaskState.RUNNING) -> Worker:
    return worker._replace(at="commit", then=then, to=to)


def _perform(worker: Worker) -> Worker:
    return worker._replace(at="begin")


def _flown(worker: Worker, flight: Flight, after: Flight | None) -> Worker:
    flights = tuple(after if f == flight else f for f in worker.flights)
    return worker._replace(flights=tuple(f for f in flights if f is not None))


def _starting(state: State, position: int) -> CallStarted:
    return CallStarted(
        state.steps, position, state.open[position].starts + 1, f"task:{state.steps}.{position}"
    )


def _question(state: State, position: int, about: str, now: int) -> Ask:
    call = state.open[position].call
    expires = now + 1.0 if about == "approval" else None
    return Ask(state.steps, position, about, call.name, call.digest, expires_at=expires)


def _expired(state: State, positions: tuple[int, ...], now: int) -> ApprovalAsked | None:
    """The question that is asked again when an approval is older than it may be (`Run._objection`)."""
    for position in positions:
        call = state.open[position]
        ask = call.asked
        if call.decision != "approved" or call.starts or call.resolved is not None or ask is None:
            continue
        if ask.expires_at is not None and ask.expires_at <= now:
            return ApprovalAsked((_question(state, position, "approval", now),))
    return None
