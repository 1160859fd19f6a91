"""A model that says what it was told to, in order: for tests, demos and replay."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from fencepost.core.assemble import Assembler
from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, ModelProfile, ModelRequest, Reply, ToolCall, Usage
from fencepost.ports import Delta, Sink

Line = Reply | Exception | Callable[[ModelRequest], Reply]

# What a scripted reply is said to have used, so that budgets count something. Tokens.
SCRIPTED_USAGE = Usage(input_tokens=10, output_tokens=5)
# Streamed text is cut into pieces of this many characters.
PIECE_CHARS = 8


class ScriptUnused(AssertionError):
    """The run ended before the script did."""


class ScriptedModel:
    """Replies from a list, each once; an exception in the list is raised, a function gets the request.

    Leave it as a context manager, or call `check()`, to fail when the script was not used up. When it is asked more
    often than it has lines, it raises ModelFailed, so that the task ends with LLM_ERROR. `requests` keeps what it
    was asked.
    """

    def __init__(
        self, script: Iterable[Line | str], *, profile: ModelProfile | None = None, stream: bool = True
    ) -> None:
        self._script = [say(line) if isinstance(line, str) else line for line in script]
        self._profile = profile or ModelProfile("scripted", input_nano=0, output_nano=0)
        self._stream = stream
        self._next = 0
        self.requests: list[ModelRequest] = []

    @property
    def profile(self) -> ModelProfile:
        """The profile it was made with; free of charge by default."""
        return self._profile

    @property
    def unused(self) -> int:
        """How many lines of the script have not been said."""
        return len(self._script) - self._next

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The next line of the script."""
        self.requests.append(request)
        if self._next >= len(self._script):
            raise ModelFailed(
                f"the script has {len(self._script)} lines and was asked for one more", kind="script"
            )
        line = self._script[self._next]
        self._next += 1
        if isinstance(line, Exception):
            raise line
        reply = line if isinstance(line, Reply) else line(request)
        return streamed(reply, sink) if sink is not None and self._stream else reply

    def check(self) -> None:
        """Raise ScriptUnused unless every line was said."""
        if self.unused:
            raise ScriptUnused(f"{self.unused} of {len(self._script)} scripted lines were not used")

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.check()


def streamed(reply: Reply, sink: Sink) -> Reply:
    """The reply, told to `sink` piece by piece on the way through the same assembly real streams use."""
    assembler = Assembler()
    for piece in _pieces(reply.text):
        assembler.text(piece)
        sink(Delta("text", piece))
    for index, call in enumerate(reply.calls):
        assembler.call(index, id=call.id, name=call.name)
        sink(Delta("call", call.name, index))
        for piece in _pieces(call.arguments):
            assembler.arguments(index, piece)
            sink(Delta("arguments", piece, index))
    return assembler.finish(reply.finish, usage=reply.usage, opaque=reply.opaque, model=reply.model)


def _pieces(text: str) -> Iterable[str]:
    return (text[i : i + PIECE_CHARS] for i in range(0, len(text), PIECE_CHARS))


_ids = itertools.count(1)


def say(text: str, *, finish: Finish = Finish.STOP, usage: Usage | None = SCRIPTED_USAGE) -> Reply:
    """A reply of words."""
    return Reply(text, finish=finish, usage=usage)


def call(name: str, /, *, id: str | None = None, **arguments: Any) -> ToolCall:
    """A call with arguments as a provider would write them; ids are numbered unless one is given."""
    return ToolCall(f"call-{next(_ids)}" if id is None else id, name, json.dumps(arguments))


def calls(*asked: ToolCall, text: str = "", usage: Usage | None = SCRIPTED_USAGE) -> Reply:
    """A reply of calls."""
    return Reply(text, asked, Finish.TOOL_CALLS, usage=usage)


def answer(summary: str, *claims: dict[str, Any], id: str | None = None) -> Reply:
    """A reply that gives a cited answer; `evidence_ids` are those the claims cite."""
    cited = list(dict.fromkeys(claim["evidence_id"] for claim in claims))
    return calls(call("answer", id=id, summary=summary, evidence_ids=cited, claims=list(claims)))
