"""Where two readings of a journal part: the first place, by name, with what was and what is."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from fencepost.core.entries import Body, encode_body, kind_of
from fencepost.core.messages import ModelRequest

# A value is told so far; both sides are cut around the first place where they differ. Characters.
TOLD_CHARS = 120
_ABSENT = msgspec.UNSET
# They follow from the other fields, which say more.
_DIGESTS = frozenset({"digest", "definition"})


class Difference(Struct, frozen=True):
    """The first thing that is not as it was. `seq` is the entry, `place` a path in it or what of it differs."""

    seq: int
    kind: str
    place: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f" {self.place}" if self.place else ""
        return f"entry {self.seq} ({self.kind}){where}: recorded {self.recorded}, replayed {self.replayed}"


def compare_bodies(seq: int, recorded: Body, replayed: Body) -> Difference | None:
    """The first difference between two bodies, None when they are the same bytes."""
    if type(recorded) is type(replayed) and encode_body(recorded) == encode_body(replayed):
        return None
    if type(recorded) is not type(replayed):
        return Difference(seq, kind_of(recorded), "", _outline(recorded), _outline(replayed))
    path, was, now = first_difference(_document(recorded), _document(replayed))
    return Difference(seq, kind_of(recorded), path, was, now)


def compare_requests(seq: int, recorded: ModelRequest, replayed: ModelRequest) -> Difference | None:
    """The first difference between what a model would be told and what it was told; time aside."""
    if _equal(recorded, replayed):
        return None
    was, now = _document(_told(recorded)), _document(_told(replayed))
    if was == now:
        return None
    path, before, after = first_difference(was, now)
    return Difference(seq, "ModelAsked", f"request {path}", before, after)


def first_difference(was: Any, now: Any, path: str = "") -> tuple[str, str, str]:
    """(path, recorded, replayed) of the first place where two documents differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        keys = sorted(
            dict.fromkeys((*was, *now)), key=lambda key: key in _DIGESTS
        )  # sorting keeps their order
        for key in keys:
            if key not in was or key not in now or was[key] != now[key]:
                below = f"{path}.{key}" if path else str(key)
                return first_difference(was.get(key, _ABSENT), now.get(key, _ABSENT), below)
    if isinstance(was, list) and isinstance(now, list):
        order = _names(was), _names(now)
        if order[0] != order[1] and sorted(order[0]) == sorted(order[1]):
            return f"{path}, the order", ", ".join(order[0]), ", ".join(order[1])
        for i, (one, other) in enumerate(zip(was, now, strict=False)):
            if one != other:
                return first_difference(one, other, f"{path}[{i}]")
        return f"{path}, how many", str(len(was)), str(len(now))
    return path, *_around(_text(was), _text(now))


def _names(items: Iterable[Any]) -> list[str]:
    return [str(item["name"]) for item in items if isinstance(item, dict) and "name" in item]


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    return repr(value) if not isinstance(value, dict | list) else msgspec.json.encode(value).decode()


def _around(was: str, now: str) -> tuple[str, str]:
    """Both texts, cut to where they begin to differ."""
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return _cut(was, at), _cut(now, at)


def _cut(text: str, at: int) -> str:
    if len(text) <= TOLD_CHARS:
        return text
    begin = max(0, min(at - TOLD_CHARS // 3, len(text) - TOLD_CHARS))
    end = begin + TOLD_CHARS
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def _outline(body: Body) -> str:
    names = ("step", "attempt", "position", "status", "reason", "start")
    parts = [f"{name} {getattr(body, name)}" for name in names if hasattr(body, name)]
    detail = getattr(body, "detail", "")
    return " ".join((kind_of(body), *parts)) + (f" ({detail})" if detail else "")


def _equal(one: ModelRequest, other: ModelRequest) -> bool:
    """Whether both say the same, without writing them out: a long task has long requests."""
    return (
        (one.instructions, one.tools, one.answer) == (other.instructions, other.tools, other.answer)
        and len(one.messages) == len(other.messages)
        and all(map(operator.eq, one.messages, other.messages))
    )


def _told(request: ModelRequest) -> dict[str, Any]:
    return {
        "instructions": request.instructions,
        "messages": list(request.messages),
        "tools": request.tools,
        "answer": request.answer,
    }


def _document(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
