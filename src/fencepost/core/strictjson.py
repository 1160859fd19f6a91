"""JSON from outside, read so that nothing in it can mean two things (contract 4.1-4.3).

Rule 1: size, depth and digits are refused before they can cost anything; no input raises RecursionError.
Rule 2: what JSON parsers disagree about is refused: duplicate keys in any spelling, NaN and Infinity, numbers
that overflow, data after the document, byte order marks, bad UTF-8, lone surrogates, NUL.
Rule 3: `1.0` is the integer 1 (an integral number below 2**53), because models write integers that way and
the schema would refuse them otherwise (contract 4.3). No other value is changed.
Rule 4: the ordinary small object takes the short way; only when something is wrong is the text read a second
time, to find the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fencepost.core.errors import JsonInvalid

# A request for a person to read or a file to patch fits; more is a runaway model (contract 4.2).
MAX_BYTES = 256 * 1024
# Deeper than any schema we accept, far below what the interpreter's stack bears (contract 4.2).
MAX_DEPTH = 64
# Longer than any id, key or amount; reading digits costs the square of their number (contract 4.2).
MAX_DIGITS = 100
# Integers beyond this lose digits in a double, so a float up there is left a float.
EXACT = 2**53
# Of a key or a number, so much is quoted in an error.
QUOTED = 60

_SPACE = " \t\n\r"
# Strings are swallowed whole, also one that never ends: brackets in them do not count. Possessive: linear.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def loads(text: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> object:
    """The one value the text stands for; everything else raises `JsonInvalid` with the place.

    Returns None, bool, int, float, str, list and dict only; dicts keep the order of the text.
    """
    if isinstance(text, bytes):
        text = _decoded(text, max_bytes)
    size = len(text)
    if size > max_bytes or not text.isascii():
        _check_characters(text, max_bytes)
    if text.count("[") + text.count("{") > max_depth:
        _check_depth(text, max_depth)
    try:
        # A text too short for a long number needs no hook on its integers.
        value, end = (_SHORT if size <= MAX_DIGITS else _LONG).raw_decode(text)
        if end != size and text[end:].strip(_SPACE):
            raise JsonInvalid(f"more data after the JSON value, at character {end}")
    except (json.JSONDecodeError, _Spotted):
        value = _second_look(text)
    if "\\u" in text:
        _check_escapes(value)
    return value


def loads_arguments(text: str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The object a call's argument text stands for; empty or white space is `{}` (contract 4.2)."""
    if not text or (len(text) <= max_bytes and text.isspace()):
        return {}
    value = loads(text, max_bytes=max_bytes, max_depth=max_depth)
    if not isinstance(value, dict):
        raise JsonInvalid(f"expected a JSON object, found {named(value)}")
    return value


def named(value: object) -> str:
    """What kind of JSON value this is, in the words of an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def child(path: str, key: str | int) -> str:
    """The path of a member: `$.window.start`, `$.items[3]`, `$["odd key"]`; long keys are cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.fullmatch(key) and len(key) <= QUOTED:
        return f"{path}.{key}"
    return f"{path}[{quoted(key)}]"


def quoted(text: str) -> str:
    """A piece of foreign text as JSON in ASCII, cut to a bounded length."""
    return json.dumps(text if len(text) <= QUOTED else text[:QUOTED] + "…")


# --- before decoding -------------------------------------------------------------------------------------


def _decoded(data: bytes, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise JsonInvalid(f"the text has {len(data)} bytes, more than the {max_bytes} allowed")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as why:
        raise JsonInvalid(f"the text is not UTF-8: byte {why.start} cannot be read") from None


def _check_characters(text: str, max_bytes: int) -> None:
    """Refuse what is too large, has a byte order mark, or cannot be written as UTF-8."""
    if len(text) > max_bytes:
        raise JsonInvalid(f"the text has at least {len(text)} bytes, more than the {max_bytes} allowed")
    if text.startswith("\ufeff"):
        raise JsonInvalid("the text begins with a byte order mark; send plain UTF-8")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as why:
        raise JsonInvalid(f"a lone surrogate at character {why.start}; it is not text") from None
    if size > max_bytes:
        raise JsonInvalid(f"the text has {size} bytes, more than the {max_bytes} allowed")


def _check_depth(text: str, max_depth: int) -> None:
    """Refuse a document nested too deeply, before a parser can recurse into it."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        mark = found[0]
        if mark in "[{":
            depth += 1
            if depth > max_depth:
                raise JsonInvalid(f"nested more than {max_depth} deep, at character {found.start()}")
        elif mark in "]}":
            depth -= 1


# --- decoding --------------------------------------------------------------------------------------------


class _Spotted(Exception):
    """Something that needs the second look."""


class _Refused:
    """Stands in the decoded document where something refused was found."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        self.problem = problem


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Spotted
    return found


def _float(text: str) -> int | float:
    value = float(text)
    if -EXACT < value < EXACT:
        if len(text) > MAX_DIGITS and _digits(text) > MAX_DIGITS:
            raise _Spotted
        return int(value) if value.is_integer() else value
    if value in (_INFINITE, -_INFINITE) or _digits(text) > MAX_DIGITS:
        raise _Spotted
    return value


def _long_int(text: str) -> int:
    if len(text) > MAX_DIGITS and _digits(text) > MAX_DIGITS:
        raise _Spotted
    return int(text)


def _constant(_text: str) -> Any:
    raise _Spotted


def _digits(text: str) -> int:
    return sum(map(str.isdigit, text))


_INFINITE = float("inf")
_SHORT = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_LONG = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_long_int, parse_constant=_constant
)


# --- the second look: the same rules, but what is refused is marked, so that its place can be told ----------


def _second_look(text: str) -> object:
    """The value of a text with white space around it, or `JsonInvalid` with the place of what is wrong."""
    try:
        value = _MARKING.decode(text)
    except json.JSONDecodeError as why:
        raise JsonInvalid(f"not valid JSON: {why.msg} at line {why.lineno}, column {why.colno}") from None
    for path, _, member in _members(value):
        if isinstance(member, _Refused):
            raise JsonInvalid(f"{member.problem} at {path}", path=path)
    return value


def _marked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = _Refused(f"duplicate key {quoted(key)}") if key in found else value
    return found


def _marked_number(text: str) -> int | float | _Refused:
    digits = _digits(text)
    if digits > MAX_DIGITS:
        return _Refused(f"a number of {digits} digits, more than the {MAX_DIGITS} allowed,")
    try:
        return int(text) if text.lstrip("-").isdigit() else _float(text)
    except _Spotted:
        return _Refused(f"the number {text[:QUOTED]} is too large")


def _marked_constant(text: str) -> _Refused:
    return _Refused(f"{text} is not JSON")


_MARKING = json.JSONDecoder(
    object_pairs_hook=_marked_object,
    parse_float=_marked_number,
    parse_int=_marked_number,
    parse_constant=_marked_constant,
)


def _check_escapes(value: object) -> None:
    """Refuse NUL and lone surrogates, which only an escape can bring into a decoded string (L15)."""
    for path, key, member in _members(value):
        if key is not None and (problem := _unwritable(key)):
            raise JsonInvalid(f"{problem} in a key at {path}", path=path)
        if isinstance(member, str) and (problem := _unwritable(member)):
            raise JsonInvalid(f"{problem} in the string at {path}", path=path)


def _unwritable(text: str) -> str:
    if "\0" in text:
        return "NUL (\\u0000)"
    if text.isascii():
        return ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as why:
        return f"a lone surrogate (\\u{ord(text[why.start]):04x})"
    return ""


def _members(
    value: object, path: str = "$", key: str | None = None
) -> Iterator[tuple[str, str | None, object]]:
    """Every value of a document in the order of its text, with its path and the key it stands under."""
    yield path, key, value
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _members(member, child(path, name), name)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _members(member, child(path, index))
