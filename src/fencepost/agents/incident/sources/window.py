"""Moments and windows: RFC 3339 with a zone outside, seconds since the epoch inside."""

from __future__ import annotations

import datetime as dt

import msgspec

from fencepost.agents.incident.sources.errors import Refused

EXAMPLE = "2026-01-31T09:00:00Z"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
YEAR_2100 = 4102444800.0  # an epoch value above it is in milliseconds
TEXT_CHARS_SHOWN = 80  # of a wrong argument, in a message


class Window(msgspec.Struct, frozen=True):
    """From `start` to `end`, both included, in seconds since the epoch."""

    start: float
    end: float


def shown(text: str) -> str:
    """The text, short enough and plain enough to stand in a one-line message."""
    cut = text if len(text) <= TEXT_CHARS_SHOWN else text[:TEXT_CHARS_SHOWN] + "…"
    return ascii(cut)


def parse_moment(text: str, name: str) -> float:
    """Seconds since the epoch; `Refused` names the argument when it is no moment with a zone."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{name} {shown(text)} is no time; write it like {EXAMPLE}.") from None
    if moment.tzinfo is None:
        raise Refused(f"{name} {shown(text)} has no time zone; write it like {EXAMPLE}.")
    seconds = (moment - EPOCH).total_seconds()
    if not 0 <= seconds <= YEAR_2100:
        raise Refused(f"{name} {shown(text)} is not between 1970 and 2100; write it like {EXAMPLE}.")
    return seconds


def parse_window(start: str, end: str, *, seconds_max: float) -> Window:
    """The window, or `Refused` when it is empty, backwards or longer than `seconds_max`."""
    window = Window(parse_moment(start, "start"), parse_moment(end, "end"))
    if window.end <= window.start:
        raise Refused(f"end {shown(end)} is not after start {shown(start)}; swap or widen them.")
    if window.end - window.start > seconds_max:
        length = window.end - window.start
        raise Refused(
            f"The window is {length:.0f} s long and at most {seconds_max:.0f} s are allowed; narrow it."
        )
    return window


def write_moment(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds only where there are any."""
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    digits = "milliseconds" if moment.microsecond >= 1000 else "seconds"
    return moment.isoformat(timespec=digits).replace("+00:00", "Z")


def read_moment(value: object) -> float | None:
    """Seconds since the epoch of a time found in a record: RFC 3339 or epoch seconds or milliseconds.

    A time without a zone is read as UTC, which is what log writers mean. None when it is no time.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _read_text(value.strip())
    if isinstance(value, int | float) and 0 <= value <= YEAR_2100 * 1000:
        return float(value) / 1000 if value > YEAR_2100 else float(value)
    return None


def _read_text(text: str) -> float | None:
    try:
        moment = dt.datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        return (moment - EPOCH).total_seconds()
    except ValueError:
        pass
    try:
        return read_moment(float(text))
    except ValueError:
        return None
