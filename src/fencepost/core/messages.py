"""What a model sees and says, in no provider's dialect.

A *message* is what goes to the model, an *entry* (entries.py) is what happened, an *event* (run/live.py)
is what a watcher is told. They are three different things and never stand for each other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from fencepost.core.history import Log

R = TypeVar("R")


class Finish(enum.StrEnum):
    """Why a provider ended a reply; adapters map their own words to these."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    FILTER = "filter"
    REFUSAL = "refusal"
    ERROR = "error"
    UNKNOWN = "unknown"


# Contract 3.2 is an allow-list: a finish that is not in it executes nothing.
EXECUTABLE_FINISHES = frozenset({Finish.STOP, Finish.TOOL_CALLS})


class Effect(enum.StrEnum):
    """What running a tool does to the world (contract 8.1)."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    WRITE = "write"


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens and money of one attempt as the provider reported them; None is unknown, never zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_nano: int | None = None

    @property
    def tokens(self) -> int | None:
        """Input and output together, or None when either is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class ToolCall(Struct, frozen=True, gc=False):
    """A call as the provider sent it: `arguments` is text that nobody has looked at yet."""

    id: str
    name: str
    arguments: str = ""


class Reply(Struct, frozen=True, omit_defaults=True, gc=False):
    """One complete reply of a model; a reply that is still arriving does not exist yet (contract 3.1).

    `opaque` holds provider blocks that must go back unchanged (thinking, signatures), as JSON.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = Finish.STOP
    usage: Usage | None = None
    opaque: tuple[Raw, ...] = ()
    model: str = ""
    provider_finish: str = ""


class UserMessage(Struct, frozen=True, tag="user", gc=False):
    """Words of the principal, or of the runtime when it must tell the model something outside a result."""

    text: str


class AssistantMessage(Struct, frozen=True, tag="assistant", omit_defaults=True, gc=False):
    """An earlier reply; call ids are unique in the task whatever the provider had sent (contract 3.5)."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    opaque: tuple[Raw, ...] = ()


class ToolMessage(Struct, frozen=True, tag="tool", omit_defaults=True, gc=False):
    """The one result of one call. `content` is untrusted data (contract 10.4), never instructions.

    `evidence_id` is what an answer may cite this result by, "" where citations are not asked for or it failed.
    """

    call_id: str
    name: str
    content: str
    failed: bool = False
    evidence_id: str = ""


Message = UserMessage | AssistantMessage | ToolMessage


class ToolDefinition(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a task was told a tool is: part of entry 1, bound by `digest` (contract 2.6).

    `schema` is JSON Schema as JSON text; `timeout` is seconds, None means the task's `tool_seconds`.
    """

    name: str
    description: str
    schema: str
    effect: Effect = Effect.WRITE
    version: str = "1"
    parallel: bool = False
    repeat: str = "stop"
    timeout: float | None = None
    reconciles: bool = False
    digest: str = ""


class ModelRequest(Struct, frozen=True, gc=False):
    """Everything a model adapter may know of a task when it is asked for a reply."""

    instructions: str
    messages: Log[Message] | tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    step: int
    attempt: int
    seconds: float
    max_output_tokens: int
    answer: str = "text"

    def rendered(self, render: Callable[[Message], R]) -> list[R]:
        """What `render` makes of each message, in order; within a run each message is rendered once.

        An adapter gives a function of its own module, the same at every request, so that a step costs what it adds
        and not what came before.
        """
        if isinstance(self.messages, Log):
            return self.messages.rendered(render)
        return [render(message) for message in self.messages]


class ModelProfile(Struct, frozen=True, omit_defaults=True, gc=False):
    """What budgets need to know of a model before it is called (contract 6.5).

    Prices are nano-units of money per token; None is an unknown price, never a free one. `context_tokens` is what a
    request and its reply may hold together: older results are left out to stay below it (eliding.py); None never
    leaves any out.
    """

    name: str
    bytes_per_token: int = 3
    max_output_tokens: int = 4096
    input_nano: int | None = None
    output_nano: int | None = None
    calls_tools: bool = True
    context_tokens: int | None = None

    def cost(self, input_tokens: int, output_tokens: int) -> int | None:
        """The price of so many tokens in nano-units, or None when it is not known."""
        if self.input_nano is None or self.output_nano is None:
            return None
        return input_tokens * self.input_nano + output_tokens * self.output_nano


def size_of(message: Message) -> int:
    """The bytes a message adds to a request, near enough for a reservation."""
    if isinstance(message, ToolMessage):
        return bytes_of(message.content) + bytes_of(message.name) + 40
    if isinstance(message, UserMessage):
        return bytes_of(message.text) + 20
    size = bytes_of(message.text) + 40
    for call in message.calls:
        size += bytes_of(call.arguments) + bytes_of(call.name) + 40
    return size


def bytes_of(text: str) -> int:
    """How long a text is as UTF-8; only text that is not ASCII has to be encoded to know."""
    return len(text) if text.isascii() else len(text.encode())


def encode_message(message: Message) -> bytes:
    """A message as JSON, for exports and digests."""
    return msgspec.json.encode(message)
