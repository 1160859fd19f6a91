"""Which results the model stops seeing when the next request would outgrow its context.

Rule 1: whole results go, oldest first. Never one of the last step, never words, calls or why an answer was not taken.
Rule 2: what stands in a result's place names it and says how to read it again, and is shorter than it was.
Rule 3: each is a recorded fact (`ContextElided`) before the request that is sent without it: nothing is left out
silently. A result that is left out stays evidence: the model had been shown it (contract 10.2).
Rule 4: nothing is left out in vain. When it would not be enough, all stays and the task stops with CONTEXT_OVERFLOW.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from msgspec.structs import replace

from fencepost.core.entries import CallEnded, CallStatus, ContextElided, evidence_id
from fencepost.core.messages import ToolMessage, size_of
from fencepost.core.state import Done, State, prompt_tokens, result_of, without

READ_ARTIFACT = "read_artifact"
# A provider's cache holds a transcript up to the first change, so room is made for several steps at once: down to
# this share of what fits.
ROOM_NUMERATOR, ROOM_DENOMINATOR = 3, 4


def elisions(state: State, fits: int) -> tuple[ContextElided, ...]:
    """The results to leave out so that the next request fits into so many tokens; none when that cannot be."""
    roomy = fits * ROOM_NUMERATOR // ROOM_DENOMINATOR
    bodies: list[ContextElided] = []
    for body, removed in _elidable(state):
        if prompt_tokens(state) <= roomy:
            break
        state = without(state, removed)
        bodies.append(body)
    return tuple(bodies) if prompt_tokens(state) <= fits else ()


def _elidable(state: State) -> Iterator[tuple[ContextElided, int]]:
    """Each result that may go, oldest first, with the bytes that this takes from a request."""
    reads_artifacts = READ_ARTIFACT in state.tools
    # What is older than the newest that went has gone too, or was too short to go.
    for step in range(max(1, state.elided_step), state.steps):
        position, ends = -1, _ends(state, step)
        while (found := result_of(state, step, position := position + 1)) is not None:
            message = found[1]
            said = _replacement(message, ends.get(position), reads_artifacts=reads_artifacts)
            removed = size_of(message) - size_of(replace(message, content=said))
            if removed > 0:
                yield ContextElided(step, position, message.call_id, said), removed


def _ends(state: State, step: int) -> dict[int, CallEnded]:
    """The ends of a step's calls, by position; a call that was refused or not executed has none here."""
    done = state.done
    ends: dict[int, CallEnded] = {}
    at = bisect.bisect_left(done, step, key=_step_of)  # steps end one after another
    while at < len(done) and _step_of(done[at]) == step:
        ends[done[at].ended.position] = done[at].ended
        at += 1
    return ends


def _step_of(done: Done) -> int:
    return done.ended.step


def _replacement(message: ToolMessage, ended: CallEnded | None, *, reads_artifacts: bool) -> str:
    """What the model sees from now on, in place of a result."""
    named = f"the result of {message.name}"
    if ended is None:  # refused or not executed
        return f"[left out to fit the context: {named}]"
    if ended.status is CallStatus.OK and not ended.failure:
        named = f"{evidence_id(ended.step, ended.position)}, {named}"
    size, digest = ended.size_bytes, ended.digest or "unknown"
    again = f"; {READ_ARTIFACT} reads it again by its digest" if reads_artifacts and ended.artifact else ""
    return f"[left out to fit the context: {named}, {size} bytes, sha256 {digest}{again}]"
