"""Releases from a git repository made for the test, and from change records."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fencepost.agents.incident.sources.errors import Refused, Unavailable, Unusable
from fencepost.agents.incident.sources.releases import (
    ChangeFields,
    ChangeRecord,
    ChangeRecordConfig,
    GitConfig,
    GitReleases,
    ReleaseLimits,
)

START, END = "2026-03-01T00:00:00Z", "2026-03-15T00:00:00Z"


def git(repository: Path, *arguments: str, at: str = "2026-03-14T09:00:00Z") -> None:
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at,
        "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e",
        "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e",
    }  # fmt: skip
    subprocess.run(
        ["git", "-C", str(repository), *arguments], check=True, env=environment, capture_output=True
    )


def sign_last_commit(repository: Path) -> None:
    """The last commit carries something that git takes for a signature and would have checked."""
    kept = subprocess.run(
        ["git", "-C", str(repository), "cat-file", "commit", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    head, message = kept.split("\n\n", 1)
    mark = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
    made = subprocess.run(
        ["git", "-C", str(repository), "hash-object", "-t", "commit", "-w", "--stdin"],
        check=True,
        capture_output=True,
        text=True,
        input=f"{head}\n{mark}\n\n{message}",
    ).stdout.strip()
    git(repository, "update-ref", "HEAD", made)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first", at="2026-02-01T00:00:00Z")
    git(folder, "tag", "-a", "payment-v2.4.0", "-m", "write the fee", at="2026-03-10T09:00:00Z")
    git(folder, "commit", "-q", "--allow-empty", "-m", "load fees by region", at="2026-03-14T08:00:00Z")
    git(folder, "tag", "-a", "payment-v2.4.1", "-m", "fees by region", at="2026-03-14T09:58:20Z")
    git(folder, "tag", "-a", "checkout/3.8.0", "-m", "dates", at="2026-03-12T00:00:00Z")
    git(folder, "tag", "-a", "nightly", "-m", "no version", at="2026-03-13T00:00:00Z")
    git(folder, "tag", "-a", "payment-v1.0.0", "-m", "old", at="2025-01-01T00:00:00Z")
    return folder


async def ask_git(repository: Path, service: str = "", **asked: Any) -> dict[str, Any]:
    changes = {name: asked.pop(name) for name in ("commits", "limits") if name in asked}
    source = GitReleases(GitConfig(repository=str(repository), **changes))
    return await source.list_releases(service, **{"start": START, "end": END, **asked})


def names(said: dict[str, Any]) -> list[str]:
    return [one["release"] for one in said["releases"]]


async def test_tags_and_commits_of_the_window_are_listed_newest_first(repository: Path) -> None:
    said = await ask_git(repository)

    kinds = [(one["kind"], one["service"]) for one in said["releases"]]
    assert kinds == [
        ("tag", "payment"), ("commit", None), ("tag", None), ("tag", "checkout"), ("tag", "payment"),
    ]  # fmt: skip
    newest = said["releases"][0]
    assert newest["release"] == "payment-v2.4.1"
    assert newest["at"] == "2026-03-14T09:58:20Z"
    assert newest["text"] == "fees by region"
    assert said["found"] == 5


async def test_a_service_gets_its_own_tags_and_those_of_no_service(repository: Path) -> None:
    said = await ask_git(repository, "payment", commits=False)

    assert names(said) == ["payment-v2.4.1", "nightly", "payment-v2.4.0"]
    assert said["service"] == "payment"


async def test_no_more_than_the_limit_are_listed_and_all_are_counted(repository: Path) -> None:
    said = await ask_git(repository, commits=False, limit=1)

    assert (names(said), said["found"]) == (["payment-v2.4.1"], 4)


async def test_nothing_that_the_repository_configures_is_started(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    touched = tmp_path / "touched"
    trap.write_text(f"#!/bin/sh\ntouch {touched}\n")
    trap.chmod(0o755)
    sign_last_commit(repository)
    for name in ("core.pager", "core.fsmonitor", "gpg.program", "core.sshCommand", "diff.external"):
        git(repository, "config", name, str(trap))
    git(repository, "config", "log.showSignature", "true")

    assert names(await ask_git(repository))[0] == "payment-v2.4.1"
    assert not touched.exists()


async def test_a_folder_that_is_no_repository_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"git cannot read .*not a git repository.*check the path"):
        await ask_git(tmp_path)


async def test_a_repository_without_commits_or_tags_says_what_git_says(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")

    assert (await ask_git(tmp_path, commits=False))["releases"] == []
    with pytest.raises(Unusable, match="git cannot read"):
        await ask_git(tmp_path)


async def test_output_past_the_limit_is_cut_at_a_whole_line(repository: Path) -> None:
    said = await ask_git(repository, commits=False, limits=ReleaseLimits(output_bytes=93))

    assert names(said) == ["payment-v2.4.1"]


async def test_git_that_does_not_answer_in_time_is_stopped(repository: Path) -> None:
    with pytest.raises(Unavailable, match="git did not answer within 0 s"):
        await ask_git(repository, limits=ReleaseLimits(seconds=0.0))


# -- change records ---------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def ask_record(path: Path, *lines: object, service: str = "", **asked: Any) -> dict[str, Any]:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    write(path, "\n".join(texts) + "\n")
    changes = {name: asked.pop(name) for name in ("fields", "synthetic", "limits") if name in asked}
    source = ChangeRecord(ChangeRecordConfig(path=str(path), **changes))
    return await source.list_releases(service, **{"start": START, "end": END, **asked})


async def test_a_change_record_lists_changes_newest_first_with_what_they_are(tmp_path: Path) -> None:
    old = {"time": "2026-03-10T00:00:00Z", "service": "payment", "release": "v2.4.0", "text": "old"}
    new = {"time": 1773482300, "service": "payment", "version": "v2.4.1", "description": "new"}

    said = await ask_record(tmp_path / "c.jsonl", old, new, service="payment")

    assert said == {
        "service": "payment",
        "start": START,
        "end": END,
        "found": 2,
        "releases": [
            {
                "release": "v2.4.1",
                "service": "payment",
                "at": "2026-03-14T09:58:20Z",
                "kind": "change",
                "id": None,
                "text": "new",
            },
            {
                "release": "v2.4.0",
                "service": "payment",
                "at": "2026-03-10T00:00:00Z",
                "kind": "change",
                "id": None,
                "text": "old",
            },
        ],
        "bad_lines": 0,
    }


async def test_changes_of_others_and_outside_the_window_are_left_out_and_those_of_nobody_kept(
    tmp_path: Path,
) -> None:
    lines = [
        {"time": "2026-03-10T00:00:00Z", "service": "checkout", "release": "other"},
        {"time": "2026-02-10T00:00:00Z", "service": "payment", "release": "too old"},
        {"time": "2026-03-11T00:00:00Z", "release": "of nobody"},
        {"time": "2026-03-12T00:00:00Z", "service": "payment", "release": "own"},
    ]

    assert names(await ask_record(tmp_path / "c.jsonl", *lines, service="payment")) == ["own", "of nobody"]


async def test_bad_lines_of_a_change_record_are_counted(tmp_path: Path) -> None:
    good = {"time": "2026-03-11T00:00:00Z", "release": "good"}
    lines = ["nonsense", "", "[]", '{"time": "2026-03-11T00:00:00Z"}', '{"release": "x"}', "[" * 70_000, good]

    said = await ask_record(tmp_path / "c.jsonl", *lines)

    assert (names(said), said["bad_lines"]) == (["good"], 5)


async def test_field_names_can_be_configured_and_bundled_records_are_marked(tmp_path: Path) -> None:
    fields = ChangeFields(time=("when",), service=("who",), release=("what",), text=("why",))
    line = {"when": "2026-03-11T00:00:00Z", "who": "payment", "what": "v1", "why": "because"}

    said = await ask_record(tmp_path / "c.jsonl", line, fields=fields, synthetic=True)

    assert said["synthetic"] is True
    assert said["releases"][0]["text"] == "because"


async def test_a_record_that_is_missing_or_too_large_is_said_in_one_sentence(tmp_path: Path) -> None:
    source = ChangeRecord(ChangeRecordConfig(path=str(tmp_path / "nowhere.jsonl")))
    with pytest.raises(Unavailable, match=r"cannot be read \(No such file or directory\); check the path"):
        await source.list_releases(start=START, end=END)

    with pytest.raises(Unusable, match="has over 10 bytes"):
        await ask_record(tmp_path / "c.jsonl", {"a": "long enough"}, limits=ReleaseLimits(record_bytes=10))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"limit": 0}, "limit 0 is not from 1 to 100"),
        ({"limit": 101}, "limit 101 is not from 1 to 100"),
        ({"start": "2025-03-01T00:00:00Z"}, "at most 7776000 s are allowed"),
        ({"service": "x" * 129}, "is longer than 128 characters"),
    ],
)
async def test_a_question_outside_the_limits_is_refused(
    tmp_path: Path, asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused) as refusal:
        await ask_record(tmp_path / "c.jsonl", **asked)

    assert sentence in str(refusal.value)


@pytest.mark.needs_data
async def test_a_recorded_list_of_changes_is_understood(shared_data: Path) -> None:
    path = shared_data / "incident" / "petshop" / "high_traffic" / "changes.jsonl"
    source = ChangeRecord(ChangeRecordConfig(path=str(path)))

    said = await source.list_releases(start="2023-04-12T00:00:00Z", end="2023-04-14T00:00:00Z", limit=100)

    assert said["bad_lines"] == 0
    assert said["found"] == len(path.read_text(encoding="utf-8").splitlines()) == len(said["releases"])
    assert said["releases"][-1]["release"] == "test/issue_11"
