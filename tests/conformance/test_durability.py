"""Rows D and E, L67 to L69, L74, L76 and L77: the journal holds, whatever is done to it or beside it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from fencepost import (
    CallContext,
    DefinitionInvalid,
    Fenced,
    FunctionModel,
    Limits,
    ModelRequest,
    Recovery,
    Reply,
    SqliteStore,
    StopReason,
    StoreFailed,
    TaskState,
    tool,
)
from fencepost.core.entries import (
    AnswerRejected,
    CallEnded,
    CallStatus,
    ModelAsked,
    Opened,
    Replied,
    decode_body,
    encode_body,
)
from fencepost.core.errors import StoreNewer, TaskConflict
from fencepost.core.messages import UserMessage
from fencepost.models.scripted import answer, call, calls, say
from fencepost.ports import Commit, NewTask, Totals
from fencepost.run.running import open_task
from tests.conformance.stage import Crash, Stage, crash_at, held, said
from tests.stores.faults import disk

# --- L67, L68: what a reader refuses, and what a writer may not write ---


async def test_l67_an_entry_of_an_unknown_version_is_refused_by_its_name(tmp_path: Path) -> None:
    stage = Stage(SqliteStore(tmp_path / "tasks.db"), tmp_path)
    agent = stage.agent([calls(call("act", n=1)), say("done")], stage.act())
    stage.store.after = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    await stage.store.close()
    db = apsw.Connection(str(tmp_path / "tasks.db"))
    db.execute("UPDATE entries SET v = 2 WHERE kind = 'Replied'").fetchall()
    db.close()
    store = SqliteStore(tmp_path / "tasks.db")
    stage.store.store = store
    stage.store.after = None
    with pytest.raises(StoreNewer, match=r"'Replied' version 2 .* upgrade"):
        await stage.resume(agent, "task-1", take_over=True)
    assert stage.ran() == []
    await store.close()


@pytest.mark.parametrize(("kind", "version"), [("Replied", 2), ("Replied", 0), ("Foretold", 1)])
def test_l67_a_kind_or_version_nobody_knows_is_named(kind: str, version: int) -> None:
    with pytest.raises(StoreNewer, match=f"'{kind}' version {version}"):
        decode_body(kind, version, b"{}")


async def test_l67_a_changed_tool_is_refused_by_its_name_and_the_task_stays(stage: Stage) -> None:
    agent = stage.agent([say("done")], stage.act(), stage.look())
    await open_task(agent, "do it", store=stage.store, task="task-1")
    before = await stage.store.row("local", "task-1")
    changed = stage.agent([say("done")], stage.act(version="2"), stage.look())
    with pytest.raises(DefinitionInvalid, match="tool act"):
        await stage.resume(changed, "task-1")
    assert await stage.store.row("local", "task-1") == before
    assert (await stage.resume(agent, "task-1")).reason is StopReason.COMPLETED


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instructions": "be quick"}, "instructions"),
        ({"limits": Limits(steps=11)}, "limits"),
        ({"recovery": Recovery.strict()}, "recovery"),
        ({"answer": "cited"}, "answer"),
    ],
)
async def test_l67_whatever_else_changed_in_a_definition_is_named(
    stage: Stage, change: dict[str, Any], named: str
) -> None:
    await open_task(stage.agent([]), "do it", store=stage.store, task="task-1")
    with pytest.raises(DefinitionInvalid, match=named):
        await stage.resume(stage.agent([], **change), "task-1")


async def test_l68_nothing_can_be_written_after_the_end(stage: Stage) -> None:
    result = await stage.play([say("done")])
    row = result.row
    late = Commit(
        row.tenant,
        row.id,
        row.epoch,
        row.seq,
        (TaskState.RUNNING,),
        TaskState.RUNNING,
        (ModelAsked(2, 1, 10),),
        "late/1",
        "worker",
        1,
        row.seconds,
        Totals(),
    )
    with pytest.raises(Fenced):
        await stage.store.append(late)
    forged = msgspec.structs.replace(late, states=(TaskState.SUCCEEDED,), commit_id="late/2")
    with pytest.raises((Fenced, TaskConflict)):
        await stage.store.append(forged)
    assert await stage.store.entries("local", row.id) == result.entries


async def test_l68_a_journal_has_no_holes_after_many_interruptions(stage: Stage) -> None:
    look = stage.look(repeat="ok")
    numbers = iter(range(1000))

    def answers(request: ModelRequest) -> Reply:
        return calls(call("look", n=next(numbers))) if request.step < 6 else say("done")

    agent = stage.agent([], look, model=FunctionModel(answers))
    stage.store.before = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    for point in (3, 1, 4):
        stage.store.commits = 0
        stage.store.before, stage.store.after = (
            (crash_at(point), None) if point % 2 else (None, crash_at(point))
        )
        with pytest.raises(Crash):
            await stage.resume(agent, "task-1", take_over=True)
    stage.store.before = stage.store.after = None
    result = await stage.resume(agent, "task-1", take_over=True)
    assert result.reason is StopReason.COMPLETED
    assert [e.seq for e in result.entries] == list(range(1, len(result.entries) + 1))


# --- L69: citations ---


def cites(evidence_id: str, **claim: Any) -> Reply:
    return answer("It was seen.", {"text": "seen", "evidence_id": evidence_id, **claim})


async def seen(stage: Stage, *bad: Reply, **options: Any) -> Any:
    """A task with a good result at 1.0 and a failed one at 1.1, that then answers."""

    def fails(context: CallContext, n: int) -> None:
        raise ValueError("it failed with many words")

    look = stage.look(then=lambda context, n: {"n": n, "words": "long enough to quote"})
    script = [calls(call("look", n=7), call("fail", n=1)), *bad]
    return await stage.play(script, look, stage.look("fail", then=fails), answer="cited", **options)


WRONG: dict[str, Reply] = {
    "never-obtained": cites("ev-9.0", quote="long enough to quote"),
    "failed-call": cites("ev-1.1", quote="it failed with many words"),
    "another-task": cites("task-0/ev-1.0", quote="long enough to quote"),
    "malformed": cites("1.0", quote="long enough to quote"),
    "wrong-value": cites("ev-1.0", pointer="/n", value=8),
    "wrong-type": cites("ev-1.0", pointer="/n", value="7"),
    "no-such-place": cites("ev-1.0", pointer="/m", value=7),
    "invented-quote": cites("ev-1.0", quote="long enough to invent"),
    "short-quote": cites("ev-1.0", quote="long"),
    "no-place": cites("ev-1.0"),
    "number-from-nowhere": answer(
        "There were 99 errors.", {"text": "x", "evidence_id": "ev-1.0", "pointer": "/n", "value": 7}
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_l69_a_wrong_citation_is_told_and_then_ends_the_task(stage: Stage, wrong: str) -> None:
    again = msgspec.structs.replace(WRONG[wrong].calls[0], id="other")
    result = await seen(stage, WRONG[wrong], msgspec.structs.replace(WRONG[wrong], calls=(again,)))
    assert (result.reason, result.answer) == (StopReason.INVALID_EVIDENCE, None)
    (told,) = [e.body for e in result.entries if isinstance(e.body, AnswerRejected)]
    assert told.reason == "invalid_evidence"
    assert told.problem in [getattr(m, "content", "") for m in result.messages]


@pytest.mark.parametrize("wrong", WRONG)
async def test_l69_a_wrong_citation_can_be_corrected_once(stage: Stage, wrong: str) -> None:
    result = await seen(stage, WRONG[wrong], cites("ev-1.0", pointer="/n", value=7))
    assert (result.reason, result.text) == (StopReason.COMPLETED, "It was seen.")


@pytest.mark.parametrize("wrong", WRONG)
async def test_l69_strict_ends_at_the_first_wrong_citation(stage: Stage, wrong: str) -> None:
    look = stage.look(then=lambda context, n: {"n": n, "words": "long enough to quote"})
    script = [calls(call("look", n=7)), WRONG[wrong]]
    result = await stage.play(script, look, answer="cited", recovery=Recovery.strict())
    assert result.reason is StopReason.INVALID_EVIDENCE


async def test_l69_the_evidence_of_another_task_with_the_same_id_does_not_count(stage: Stage) -> None:
    first = await seen(stage, cites("ev-1.0", pointer="/n", value=7))
    assert first.reason is StopReason.COMPLETED
    bare = cites("ev-1.0", pointer="/n", value=7)
    result = await stage.play([bare], answer="cited", recovery=Recovery.strict())
    assert result.reason is StopReason.INVALID_EVIDENCE


async def test_l69_plain_text_is_no_cited_answer(stage: Stage) -> None:
    result = await seen(stage, say("It was seen."), say("It was seen."))
    assert (result.reason, result.answer) == (StopReason.INVALID_EVIDENCE, None)


# --- L74: nothing given or read can change a journal ---


async def test_l74_what_a_run_gives_away_cannot_change_its_journal(stage: Stage) -> None:
    kept: list[Any] = []

    def attack(request: ModelRequest) -> Reply:
        messages: Any = request.messages
        for vandalism in (
            lambda: messages.append(UserMessage("obey me")),
            lambda: messages.clear(),  # noqa: PLW0108 - it may have no such method
            lambda: messages.__setitem__(0, UserMessage("obey me")),
            lambda: messages.__delitem__(0),
            lambda: setattr(messages[0], "text", "obey me"),
            lambda: setattr(request, "messages", ()),
            lambda: setattr(request.tools[0], "effect", "read"),
        ):
            try:
                vandalism()
            except (AttributeError, TypeError):
                continue
        kept.append(request)
        return calls(call("act", n=request.step)) if request.step < 3 else say("done")

    agent = stage.agent([], stage.act(), model=FunctionModel(attack))
    result = await stage.run(agent, "do it")
    assert result.reason is StopReason.COMPLETED
    for request in kept:
        assert request.messages[0] == UserMessage("do it")
        assert len(request.messages) == 2 * request.step - 1
    assert not any("obey" in str(m) for m in result.messages)


async def test_l74_what_a_tool_keeps_of_its_arguments_and_result_changes_nothing(stage: Stage) -> None:
    mine: list[Any] = []

    @tool(name="act", effect="read")
    async def act(items: list[int], context: CallContext) -> list[int]:
        stage.note("act", context)
        items.append(99)
        mine.append(items)
        return items

    def second(request: ModelRequest) -> Reply:
        mine[0].clear()
        return say("done")

    result = await stage.play([calls(call("act", items=[1, 2])), second], act)
    assert [m.content for m in result.messages if hasattr(m, "content")] == ["[1,2,99]"]
    (replied,) = [e.body for e in result.entries if isinstance(e.body, Replied) and e.body.calls]
    assert replied.calls[0].arguments == '{"items":[1,2]}'


async def test_l74_what_is_read_from_a_store_cannot_change_it(stage: Stage) -> None:
    result = await stage.play([calls(call("act", n=1)), say("done")], stage.act())
    before = [encode_body(e.body) for e in await stage.store.entries("local", result.task)]
    entries = await stage.store.entries("local", result.task)
    assert isinstance(entries, tuple)
    for entry in entries:
        for target in (entry, entry.body):
            for name in target.__struct_fields__:
                with pytest.raises((AttributeError, TypeError)):
                    setattr(target, name, None)
        for name in entry.body.__struct_fields__:
            assert not isinstance(getattr(entry.body, name), (list, dict, set, bytearray)), name
    row = await stage.store.row("local", result.task)
    with pytest.raises(AttributeError):
        row.state = TaskState.PENDING
    assert [encode_body(e.body) for e in await stage.store.entries("local", result.task)] == before


async def test_l74_what_is_given_to_a_store_cannot_be_changed_afterwards(stage: Stage) -> None:
    agent = stage.agent([say("done")], stage.act())
    labels: Any = [("team", "blue")]
    opened = agent.opened("do it", "local/user", labels)
    with pytest.raises(ValueError, match="tuple"):
        await stage.store.open_task(NewTask("local", "task-0", "ada", "open/0", opened))
    tools = [stage.act()]
    agent = dataclasses.replace(agent, tools=tools)
    await open_task(agent, "do it", store=stage.store, task="task-1")
    tools.clear()
    (first,) = await stage.bodies("task-1")
    assert isinstance(first, Opened)
    assert [t.name for t in first.tools] == ["act"]


# --- L76, L77: commits whose outcome is in doubt ---


class Deaf:
    """A store whose acknowledgement of one commit is lost, so that the commit is made again."""

    def __init__(self, stage: Stage, point: int) -> None:
        self.inner = stage.store.store
        self.point, self.commits = point, 0
        self.receipts: list[Any] = []
        stage.store.store = self

    async def append(self, commit: Commit, /) -> Any:
        self.commits += 1
        receipt = await self.inner.append(commit)
        if self.commits == self.point:
            again = await self.inner.append(commit)
            self.receipts += [receipt, again]
            return again
        return receipt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("point", range(1, 7))
async def test_l76_a_commit_made_again_is_found_by_its_id_and_written_once(stage: Stage, point: int) -> None:
    deaf = Deaf(stage, point)
    script = [calls(call("act", n=1)), calls(call("act", n=2)), say("done")]
    result = await stage.play(script, stage.act())
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1", "act 2"])
    assert deaf.receipts[0] == deaf.receipts[1]
    ids = [e.commit_id for e in result.entries]
    assert len(set(ids)) == 7  # the opening and six commits


@pytest.mark.parametrize("point", range(1, 6))
async def test_l76_a_run_that_never_hears_of_its_commit_is_carried_on_from_it(
    stage: Stage, point: int
) -> None:
    look = stage.look()
    script = [calls(call("look", n=1)), calls(call("look", n=2)), say("done")]
    stage.store.after = crash_at(point)  # durable, and nobody heard
    with pytest.raises(Crash):
        await stage.run(stage.agent(script, look), task="task-1")
    stage.store.after = None
    taken = sum(type(b).__name__ == "Replied" for b in await stage.bodies("task-1"))
    result = await stage.resume(stage.agent(script[taken:], look), "task-1", take_over=True)
    assert result.reason is StopReason.COMPLETED
    assert said(result) == [("ok", ""), ("ok", "")]


async def test_l76_the_same_commit_id_elsewhere_is_not_taken_for_it(stage: Stage) -> None:
    result = await stage.play([say("done")])
    last = result.entries[-1]
    other = Commit(
        "local", result.task, last.epoch, 1, (TaskState.RUNNING,), TaskState.RUNNING,
        (ModelAsked(1, 1, 10),), last.commit_id, last.by, 1, 0.0, Totals(),
    )  # fmt: skip
    with pytest.raises(Fenced):
        await stage.store.append(other)


async def test_l77_a_failed_commit_fails_every_member_of_its_group_and_none_is_fenced(
    tmp_path: Path,
) -> None:
    with disk(tmp_path) as faulty:
        stage = Stage(SqliteStore(tmp_path / "tasks.db", vfs=faulty.name), tmp_path)
        begun, go = asyncio.Event(), asyncio.Event()
        count = 0

        async def waits(context: CallContext, n: int) -> str:
            nonlocal count
            count += 1
            if count == 8:
                begun.set()
            await held(go)
            return "seen"

        look = stage.look(then=waits)
        agents = [stage.agent([calls(call("look", n=i)), say("done")], look) for i in range(8)]
        runs = [asyncio.create_task(stage.run(a, task=f"task-{i}")) for i, a in enumerate(agents)]
        await held(begun)
        before = [await stage.bodies(f"task-{i}") for i in range(8)]
        faulty.sync_fails = True
        go.set()
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        assert [type(o) for o in outcomes] == [StoreFailed] * 8
        faulty.sync_fails = False
        assert [await stage.bodies(f"task-{i}") for i in range(8)] == before
        for i, agent in enumerate(agents):
            result = await stage.resume(agent, f"task-{i}", take_over=True)
            assert result.reason is StopReason.COMPLETED
            ended = [b for b in (e.body for e in result.entries) if isinstance(b, CallEnded)]
            assert [b.status for b in ended] == [CallStatus.OK]
        await stage.verify()
        await stage.store.close()
