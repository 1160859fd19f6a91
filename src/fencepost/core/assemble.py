"""Fragments of a reply become one reply, under one rule set, or nothing (contract 3.1).

Rule 1: nothing exists before `finish`; there is no way to get a part out.
Rule 2: a call is named by its index; its id and name may be repeated in every fragment but never change.
Rule 3: everything has a bound, so that a stream that never ends costs no more than the bound.
"""

from __future__ import annotations

from msgspec import Raw

from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, Reply, ToolCall, Usage

# A whole reply larger than this is no reply a model can have meant. Characters.
REPLY_CHARS_MOST = 16 * 1024 * 1024
# More calls than any limit of `calls_per_reply` lets through; keeps a flood out of memory.
CALLS_MOST = 4096


class _Part:
    __slots__ = ("id", "name", "pieces")

    def __init__(self) -> None:
        self.id, self.name, self.pieces = "", "", list[str]()


class Assembler:
    """Collects the fragments of one attempt; linear in their number."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._parts: dict[int, _Part] = {}
        self._chars = 0
        self._finished = False

    def text(self, piece: str) -> None:
        """Take a fragment of the words."""
        self._grow(piece)
        self._text.append(piece)

    def call(self, index: int, *, id: str = "", name: str = "") -> None:
        """Take what a fragment says of a call's identity."""
        part = self._part(index)
        if (id and part.id and id != part.id) or (name and part.name and name != part.name):
            raise ModelFailed(f"the stream renamed call {index}", kind="protocol")
        part.id, part.name = part.id or id, part.name or name

    def arguments(self, index: int, piece: str) -> None:
        """Take a fragment of a call's arguments."""
        self._grow(piece)
        self._part(index).pieces.append(piece)

    def finish(
        self, finish: Finish, *, usage: Usage | None = None, opaque: tuple[Raw, ...] = (), model: str = ""
    ) -> Reply:
        """The whole reply: called once, when the provider's terminal signal arrived."""
        if self._finished:
            raise ModelFailed("the stream ended twice", kind="protocol")
        self._finished = True
        calls = tuple(ToolCall(p.id, p.name, "".join(p.pieces)) for _, p in sorted(self._parts.items()))
        return Reply("".join(self._text), calls, finish, usage=usage, opaque=opaque, model=model)

    def _part(self, index: int) -> _Part:
        if self._finished:
            raise ModelFailed("the stream went on after its end", kind="protocol")
        if index not in self._parts and len(self._parts) >= CALLS_MOST:
            raise ModelFailed(f"the stream holds more than {CALLS_MOST} calls", kind="protocol")
        return self._parts.setdefault(index, _Part())

    def _grow(self, piece: str) -> None:
        if self._finished:
            raise ModelFailed("the stream went on after its end", kind="protocol")
        self._chars += len(piece)
        if self._chars > REPLY_CHARS_MOST:
            raise ModelFailed(f"the stream is longer than {REPLY_CHARS_MOST} characters", kind="protocol")
