"""`demo`: the main job as a person sees it, and `run incident` as far as it goes without a server."""

from __future__ import annotations

from tests.cli.conftest import Command, Terminal


def test_the_demo_ends_with_a_cited_answer_and_says_everywhere_that_its_data_is_synthetic(
    fencepost: Command,
) -> None:
    done = fencepost("demo")
    assert done.code == 0, done.err
    assert done.err.startswith("SYNTHETIC DATA: ")
    assert "denied by the rules" in done.err
    assert done.out.startswith("Answer [synthetic]\n")
    for part in (
        "Observed: ",
        "Cause (a hypothesis",
        "Missing evidence: ",
        "Suggested, asked for and refused: ",
    ):
        assert part in done.out
    places = [line for line in done.out.splitlines() if line.startswith("      ev-")]
    assert len(places) > 10
    assert all(place.endswith(" [synthetic]") for place in places)
    assert all("[synthetic]" in line for line in done.err.splitlines() if "  ok  ev-" in line)
    assert "fencepost show task-" in done.out


def test_the_demo_as_json_is_one_document(fencepost: Command) -> None:
    document = fencepost("demo", "--json").document
    assert document["task"]["state"] == "SUCCEEDED"
    assert all(claim["evidence_id"].startswith("ev-") for claim in document["answer"]["claims"])
    shown = fencepost("show", "task", "--json").document
    assert shown["synthetic"] is True
    assert [e["body"]["status"] for e in shown["entries"] if e["kind"] == "CallEnded"].count("denied") == 1


def test_the_demo_that_asks_waits_and_goes_on_once_it_is_approved(fencepost: Command) -> None:
    done = fencepost("demo", "--ask")
    assert done.code == 3
    command = next(line.split(maxsplit=1)[1] for line in done.out.splitlines() if "approvals approve" in line)
    approved = fencepost(*command.removeprefix("fencepost ").split())
    assert approved.code == 0, approved.err
    assert "4.0 rollback  ok  ev-4.0" in approved.err
    assert "Answer [synthetic]" in approved.out


def test_the_demo_that_asks_offers_the_decision_on_a_terminal(fencepost: Command) -> None:
    terminal = Terminal(fencepost, "demo", "--ask")
    try:
        terminal.until("approve, reject or later [later]:")
        terminal.press("approve\n")
        assert terminal.end() == 0
        assert "SUCCEEDED" in terminal.seen
    finally:
        terminal.close()


def test_the_demo_that_asks_may_be_left_for_later(fencepost: Command) -> None:
    terminal = Terminal(fencepost, "demo", "--ask", columns=60)
    try:
        terminal.until("approve, reject or later [later]:")
        terminal.press("\n")
        assert terminal.end() == 3
    finally:
        terminal.close()
    assert fencepost("list", "--json").document["tasks"][0]["state"] == "WAITING_APPROVAL"
