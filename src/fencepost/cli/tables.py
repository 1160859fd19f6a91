"""Tasks as rows: aligned on a terminal, several lines each where it is narrow, one line each elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencepost.cli.answers import state_parts
from fencepost.cli.page import Line, Part, line
from fencepost.cli.text import ago, cut, shown
from fencepost.service.surface import TaskRow

# From this many columns on, a task and the beginning of its prompt fit on one line.
ONE_LINE_COLUMNS = 100
# A prompt in a list is there to recognize a task by; `show` has all of it. Characters.
PROMPT_CHARS = 200
STATE_WIDTH = 34


def task_lines(rows: Sequence[TaskRow], *, now: float, width: int | None) -> Iterator[Line]:
    """The rows as lines."""
    names = max(len(row.agent) for row in rows)
    for row in rows:
        parts = state_parts(row)
        told = "".join(part if isinstance(part, str) else part[0] for part in parts)
        since = f"{ago(now - row.created_at)} ago"
        work = f"{row.steps} steps {row.calls} calls"
        if width is not None and width < ONE_LINE_COLUMNS:
            yield line((row.id, "strong"), "  ", *parts)
            room = max(width - 4, 20)
            yield line((f"{since}, {work}, {row.agent}", "dim"), indent=4)
            yield line(_beginning(row.prompt, room), indent=4)
            continue
        states: list[Part] = [*parts, " " * (STATE_WIDTH - len(told))]
        start = f"{since:>11}  {work:<20}  {row.agent:<{names}}  "
        used = len(row.id) + 2 + max(STATE_WIDTH, len(told)) + len(start)
        room = PROMPT_CHARS if width is None else max(width - used, 12)
        yield line((row.id, "strong"), "  ", *states, (start, "dim"), _beginning(row.prompt, room))


def _beginning(prompt: str, room: int) -> str:
    text = shown(" ".join(prompt.split()))
    return text if len(text) <= room else cut(text, room - 1).partition("…")[0] + "…"
