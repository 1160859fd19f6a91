"""A journal as a script: what was admitted comes back as the reply or the failure it was made of."""

from __future__ import annotations

import pytest

from fencepost.core.entries import AdmittedCall, AttemptFailed, ModelAsked, Refusal, Replied
from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, Reply, ToolCall, Usage
from fencepost.core.recording import failure_of, reply_of

USAGE = Usage(input_tokens=3, output_tokens=2)


def test_a_reply_comes_back_with_ids_as_sent_and_arguments_as_admitted_or_refused() -> None:
    calls = (
        AdmittedCall("a", "a", "look", '{"n":1}', "digest"),
        AdmittedCall("", "fp-1-1", "look", refusal=Refusal("invalid_arguments", "no", raw="{")),
    )
    entry = Replied(1, 1, Finish.TOOL_CALLS, text="so", calls=calls, usage=USAGE, model="m")
    told = (ToolCall("a", "look", '{"n":1}'), ToolCall("", "look", "{"))
    assert reply_of(entry) == Reply("so", told, Finish.TOOL_CALLS, usage=USAGE, model="m")


def test_an_answer_comes_back_as_a_call_of_answer_as_often_as_it_was_given() -> None:
    once = Replied(1, 1, Finish.STOP, answer_id="x", answer_sent_id="x", answer_arguments='{"summary":"s"}')
    assert reply_of(once).calls == (ToolCall("x", "answer", '{"summary":"s"}'),)
    twice = Replied(
        1,
        1,
        Finish.STOP,
        answer_id="x",
        answer_sent_id="x",
        answer_arguments="{}",
        answer_problem="2 answers in one reply; give one",
    )
    assert reply_of(twice).calls == (ToolCall("x", "answer", "{}"),) * 2


@pytest.mark.parametrize(
    ("detail", "name", "words"),
    [
        ("ValueError: no: such", "ValueError", "no: such"),
        ("KeyError", "KeyError", ""),
        ("no reply within 5 s", "ModelFailed", "no reply within 5 s"),
    ],
)
def test_a_failure_comes_back_as_an_error_that_describes_itself_the_same(
    detail: str, name: str, words: str
) -> None:
    entry = AttemptFailed(1, 1, "status", detail, status=429, retry_in=2.5, charged_tokens=7, charged_nano=3)
    error = failure_of(entry, ModelAsked(1, 1, 100))
    assert isinstance(error, ModelFailed)
    assert (type(error).__name__, str(error)) == (name, words)
    assert (error.kind, error.status, error.retriable, error.retry_after) == ("status", 429, True, 2.5)
    assert error.usage == Usage(7, 0, cost_nano=3)


def test_a_failure_that_was_charged_its_reservation_reports_no_usage() -> None:
    entry = AttemptFailed(1, 1, "connect", "gone", charged_tokens=100)
    assert failure_of(entry, ModelAsked(1, 1, 100)).usage is None
    assert failure_of(entry, ModelAsked(1, 1, 101)).usage == Usage(100, 0)
    assert failure_of(AttemptFailed(1, 1, "connect", "gone"), None).usage is None
    assert not failure_of(entry, None).retriable
