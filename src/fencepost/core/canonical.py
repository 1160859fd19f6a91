"""One text for one JSON value, and one digest for one text (contract 4.1).

Rule 1: the text is RFC 8785 (keys in UTF-16 order, ES6 numbers, least escapes), except that integers outside
±(2**53-1) keep all their digits: ids of 18 digits are common, and rounding one would name another thing.
Rule 2: a digest is over a domain and a text, so that equal texts of two kinds never have equal digests.
Rule 3: what is not JSON (NaN, Infinity, keys that are not strings, other types) raises; nothing is guessed.
Rule 4: values without floats and without keys beyond ASCII are written by msgspec's encoder, which agrees
with RFC 8785 on them; all others by the code below.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

# Deeper than any argument (strictjson.MAX_DEPTH) or stored value; the interpreter's stack bears it.
MAX_NESTING = 200
# How many domains of digests a program may have: they are words in its code; data leaking in would show.
MAX_DOMAINS = 64

# ES6 writes up to 21 digits before the point, and up to 6 zeros after it, before it turns to an exponent.
_DIGITS_BEFORE_POINT = 21
_ZEROS_AFTER_POINT = 6

_encode = msgspec.json.Encoder(order="sorted").encode
_quoted = json.encoder.encode_basestring  # exactly the escapes of RFC 8785, 3.2.2.2
# Each domain's hash with its prefix already in it; copying is cheaper than hashing the prefix again.
_starts: dict[str, hashlib._Hash] = {}


def canonical(value: object) -> str:
    """The canonical text of a JSON value: None, bool, int, float, str, list or tuple, dict with str keys.

    Raises TypeError for other types; ValueError for NaN, Infinity, lone surrogates, integers over 4,300
    digits and values nested deeper than MAX_NESTING.
    """
    if _is_plain(value, 0):
        return _encode(value).decode()
    text = _written(value, 0)
    text.encode()  # a lone surrogate has no canonical form, and must not wait for the digest to be found
    return text


def digest(text: str | bytes, domain: str = "arguments") -> str:
    """SHA-256 as hex over a domain and a text (bytes are its UTF-8); ValueError for a lone surrogate."""
    start = _starts.get(domain)
    if start is None:
        assert len(_starts) < MAX_DOMAINS, f"digest domain {domain!r}: domains are words of the program"
        start = _starts[domain] = hashlib.sha256(f"fencepost/{domain}/v1\0".encode())
    hashed = start.copy()
    hashed.update(text.encode() if isinstance(text, str) else text)
    return hashed.hexdigest()


def _is_plain(value: object, depth: int) -> bool:
    """Whether msgspec's encoder writes this value just as RFC 8785 does."""
    kind = type(value)
    if kind is dict:
        if depth >= MAX_NESTING:
            return False
        for key, member in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not key.isascii():
                return False
            if type(member) is not str and not _is_plain(member, depth + 1):
                return False
        return True
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return -(2**63) <= value < 2**64  # type: ignore[operator]
    if kind is list or kind is tuple:
        return depth < MAX_NESTING and all(_is_plain(member, depth + 1) for member in value)  # type: ignore[attr-defined]
    return False


def _written(value: object, depth: int) -> str:
    if depth > MAX_NESTING:
        raise ValueError(f"a value nested more than {MAX_NESTING} deep has no canonical form here")
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return int.__repr__(value)
        case float():
            return number(value)
        case str():
            return _quoted(value)
        case dict():
            return _written_object(value, depth)
        case list() | tuple():
            return "[" + ",".join([_written(member, depth + 1) for member in value]) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value; make it one before it is digested")


def _written_object(value: dict[object, object], depth: int) -> str:
    members: list[tuple[bytes, str]] = []
    for key, member in value.items():
        if not isinstance(key, str):
            raise TypeError(f"JSON keys are strings, found a key of type {type(key).__name__}")
        order = key.encode("utf-16-be", "surrogatepass")
        members.append((order, f"{_quoted(key)}:{_written(member, depth + 1)}"))
    members.sort()
    return "{" + ",".join([text for _, text in members]) + "}"


def number(value: float) -> str:
    """A finite double as ES6 writes it (RFC 8785, 3.2.2.3); ValueError for NaN and Infinity."""
    if value != value or value in (_INFINITE, -_INFINITE):  # noqa: PLR0124 - NaN alone differs from itself
        raise ValueError(f"{value} is not a JSON number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # repr has the same shortest digits as ES6; only where the point and the exponent go differs.
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    figures = (whole + fraction).lstrip("0")
    point = len(figures) - len(fraction) + int(exponent or 0)
    digits = figures.rstrip("0")
    if len(digits) <= point <= _DIGITS_BEFORE_POINT:
        return sign + digits.ljust(point, "0")
    if 0 < point <= _DIGITS_BEFORE_POINT:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -_ZEROS_AFTER_POINT < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


_INFINITE = float("inf")
