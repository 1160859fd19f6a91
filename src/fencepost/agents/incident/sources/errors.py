"""What can go wrong with a source.

    SourceError
        Refused         the request is not allowed: ask for something else
        Unavailable     nothing answered in time: ask later or ask an operator
        Unusable        something answered, but not with what was asked for
        OutcomeUnknown  a command that changes the world was stopped: nobody knows whether it did

Each message is one sentence that says what was wrong, with what, and what to do.
"""

from __future__ import annotations


class SourceError(Exception):
    """A source gave no result; the message is for the one who asked."""


class Refused(SourceError):
    """The request is outside what the operator allows; the same request will be refused again."""


class Unavailable(SourceError):
    """Nothing was obtained: no connection, no file, or no answer in time."""


class Unusable(SourceError):
    """An answer came and cannot be used."""


class OutcomeUnknown(SourceError):
    """A command that may change the world was started and stopped before it said what it did."""
