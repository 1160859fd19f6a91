"""`read_artifact`: the whole of a cut result in parts, of this very task alone (contract 8.4)."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from pathlib import Path
from typing import Any

import apsw
import pytest

from fencepost import (
    Agent,
    DefinitionInvalid,
    Limits,
    MemoryStore,
    Result,
    ScriptedModel,
    ToolMessage,
    run_task,
)
from fencepost.core.canonical import digest
from fencepost.core.entries import CallEnded, CallStatus, encode_body
from fencepost.core.errors import ArgumentsInvalid
from fencepost.models.scripted import answer, call, calls, say
from fencepost.ports import CallContext, Reconciled, Store
from fencepost.run.artifacts import READ_ARTIFACT_DEFINITION, ReadArtifact
from fencepost.service.replay.replaying import replay
from fencepost.stores.sqlite import SqliteStore
from fencepost.tools.function import tool

# Umlauts take two bytes each, so that parts begin and end inside code points.
WHOLE = "".join(f"line {n}: ü{'ö' * 17}\n" for n in range(400))
NAMED = digest(WHOLE, "result")
MARK = re.compile(r"digest ([0-9a-f]{64})")


@tool(effect="read")
async def log() -> str:
    """A long log."""
    return WHOLE


def agent(model: Any, **changes: Any) -> Agent:
    fields: dict[str, Any] = {"limits": Limits(60, result_bytes=2048), "tools": (log,), "artifacts": True}
    return Agent("reader", model, **{**fields, **changes})


def results(result: Result) -> list[ToolMessage]:
    return [message for message in result.messages if isinstance(message, ToolMessage)]


async def read(*asked: dict[str, Any], store: Store | None = None) -> list[ToolMessage]:
    """What a model is told when it reads these parts of the log in the step after it saw it."""
    script = [calls(call("log")), *(calls(call("read_artifact", **one)) for one in asked), say("done")]
    return results(await run_task(agent(ScriptedModel(script)), "read", store=store))[1:]


async def test_a_model_reads_all_of_a_cut_result_part_by_part() -> None:
    parts: list[str] = []

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if not isinstance(last, ToolMessage):
            return calls(call("log"))
        if last.name == "log":
            found = MARK.search(last.content)
            assert found is not None
            return calls(call("read_artifact", digest=found[1]))
        header, _, text = last.content.partition("\n")
        parts.append(text)
        more = re.search(r"go on at offset (\d+)", header)
        return (
            say("done") if more is None else calls(call("read_artifact", digest=NAMED, offset=int(more[1])))
        )

    result = await run_task(agent(ScriptedModel([reply] * 30)), "read")
    assert result.text == "done"
    assert "".join(parts) == WHOLE
    ends = [e.body for e in result.entries if isinstance(e.body, CallEnded)]
    assert all(body.status is CallStatus.OK and not body.cut for body in ends[1:])
    assert all(len(body.content.encode()) <= 2048 for body in ends)


async def test_a_part_begins_and_ends_at_code_points_and_has_at_least_one() -> None:
    at = WHOLE.encode().index("ü".encode()) + 1
    inside, tiny, last = await read(
        {"digest": NAMED, "offset": at, "limit": 3},
        {"digest": NAMED, "offset": at - 1, "limit": 1},
        {"digest": NAMED, "offset": len(WHOLE.encode()) - 1},
    )
    size = len(WHOLE.encode())
    assert inside.content == f"[bytes {at + 1} to {at + 3} of {size}; go on at offset {at + 3}]\nö"
    assert tiny.content == f"[bytes {at - 1} to {at + 1} of {size}; go on at offset {at + 1}]\nü"
    assert last.content == f"[bytes {size - 1} to {size} of {size}; that is the end]\n\n"


async def test_what_lies_beyond_the_end_is_said_and_not_made_up() -> None:
    (beyond,) = await read({"digest": NAMED, "offset": 10**9})
    assert beyond.failed
    assert beyond.content == f"the value has {len(WHOLE.encode())} bytes; there is none at offset 1000000000"


async def test_only_results_of_this_very_task_can_be_read() -> None:
    store = MemoryStore()
    await read(store=store)
    assert await store.artifact("local", NAMED) == WHOLE.encode()
    script = [calls(call("read_artifact", digest=NAMED)), say("done")]
    (refused,) = results(await run_task(agent(ScriptedModel(script)), "read", store=store))
    assert refused.failed
    assert refused.content.startswith(f"no result of this task has the digest {NAMED}")


async def test_a_part_is_evidence_like_any_other_result() -> None:
    line = WHOLE.splitlines()[200]
    offset = WHOLE.encode().index(line.encode())
    script = [
        calls(call("log")),
        calls(call("read_artifact", digest=NAMED, offset=offset, limit=len(line.encode()))),
        answer("it says so", {"text": "line 200 is there", "evidence_id": "ev-2.0", "quote": line}),
    ]
    result = await run_task(agent(ScriptedModel(script), answer="cited"), "read")
    assert result.answer is not None
    assert result.answer.evidence_ids == ("ev-2.0",)


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_an_artifact_that_is_missing_or_changed_is_named_and_the_task_goes_on(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)

    def harm(request: Any) -> Any:
        db = apsw.Connection(str(path))
        statement = "DELETE FROM artifacts" if damage == "missing" else "UPDATE artifacts SET data = x'00'"
        db.execute(statement).fetchall()
        db.close()
        return calls(call("read_artifact", digest=NAMED))

    script: list[Any] = [calls(call("log")), harm, say("done")]
    result = await run_task(agent(ScriptedModel(script)), "read", store=store)
    said = results(result)[1]
    assert (said.failed, result.text) == (True, "done")
    assert NAMED in said.content
    assert ("is missing" if damage == "missing" else "was changed") in said.content
    await store.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", "$.digest"),
        ('{"digest": 7}', "$.digest"),
        (f'{{"digest": "{NAMED.upper()}"}}', "$.digest"),
        (f'{{"digest": "{NAMED}\\n"}}', "$.digest"),
        (f'{{"digest": "{NAMED}", "offset": -1}}', "$.offset: must be a whole number, 0 or more"),
        (f'{{"digest": "{NAMED}", "offset": "0"}}', "$.offset"),
        (f'{{"digest": "{NAMED}", "offset": null}}', "$.offset"),
        (f'{{"digest": "{NAMED}", "limit": 0}}', "$.limit: must be a whole number, 1 or more"),
        (f'{{"digest": "{NAMED}", "limit": true}}', "$.limit"),
        (f'{{"digest": "{NAMED}", "limit": 1.5}}', "$.limit"),
        (f'{{"digest": "{NAMED}", "path": "/etc/passwd"}}', "there is no argument 'path'"),
    ],
)
def test_arguments_are_taken_as_the_schema_says_and_never_coerced(arguments: str, said: str) -> None:
    with pytest.raises(ArgumentsInvalid) as refused:
        ReadArtifact(2048).prepare(arguments)
    assert said in str(refused.value)


def test_the_tool_is_part_of_the_definition_exactly_where_it_is_asked_for() -> None:
    model = ScriptedModel([])
    with_it, without = agent(model), agent(model, artifacts=False)
    assert with_it.definitions[1:] == (READ_ARTIFACT_DEFINITION,)
    assert without.definitions == (log.definition,)
    assert with_it.definition != without.definition
    assert b"read_artifact" in encode_body(with_it.opened("x", "y"))
    assert without.tools_in(MemoryStore()) is without.by_name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limits": Limits(2, result_bytes=1023)}, "limits.result_bytes is 1023"),
        (
            {"tools": (tool(effect="read", name="read_artifact", description="x")(log.function),)},
            "the tool name 'read_artifact' is reserved",
        ),
    ],
)
def test_an_agent_that_could_not_read_artifacts_says_what_to_change(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionInvalid) as refused:
        agent(ScriptedModel([]), **changes).check()
    assert said in str(refused.value)


async def test_the_sqlite_store_gives_the_same_parts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    asked = ({"digest": NAMED}, {"digest": NAMED, "offset": 1000})
    kept, remembered = await read(*asked, store=store), await read(*asked)
    assert [part.content for part in kept] == [part.content for part in remembered]
    assert not kept[0].failed
    await store.close()


@pytest.mark.parametrize(("tools", "reran"), [("recorded", 0), ("read", 1)])
def test_a_task_that_read_artifacts_replays_also_where_its_other_reads_run_again(
    tools: Any, reran: int
) -> None:
    script = [calls(call("log")), calls(call("read_artifact", digest=NAMED)), say("done")]
    reader = agent(ScriptedModel(script))
    result = asyncio.run(run_task(reader, "read"))
    replayed = replay(result.entries, agent=reader, tools=tools)
    assert (replayed.difference, replayed.reran) == (None, reran)


async def test_a_run_holds_no_whole_result_once_it_is_committed(tmp_path: Path) -> None:
    size, steps = 1_000_000, 30

    @tool(effect="read")
    async def large(number: int) -> str:
        """A large result, each another."""
        return f"{number:08d}" * (size // 8)

    store = SqliteStore(tmp_path / "store.db")
    script = [*(calls(call("large", number=number)) for number in range(steps)), say("done")]
    limits = Limits(steps + 1, result_bytes=2048)
    tracemalloc.start()
    result = await run_task(Agent("a", ScriptedModel(script), limits, tools=(large,)), "go", store=store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await store.close()
    assert result.text == "done"
    assert peak < size * 8, "the value, its bytes, what is written of it, and room for the rest"


async def test_of_a_read_nobody_has_to_find_out_what_became_of_it() -> None:
    reader = ReadArtifact(2048)
    prepared = reader.prepare(f'{{"digest": "{NAMED}"}}')
    context = CallContext("t", "local", "local/user", 1, 0, 1, "t:1.0", 1.0)
    assert await reader.reconcile(prepared, context) == Reconciled("cannot_tell")
