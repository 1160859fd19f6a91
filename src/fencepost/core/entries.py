"""The facts of a journal: a closed list (contract 9), past tense, frozen, versioned.

Rule 1: an entry says what happened and never what to do; `decide` draws the conclusions.
Rule 2: an entry is an *envelope* (who, when, under which epoch) around a *body* (what); the hash chain covers
kind and body, so that a second store can hold the same chain.
Rule 3: a body holds only str, int, float, bool, None, enums, tuples and other bodies' parts: nothing given to or
read from a journal can be used to change it (contract 2.2).
Rule 4: `kind` is the struct's tag and `ENTRY_VERSION` its version; both are columns in every store, and a reader
refuses what it does not know, because a decoder that ignores an unknown field loses data (findings 6).
"""

from __future__ import annotations

import enum
import hashlib

import msgspec
from msgspec import Raw, Struct

from fencepost.core.errors import StoreCorrupt, StoreNewer
from fencepost.core.lifecycle import StopReason
from fencepost.core.limits import Limits
from fencepost.core.messages import Finish, ToolDefinition, Usage
from fencepost.core.recovery import Recovery

ENTRY_VERSION = 1


class CallStatus(enum.StrEnum):
    """How a call ended; only OK is evidence."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DENIED = "denied"
    CANCELLED = "cancelled"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


class Verdict(enum.StrEnum):
    """What the boundary says of a call before it starts (contract 4.6)."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Body(Struct, frozen=True, omit_defaults=True, gc=False):
    """What every entry body is."""


class Opened(Body, tag="Opened", frozen=True):
    """A principal asked for a task: everything it was defined with (contract 2.6). Always entry 1.

    `definition` is the digest over agent, instructions, tools, limits, recovery and answer mode.
    `parent` and `cut` name the task this one continues, if any (contract 2.8).
    """

    prompt: str
    agent: str
    instructions: str
    tools: tuple[ToolDefinition, ...]
    limits: Limits
    recovery: Recovery
    definition: str
    requester: str
    answer: str = "text"
    model: str = ""
    parent: str = ""
    cut: int = 0
    labels: tuple[tuple[str, str], ...] = ()


class ModelAsked(Body, tag="ModelAsked", frozen=True):
    """A request is about to go out, and this much is held for it (contract 6.5). Nano-units of money."""

    step: int
    attempt: int
    reserved_tokens: int
    reserved_nano: int | None = None
    model: str = ""


class AttemptFailed(Body, tag="AttemptFailed", frozen=True):
    """An attempt to get a reply brought none; without usage its whole reservation is charged (contract 2.1).

    `retry_in` is seconds until the next attempt, None when there will be none.
    """

    step: int
    attempt: int
    kind: str
    detail: str = ""
    status: int | None = None
    retry_in: float | None = None
    charged_tokens: int = 0
    charged_nano: int | None = None


class Refusal(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a call may not run, found while it was looked at: nothing of it will start.

    `raw` is the refused text, cut; `raw_digest` and `raw_bytes` are of the whole (contract 4.4).
    """

    kind: str
    message: str
    raw: str = ""
    raw_digest: str = ""
    raw_bytes: int = 0


class AdmittedCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """One call of a reply after it was looked at: either canonical arguments and a verdict, or a refusal.

    `id` is what the provider sent; `sent_id` is what goes back to it, unique in the task (contract 3.5).
    """

    id: str
    sent_id: str
    name: str
    arguments: str = "{}"
    digest: str = ""
    refusal: Refusal | None = None
    verdict: Verdict = Verdict.ALLOW
    rules: str = ""
    reason: str = ""


# `omit_defaults` knows a default by identity: an empty Raw that is not this one would be written as nothing.
NO_VALUE = Raw()


class Claim(Struct, frozen=True, omit_defaults=True, gc=False):
    """One sentence of an answer tied to a place in a result (contract 10.2).

    Either `pointer` (RFC 6901) with `value` as JSON text, or `quote`.
    """

    text: str
    evidence_id: str
    pointer: str | None = None
    value: Raw = NO_VALUE
    quote: str | None = None


class Answer(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a task ends with: text alone, or a summary whose claims cite evidence."""

    summary: str
    evidence_ids: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


class Replied(Body, tag="Replied", frozen=True):
    """A model's complete reply was accepted as what it said, and each call of it looked at.

    `answer` is a well-formed cited answer, `answer_problem` says why one was not well-formed. The answer tool's
    call is the answer step and no tool call (contract 10.1), so it is not in `calls`: `answer_sent_id` and
    `answer_arguments` keep it for the transcript ("" when the answer came as text).
    """

    step: int
    attempt: int
    finish: Finish
    text: str = ""
    calls: tuple[AdmittedCall, ...] = ()
    answer: Answer | None = None
    answer_problem: str = ""
    answer_id: str = ""
    answer_sent_id: str = ""
    answer_arguments: str = ""
    usage: Usage | None = None
    charged_tokens: int = 0
    charged_nano: int | None = None
    opaque: tuple[Raw, ...] = ()
    model: str = ""


class CallStarted(Body, tag="CallStarted", frozen=True):
    """A tool is about to run; committed first, so that no effect exists without it (contract 8.1).

    `start` counts the starts of this call from 1; `key` is the idempotency key, the same at every start.
    """

    step: int
    position: int
    start: int
    key: str
    operation: str = ""


class CallEnded(Body, tag="CallEnded", frozen=True):
    """The one result of a call. `content` is what the model sees, `digest` is of the whole value as stored.

    `cut` says that the model sees less than there was; `artifact` is then the digest of the whole.
    """

    step: int
    position: int
    status: CallStatus
    content: str
    failure: str = ""
    json: bool = False
    digest: str = ""
    size_bytes: int = 0
    cut: bool = False
    artifact: str = ""
    synthetic: bool = False


class Ask(Struct, frozen=True, omit_defaults=True, gc=False):
    """One question to a person: may this call run, or what became of it (contract 11.1).

    `expires_at` is seconds since 1970 by the store's clock; None (questions about outcomes) never expires.
    """

    step: int
    position: int
    about: str
    tool: str
    digest: str
    definition: str = ""
    rules: str = ""
    expires_at: float | None = None
    cause: str = ""


class ApprovalAsked(Body, tag="ApprovalAsked", frozen=True):
    """The task waits for people; this commit gave the lease back."""

    asks: tuple[Ask, ...]


class ApprovalDecided(Body, tag="ApprovalDecided", frozen=True):
    """A question about a call was closed: "approved", "rejected", "expired" or "void"."""

    step: int
    position: int
    decision: str
    digest: str = ""
    reason: str = ""
    by: str = ""


class OutcomeResolved(Body, tag="OutcomeResolved", frozen=True):
    """Somebody said what became of a call with unknown outcome (contract 8.3).

    `verdict` is "happened" (then `content` is its result), "did_not_happen" or "cannot_tell"; `source` is
    "reconcile" for the tool's own word and "person" otherwise.
    """

    step: int
    position: int
    verdict: str
    source: str
    content: str = ""
    json: bool = False
    by: str = ""
    digest: str = ""


class AnswerRejected(Body, tag="AnswerRejected", frozen=True):
    """An answer or a reply could not be taken, and the model is told why.

    `call_id` is the sent id of the answer tool's call that this is the result of, "" when there was none.
    """

    step: int
    reason: str
    problem: str
    call_id: str = ""


class ContextElided(Body, tag="ContextElided", frozen=True):
    """From here on the model sees `replacement` instead of the result of one call, named by its sent id."""

    step: int
    position: int
    sent_id: str
    replacement: str


class DefinitionAccepted(Body, tag="DefinitionAccepted", frozen=True):
    """An operator took a changed definition for the rest of this task (contract 2.6)."""

    definition: str
    tools: tuple[ToolDefinition, ...]
    instructions: str
    by: str


class ChildOpened(Body, tag="ChildOpened", frozen=True):
    """A task was opened on behalf of a call of this one."""

    step: int
    position: int
    child: str


class ChildEnded(Body, tag="ChildEnded", frozen=True):
    """A child task came to its end."""

    child: str
    reason: StopReason
    charged_tokens: int = 0
    charged_nano: int | None = None


class Stopped(Body, tag="Stopped", frozen=True):
    """The task is over, and why. Always the last entry; what was still reserved is settled by it.

    `partial` marks an answer that was kept although a limit was crossed (contract 6.2).
    """

    reason: StopReason
    detail: str = ""
    answer: Answer | None = None
    partial: bool = False
    settled_tokens: int = 0
    settled_nano: int | None = None
    by: str = ""


EntryBody = (
    Opened
    | ModelAsked
    | AttemptFailed
    | Replied
    | CallStarted
    | CallEnded
    | ApprovalAsked
    | ApprovalDecided
    | OutcomeResolved
    | AnswerRejected
    | ContextElided
    | DefinitionAccepted
    | ChildOpened
    | ChildEnded
    | Stopped
)

KINDS: dict[str, type[Body]] = {
    cls.__name__: cls
    for cls in (
        Opened, ModelAsked, AttemptFailed, Replied, CallStarted, CallEnded, ApprovalAsked, ApprovalDecided,
        OutcomeResolved, AnswerRejected, ContextElided, DefinitionAccepted, ChildOpened, ChildEnded, Stopped,
    )
}  # fmt: skip


class Entry(Struct, frozen=True, gc=False):
    """One numbered fact. `at` is seconds since 1970 by the store's clock, `seconds` the task time used so far.

    `attempt` is the number of the claim it was written under; `by` is a worker or a principal.
    """

    seq: int
    epoch: int
    at: float
    by: str
    attempt: int
    commit_id: str
    seconds: float
    body: EntryBody


_encoder = msgspec.json.Encoder()
_decoders = {kind: msgspec.json.Decoder(cls) for kind, cls in KINDS.items()}

# The link before the first entry; the prefix keeps these digests apart from any other use of SHA-256.
CHAIN_START = hashlib.sha256(b"fencepost/journal/v1\0").hexdigest()


def kind_of(body: Body) -> str:
    """The stable name of a body's kind."""
    return type(body).__name__


def encode_body(body: Body) -> bytes:
    """A body as the exact bytes a store keeps."""
    return _encoder.encode(body)


def decode_body(kind: str, version: int, data: bytes) -> EntryBody:
    """The body that was stored, or a named refusal of a kind or version this program does not know."""
    if version != ENTRY_VERSION or kind not in _decoders:
        raise StoreNewer(
            f"journal entry {kind!r} version {version} is not known to this Fencepost (it knows version"
            f" {ENTRY_VERSION}); upgrade before you open this task"
        )
    try:
        return _decoders[kind].decode(data)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise StoreCorrupt(f"journal entry {kind!r} cannot be read ({why}); restore a backup") from None


def link(previous: str, kind: str, data: bytes) -> str:
    """The chain head after one more entry: SHA-256 over the head before it, the kind and the body."""
    return hashlib.sha256(b"%b\0%b\0%b" % (previous.encode(), kind.encode(), data)).hexdigest()


def evidence_id(step: int, position: int) -> str:
    """The id under which a successful result of this task may be cited."""
    return f"ev-{step}.{position}"
