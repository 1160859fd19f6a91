"""Budgets are finite and whole, and only the steps have no default."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from fencepost.core.errors import LimitsInvalid
from fencepost.core.limits import LARGEST, MAY_BE_ZERO, Limits

SECONDS = ("task_seconds", "model_seconds", "tool_seconds", "grace_seconds")


def test_the_defaults_are_those_of_the_contract_and_pass() -> None:
    limits = Limits(steps=1)
    limits.check()
    assert limits == Limits(1, 50, 16, 4, 500_000, None, 600.0, 120.0, 60.0, 64 * 1024, 3, 2, 1.0)
    with pytest.raises(TypeError, match="steps"):
        Limits()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, LARGEST, 10**400, "3", True, [1]])
def test_no_limit_may_be_negative_endless_or_no_number(name: str, value: Any) -> None:
    with pytest.raises(LimitsInvalid, match=f"limits.{name} "):
        replace(Limits(steps=3), **{name: value}).check()


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_zero_is_refused_where_it_would_leave_nothing_to_do(name: str) -> None:
    limits = replace(Limits(steps=3), **{name: 0})
    if name in MAY_BE_ZERO:
        limits.check()
        return
    with pytest.raises(LimitsInvalid, match="above 0"):
        limits.check()


@pytest.mark.parametrize("name", [n for n in Limits.__struct_fields__ if n not in SECONDS])
def test_what_is_counted_is_whole(name: str) -> None:
    with pytest.raises(LimitsInvalid, match="whole number"):
        replace(Limits(steps=3), **{name: 2.5}).check()


@pytest.mark.parametrize("name", SECONDS)
def test_seconds_may_be_parts_of_seconds(name: str) -> None:
    replace(Limits(steps=3), **{name: 0.25}).check()


def test_only_money_may_be_without_a_limit() -> None:
    for name in Limits.__struct_fields__:
        limits = replace(Limits(steps=3), **{name: None})
        if name == "cost_nano":
            limits.check()
            continue
        with pytest.raises(LimitsInvalid, match="must be a number"):
            limits.check()
