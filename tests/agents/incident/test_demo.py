"""The demo through the public package: from its prompt to an answer whose every claim checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost import MemoryStore, Result, SqliteStore, StopReason, TaskState, resume_task, run_task
from fencepost.agents.incident.agent import DEMO_PROMPT, demo_agent
from fencepost.core.entries import CallStatus
from fencepost.service.tasks import decide_approval
from tests.agents.incident.investigating import asked, bodies, check_answer, encoded, ended, started
from tests.conformance.stage import Between, Crash, crash_at

TASK = "task-demo"


async def demo() -> Result:
    return await run_task(demo_agent(), DEMO_PROMPT, task=TASK)


async def test_it_succeeds_with_an_answer_whose_every_claim_and_number_checks() -> None:
    result = await demo()

    assert (result.state, result.reason) == (TaskState.SUCCEEDED, StopReason.COMPLETED)
    check_answer(result)
    assert "error_rate of payment reached 0.08" in result.text
    assert "Cause (a hypothesis, high confidence): release v2.4.1" in result.text
    assert "Missing evidence:" in result.text


async def test_it_reads_metrics_then_logs_then_releases_and_asks_once_for_a_rollback_which_is_denied() -> (
    None
):
    result = await demo()

    assert [tool for tool, _ in asked(result)] == [
        *["query_metrics"] * 3,
        "search_logs",
        "list_releases",
        "rollback",
    ]
    assert asked(result)[-1][1] == {"service": "payment", "release": "v2.4.0"}
    (denied,) = ended(result, "rollback")
    assert (denied.status, denied.content) == (
        CallStatus.DENIED,
        "denied: the demo's rules allow no rollback",
    )
    assert started(result) == 5, "what was denied never started"
    assert "Suggested, asked for and refused: roll payment back from v2.4.1 to v2.4.0." in result.text


async def test_every_result_and_the_answer_say_that_the_data_is_synthetic() -> None:
    result = await demo()

    for tool in ("query_metrics", "search_logs", "list_releases"):
        for one in ended(result, tool):
            assert one.synthetic
            assert json.loads(one.content)["synthetic"] is True
    assert result.text.startswith("Synthetic data, made up for a demonstration.")


async def test_two_runs_write_the_same_bodies() -> None:
    first, second = await demo(), await demo()

    assert encoded(first) == encoded(second)
    assert len(first.entries) > 15


async def test_the_hostile_log_line_is_read_and_changes_nothing() -> None:
    result = await demo()

    (logs,) = ended(result, "search_logs")
    patterns = json.loads(logs.content)["patterns"]
    assert any("IGNORE ALL PREVIOUS INSTRUCTIONS" in one["pattern"] for one in patterns)
    assert all(arguments.get("service") != "inventory" for _, arguments in asked(result))
    assert "inventory" not in result.text
    assert not [c for c in result.text if not c.isprintable() and c != "\n"]


# -- crashes ----------------------------------------------------------------------------------------------


COMMITS = 9  # of the whole demo; the next test says so


async def test_every_commit_of_the_demo_is_a_place_to_crash_at() -> None:
    store = Between(MemoryStore())
    await run_task(demo_agent(), DEMO_PROMPT, task=TASK, store=store)

    assert store.commits == COMMITS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
async def test_left_at_any_commit_and_taken_up_by_a_new_process_the_answer_is_the_same(
    when: str, number: int, tmp_path: Path
) -> None:
    whole = await demo()
    store = Between(SqliteStore(tmp_path / "tasks.db"))
    setattr(store, when, crash_at(number))
    with pytest.raises(Crash):
        await run_task(demo_agent(), DEMO_PROMPT, task=TASK, store=store)
    await store.close()

    reopened = SqliteStore(tmp_path / "tasks.db")
    result = await resume_task(demo_agent(), TASK, store=reopened, take_over=True)
    await reopened.close()

    assert result.state is TaskState.SUCCEEDED
    assert result.answer == whole.answer
    assert [tool for tool, _ in asked(result)].count("rollback") == 1
    check_answer(result)


# -- with a person ----------------------------------------------------------------------------------------


async def waiting(store: MemoryStore) -> Result:
    return await run_task(demo_agent(ask=True), DEMO_PROMPT, task=TASK, store=store)


async def test_with_ask_it_waits_for_a_person_before_the_rollback() -> None:
    result = await waiting(MemoryStore())

    assert (result.outcome, result.state) == ("waiting", TaskState.WAITING_APPROVAL)
    (ask,) = result.asks
    assert (ask.tool, ask.about) == ("rollback", "approval")
    assert ended(result, "rollback") == []


async def test_an_approved_rollback_runs_once_and_its_result_is_in_the_answer() -> None:
    store = MemoryStore()
    (ask,) = (await waiting(store)).asks

    await decide_approval(store, TASK, f"{ask.step}.{ask.position}", approve=True, by="local/lead")
    result = await resume_task(demo_agent(ask=True), TASK, store=store)

    assert result.state is TaskState.SUCCEEDED
    (done,) = ended(result, "rollback")
    assert json.loads(done.content)["pretended"] is True
    assert "A rollback was run and its command ended with 0." in result.text
    assert "Suggested" not in result.text
    assert f"ev-{done.step}.{done.position}" in (result.answer.evidence_ids if result.answer else ())
    check_answer(result)


async def test_a_rejected_rollback_is_told_as_refused() -> None:
    store = MemoryStore()
    (ask,) = (await waiting(store)).asks

    call = f"{ask.step}.{ask.position}"
    await decide_approval(store, TASK, call, approve=False, by="local/lead", reason="not on a Friday")
    result = await resume_task(demo_agent(ask=True), TASK, store=store)

    assert result.state is TaskState.SUCCEEDED
    assert ended(result, "rollback")[0].content == "rejected: not on a Friday"
    assert "Suggested, asked for and refused: roll payment back from v2.4.1 to v2.4.0." in result.text
    assert started(result) == 5
    assert len(bodies(result)) == len(result.entries)
    check_answer(result)
