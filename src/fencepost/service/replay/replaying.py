"""Replay: the real loop over a recorded journal, offline, up to the first difference.

Rule 1: the definition is compared first, then each request and each entry, in the order of the journal.
Rule 2: each claim of the journal is a run of its own, which is abandoned where the claim's entries end; acts of
people are put between them as they were recorded.
Rule 3: nothing is written, and nothing is run but, where that is asked for, tools that only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from fencepost.core.closing import closing
from fencepost.core.eliding import READ_ARTIFACT
from fencepost.core.entries import (
    CHAIN_START,
    ApprovalDecided,
    CallEnded,
    CallStarted,
    DefinitionAccepted,
    Entry,
    EntryBody,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Stopped,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.errors import DefinitionInvalid, StoreCorrupt
from fencepost.core.lifecycle import TaskState
from fencepost.core.messages import ModelProfile
from fencepost.core.state import State, resumed
from fencepost.ports import Claimed, Lease, TaskRow
from fencepost.run.agent import Agent
from fencepost.run.foreign import describe
from fencepost.run.live import Live
from fencepost.run.loop import Run, World
from fencepost.service.replay.difference import Difference, compare_bodies
from fencepost.service.replay.jumping import NothingToAwait, run_jumping
from fencepost.service.replay.playback import (
    Differs,
    PlaybackBoundary,
    PlaybackClock,
    PlaybackModel,
    PlaybackStore,
    PlaybackTool,
    SegmentOver,
    playable,
)
from fencepost.service.replay.profiles import profile_of
from fencepost.service.replay.restoring import restored
from fencepost.service.replay.script import Part, Script

ToolsMode = Literal["recorded", "read"]
_TENANT = "replay"


class Replay(Struct, frozen=True):
    """How a replay went: entries and requests that were compared, and the first difference, if there is one.

    `chain` is the chain head of what was replayed, `recorded` that of the journal as far as it was compared;
    `runs` counts the claims, `reran` the calls that really ran.
    """

    entries: int
    of: int
    runs: int
    requests: int
    reran: int
    chain: str
    recorded: str
    difference: Difference | None = None

    @property
    def same(self) -> bool:
        """Whether the loop did what the journal says, to its end."""
        return self.difference is None


def replay(
    entries: Iterable[Entry],
    agent: Agent | None = None,
    *,
    tools: ToolsMode = "recorded",
    prompt: str | None = None,
    profile: ModelProfile | None = None,
) -> Replay:
    """Drive the loop over the journal and name the first difference.

    With an agent (and a prompt) its definition is compared with the journal's first. Call it outside of an event
    loop, or in a thread: it runs a loop of its own, whose time jumps. Raises StoreCorrupt for what is no journal,
    DefinitionInvalid when reads are to run again and no agent is given.
    """
    journal = tuple(entries)
    check_journal(journal)
    if tools == "read" and agent is None:
        raise DefinitionInvalid("reads can only run again with the agent's tools; name the agent")
    script = Script(journal)
    return _Replaying(script, agent, rerun=tools == "read", profile=profile).whole(prompt)


def check_journal(entries: tuple[Entry, ...]) -> None:
    """Raise StoreCorrupt, naming the entry, unless the entries begin with Opened and follow without a gap."""
    if not entries:
        raise StoreCorrupt("the journal is empty; there is nothing to replay")
    for seq, entry in enumerate(entries, 1):
        if entry.seq != seq:
            raise StoreCorrupt(f"journal entry {seq} is missing: the next one is {entry.seq}")
        if isinstance(entry.body, Opened) != (seq == 1):
            raise StoreCorrupt(f"journal entry {seq} is {kind_of(entry.body)}: Opened is entry 1 and only it")
        if isinstance(entry.body, Stopped) and seq != len(entries):
            raise StoreCorrupt(f"journal entry {seq + 1} follows Stopped")


class _Replaying:
    def __init__(
        self, script: Script, agent: Agent | None, *, rerun: bool, profile: ModelProfile | None
    ) -> None:
        opened = script.entries[0].body
        assert isinstance(opened, Opened)
        self._script, self._agent, self._rerun, self._opened = script, agent, rerun, opened
        self._profile = profile
        self._clock = PlaybackClock(script, opened.limits.task_seconds)
        self._store = PlaybackStore(script, self._clock)
        self._runs = self._requests = self._reran = 0

    def whole(self, prompt: str | None) -> Replay:
        self._store.differ(self._definition(prompt))
        for part in self._script.parts:
            if self._store.difference is not None:
                break
            self._script.enter(part)
            if part.act:
                self._act(part)
            else:
                self._claimed(part)
        found, script = self._store.difference, self._script
        compared = script.at if found is None else found.seq - 1
        head = CHAIN_START
        for entry in script.entries[:compared]:
            head = link(head, kind_of(entry.body), encode_body(entry.body))
        return Replay(
            compared,
            len(script.entries),
            self._runs,
            self._requests,
            self._reran,
            self._store.chain if compared else CHAIN_START,
            head,
            found,
        )

    # -- the definition

    def _definition(self, prompt: str | None) -> Difference | None:
        recorded, agent = self._opened, self._agent
        asked = recorded.prompt if prompt is None else prompt
        if agent is None:
            return compare_bodies(1, recorded, replace(recorded, prompt=asked))
        agent.check()
        accepted = [e for e in self._script.entries if isinstance(e.body, DefinitionAccepted)]
        if accepted:  # the agent of now is the one that was accepted last
            return compare_bodies(1, recorded, replace(recorded, prompt=asked)) or self._accepted(
                accepted[-1]
            )
        now = agent.opened(asked, recorded.requester, recorded.labels)
        now = replace(now, model=recorded.model, parent=recorded.parent, cut=recorded.cut)
        return compare_bodies(1, recorded, now)

    def _accepted(self, entry: Entry) -> Difference | None:
        agent, body = self._agent, entry.body
        assert agent is not None
        assert isinstance(body, DefinitionAccepted)
        now = DefinitionAccepted(agent.definition, agent.definitions, agent.instructions, body.by)
        return compare_bodies(entry.seq, body, now)

    # -- what was written by others

    def _act(self, part: Part) -> None:
        entries = self._script.entries[part.start : part.end]
        last = entries[-1].body
        bodies: tuple[EntryBody, ...] = tuple(entry.body for entry in entries)
        if isinstance(last, Stopped):  # a closing follows from the state: it is made again
            state = self._script.states[part.start]
            bodies = closing(state, last.reason, detail=last.detail, by=last.by)
        else:
            self._store.differ(self._unasked(part))
        for body in bodies:
            try:
                self._store.take(body)
            except (Differs, SegmentOver):
                break
        if self._store.difference is None and self._script.at < part.end:
            self._ended_early("the closing")

    def _unasked(self, part: Part) -> Difference | None:
        """The first decision or outcome of this part that nobody was asked for."""
        for at in range(part.start, part.end):
            entry, state = self._script.entries[at], self._script.states[at]
            body = entry.body
            if isinstance(body, ApprovalDecided | OutcomeResolved):
                open_asks = {(ask.step, ask.position) for ask in state.open_asks}
                if (body.step, body.position) not in open_asks:
                    said = f"nothing: nobody was asked about call {body.step}.{body.position}"
                    return Difference(entry.seq, kind_of(body), "", kind_of(body), said)
        return None

    # -- what was written by a run

    def _claimed(self, part: Part) -> None:
        self._runs += 1
        try:
            run_jumping(self._run(part))
        except (SegmentOver, Differs):
            pass
        except NothingToAwait as why:
            self._ended_early(str(why))
        except (AssertionError, LookupError, TypeError, ValueError) as why:
            self._ended_early(
                f"the run failed with {describe(why)} and"
            )  # no run of ours wrote such a journal
        if self._store.difference is None and self._script.at < part.end:
            self._ended_early("the run")

    def _ended_early(self, what: str) -> None:
        entry = self._script.next
        if entry is None:
            return  # what failed is behind the end of the record
        self._store.differ(
            Difference(
                entry.seq, kind_of(entry.body), "", kind_of(entry.body), f"nothing: {what} ended before it"
            )
        )

    async def _run(self, part: Part) -> None:
        script = self._script
        first, before = script.entries[part.start], script.entries[part.start - 1]
        profile = self._profile_at(part)
        state = resumed(script.states[part.start], profile)
        live = Live()
        tools = {tool.name: self._tool(tool.name, state, live) for tool in playable(state)}
        model = PlaybackModel(profile, script, self._store, live)
        world = World(
            self._store,  # type: ignore[arg-type]  # a run only appends, releases and records late results
            model,
            tools,
            PlaybackBoundary(script, live),
            self._clock,
            live,
        )
        used = max(entry.seconds for entry in script.entries[: part.start])
        self._clock.begin(used)
        task = _task_of(script.entries)
        lease = Lease(_TENANT, task, first.epoch, first.attempt, first.by, None)
        run = _ReplayedRun(
            world, Claimed(lease, _row(self._opened, task, first, before.seq, used), ()), state
        )
        run.script, run.played = script, tools
        self._clock.go_on()
        run.start()
        try:
            await run.done
        finally:
            self._requests += model.requests
            self._reran += sum(tool.reruns for tool in tools.values())

    def _tool(self, name: str, state: State, live: Live) -> PlaybackTool:
        definition = state.tools[name]
        real = None if self._agent is None else self._agent.by_name.get(name)
        if real is not None and (real.definition != definition or name == READ_ARTIFACT):
            real = (
                None  # accepted since: what this claim had is gone; and artifacts are in the task's own store
            )
        return PlaybackTool(definition, self._script, live, real, rerun=self._rerun)

    def _profile_at(self, part: Part) -> ModelProfile:
        if self._profile is not None:
            return self._profile
        names = {
            e.body.model
            for e in self._script.entries[part.start : part.end]
            if isinstance(e.body, ModelAsked)
        }
        if self._agent is not None and names <= {self._agent.model.profile.name}:
            return self._agent.model.profile
        return profile_of(self._script, next(iter(sorted(names)), self._opened.model))


class _ReplayedRun(Run):
    """A run whose facts have what the world said from the record."""

    script: Script
    played: dict[str, PlaybackTool]

    def note(self, body: EntryBody) -> None:
        """Take a fact into the state, as the world made it then."""
        again = False
        if isinstance(body, CallEnded):
            tool = self.played.get(self.state.open[body.position].call.name)
            again = tool is not None and tool.runs_again
        super().note(restored(body, self.script, self.state, results=not again))


def _task_of(entries: tuple[Entry, ...]) -> str:
    """The task's id, which the idempotency keys of its calls begin with."""
    for entry in entries:
        if isinstance(entry.body, CallStarted):
            return entry.body.key.rpartition(":")[0]
    return "replay"


def _row(opened: Opened, task: str, first: Entry, seq: int, seconds: float) -> TaskRow:
    return TaskRow(
        _TENANT,
        task,
        opened.agent,
        opened.requester,
        opened.definition,
        TaskState.RUNNING,
        seq,
        first.epoch,
        first.attempt,
        first.at,
        first.at,
        seconds=seconds,
        prompt=opened.prompt,
    )
