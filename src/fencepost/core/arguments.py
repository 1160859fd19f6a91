"""One call's argument text, once strict, once canonical: the single object of contract 4.1.

The usual text (short, ASCII, no escapes, no fractions) is read by the fast decoder and written back by the fast
encoder; both forget duplicate keys, so the members are counted: in a text without escapes every member has exactly
one colon outside of strings and all strings come back unchanged, so a dropped member is a missing colon. Every
other text goes through `strictjson`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fencepost.core.canonical import canonical, digest
from fencepost.core.strictjson import MAX_DIGITS, loads_arguments

# Longer texts gain nothing from the fast way, and the strict way bounds the digits of their numbers.
FAST_CHARS_MOST = 2048
# Half of strictjson.MAX_DEPTH: no text with so few brackets is too deep for it.
FAST_BRACKETS_MOST = 32


class _Slow(Exception):
    """The text holds something only the strict reader decides about."""


def _fraction(_: str) -> float:
    raise _Slow


_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_decode = msgspec.json.Decoder(dict[str, Any], float_hook=_fraction).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def read_arguments(text: str) -> tuple[dict[str, Any], str, str]:
    """The object, its canonical text and that text's digest; raises ArgumentsInvalid for anything else."""
    if (
        len(text) <= FAST_CHARS_MOST
        and text.isascii()
        and "\\" not in text
        and text.count("{") + text.count("[") <= FAST_BRACKETS_MOST
        and (len(text) <= MAX_DIGITS or _LONG_NUMBER.search(text) is None)
    ):
        try:
            value = _decode(text)
            written = _encode(value).decode()
            if written.count(":") == text.count(":"):
                return value, written, digest(written)
        except (msgspec.MsgspecError, _Slow, OverflowError, TypeError, ValueError, RecursionError):
            pass  # the strict reader says what is wrong, or that nothing is
    value = loads_arguments(text)
    written = canonical(value)
    return value, written, digest(written)
