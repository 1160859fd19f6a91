"""The one boundary between what a tool returned and what is stored (contract 8.4).

Rule 1: stored = returned: what a store keeps, a model sees and a citation names is one text, made here and
nowhere else, before an entry is built. `stored` never raises and never does unbounded work.
Rule 2: a str is text; everything else is JSON text with sorted keys, in the forms of this table.

    None, bool, int, float             themselves; NaN, Infinity and -Infinity are strings
    an int of more than MAX_DIGITS     a string that says how long it was
    NUL and lone surrogates in text    U+FFFD, each
    dict, mapping                      object; keys become strings, a second equal one gets " (2)"
    list, tuple, deque, range          array; a named tuple is an object
    set, frozenset                     array, sorted by the JSON text of its members
    dataclass, msgspec Struct          object of its fields; a Struct's tag is a field
    pydantic model                     what its `model_dump()` gives
    enum                               its value
    datetime, date, time, timedelta    ISO 8601
    Decimal, Fraction, UUID, Path      a string
    bytes, bytearray, memoryview       {"base64": "…", "size_bytes": n}
    another kind of number             int or float
    anything else, iterators too       "<not JSON: module.Type>"; it is not consumed, printed or asked
    deeper than MAX_DEPTH              "<nested more than 64 deep>"
    beyond MAX_WHOLE                   cut, with words that say how much is missing

Rule 3: over `limit` bytes, the text loses its middle to a marker that names digest and sizes, and `whole`
keeps all of it for an artifact. No code point is split.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import numbers
import pathlib
import re
from collections import deque
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any

import msgspec
from msgspec import Raw, Struct

from fencepost.core.canonical import digest

# An artifact is one row in a store and one value in memory; more belongs in a file that the result names.
MAX_WHOLE = 64 * 1024 * 1024
# Each value counts as so many bytes against MAX_WHOLE, which makes a million values the most we walk through.
COST_OF_VALUE = 64
# As deep as arguments may be (strictjson.MAX_DEPTH).
MAX_DEPTH = 64
# Below the interpreter's own limit of 4,300, above which it refuses to write an int in decimal.
MAX_DIGITS = 4_000
# A type's name is foreign text.
MAX_TYPE_NAME = 200

_DIGITS_PER_BIT = 0.30102999566398
_MOST_BITS = int(MAX_DIGITS / _DIGITS_PER_BIT) + 1
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # what the encoder can write
_NUL = b"\\u0000"  # as the encoder writes it
_NO_SCALAR = object()
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_encode = msgspec.json.Encoder(order="sorted").encode


class StoredValue(Struct, frozen=True, gc=False):
    """A tool's value as it is stored. `cut` exactly when `whole` holds the UTF-8 of all there was to keep.

    `text` is what the model sees, at most `limit` bytes; `json` says that the whole is JSON, `digest` and
    `size_bytes` are of the whole; `synthetic` that it is an object with `"synthetic": true` (contract 10.3).
    """

    text: str
    json: bool
    digest: str
    size_bytes: int
    cut: bool = False
    whole: bytes | None = None
    synthetic: bool = False


def stored(value: object, *, limit: int) -> StoredValue:
    """The value in its one textual form, at most `limit` bytes of UTF-8 for the model."""
    if type(value) is str:
        return _settled(value, limit, json=False, synthetic=False)
    found, data = _encoded(value)
    if isinstance(found, str):
        return _settled(found, limit, json=False, synthetic=False)
    synthetic = isinstance(found, dict) and found.get("synthetic") is True
    return _settled(data.decode(), limit, json=True, synthetic=synthetic)


def _encoded(value: object) -> tuple[Any, bytes]:
    """The form of a value and its JSON; the value itself is its form where the encoder does the same."""
    if _is_plain_tree(value):
        try:
            data = _encode(value)
        except (UnicodeEncodeError, TypeError, OverflowError):  # a surrogate, or a value still changing
            data = _NUL
        if _NUL not in data:
            return value, data
    found = _form(value, _Room(), MAX_DEPTH)
    return found, _encode(found)


def writable(text: str) -> str:
    """Foreign text as every store can hold it: NUL and lone surrogates are U+FFFD, each (contract 8.4)."""
    return _UNWRITABLE.sub("\ufffd", text)


def _settled(text: str, limit: int, *, json: bool, synthetic: bool) -> StoredValue:
    """The stored value of a text that still may hold what cannot be written, and may be too long."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        text = _UNWRITABLE.sub("\ufffd", text)
        data = text.encode()
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
        data = text.encode()
    if len(data) > MAX_WHOLE:
        marker = f"[... {len(data)} bytes were returned, more than the {MAX_WHOLE} that are kept ...]"
        data, json = _without_middle(data, marker, MAX_WHOLE).encode(), False
    size, name = len(data), digest(data, "result")
    if size <= limit:
        return StoredValue(text, json, name, size, False, None, synthetic)
    marker = f"[... cut to {limit} of {size} bytes; the whole has digest {name} ...]"
    return StoredValue(_without_middle(data, marker, limit), json, name, size, True, data, synthetic)


def _without_middle(data: bytes, marker: str, limit: int) -> str:
    """The beginning and the end of a text with a marker between, together at most `limit` bytes."""
    room = limit - len(marker) - 2
    if room < 0:
        return marker[:limit]
    head, tail = data[: room - room // 2], data[len(data) - room // 2 :]
    # Ignored are only the bytes of a code point that the cut went through.
    return f"{head.decode(errors='ignore')}\n{marker}\n{tail.decode(errors='ignore')}"


# --- what msgspec may encode just as it is -----------------------------------------------------------------


def _is_plain_tree(value: object) -> bool:
    if type(value) is not dict and type(value) is not list:
        return False
    return _room_after(value, MAX_WHOLE, MAX_DEPTH) >= 0


def _room_after(value: Any, left: int, levels: int) -> int:
    """The room left after a dict or list, below 0 when it is not plain, too large or too deep."""
    left -= COST_OF_VALUE * len(value)
    if left < 0 or levels <= 0:
        return -1
    members: Iterable[Any] = value
    if type(value) is dict:
        for key in list(value):  # copies: a thread of the tool may still be changing it
            if type(key) is not str:
                return -1
            left -= len(key)
        members = list(value.values())
    for member in members:
        kind = type(member)
        if kind is str:
            left -= len(member)
        elif kind is int:
            if not _LEAST_INT <= member <= _MOST_INT:
                return -1
        elif kind is float:
            if member - member != 0.0:  # NaN or Infinity
                return -1
        elif kind is dict or kind is list:
            left = _room_after(member, left, levels - 1)
            if left < 0:
                return -1
        elif kind is not bool and member is not None:
            return -1
    return left


# --- the form of everything else ---------------------------------------------------------------------------


class _Room:
    """How much may still be kept of one value."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_WHOLE


def _form(value: object, room: _Room, levels: int) -> Any:
    """The value as dicts with str keys, lists, str, int, float, bool, None and Raw numbers; a new object."""
    room.left -= COST_OF_VALUE
    try:
        found = _scalar(value, room)
        if found is not _NO_SCALAR:
            return found
        if levels <= 0:
            return f"<nested more than {MAX_DEPTH} deep>"
        return _container(value, room, levels - 1)
    except Exception:  # noqa: BLE001 - the tool's own class, asked for its fields, may raise anything
        return _foreign(value)


def _scalar(value: object, room: _Room) -> Any:
    match value:
        case None | bool():
            return value
        case enum.Enum():
            return _form(value.value, room, 1)
        case str():
            return _text(value, room)
        case int():
            return _integer(int.__index__(value))
        case float():
            return _float(float.__float__(value))
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value), room)
        case dt.date() | dt.time():  # a datetime is a date
            return _text(value.isoformat(), room)
        case dt.timedelta():
            return msgspec.to_builtins(value)
        case decimal.Decimal() | fractions.Fraction() | pathlib.PurePath():
            return _text(str(value), room)
        case numbers.Integral():
            return _integer(int(value))
        case numbers.Real():
            return _float(float(value))
        case _ if type(value).__module__ == "uuid":  # not imported: the core has no source of ids
            return _text(str(value), room)
    return _NO_SCALAR


def _container(value: object, room: _Room, levels: int) -> Any:
    match value:
        case dict():
            return _object(dict.items(value), room, levels)
        case tuple() if hasattr(value, "_fields"):
            return _object(zip(value._fields, tuple.__iter__(value), strict=True), room, levels)
        case list() | tuple() | deque() | range() | KeysView() | ValuesView() | ItemsView():
            return _array(value, room, levels)
        case set() | frozenset():
            return sorted(_array(value, room, levels), key=_encode)
        case Mapping():
            return _object(value.items(), room, levels)
        case Struct():
            return _object(_struct_fields(value), room, levels)
        case _ if isinstance(value, type):
            return _foreign(value)
        case _ if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return _object(((name, getattr(value, name)) for name in names), room, levels)
        case _ if hasattr(value, "model_dump") and hasattr(type(value), "model_fields"):
            return _form(value.model_dump(), room, levels)
    return _foreign(value)


def _object(items: Iterable[tuple[Any, Any]], room: _Room, levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    taken: dict[str, int] = {}
    for key, member in items:
        if room.left < COST_OF_VALUE:
            found["..."] = "<more members not kept>"
            break
        name = _key(key, room, levels)
        found[name if name not in found else _free_name(name, found, taken)] = _form(member, room, levels)
    return found


def _array(members: Iterable[Any], room: _Room, levels: int) -> list[Any]:
    found: list[Any] = []
    for member in members:
        if room.left < COST_OF_VALUE:
            found.append("<more members not kept>")
            break
        found.append(_form(member, room, levels))
    return found


def _key(key: object, room: _Room, levels: int) -> str:
    form = _form(key, room, levels)
    return form if isinstance(form, str) else _encode(form).decode()


def _free_name(name: str, found: dict[str, Any], taken: dict[str, int]) -> str:
    """The name with the next free number; `taken` keeps the last one, so that no search starts anew."""
    number = taken.get(name, 1) + 1
    while f"{name} ({number})" in found:
        number += 1
    taken[name] = number
    return f"{name} ({number})"


def _struct_fields(value: Struct) -> Iterable[tuple[str, Any]]:
    config = value.__struct_config__
    if config.tag is not None and config.tag_field is not None:
        yield config.tag_field, config.tag
    for field in msgspec.structs.fields(value):
        member = getattr(value, field.name)
        if member is not msgspec.UNSET:
            yield field.encode_name, member


def _text(value: str, room: _Room) -> str:
    text = str.__str__(value)
    if len(text) > room.left:
        kept = max(room.left, 0)
        text = f"{text[:kept]}<{len(text) - kept} more characters not kept>"
    room.left -= len(text)
    return writable(text)


def _bytes(value: bytes, room: _Room) -> dict[str, Any]:
    kept = value[: max(room.left, 0) // 4 * 3]
    room.left -= len(kept) * 4 // 3
    form: dict[str, Any] = {"base64": base64.b64encode(kept).decode(), "size_bytes": len(value)}
    if len(kept) < len(value):
        form["kept_bytes"] = len(kept)
    return form


def _integer(value: int) -> int | Raw | str:
    if _LEAST_INT <= value <= _MOST_INT:
        return value
    digits = str(value).encode() if value.bit_length() <= _MOST_BITS else b""
    if digits and len(digits.lstrip(b"-")) <= MAX_DIGITS:
        return Raw(digits)
    return f"<an integer of about {int(value.bit_length() * _DIGITS_PER_BIT)} digits>"


def _float(value: float) -> float | str:
    if value - value == 0.0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def _foreign(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"[:MAX_TYPE_NAME]
    return f"<not JSON: {_UNWRITABLE.sub(chr(0xFFFD), name)}>"
