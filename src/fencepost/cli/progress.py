"""The progress of a run: bars and streaming text on a terminal, plain lines anywhere else. On stderr.

Rule 1: what is told is what was committed; a fragment of a reply is shown as such and forgotten.
Rule 2: what tools print goes through here too, line by line and made harmless, so that it neither breaks the
bars nor commands the terminal.
Rule 3: a reader that goes away ends the telling, never the task.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.cli.answers import Budget, budgets
from fencepost.cli.page import NARROW, STYLES, Line, Page, line
from fencepost.cli.text import shown
from fencepost.cli.timeline import Timeline
from fencepost.core.entries import CallEnded, CallStarted, Entry, EntryBody, ModelAsked, Replied
from fencepost.core.limits import Limits
from fencepost.service.surface import Event, Totals

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

# How often the bars move. Per second: enough to look alive, little enough for a slow line.
REFRESHES = 8
# Of a reply that is still arriving, its last lines and at most so many characters are looked at.
STREAM_LINES = 3
STREAM_CHARS = 2000
# A line that a tool prints without ever ending it is told in pieces of this many characters.
PRINTED_CHARS = 4000


class Progress:
    """Tells of one run. Use it as a context manager around the run and give it the events."""

    def __init__(self, page: Page, limits: Limits, *, lively: bool, quiet: bool = False) -> None:
        self.page, self.limits, self.quiet = page, limits, quiet
        self._timeline = Timeline()
        self._lively = lively and not quiet
        self._live: Live | None = None
        self._totals, self._seconds, self._at = Totals(), 0.0, time.monotonic()
        self._stream, self._doing, self._since = "", "starting", time.monotonic()
        self._announced = False
        self._running: dict[tuple[int, int], str] = {}

    def __enter__(self) -> Progress:
        if self._lively:
            self._live = _live(self)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away and show the cursor again; safe to call twice."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    @property
    def parting(self) -> str:
        """What a terminal is sent by a process that leaves at once: no bars below, the cursor shown."""
        return "" if self._live is None else "\r\x1b[J\x1b[?25h"

    def recall(self, entries: Sequence[Entry], totals: Totals, seconds: float) -> None:
        """Know the calls of earlier runs of the task, and count from what these have used."""
        for entry in entries:
            self._timeline.told(entry.body)
        self._totals, self._seconds, self._at = totals, seconds, time.monotonic()

    def heard(self, event: Event) -> None:
        """Tell one event."""
        if event.delta is not None:
            if event.delta.kind == "text":
                self._stream = (self._stream + event.delta.text)[-STREAM_CHARS:]
            return
        if event.totals is not None:
            self._totals = event.totals
        if event.seconds:
            self._seconds, self._at = event.seconds, time.monotonic()
        if event.entry is not None:
            self._announce(event.task)
            self._turn(event.entry)
            self.tell(self._timeline.told(event.entry))

    def _announce(self, task: str) -> None:
        """Name the task once, when there is something of it to tell: one that was refused does not exist."""
        if not self._announced:
            self._announced = True
            self.tell((line(("task ", "dim"), (task, "strong")),))

    def tell(self, lines: Iterable[Line]) -> None:
        """Print lines, above the bars where there are some."""
        lines = tuple(lines)
        if self.quiet or not lines:
            return
        live = self._live
        if live is None:
            self.page.put(lines)
            return
        try:
            for one in lines:
                for text in self.page.texts(one):
                    live.console.print(text)
        except (OSError, SystemExit):  # the terminal went away; rich calls that an exit
            self._live = None
            self.page.leave()

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print one line of our own, also when quiet."""
        quiet, self.quiet = self.quiet, False
        self.tell((line(*parts),))
        self.quiet = quiet

    def _turn(self, body: EntryBody) -> None:
        match body:
            case ModelAsked():
                self._stream = ""
                self._now(f"step {body.step}: asking {body.model or 'the model'}")
            case Replied():
                self._stream = ""
                self._now(f"step {body.step}")
            case CallStarted():
                name = self._timeline.name(body.step, body.position)
                self._running[body.step, body.position] = f"{body.step}.{body.position} {name}"
                self._now("running " + ", ".join(self._running.values()))
            case CallEnded():
                self._running.pop((body.step, body.position), None)
                self._now("running " + ", ".join(self._running.values()) if self._running else "deciding")
            case _:
                pass

    def _now(self, doing: str) -> None:
        self._doing, self._since = doing, time.monotonic()

    # -- the part that moves

    def drawn(self) -> Group:
        """What is at the foot of a terminal: what is going on, the reply as far as it came, the budgets."""
        from rich.console import Group
        from rich.text import Text

        width = (self.page.width or 80) - 1
        elapsed = time.monotonic() - self._since
        rows = [self._row(Text(shown(f"▸ {self._doing}  {elapsed:.0f} s")), width, "strong")]
        if self._stream.strip():
            tail = Text(shown(self._stream, lines=True)).wrap(_console(self.page), width - 2)[-STREAM_LINES:]
            rows += [self._row(Text("  ") + piece, width, "dim") for piece in tail]
        now = self._seconds + time.monotonic() - self._at
        totals = self._totals
        of_all = budgets(
            self.limits, steps=totals.steps, calls=totals.calls, tokens=totals.tokens,
            cost_nano=totals.cost_nano, seconds=now,
        )  # fmt: skip
        rows += _bars(of_all, width, color=self.page.color)
        return Group(*rows)

    def _row(self, text: Text, width: int, style: str) -> Text:
        text.truncate(width, overflow="ellipsis")
        if self.page.color:
            text.stylize(STYLES[style])
        return text


def lively(page: Page, environment: Mapping[str, str]) -> bool:
    """Whether a page can hold bars: a terminal that moves its cursor, takes colors and is not too narrow."""
    return page.color and page.width is not None and page.width >= NARROW and "CI" not in environment


def _bars(of_all: tuple[Budget, ...], width: int, *, color: bool) -> list[Text]:
    from rich.text import Text

    cells = []
    for budget in of_all:
        cell = Text(f"{budget.name} {budget.told} ")
        if budget.limit is not None:
            cell.append(budget.bar(8), STYLES[budget.style] if color else None)
        cells.append(cell)
    rows, row = [], Text()
    for cell in cells:
        if row and row.cell_len + 3 + cell.cell_len > width:
            rows.append(row)
            row = Text()
        row = row + Text("   ") + cell if row else cell
    return [*rows, row]


class Printed(io.TextIOBase):
    """What stands in for stdout and stderr while a run goes on: each printed line becomes one of ours."""

    encoding = "utf-8"

    def __init__(self, progress: Progress) -> None:
        self._progress, self._rest = progress, ""

    def writable(self) -> bool:
        """It may be written to."""
        return True

    def isatty(self) -> bool:
        """No terminal: what is printed is shown, not obeyed."""
        return False

    def write(self, text: str) -> int:
        """Take text; whole lines are told at once."""
        *lines, self._rest = (self._rest + text).split("\n")
        while len(self._rest) > PRINTED_CHARS:
            lines.append(self._rest[:PRINTED_CHARS])
            self._rest = self._rest[PRINTED_CHARS:]
        self._progress.tell(line(("│ ", "dim"), one, indent=2) for one in lines)
        return len(text)

    def finish(self) -> None:
        """Tell what was printed without an end of line."""
        if self._rest:
            self.write("\n")


def _live(progress: Progress) -> Live:
    from rich.live import Live

    return Live(
        console=_console(progress.page), get_renderable=progress.drawn, refresh_per_second=REFRESHES,
        transient=True, redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
    )  # fmt: skip


def _console(page: Page) -> Any:
    from rich.console import Console

    return Console(
        file=page.stream, force_terminal=True, width=page.width, markup=False, emoji=False, highlight=False,
        soft_wrap=True, legacy_windows=False,
        color_system="standard" if page.color else None,
    )  # fmt: skip
