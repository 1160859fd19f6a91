"""The agent's definition: its tools under any model, what they refuse, and its rules and commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fencepost import (
    Agent,
    Effect,
    MemoryStore,
    Rules,
    ScriptedModel,
    StopReason,
    TaskState,
    resume_task,
    run_task,
)
from fencepost.agents.incident import data
from fencepost.agents.incident.agent import DEMO_PROMPT, Sources, build, demo_agent, incident_agent
from fencepost.agents.incident.sources.bundled import BundledMetrics
from fencepost.agents.incident.sources.errors import SourceError
from fencepost.agents.incident.sources.logs import LogFiles, LogsConfig
from fencepost.agents.incident.sources.releases import GitConfig, GitReleases
from fencepost.agents.incident.sources.rollback import RollbackCommand, RollbackConfig
from fencepost.models.scripted import answer, call, calls
from fencepost.service.tasks import decide_approval
from tests.agents.incident.investigating import asked, check_answer, ended, told

ROOT = Path(__file__).resolve().parents[3]
WINDOW = {"start": "2026-03-14T09:05:00Z", "end": "2026-03-14T10:12:00Z"}
TASK = "task-incident"


# -- any model, the same tools ----------------------------------------------------------------------------


async def test_another_model_investigates_with_the_same_tools_and_must_cite_what_it_obtained() -> None:
    claim = {
        "text": "payment failed 8 % of its requests",
        "evidence_id": "ev-1.0",
        "pointer": "/series/0/points/0/1",
        "value": 0.08,
    }
    script = [
        calls(call("query_metrics", metric="error_rate", services=["payment"], at="2026-03-14T10:04:00Z")),
        answer("The error_rate is 0.99.", claim),
        answer("The error_rate is 0.08.", claim),
    ]
    with ScriptedModel(script) as model:
        result = await run_task(demo_agent(model=model), DEMO_PROMPT)

    assert (result.state, result.text) == (TaskState.SUCCEEDED, "The error_rate is 0.08.")
    assert "'0.99' in the summary occurs in no checked claim" in told(result)[1]
    check_answer(result)


def script_of(tool: str, arguments: dict[str, Any]) -> ScriptedModel:
    return ScriptedModel([calls(call(tool, **arguments)), "I give up"])


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        (
            "query_metrics",
            {"metric": "cpu", **WINDOW},
            "Metric 'cpu' is not allowed; ask for one of: error_rate",
        ),
        (
            "query_metrics",
            {"metric": "error_rate", "services": ["ledger"], **WINDOW},
            "Service 'ledger' is not allowed; ask for one of: checkout, gateway",
        ),
        (
            "query_metrics",
            {"metric": "error_rate"},
            "start '' is no time; write it like 2026-01-31T09:00:00Z.",
        ),
        (
            "query_metrics",
            {"metric": "error_rate", "start": "2026-03-01T00:00:00Z", "end": "2026-03-14T00:00:00Z"},
            "The window is 1123200 s long and at most 86400 s are allowed; narrow it.",
        ),
        (
            "query_metrics",
            {"metric": "error_rate", **WINDOW, "step_seconds": 0.5},
            "step_seconds 0.5 is finer than the 15 allowed; widen it.",
        ),
        ("query_metrics", {"metric": "error_rate", "at": "now"}, "at 'now' is no time"),
        (
            "search_logs",
            {"start": WINDOW["end"], "end": WINDOW["start"]},
            "is not after start '2026-03-14T10:12:00Z'; swap or widen them.",
        ),
        ("search_logs", {**WINDOW, "level": "loud"}, "level 'loud' is unknown; use one of: trace, debug"),
        ("list_releases", {"start": "yesterday", "end": WINDOW["end"]}, "start 'yesterday' is no time"),
    ],
)
async def test_a_question_the_source_refuses_is_one_sentence_to_the_model(
    tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    result = await run_task(demo_agent(model=script_of(tool, arguments)), DEMO_PROMPT)

    said = told(result)[0]
    assert sentence in said
    assert "\n" not in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("tool", "arguments", "place"),
    [
        ("query_metrics", {}, "metric"),
        ("query_metrics", {"metric": "error_rate", "query": "up"}, "query"),
        ("query_metrics", {"metric": 7, **WINDOW}, "$.metric"),
        ("query_metrics", {"metric": "error_rate", **WINDOW, "step_seconds": "60"}, "$.step_seconds"),
        ("search_logs", {**WINDOW, "limit": 51}, "$.limit"),
        ("search_logs", {"start": WINDOW["start"]}, "end"),
        ("list_releases", {**WINDOW, "limit": 0}, "$.limit"),
        ("rollback", {"service": "payment"}, "release"),
    ],
)
async def test_arguments_of_the_wrong_shape_run_nothing_and_are_answered_with_the_place(
    tool: str, arguments: dict[str, Any], place: str
) -> None:
    result = await run_task(demo_agent(ask=True, model=script_of(tool, arguments)), DEMO_PROMPT)

    (refused,) = ended(result, tool)
    assert refused.failure == "invalid_arguments"
    assert place in refused.content
    assert result.asks == ()


def test_the_three_reading_tools_read_and_rollback_writes() -> None:
    effects = {one.definition.name: one.definition.effect for one in demo_agent().tools}

    assert effects == {
        "query_metrics": Effect.READ,
        "search_logs": Effect.READ,
        "list_releases": Effect.READ,
        "rollback": Effect.WRITE,
    }


# -- made for real systems --------------------------------------------------------------------------------


def given(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "changes.jsonl").touch()
    usual = {
        "prometheus": "http://127.0.0.1:9090",
        "logs": str(tmp_path / "logs"),
        "releases": str(tmp_path / "changes.jsonl"),
    }
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prometheus": "localhost:9090"}, "The address of Prometheus must be like http://127.0.0.1:9090"),
        ({"prometheus": "http://"}, "The address of Prometheus must be like http://127.0.0.1:9090"),
        ({"prometheus": "http://[::1"}, "got an address that is no URL."),
        ({"service_label": "a-b"}, "'a-b' is no label name"),
        (
            {"logs": "/nowhere/logs"},
            "There are no logs at '/nowhere/logs'; name a file or folder that is there.",
        ),
        ({"releases": "/nowhere/git"}, "There are no releases at '/nowhere/git'"),
        ({"calls": "/nowhere/calls.json"}, "The file of calls '/nowhere/calls.json' cannot be read"),
        ({"calls": __file__}, 'write it as {"caller": ["called", "called"]}.'),
        ({"calls": "/dev/zero"}, "has over 1048576 bytes; cut it."),
        ({"releases": "/proc"}, "The folder '/proc' is in no git repository; name a git checkout, or"),
        ({"rollback_command": ()}, "The rollback command is empty; name the program"),
        ({"rollback_command": ("deploy",)}, "The rollback command has no {service}"),
        (
            {"rollback_command": ("no-such-program", "{service}", "{release}")},
            "There is no program 'no-such-program' to roll back with; name one that is on PATH",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_task(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as refused:
        incident_agent(**given(tmp_path, **changes))

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_in_the_address_is_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as refused:
        incident_agent(**given(tmp_path, prometheus="ftp://admin:hunter2@metrics"))

    assert "hunter2" not in str(refused.value)


def test_without_rules_a_rollback_is_asked_about_and_rules_of_ones_own_decide_who_may_say_yes(
    tmp_path: Path,
) -> None:
    rollback = demo_agent().by_name["rollback"].definition
    without = incident_agent(**given(tmp_path)).boundary
    strict = incident_agent(**given(tmp_path, rules=Rules())).boundary

    assert [one.authorize("local/user", rollback, "{}").verdict for one in (without, strict)] == [
        "ask",
        "ask",
    ]
    assert (without.self_approval, strict.self_approval) == (True, False)


def test_without_a_command_there_is_no_rollback_tool(tmp_path: Path) -> None:
    without = incident_agent(**given(tmp_path))
    with_one = incident_agent(**given(tmp_path, rollback_command=("true", "{service}", "{release}")))

    assert "rollback" not in [one.definition.name for one in without.tools]
    assert "rollback" in [one.definition.name for one in with_one.tools]


# -- a real repository and a real command -----------------------------------------------------------------


def git(folder: Path, *arguments: str, at: str) -> None:
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
           for what, value in (("NAME", "Test"), ("EMAIL", "test@example.org"), ("DATE", at))},
    }  # fmt: skip
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=environment, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The releases of payment as tags of a repository: the second came just before the bundled incident."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", at="2026-03-01T00:00:00Z")
    for version, at in (("v2.4.0", "2026-03-10T09:00:00Z"), ("v2.4.1", "2026-03-14T09:58:20Z")):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"payment {version}", at=at)
        git(folder, "tag", "-a", f"payment/{version}", "-m", f"payment {version}", at=at)
    return folder


def agent_over(repository: Path, script: str, **changes: Any) -> Agent:
    """The agent over the bundled incident, a real repository, and a shell script that rolls back."""
    command = ("/bin/sh", "-c", script, "sh", "{service}", "{release}")
    sources = Sources(
        BundledMetrics(data.METRICS),
        LogFiles(LogsConfig(path=str(data.LOGS))),
        GitReleases(GitConfig(repository=str(repository))),
        RollbackCommand(RollbackConfig(command=command, **changes)),
        graph={"gateway": ("checkout",), "checkout": ("payment",)},
    )
    return build(sources)


async def test_an_approved_rollback_runs_the_command_once_with_the_release_that_git_shows(
    repository: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    agent = agent_over(
        repository, f'echo "$1 $2 $FENCEPOST_IDEMPOTENCY_KEY" >>{done}; echo rolled back; echo warm >&2'
    )
    store = MemoryStore()

    (ask,) = (await run_task(agent, DEMO_PROMPT, task=TASK, store=store)).asks
    assert not done.exists(), "nothing runs before somebody approved it"
    call_id = f"{ask.step}.{ask.position}"
    await decide_approval(store, TASK, call_id, approve=True, by="local/lead", digest=ask.digest)
    result = await resume_task(agent, TASK, store=store)

    assert done.read_text(encoding="utf-8") == f"payment payment/v2.4.0 {TASK}:{call_id}\n"
    (told_of_it,) = ended(result, "rollback")
    assert json.loads(told_of_it.content)["stdout"] == "rolled back\n"
    assert "release payment/v2.4.1 came shortly before payment began to deviate" in result.text
    assert "its command ended with 0" in result.text
    check_answer(result)


async def test_a_command_that_fails_after_approval_is_told_and_not_run_again(
    repository: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    agent = agent_over(repository, f'echo once >>{done}; echo "release is locked" >&2; exit 3')
    store = MemoryStore()

    (ask,) = (await run_task(agent, DEMO_PROMPT, task=TASK, store=store)).asks
    await decide_approval(store, TASK, f"{ask.step}.{ask.position}", approve=True, by="local/lead")
    result = await resume_task(agent, TASK, store=store)

    assert done.read_text(encoding="utf-8") == "once\n"
    assert "exit code 3: release is locked" in ended(result, "rollback")[0].content
    assert "Suggested, tried and failed: roll payment back from payment/v2.4.1" in result.text


async def test_a_command_stopped_at_its_deadline_waits_for_a_person(repository: Path) -> None:
    agent = agent_over(repository, "exec sleep 60", seconds=0.2)
    store = MemoryStore()

    (ask,) = (await run_task(agent, DEMO_PROMPT, task=TASK, store=store)).asks
    await decide_approval(store, TASK, f"{ask.step}.{ask.position}", approve=True, by="local/lead")
    result = await resume_task(agent, TASK, store=store)

    assert (result.state, result.reason) == (TaskState.WAITING_APPROVAL, None)
    assert [one.about for one in result.asks] == ["outcome"]


# -- the rules in the examples ----------------------------------------------------------------------------


@pytest.mark.parametrize(("service", "verdict"), [("ledger", "deny"), ("payment", "ask")])
def test_the_rules_of_the_example_deny_the_ledger_and_ask_about_the_rest(service: str, verdict: str) -> None:
    rules = Rules.load(ROOT / "examples" / "incident_rules.toml")
    rollback = demo_agent().by_name["rollback"].definition
    arguments = json.dumps({"release": "v1", "service": service})

    assert rules.authorize("local/user", rollback, arguments).verdict == verdict
    assert not rules.self_approval


async def test_a_denied_rollback_stops_nothing_but_itself() -> None:
    result = await run_task(demo_agent(), DEMO_PROMPT)

    assert result.reason is StopReason.COMPLETED
    assert [name for name, _ in asked(result)][-1] == "rollback"
