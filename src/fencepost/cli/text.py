"""Text from outside, made harmless: what a terminal would obey or hide is written out instead.

Rule 1: `shown` is the only way from a text to the screen. What it writes for a character is that character's
JSON escape, so JSON arguments that were shown are still these arguments.
Rule 2: everything without a shape of its own is written out: control characters (C0, DEL, C1), format
characters (bidirectional controls, zero-width ones, tags), separators of lines, private and unassigned code
points, halves of surrogate pairs, variation selectors, and the fillers that look like nothing.
"""

from __future__ import annotations

import unicodedata
from typing import Any

# General categories that draw nothing, move the cursor or reorder what is drawn.
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# By category letters, marks and symbols, but invisible: joiner, fillers, selectors, empty braille.
HIDDEN_CHARACTERS = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810),
              *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)  # fmt: skip
# More marks than this on one letter paint over the lines around it; no written language needs them.
MARKS_MOST = 4
# Money is shown to the fourth decimal; what is less is not nothing.
SMALLEST_NANO = 100_000
SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def shown(text: str, *, lines: bool = False) -> str:
    """The text with everything hidden written out; `lines` keeps line breaks as line breaks."""
    if text.isascii() and text.isprintable():
        return text
    drawn, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if char == "\n" and lines:
            drawn.append(char)
        elif marks > MARKS_MOST or is_hidden(char):
            drawn.append(SHORT.get(char) or _escaped(char))
        else:
            drawn.append(char)
    return "".join(drawn)


def is_hidden(char: str) -> bool:
    """Whether a terminal would obey, hide or reorder by this character."""
    if char.isascii():
        return not char.isprintable()
    return char in HIDDEN_CHARACTERS or unicodedata.category(char) in HIDDEN_CATEGORIES


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a note of how much there is; the cut is never silent."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"


def document(value: Any) -> str:
    """A JSON document in ASCII, so that a terminal finds nothing to obey in it."""
    import json

    text = json.dumps(value, ensure_ascii=True, indent=2, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def json_line(value: Any) -> str:
    """The same document on one line."""
    import json

    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def size(count: int) -> str:
    """A number of bytes for people."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:,.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MiB"


def money(nano: int | None) -> str:
    """Nano-units of money for people; unknown is said, never shown as nothing."""
    if nano is None:
        return "unknown"
    if 0 < nano < SMALLEST_NANO:
        return "<0.0001"
    return f"{nano / 1e9:.4f}".rstrip("0").rstrip(".") if nano else "0"


def moment(at: float) -> str:
    """A time of the store as UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: float | None) -> str | None:
    """A time of the store in ISO 8601, UTC, to the millisecond."""
    if at is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(seconds: float) -> str:
    """A time span for people."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
