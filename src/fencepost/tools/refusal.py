"""What a model is told when its arguments are refused (contract 4.4): tool, place, what is wrong, what fits.

Rule 1: the whole is under 4 KiB whatever was sent; foreign text in it is quoted, in ASCII, and cut.
Rule 2: it says what to change and never "try again".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fencepost.core.errors import ArgumentsInvalid
from fencepost.core.strictjson import child, quoted
from fencepost.tools.schema import place_in, shape

# Contract 4.4 says under 4 KiB; the entry around the text has some bytes too.
MAX_BYTES = 4_000
# Parts of the text: a problem, a place, a value that was found, the shape of one place and of everything.
MAX_PROBLEM = 600
MAX_PLACE = 400
MAX_FOUND = 120
MAX_SHAPE = 800
MAX_WHOLE_SHAPE = 1_400

_PLACE = re.compile(r" - at (`key` in )?`(\$.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\[(\d+)\]|(\[\.\.\.\])|\.([^.\[]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")

Path = tuple[str | int, ...]


class Described:
    """A tool's name and schema, ready to say what its arguments should have been."""

    __slots__ = ("_definitions", "_schema", "_tool", "_whole")

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool, self._schema = tool, schema
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._whole = _cut(shape(schema, self._definitions), MAX_WHOLE_SHAPE)

    def refusal(self, problem: str) -> ArgumentsInvalid:
        """A refusal whose problem already names the place."""
        text = _cut(_CONTROL.sub(" ", problem), MAX_PROBLEM)
        return self._said(f"{self._tool}: {text}.")

    def refusal_at(self, problem: str, path: Path, sent: object) -> ArgumentsInvalid:
        """A refusal of what was sent at a path."""
        found, there = _value_at(sent, path)
        place = _cut(_path_text(path), MAX_PLACE)
        text = f"{self._tool}: {_cut(_CONTROL.sub(' ', problem), MAX_PROBLEM)} at {place}"
        if there and not isinstance(found, (dict, list)):
            text += f", found {_brief(found)}"
        if path and (expected := place_in(self._schema, path, self._definitions)) is not None:
            text += f"; expected there: {_cut(shape(expected, self._definitions), MAX_SHAPE)}"
        return self._said(text + ".")

    def _said(self, text: str) -> ArgumentsInvalid:
        whole = f"{text} Nothing was run. The arguments of {self._tool} are one JSON object: {self._whole}"
        return ArgumentsInvalid(whole.encode()[:MAX_BYTES].decode(errors="ignore"))


def place_of(why: Exception, sent: object, fails: Callable[[object], str | None]) -> tuple[str, Path]:
    """The problem and the path of msgspec's validation error on what was sent.

    msgspec writes `[...]` for a member of an object with free keys and tells of the first that does not fit;
    `fails` (the error of another document, or None) is asked half by half until that one is found.
    """
    text = str(why)
    found = _PLACE.search(text)
    path = _path(found[2][1:], sent, lambda other: fails(other) == text) if found is not None else ()
    problem = text[: found.start()] if found is not None else text
    if found is not None and found[1]:
        return f"a key does not fit: {problem}", path
    if (missing := _MISSING.fullmatch(problem)) is not None:
        return "a required field is missing", (*path, missing[1])
    if problem.startswith(
        "Invalid enum value"
    ):  # msgspec quotes the value; ours is quoted where it is bounded
        return "the value is not one of those allowed", path
    return problem, path


def _path(text: str, sent: object, same: Callable[[object], bool]) -> Path:
    path: list[str | int] = []
    cursor = sent
    for step in _steps(text, sent):
        meant = _member_meant(sent, path, cursor, same) if step is ... else step
        if meant is None:
            break
        path.append(meant)
        cursor, _ = _value_at(cursor, (meant,))
    return tuple(path)


def _steps(text: str, sent: object) -> list[Any]:
    """The steps of a path in msgspec's spelling; a key with points or brackets is told by what was sent."""
    steps: list[Any] = []
    cursor: object = sent
    while text:
        keys = (
            [k for k in cursor if text[1:].startswith(k)]
            if isinstance(cursor, dict) and text[0] == "."
            else []
        )
        if keys:
            key = max(keys, key=len)
            steps.append(key)
            text = text[1 + len(key) :]
        elif (found := _STEP.match(text)) is not None:
            steps.append(int(found[1]) if found[1] else ... if found[2] else found[3])
            text = text[found.end() :]
        else:
            break
        cursor = None if steps[-1] is ... else _value_at(cursor, (steps[-1],))[0]
    return steps


def _member_meant(
    sent: object, path: Sequence[str | int], members: object, same: Callable[[object], bool]
) -> str | None:
    tried = list(members.items()) if isinstance(members, dict) else []
    while len(tried) > 1:
        half = len(tried) // 2
        tried = tried[:half] if same(_with(sent, path, dict(tried[:half]))) else tried[half:]
    return str(tried[0][0]) if tried and same(_with(sent, path, dict(tried))) else None


def _with(document: Any, path: Sequence[str | int], new: object) -> Any:
    """A copy of a document with another value at a path."""
    if not path:
        return new
    copy = document.copy()
    copy[path[0]] = _with(document[path[0]], path[1:], new)
    return copy


def _value_at(document: Any, path: Sequence[str | int]) -> tuple[Any, bool]:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None, False
    return document, True


def _path_text(path: Path) -> str:
    text = "$"
    for step in path:
        text = child(text, step)
    return text


def _brief(value: object) -> str:
    return quoted(value) if isinstance(value, str) else _cut(msgspec.json.encode(value).decode(), MAX_FOUND)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
