"""What a suite found: one finding a rule, each a sentence that a person can act on.

Rule: what could not be looked at is "unchecked" and says what to give; it never counts as held.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Verdict(enum.StrEnum):
    """What became of one rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNCHECKED = "unchecked"


class Finding(Struct, frozen=True):
    """One rule, what became of it, and why in one sentence."""

    rule: str
    verdict: Verdict
    said: str


class ConformanceBroken(AssertionError):
    """At least one rule does not hold; the message has a line for each."""


class Report(Struct, frozen=True):
    """What a suite found about one subject; `kind` is "tool" or "model"."""

    kind: str
    subject: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings whose rule does not hold."""
        return tuple(found for found in self.findings if found.verdict is Verdict.BROKEN)

    def verdict(self, rule: str) -> Verdict:
        """What became of the rule of that name; KeyError when the suite has no such rule."""
        return next((f.verdict for f in self.findings if f.rule == rule), None) or _unknown(rule)

    def said(self, rule: str) -> str:
        """The sentence about the rule of that name; KeyError when the suite has no such rule."""
        return next((f.said for f in self.findings if f.rule == rule), None) or _unknown(rule)

    def check(self) -> None:
        """Raise ConformanceBroken unless no rule is broken."""
        if self.broken:
            lines = "\n".join(f"- {found.rule}: {found.said}" for found in self.broken)
            raise ConformanceBroken(
                f"the {self.kind} {self.subject} breaks {len(self.broken)} rules:\n{lines}"
            )


def _unknown(rule: str) -> Verdict:
    raise KeyError(f"there is no rule {rule!r} in this report")


def holds(rule: str, said: str) -> Finding:
    """The rule was looked at and holds."""
    return Finding(rule, Verdict.HOLDS, said)


def broken(rule: str, said: str) -> Finding:
    """The rule was looked at and does not hold."""
    return Finding(rule, Verdict.BROKEN, said)


def unchecked(rule: str, said: str) -> Finding:
    """The rule was not looked at; `said` tells what would be needed."""
    return Finding(rule, Verdict.UNCHECKED, said)
