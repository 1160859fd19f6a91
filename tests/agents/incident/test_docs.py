"""docs/incident.md says what the agent does: options, metrics and forms of files are compared with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx2
import pytest

from fencepost.agents.incident.sources.calls import read_calls
from fencepost.agents.incident.sources.logs import LogFiles, LogsConfig
from fencepost.agents.incident.sources.prometheus import STATUS_LABELS, discover
from fencepost.agents.incident.sources.releases import ChangeRecord, ChangeRecordConfig
from fencepost.cli.run import run

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "incident.md").read_text(encoding="utf-8")
JSON_BLOCKS = re.findall(r"^```json\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
# "| `listed` … | `asked for as` | kind | …"
ROW = re.compile(r"^\| (`[^|]*) \| (`[^|]*`|not at all) \| ([a-z]* )?\|", re.MULTILINE)
START, END = "2026-03-14T09:00:00Z", "2026-03-14T10:30:00Z"


def test_every_option_on_the_page_is_one_of_the_command() -> None:
    options = {name for parameter in run.params for name in parameter.opts}

    said = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert said - options == {
        "--ask",
        "--to",
    }  # of `fencepost demo`, and of the rollback command that is shown


async def test_every_metric_on_the_page_is_asked_for_as_it_says() -> None:
    rows = [
        (re.findall(r"`([a-z0-9_]+)`", row[0]), row[1].strip("`"), row[2].strip())
        for row in ROW.findall(PAGE)
    ]
    assert len(rows) == 8
    listed = sorted({name for names, _, _ in rows for name in names} - set(STATUS_LABELS))

    def reply(request: httpx2.Request) -> httpx2.Response:
        lists = {"/api/v1/label/__name__/values": listed, "/api/v1/label/service/values": ["payment"]}
        found = lists.get(request.url.path, ["code"])
        return httpx2.Response(200, json={"status": "success", "data": found})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(reply)) as client:
        found = await discover(client, "http://127.0.0.1:9090")

    assert {rule.name: rule.kind for rule in found.metrics} == {
        asked: kind for _, asked, kind in rows if asked != "not at all"
    }


@pytest.mark.parametrize("label", STATUS_LABELS)
def test_the_page_names_every_label_of_a_status(label: str) -> None:
    assert f"`{label}`" in PAGE


async def test_the_lines_and_files_on_the_page_are_understood(tmp_path: Path) -> None:
    log, change, calls = (tmp_path / name for name in ("logs.jsonl", "changes.jsonl", "calls.json"))
    for path, block in zip((log, change, calls), JSON_BLOCKS, strict=True):
        path.write_text(block + "\n", encoding="utf-8")

    logs = await LogFiles(LogsConfig(path=str(log))).search("payment", level="error", start=START, end=END)
    releases = await ChangeRecord(ChangeRecordConfig(path=str(change))).list_releases(
        "payment", start=START, end=END
    )

    assert (logs["matched"], logs["bad_lines"]) == (1, 0)
    assert [one["release"] for one in releases["releases"]] == ["v2.4.1"]
    assert read_calls(str(calls)) == {
        name: tuple(called) for name, called in json.loads(JSON_BLOCKS[2]).items()
    }
