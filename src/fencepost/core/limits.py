"""Finite budgets: every task has all of them, and only `steps` has no default (contract 6.1)."""

from __future__ import annotations

from msgspec import Struct

from fencepost.core.errors import LimitsInvalid


class Limits(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a task may use; seconds, bytes and nano-units of money; all above 0, some 0 or more (MAY_BE_ZERO).

    `steps` counts accepted replies, the answer included. `cost_nano` None means no money limit;
    every other limit is finite. `answer_tries` is how often a wrong citation may be corrected.
    """

    steps: int
    tool_calls: int = 50
    calls_per_reply: int = 16
    parallel_calls: int = 4
    tokens: int = 500_000
    cost_nano: int | None = None
    task_seconds: float = 600.0
    model_seconds: float = 120.0
    tool_seconds: float = 60.0
    result_bytes: int = 64 * 1024
    attempts_per_step: int = 3
    answer_tries: int = 2
    grace_seconds: float = 1.0

    def check(self) -> None:
        """Raise LimitsInvalid unless every limit can be kept; done before a task is opened, not when built.

        (A run that is refused must still say that it started and ended, contract 1.)
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name == "cost_nano":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise LimitsInvalid(f"limits.{name} must be a number, got {value!r}")
            if not name.endswith("_seconds") and not isinstance(value, int):
                raise LimitsInvalid(f"limits.{name} must be a whole number, got {value!r}")
            zero = name in MAY_BE_ZERO
            enough = value >= 0 if zero else value > 0
            if not enough or value >= LARGEST:
                least = "0 or more" if zero else "above 0"
                raise LimitsInvalid(f"limits.{name} must be {least} and finite, got {value!r}; give a number")


# No call, no second try, no grace and no money are things one may want; no step or no time are not.
MAY_BE_ZERO = frozenset({"tool_calls", "answer_tries", "grace_seconds", "cost_nano"})


# Larger than any real task, small enough that sums of limits stay exact in every store's integers.
LARGEST = 1e15
