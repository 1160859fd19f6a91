"""Builders for journals in tests: short to write, and equal calls build equal facts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from fencepost.core.entries import (
    AdmittedCall,
    Answer,
    ApprovalAsked,
    ApprovalDecided,
    Ask,
    CallEnded,
    CallStarted,
    CallStatus,
    Claim,
    Entry,
    EntryBody,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Refusal,
    Replied,
    Verdict,
)
from fencepost.core.limits import Limits
from fencepost.core.messages import Effect, Finish, ModelProfile, ToolDefinition, Usage
from fencepost.core.recovery import Recovery
from fencepost.core.state import State, fold, resumed

PROFILE = ModelProfile("model", bytes_per_token=3, max_output_tokens=100, input_nano=1, output_nano=2)
USAGE = Usage(input_tokens=10, output_tokens=5)
USED_TOKENS = 15
RESERVED_TOKENS = 40


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def tool(name: str, effect: Effect = Effect.READ, **more: Any) -> ToolDefinition:
    """A definition of a tool."""
    return ToolDefinition(name, f"the tool {name}", "{}", effect=effect, digest=digest(name), **more)


# What most rows work with: one of each effect, reads that may run side by side, a write that can look back.
TOOLS = (
    tool("read", parallel=True),
    tool("slow"),
    tool("poll", repeat="ok"),
    tool("put", Effect.IDEMPOTENT),
    tool("write", Effect.WRITE),
    tool("pay", Effect.WRITE, reconciles=True),
)


def opened(
    *,
    prompt: str = "do it",
    tools: tuple[ToolDefinition, ...] = TOOLS,
    recovery: Recovery | None = None,
    answer: str = "text",
    limits: Limits | None = None,
    **limit: Any,
) -> Opened:
    """Entry 1; limits by name, ten steps unless told otherwise."""
    limits = limits or Limits(**{"steps": 10, **limit})
    recovery = recovery or Recovery.default()
    return Opened(
        prompt, "agent", "", tools, limits, recovery, "definition", "local/user", answer=answer, model="model"
    )


def asked(
    step: int = 1, attempt: int = 1, tokens: int = RESERVED_TOKENS, nano: int | None = 80
) -> ModelAsked:
    """A request that is about to go out."""
    return ModelAsked(step, attempt, tokens, nano, "model")


def call(name: str, /, given: str | None = None, **arguments: Any) -> AdmittedCall:
    """A call that may run; its id is made from what it is, so equal calls have equal ids."""
    text = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
    given = f"{name}{text}" if given is None else given
    return AdmittedCall(given, given or "fp-1-0", name, text, digest(text), rules="default")


def asking(name: str, /, given: str | None = None, **arguments: Any) -> AdmittedCall:
    """A call that a person must allow."""
    return replace(call(name, given, **arguments), verdict=Verdict.ASK)


def denied(name: str, /, reason: str = "", given: str | None = None, **arguments: Any) -> AdmittedCall:
    """A call that the rules refuse."""
    return replace(call(name, given, **arguments), verdict=Verdict.DENY, reason=reason)


def refused(
    name: str, /, kind: str = "invalid_arguments", message: str = "bad", given: str = "r"
) -> AdmittedCall:
    """A call that was found wrong while it was looked at."""
    return AdmittedCall(given, given, name, refusal=Refusal(kind, message), verdict=Verdict.DENY)


def replied(
    step: int,
    /,
    *calls: AdmittedCall,
    text: str = "",
    attempt: int = 1,
    finish: Finish | None = None,
    tokens: int = USED_TOKENS,
    nano: int | None = 20,
    usage: Usage | None = USAGE,
    **more: Any,
) -> Replied:
    """An accepted reply."""
    finish = finish or (Finish.TOOL_CALLS if calls else Finish.STOP)
    return Replied(
        step, attempt, finish, text=text, calls=calls, usage=usage, charged_tokens=tokens,
        charged_nano=nano, **more,
    )  # fmt: skip


def started(step: int, position: int = 0, start: int = 1, operation: str = "") -> CallStarted:
    """A tool is about to run."""
    return CallStarted(step, position, start, f"task:{step}.{position}", operation)


def ended(
    step: int,
    position: int = 0,
    status: CallStatus = CallStatus.OK,
    content: str = "fine",
    **more: Any,
) -> CallEnded:
    """The result of a call."""
    more.setdefault("failure", "" if status is CallStatus.OK else "tool_error")
    return CallEnded(step, position, status, content, digest=digest(content), size_bytes=len(content), **more)


def question(
    step: int,
    position: int = 0,
    about: str = "approval",
    name: str = "write",
    expires_at: float | None = 100.0,
) -> Ask:
    """One question to people."""
    until = expires_at if about == "approval" else None
    return Ask(step, position, about, name, digest(name), expires_at=until)


def asks(step: int, *positions: int, about: str = "approval") -> ApprovalAsked:
    """The task waits for people."""
    return ApprovalAsked(tuple(question(step, p, about) for p in positions or (0,)))


def decided(step: int, position: int = 0, decision: str = "approved", reason: str = "") -> ApprovalDecided:
    """A question about a call was closed."""
    return ApprovalDecided(step, position, decision, digest("write"), reason, "local/boss")


def resolved(
    step: int, position: int = 0, verdict: str = "happened", source: str = "person", content: str = ""
) -> OutcomeResolved:
    """Somebody said what became of a lost write."""
    return OutcomeResolved(step, position, verdict, source, content=content, digest=digest(content))


def raw(text: str) -> Raw:
    """JSON text as a body holds it."""
    return Raw(text.encode())


def answer(summary: str, *claims: Claim, ids: tuple[str, ...] | None = None) -> Answer:
    """A cited answer that lists the ids its claims cite."""
    cited = tuple(dict.fromkeys(c.evidence_id for c in claims)) if ids is None else ids
    return Answer(summary, cited, claims)


def folded(*bodies: EntryBody) -> State:
    """The state after these facts, read by nobody in particular."""
    return fold(bodies)


def at(*bodies: EntryBody) -> State:
    """The state in which a run that lived through these facts decides."""
    return replace(fold(bodies), profile=PROFILE)


def reclaimed(*bodies: EntryBody) -> State:
    """The state in which a run decides that claimed the task after these facts."""
    return resumed(fold(bodies), PROFILE)


def journal(*bodies: EntryBody) -> tuple[Entry, ...]:
    """These facts as numbered entries."""
    return tuple(Entry(seq, 1, 0.0, "worker", 1, "commit", 0.0, body) for seq, body in enumerate(bodies, 1))
