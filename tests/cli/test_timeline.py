"""Every kind of entry has its words, also where the entries around it cannot be read."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Raw

from fencepost.cli.answers import answer_lines
from fencepost.cli.timeline import Timeline
from fencepost.core.entries import (
    KINDS,
    AdmittedCall,
    Answer,
    AnswerRejected,
    ApprovalAsked,
    ApprovalDecided,
    Ask,
    AttemptFailed,
    CallEnded,
    CallStarted,
    CallStatus,
    ChildEnded,
    ChildOpened,
    Claim,
    ContextElided,
    DefinitionAccepted,
    Entry,
    EntryBody,
    ModelAsked,
    OutcomeResolved,
    Refusal,
    Replied,
    Stopped,
    Verdict,
    kind_of,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Finish
from fencepost.ports import LateRecord
from fencepost.stores.sqlite import SqliteStore
from tests.cli.agents_for_tests import plain
from tests.cli.conftest import Command

ASK = Ask(2, 0, "approval", "write", "d" * 64, expires_at=0.0)
UNKNOWN = Ask(2, 1, "outcome", "write", "d" * 64, cause="crash")
DENIED = AdmittedCall("a", "a", "write", '{"x":1}', verdict=Verdict.DENY, reason="not on Fridays")
REFUSED = AdmittedCall(
    "b", "b", "look", refusal=Refusal("invalid_arguments", "$.x is missing", raw='{"y":', raw_bytes=9000)
)
TOLD: list[tuple[EntryBody, list[str]]] = [
    (plain().opened("look", "local/me"), ["opened by local/me: agent plain, 7 tools (look, "]),
    (ModelAsked(3, 1, 10, model="big"), ["step 3  asks big"]),
    (
        AttemptFailed(3, 1, "status", "busy", 503, 1.5),
        ["attempt 1 failed (status, status 503), tries again in 1.5 s", "busy"],
    ),
    (AttemptFailed(3, 2, "auth"), ["attempt 2 failed (auth), no further attempt"]),
    (
        Replied(3, 1, Finish.LENGTH, "cut sh"),
        ["step 3", "the reply ended with length: nothing of it runs", "answers in words"],
    ),
    (
        Replied(3, 1, Finish.TOOL_CALLS, "I try", (DENIED, REFUSED)),
        [
            "says: I try",
            '3.0 write {"x":1}',
            "denied by the rules: not on Fridays",
            "3.1 look  refused: invalid_arguments",
            "$.x is missing",
            'sent: {"y": (8.8 KiB, the first 5 B kept)',
        ],
    ),
    (
        Replied(3, 1, Finish.STOP, answer=Answer("x", claims=(Claim("c", "ev-1.0"),))),
        ["answers with 1 claim"],
    ),
    (
        Replied(3, 1, Finish.STOP, answer_problem="$.claims is missing"),
        ["answers, but not well-formed: $.claims is missing"],
    ),
    (CallStarted(3, 0, 2, "key"), ["started again (start 2), same key"]),
    (
        CallEnded(3, 0, CallStatus.OK, "fine", size_bytes=4, synthetic=True, cut=True),
        ["ok  ev-3.0  4 B [synthetic]  shown to the model cut; whole in the store", "fine"],
    ),
    (
        CallEnded(3, 0, CallStatus.NOT_EXECUTED, "too late", failure="budget"),
        ["not executed  (budget)", "too late"],
    ),
    (
        ApprovalAsked((ASK, UNKNOWN)),
        [
            "waits for a person",
            "may 2.0 write run? arguments dddddddddddd, until 1970-01-01",
            "what became of 2.1 write? (crash)",
        ],
    ),
    (ApprovalDecided(2, 0, "rejected", reason="no", by="local/me"), ["2.0   rejected by local/me: no"]),
    (
        OutcomeResolved(2, 0, "did_not_happen", "reconcile", content="not there"),
        ["its outcome: did not happen, says the tool", "not there"],
    ),
    (
        OutcomeResolved(2, 0, "happened", "person", by="local/me"),
        ["its outcome: happened, says the person (local/me)"],
    ),
    (
        AnswerRejected(3, "invalid_evidence", "ev-9.0 is not there"),
        ["answer not taken: invalid_evidence", "ev-9.0 is not there"],
    ),
    (ContextElided(2, 0, "a", "left out"), ["the model no longer sees the result of 2.0, but: left out"]),
    (
        DefinitionAccepted("d" * 64, (), "", "local/me"),
        ["a changed definition was accepted by local/me (dddddddddddd)"],
    ),
    (ChildOpened(2, 0, "task-2"), ["2.0 opened task task-2"]),
    (ChildEnded("task-2", StopReason.COMPLETED), ["task task-2 ended: COMPLETED"]),
    (Stopped(StopReason.LLM_ERROR, "step 3", by="local/me"), ["stopped by local/me: LLM_ERROR", "step 3"]),
]


def words(body: EntryBody, *, full: bool = False) -> str:
    """The lines of an entry that is told first of all."""
    lines = Timeline(full=full).told(body)
    return "\n".join("".join(p if isinstance(p, str) else p[0] for p in one.parts) for one in lines)


@pytest.mark.parametrize(
    ("body", "said"), TOLD, ids=[f"{n}-{kind_of(body)}" for n, (body, _) in enumerate(TOLD)]
)
def test_an_entry_is_told_in_words(body: EntryBody, said: list[str]) -> None:
    told = words(body)
    for phrase in said:
        assert phrase in told, told


def test_every_kind_of_entry_is_in_the_table_above() -> None:
    assert {kind_of(body) for body, _ in TOLD} == set(KINDS)


def test_the_first_start_of_a_call_needs_no_line() -> None:
    assert words(CallStarted(1, 0, 1, "key")) == ""


def test_full_cuts_nothing() -> None:
    long = CallEnded(1, 0, CallStatus.OK, "x" * 5000)
    assert "… (5,000 characters)" in words(long)
    assert "x" * 5000 in words(long, full=True)


def test_a_claim_on_synthetic_evidence_says_so_and_one_on_real_evidence_does_not() -> None:
    entries = [
        Entry(1, 1, 0.0, "w", 1, "c", 0.0, CallEnded(1, place, CallStatus.OK, "{}", synthetic=place == 0))
        for place in (0, 1)
    ]
    claims = tuple(
        Claim("c", f"ev-1.{place}", pointer="", value=Raw(b"1"), quote="a long quote") for place in (0, 1)
    )
    lines = answer_lines(Answer("s", ("ev-1.0", "ev-1.1"), claims), entries, partial=True)
    told = ["".join(p if isinstance(p, str) else p[0] for p in one.parts) for one in lines]
    assert "Answer [synthetic]  partial: a limit was crossed" in told
    assert "ev-1.0 (whole result) = 1 “a long quote” [synthetic]" in told
    assert "ev-1.1 (whole result) = 1 “a long quote”" in told


def test_late_results_are_shown_apart_from_the_journal(fencepost: Command) -> None:
    task = fencepost.run("plain").task

    async def late() -> None:
        store = SqliteStore(fencepost.store)
        await store.record_late(LateRecord("local", task, 1, 0, 1, 1, "ok", "came \x1b[2J late"))
        await store.close()

    asyncio.run(late())
    shown = fencepost("show", task)
    assert "Late results (1), not part of the journal\n  1.0, start 1: ok, " in shown.out
    assert "came \\u001b[2J late" in shown.out
    (record,) = fencepost("show", task, "--json").document["late"]
    assert (record["call"], record["status"], record["content"]) == ("1.0", "ok", "came \x1b[2J late")
