"""Moments and windows, in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.agents.incident.sources.errors import Refused
from fencepost.agents.incident.sources.window import (
    Window,
    parse_moment,
    parse_window,
    read_moment,
    write_moment,
)

T0 = 1773478800.0


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-14T09:00:00Z",
        "2026-03-14T10:00:00+01:00",
        "2026-03-14T09:00:00.000Z",
        "2026-03-14 09:00:00+00:00",
    ],
)
def test_a_moment_with_a_zone_is_read(text: str) -> None:
    assert parse_moment(text, "at") == T0


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-03-14", "1773478800", "2026-03-14T09:00:00", "9999-99-99T00:00:00Z", "x" * 10_000],
)
def test_a_moment_without_a_zone_or_that_is_none_is_refused_with_its_name_and_an_example(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_moment(text, "start")

    said = str(refusal.value)
    assert said.startswith("start ")
    assert "2026-01-31T09:00:00Z" in said
    assert len(said) < 250


def test_a_moment_at_the_edges_of_time_is_refused_and_does_not_crash() -> None:
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z"):
        with pytest.raises(Refused, match="is not between 1970 and 2100"):
            parse_moment(text, "start")


def test_a_window_of_exactly_the_longest_length_is_allowed_and_one_more_second_is_not() -> None:
    window = parse_window("2026-03-14T09:00:00Z", "2026-03-14T10:00:00Z", seconds_max=3600)
    assert window == Window(T0, T0 + 3600)

    with pytest.raises(Refused, match="3601 s long and at most 3600 s"):
        parse_window("2026-03-14T09:00:00Z", "2026-03-14T10:00:01Z", seconds_max=3600)


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(Refused, match="is not after start"):
        parse_window("2026-03-14T09:00:00Z", "2026-03-14T09:00:00Z", seconds_max=3600)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (T0, T0),
        (int(T0), T0),
        (int(T0) * 1000 + 250, T0 + 0.25),
        ("1773478800", T0),
        ("1773478800.5", T0 + 0.5),
        ("1773478800000", T0),
        ("2026-03-14T09:00:00Z", T0),
        ("2026-03-14T09:00:00", T0),
        ("2026-03-14T09:00:00.123456789Z", T0 + 0.123456),
        (True, None),
        (None, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (1e30, None),
        (10**400, None),
        ("", None),
        ("soon", None),
        ({"time": 1}, None),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_time_of_a_record_is_read_in_the_forms_that_log_writers_use(
    value: object, seconds: float | None
) -> None:
    assert read_moment(value) == seconds


@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_a_written_moment_is_read_back_to_the_millisecond(milliseconds: int) -> None:
    assert read_moment(write_moment(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=0.0011)
