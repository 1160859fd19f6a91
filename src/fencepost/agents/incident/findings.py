"""What an investigation is given, asks, sees and concludes: the facts that `procedure` and `telling` share.

Rules of this file:
- A statement quotes values, each with the observation it is from and the place in it (JSON Pointer). Every
  number in the summary is one of those values, or part of one.
- What was observed and what may have caused it are told apart. A cause is a hypothesis, even a right one.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from fencepost.agents.incident.diagnosis import Confidence
from fencepost.agents.incident.sources.metrics import MetricRule

Tool = Literal["query_metrics", "search_logs", "list_releases", "rollback"]


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the start: when the alert came, until when there is data, and what may be asked.

    Times are seconds since the epoch; `graph` maps callers to what they call. `present` says that nobody named
    the time of the alert, so that it is the present.
    """

    alert_at: float
    until: float
    metrics: tuple[MetricRule, ...]
    graph: dict[str, tuple[str, ...]] = {}
    present: bool = False


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question: a result that JSON can hold, or None and why there is none.

    `evidence` is the caller's name for it; statements repeat it. Neither a result nor a failure means that a
    person said that it happened, which nothing shows.
    """

    evidence: str
    tool: Tool
    arguments: dict[str, Any]
    result: dict[str, Any] | None = None
    failure: str | None = None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The next question: a tool and its arguments."""

    tool: Tool
    arguments: dict[str, Any]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A value at a place of an observation."""

    evidence: str
    pointer: str
    value: Any


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence about what was observed, and the values that it quotes."""

    text: str
    claims: tuple[Claim, ...]


class RollbackOutcome(enum.Enum):
    """What became of a suggested rollback, in the words that stand before it."""

    NOT_ASKED = "Suggested, not done"
    REFUSED = "Suggested, asked for and refused"
    FAILED = "Suggested, tried and failed"
    UNKNOWN = "Started, and nobody knows how it ended"
    CONFIRMED = "Done, as a person said"
    DONE = "Done"


class RollbackSuggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Going back from `from_release` to `release`; somebody else decides.

    `from_release` is for reading only: it may not be the exact name.
    """

    service: str
    release: str
    from_release: str


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The end: observations, a cause if one is plausible, and what was not seen."""

    culprit: str | None
    confidence: Confidence
    observations: tuple[Statement, ...]
    cause: str | None
    missing: tuple[str, ...]
    rollback: RollbackSuggestion | None
    rollback_outcome: RollbackOutcome = RollbackOutcome.NOT_ASKED
    synthetic: bool = False

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Each quoted value once, in the order of the sentences."""
        found: dict[tuple[str, str], Claim] = {}
        for statement in self.observations:
            for claim in statement.claims:
                found.setdefault((claim.evidence, claim.pointer), claim)
        return tuple(found.values())

    @property
    def summary(self) -> str:
        """All of it as text, observation and cause apart."""
        parts = ["Synthetic data, made up for a demonstration."] if self.synthetic else []
        parts.append("Observed: " + " ".join(s.text for s in self.observations))
        if self.culprit is None:
            parts.append(
                "Cause: inconclusive." if self.cause is None else f"Cause: inconclusive. {self.cause}"
            )
        elif self.cause is not None:
            parts.append(f"Cause (a hypothesis, {self.confidence.value} confidence): {self.cause}")
        else:
            parts.append(f"Cause: not known. {self.culprit} stands out ({self.confidence.value} confidence).")
        if self.rollback is not None:
            back = self.rollback
            how = self.rollback_outcome.value
            parts.append(f"{how}: roll {back.service} back from {back.from_release} to {back.release}.")
        parts.append("Missing evidence: " + " ".join(self.missing))
        return "\n".join(parts)
