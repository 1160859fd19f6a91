"""The world of a replay: model, tools, rules, clock and store, all of which say what the journal says.

Rule 1: what came from outside comes from the record: replies, results, verdicts, decisions, times. What the program
makes of it is made again, and compared where it is committed.
Rule 2: what does not come in the record does not come: the call waits until its time is over, and time jumps.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from fencepost.core.entries import (
    CHAIN_START,
    ApprovalAsked,
    AttemptFailed,
    Body,
    CallEnded,
    CallStarted,
    CallStatus,
    EntryBody,
    ModelAsked,
    OutcomeResolved,
    Replied,
    Stopped,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.errors import (
    ApprovalExpired,
    ArgumentsInvalid,
    OperationTaken,
    OutcomeUnknown,
    ToolFailed,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Effect, ModelProfile, ModelRequest, Reply, ToolDefinition
from fencepost.core.recording import failure_of, reply_of
from fencepost.core.state import ANSWER_TOOL, RELEASED, Phase, State
from fencepost.ports import (
    Authorization,
    CallContext,
    Commit,
    LateRecord,
    Lease,
    Prepared,
    Receipt,
    Reconciled,
    Sink,
    Tool,
)
from fencepost.run.live import Live
from fencepost.run.loop import DATA_NOTICE, Run
from fencepost.service.replay.difference import Difference, compare_bodies, compare_requests
from fencepost.service.replay.jumping import JumpingLoop
from fencepost.service.replay.script import Script

# How the loop words a reply that did not come in time, as opposed to a model that said so itself.
_NO_REPLY = "no reply within"
# How the loop words a call whose arguments its tool does not take any more.
_NOT_TAKEN = re.compile(r"(.+?) did not take the arguments: (\w+)(?:: (.*))?", re.DOTALL)
# Rules of which no call of the journal knows: asked again, they say what the record says.
_OTHER_RULES = "recorded"


class SegmentOver(Exception):
    """The record has no more of this claim: the run ends here as it did."""


class Differs(Exception):
    """The replay did something else than the record."""


class PlaybackStore:
    """Takes commits as long as they are those of the journal; nothing is stored."""

    def __init__(self, script: Script, clock: PlaybackClock) -> None:
        self._script, self._clock = script, clock
        self.difference: Difference | None = None
        self.chain = link(CHAIN_START, kind_of(script.entries[0].body), encode_body(script.entries[0].body))

    def differ(self, difference: Difference | None) -> None:
        """Keep the first difference."""
        self.difference = self.difference or difference

    def take(self, body: Body) -> None:
        """Compare one body with the next of the journal; raises Differs or SegmentOver."""
        if self.difference is not None:
            raise Differs
        entry = self._script.next
        if entry is None:
            raise SegmentOver
        self.differ(compare_bodies(entry.seq, entry.body, body))
        if self.difference is not None:
            raise Differs
        self.chain = link(self.chain, kind_of(body), encode_body(body))
        self._script.at += 1

    async def append(self, commit: Commit, /) -> Receipt:
        """Take the commit if it is the journal's."""
        self._refuse_as_recorded(commit)
        for body in commit.bodies:
            self.take(body)
        entry = self._script.entries[self._script.at - 1]
        self._clock.go_on()
        return Receipt(entry.seq, entry.at)

    def _refuse_as_recorded(self, commit: Commit) -> None:
        """A commit that the real store refused is refused again."""
        starts = [body for body in commit.bodies if isinstance(body, CallStarted)]
        if not starts or self._script.next is None:
            return
        body = self._script.start_of(starts[0].step, starts[0].position)
        if commit.operations and isinstance(body, CallEnded) and body.failure in ("", "operation_taken"):
            if body.status is CallStatus.OK:
                raise OperationTaken("recorded", status="succeeded", content=body.content)
            raise OperationTaken(body.content.removeprefix("not run again: "), status="failed")
        asks = body.asks if isinstance(body, ApprovalAsked) else ()
        if commit.valid_until is not None and any(ask.about == "approval" for ask in asks):
            raise ApprovalExpired("the approval ran out before the call started")

    async def release(self, lease: Lease, /, *, seconds: float, not_before: float | None = None) -> None:
        """The run gave its task back."""

    async def record_late(self, record: LateRecord, /) -> None:
        """Late results are no part of a journal."""


class PlaybackClock:
    """The task's own seconds, as the journal has them."""

    def __init__(self, script: Script, limit: float) -> None:
        self._script, self._limit, self._now = script, limit, 0.0

    def begin(self, seconds: float) -> None:
        """A run begins that finds so many seconds used."""
        self._now = seconds

    def go_on(self) -> None:
        """It is the moment of the next commit; the task's time is over only where the journal says so."""
        entry = self._script.next
        if entry is None:
            return
        moment, over, before = entry.seconds, False, self._script.entries[self._script.at - 1].body
        for at in range(self._script.at, self._script.end):
            other = self._script.entries[at]
            if other.commit_id != entry.commit_id:
                break
            body = other.body
            over = over or (isinstance(body, Stopped) and body.reason is StopReason.TASK_TIMEOUT)
            if isinstance(body, ModelAsked) and isinstance(before, AttemptFailed):
                moment -= before.retry_in or 0.0  # `sleep` brings that
            before = body
        if over:
            self._now = max(moment, self._limit) + 1.0
        else:
            self._now = max(self._now, min(moment, self._limit * (1 - 1e-9)))

    def monotonic(self) -> float:
        """The present moment of the replay."""
        return self._now

    async def sleep(self, seconds: float, /) -> None:
        """So many seconds have passed, at once."""
        self._now += seconds
        await asyncio.sleep(0)


class PlaybackModel:
    """Says what was said, after comparing what it is told with what the model was told."""

    def __init__(self, profile: ModelProfile, script: Script, store: PlaybackStore, live: Live) -> None:
        self.profile, self._script, self._store, self._live = profile, script, store, live
        self.requests = 0

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The recorded reply or failure; what never came, does not come."""
        self.requests += 1
        at = self._script.asked(request.step, request.attempt)
        assert at is not None, "a request follows its entry"
        asked = self._script.entries[at].body
        assert isinstance(asked, ModelAsked)
        state = self._script.states[at]
        self._store.differ(compare_requests(at + 1, request_of(state, request), request))
        entry = self._script.next
        said = None if entry is None else entry.body
        if isinstance(said, Replied):
            return reply_of(said)
        if isinstance(said, AttemptFailed):
            if said.kind == RELEASED:
                for run in self._live.running.values():
                    assert isinstance(run, Run)
                    run.release()
            elif not (said.kind == "timeout" and said.detail.startswith(_NO_REPLY)):
                raise failure_of(said, asked)
        await _never()
        raise AssertionError("never came")


def request_of(state: State, like: ModelRequest) -> ModelRequest:
    """What the journal says that the model was told; what time and budgets decide is as in `like`."""
    said = f"{DATA_NOTICE}\n\n{state.instructions}" if state.instructions else DATA_NOTICE
    assert state.opened is not None
    answer = state.opened.answer
    return ModelRequest(
        said,
        state.messages,
        tuple(playable(state)),
        like.step,
        like.attempt,
        like.seconds,
        like.max_output_tokens,
        answer,
    )


def playable(state: State) -> list[ToolDefinition]:
    """The tools of a task that run something; an answer does not."""
    cited = state.opened is not None and state.opened.answer == "cited"
    return [tool for tool in state.tools.values() if not (cited and tool.name == ANSWER_TOOL)]


async def _never() -> Any:
    await asyncio.Event().wait()


class PlaybackTool:
    """A tool that gives the recorded results; with `rerun`, reads run again. `real` checks arguments, if known."""

    threaded = False

    def __init__(
        self, definition: ToolDefinition, script: Script, live: Live, real: Tool | None, *, rerun: bool
    ) -> None:
        self.definition, self._script, self._live, self._real = definition, script, live, real
        self._rerun = real if rerun and definition.effect is Effect.READ else None
        self.reruns = self.played = 0

    @property
    def runs_again(self) -> bool:
        """Whether its results are those of now."""
        return self._rerun is not None

    def prepare(self, arguments: str, /) -> Prepared:
        """The arguments as they were admitted, or refused as they were."""
        for body in self._script.rest():
            if not isinstance(body, Replied):
                continue
            for call in body.calls:
                refusal = call.refusal
                if (
                    call.name == self.definition.name
                    and refusal is not None
                    and refusal.raw == arguments
                    and refusal.kind == "invalid_arguments"
                ):
                    raise ArgumentsInvalid(refusal.message)
            break
        if self._real is not None:
            return self._real.prepare(arguments)
        digest = self._script.digests.get((self.definition.name, arguments), "")
        return Prepared(self.definition.name, arguments, digest, None)

    def operation_key(self, prepared: Prepared, /) -> str | None:
        """What the tool says, else what the journal says; raises what kept the call from its start."""
        where = _looked_at(self._live, self.definition.name, prepared.canonical)
        body = None if where is None else self._script.start_of(*where)
        if isinstance(body, CallEnded) and (said := _NOT_TAKEN.fullmatch(body.content)) is not None:
            invalid = body.failure == "invalid_arguments"
            kind = type(said[2], (ArgumentsInvalid if invalid else Exception,), {})
            raise kind(said[3] or "")
        if self._real is not None:
            return self._real.operation_key(prepared)
        if isinstance(body, CallStarted):
            return body.operation or None
        taken = isinstance(body, CallEnded) and self.definition.effect is not Effect.READ
        return "taken" if taken else None

    async def run(self, prepared: Prepared, context: CallContext, /) -> Any:
        """What the call brought, in the order in which calls ended."""
        ends = [
            (at, body)
            for at, body in self._script.about(context.step, context.position)
            if not isinstance(body, CallStarted)
        ]
        try:
            if not ends:
                return await _never()
            at, body = ends[0]
            if self._rerun is not None and isinstance(body, CallEnded):
                return await self._run_again(prepared, context, at)
            self.played += 1
            await self._script.turn(at)
            return await _as_recorded(body, context, [one for _, one in ends])
        finally:
            for at, body in ends:
                if isinstance(body, CallEnded):
                    self._script.ended(at).set()

    async def _run_again(self, prepared: Prepared, context: CallContext, at: int) -> Any:
        assert self._rerun is not None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        self.reruns += 1
        loop.real += 1
        try:
            return await self._rerun.run(prepared, context)
        finally:
            loop.real -= 1
            await self._script.turn(at)

    async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
        """What the tool said of its lost start."""
        for _, body in self._script.about(context.step, context.position):
            if isinstance(body, OutcomeResolved) and body.source == "reconcile":
                return Reconciled(body.verdict, _value(body.content, json_text=body.json))
        return Reconciled("cannot_tell", await _never())


async def _as_recorded(body: EntryBody, context: CallContext, later: list[EntryBody]) -> Any:
    if isinstance(body, CallEnded):
        if body.status is CallStatus.OK:
            return _value(body.content, json_text=body.json)
        if body.status is CallStatus.FAILED:
            invalid = body.failure == "invalid_arguments"
            raise ArgumentsInvalid(body.content) if invalid else ToolFailed(body.content)
        if body.status is not CallStatus.UNKNOWN or body.failure == StopReason.TASK_TIMEOUT:
            return await _never()
    if _cause(later, context) == "timeout":
        return await _never()
    raise OutcomeUnknown("recorded: nobody knew")


def _cause(later: list[EntryBody], context: CallContext) -> str:
    """Why the end of a write was not heard, where the journal says it."""
    for body in later:
        if isinstance(body, ApprovalAsked):
            for ask in body.asks:
                if (ask.step, ask.position) == (context.step, context.position):
                    return ask.cause
        if isinstance(body, Stopped):
            return body.detail.rpartition(": ")[2]
    return ""


def _value(content: str, *, json_text: bool) -> Any:
    if not json_text:
        return content
    try:
        return json.loads(content)
    except ValueError:  # cut in its middle
        return content


def _looked_at(live: Live, name: str, arguments: str) -> tuple[int, int] | None:
    """(step, position) of the open call that is about to start; None while a reply is being admitted."""
    for run in live.running.values():
        assert isinstance(run, Run)
        state = run.state
        if state.reply is None or state.asked is not None:
            continue
        for position, call in enumerate(state.open):
            waits = call.phase in (Phase.ASKED, Phase.LOST)
            if waits and (call.call.name, call.call.arguments) == (name, arguments):
                return state.reply.step, position
    return None


class PlaybackBoundary:
    """Rules that say at each start what the rules of that time said."""

    self_approval = True

    def __init__(self, script: Script, live: Live) -> None:
        self._script, self._live = script, live

    @property
    def version(self) -> str:
        """The version of the rules at this place of the journal."""
        for body in self._script.rest():
            match body:
                case ApprovalAsked():
                    return body.asks[0].rules
                case CallEnded(status=CallStatus.DENIED, failure="denied"):
                    return _OTHER_RULES
                case CallStarted():
                    return self._script.replies[body.step].calls[body.position].rules
                case _:
                    pass
        return ""

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        """What was said of the call that is looked at; at admission the record itself has the word."""
        where = _looked_at(self._live, definition.name, arguments)
        return Authorization("allow", "", self.version) if where is None else self._word(*where)

    def _word(self, step: int, position: int) -> Authorization:
        match body := self._script.start_of(step, position):
            case CallEnded(status=CallStatus.DENIED, failure="denied"):
                return Authorization("deny", body.content.removeprefix("denied: "), self.version)
            case ApprovalAsked():
                return Authorization("ask", body.asks[0].cause, self.version)
            case _:
                return Authorization("allow", "", self.version)
