"""Where lines go: wrapped and colored on a terminal, one line each and plain anywhere else.

Rule 1: every part of a line goes through `text.shown` here, so that no command can forget it.
Rule 2: off a terminal nothing is wrapped, padded or cut: output that is piped is for grep.
Rule 3: a reader that goes away (`| head`) ends the output and nothing else.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct

from fencepost.cli.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# A part of a line: words, or words with a style's name (STYLES).
Part = str | tuple[str, str]
# Narrower than this, a frame or a bar is longer than its line. Columns.
NARROW = 40
# Deeper indents than the terminal is wide still leave this many columns for words.
ROOM_LEAST = 12
# A pipe that nobody reads any more, a terminal that went away.
READER_GONE = frozenset({errno.EPIPE, errno.EIO})
STYLES: Mapping[str, str] = {
    "": "", "dim": "dim", "strong": "bold", "good": "green", "bad": "bold red", "warn": "yellow",
    "name": "cyan", "head": "bold underline",
}  # fmt: skip


class Line(Struct, frozen=True):
    """One line to print. `exact` folds it at the edge instead of at words, so that no space is lost; `whole`
    leaves the folding to the terminal, so that a command can be copied.
    """

    parts: tuple[Part, ...]
    indent: int = 0
    exact: bool = False
    whole: bool = False


def line(*parts: Part, indent: int = 0, exact: bool = False, whole: bool = False) -> Line:
    """A line of these parts."""
    return Line(parts, indent, exact, whole)


class Page:
    """One output stream. `width` is its columns when it is a terminal, None when it is not."""

    def __init__(self, stream: TextIO, *, width: int | None, color: bool) -> None:
        self.stream, self.width, self.color = stream, width, color
        self.closed = False

    def line(self, *parts: Part, indent: int = 0, whole: bool = False) -> None:
        """Print one line."""
        self.put((Line(parts, indent, whole=whole),))

    def put(self, lines: Iterable[Line]) -> None:
        """Print lines; a reader that went away is not told any more."""
        if self.closed:
            return
        try:
            for one in lines:
                for text in self._drawn(one):
                    self.stream.write(text + "\n")
            self.stream.flush()
        except OSError as why:
            if why.errno not in READER_GONE:
                raise
            self.leave()

    def raw(self, text: str) -> None:
        """Print text that is harmless already: a JSON document."""
        if self.closed:
            return
        try:
            self.stream.write(text + "\n")
            self.stream.flush()
        except OSError as why:
            if why.errno not in READER_GONE:
                raise
            self.leave()

    def leave(self) -> None:
        """Nothing more is written; what Python still holds goes nowhere, so that its exit is quiet."""
        self.closed = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self.stream.fileno())
        except (OSError, ValueError):
            return  # a stream without a descriptor has no buffer that its exit would flush
        finally:
            os.close(nowhere)

    def texts(self, one: Line) -> Iterator[Text]:
        """The rows of a line on a terminal of this width."""
        from rich.text import Text

        text = Text()
        for part in one.parts:
            text.append(shown(_words(part), lines=True), STYLES[_style(part)] if self.color else None)
        room = max((self.width or 80) - one.indent, ROOM_LEAST)
        for row in text.split("\n", allow_blank=True):
            if one.whole:
                yield Text(" " * one.indent) + row
                continue
            for piece in _folded(row, room) if one.exact else _at_words(row, room):
                yield Text(" " * one.indent) + piece

    def _drawn(self, one: Line) -> Iterator[str]:
        if self.width is not None:
            yield from map(self._rendered, self.texts(one))
            return
        text = "".join(shown(_words(part), lines=True) for part in one.parts)
        for row in text.split("\n"):
            yield " " * one.indent + row if row else ""

    def _rendered(self, text: Text) -> str:
        if not self.color:
            return text.plain
        return "".join(
            segment.style.render(segment.text) if segment.style else segment.text
            for segment in text.render(_console())
        )


def page_for(stream: TextIO, environment: Mapping[str, str]) -> Page:
    """The page of a stream: colored only on a terminal that takes colors and where NO_COLOR is not set."""
    if not is_terminal(stream):
        return Page(stream, width=None, color=False)
    color = not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"
    return Page(stream, width=_columns(stream, environment), color=color)


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at it."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _columns(stream: TextIO, environment: Mapping[str, str]) -> int:
    said = environment.get("COLUMNS", "")
    if re.fullmatch(r"[1-9][0-9]{0,3}", said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _words(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


def _style(part: Part) -> str:
    return "" if isinstance(part, str) else part[1]


def _at_words(row: Text, room: int) -> Iterable[Text]:
    return row.wrap(_console(), room, overflow="fold")


def _folded(row: Text, room: int) -> Iterator[Text]:
    from rich.cells import chop_cells

    at = 0
    for piece in chop_cells(row.plain, room) or [""]:
        yield row[at : at + len(piece)]
        at += len(piece)


@functools.cache
def _console() -> Console:
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=80)
