"""Cases O-93 to O-99: values that are hostile or extreme.

A test is named by the number of its case. `not_applicable.md` lists the cases, or parts of one, that nothing in this
release can meet, with the rule that says so.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost import (
    CallContext,
    DefinitionInvalid,
    FunctionModel,
    Limits,
    ModelProfile,
    ModelRequest,
    Recovery,
    Reply,
    Result,
    StopReason,
    TaskState,
    ToolMessage,
    tool,
)
from fencepost.cli.answers import question_lines, questions
from fencepost.cli.documents import entry_document
from fencepost.cli.page import Line, Page
from fencepost.cli.text import document, is_hidden
from fencepost.cli.timeline import Timeline
from fencepost.core.entries import CallEnded, ContextElided
from fencepost.core.messages import size_of
from fencepost.models.scripted import answer, call, calls, say
from fencepost.tools.declared import DeclaredTool
from tests.conformance.stage import Says, Stage, raw, reply, results, said

MARK = re.compile(r"\[\.\.\. cut to (\d+) of (\d+) bytes; the whole has digest ([0-9a-f]{64}) \.\.\.\]")


def told(result: Result) -> list[str]:
    """What the model was told of each call, in order."""
    return [m.content for m in result.messages if isinstance(m, ToolMessage)]


def kept(result: Result) -> list[CallEnded]:
    """The results as they were stored."""
    return results([entry.body for entry in result.entries])


def printed(lines: list[Line]) -> str:
    """What a terminal is sent for these lines."""
    stream = io.StringIO()
    Page(stream, width=None, color=False).put(lines)
    return stream.getvalue()


def on_screen(result: Result) -> str:
    """The whole task as `show --full` prints it."""
    timeline = Timeline(full=True)
    return printed([line for entry in result.entries for line in timeline.told(entry.body)])


def documents(result: Result) -> str:
    """The task's entries as `show --json` prints them."""
    return document([entry_document(entry) for entry in result.entries])


def json_forms(stage: Stage, result: Result) -> list[str]:
    """Events, entries, messages and the command's document of a task, as the text of their UTF-8 bytes."""
    forms: list[Any] = [*stage.events, *(entry.body for entry in result.entries), *result.messages]
    texts = [msgspec.json.encode(form).decode() for form in forms]
    return [*texts, documents(result)]


def everywhere(stage: Stage, result: Result) -> list[str]:
    """Each form in which a task leaves its run; every one can be written as UTF-8."""
    return [text.encode().decode() for text in (*json_forms(stage, result), on_screen(result))]


def no_constant(name: str) -> None:
    raise AssertionError(f"a bare {name} is not JSON")


def returns(stage: Stage, value: Any) -> Any:
    """A read that returns this value."""
    return stage.look(then=lambda *_: value)


async def returned(stage: Stage, value: Any, **agent: Any) -> Result:
    """A task whose one call returned this value, and that went on to its end."""
    result = await stage.play([calls(call("look")), say("done")], returns(stage, value), **agent)
    assert (result.state, result.text, said(result)) == (TaskState.SUCCEEDED, "done", [("ok", "")])
    return result


def takes(stage: Stage, got: list[Any], kind: Any) -> Any:
    """A write that keeps the one argument it was given."""

    async def body(context: CallContext, x: Any) -> str:
        stage.note("take", context)
        got.append(x)
        return "taken"

    body.__annotations__["x"] = kind
    body.__annotations__["context"] = CallContext
    return tool(name="take", description="takes")(body)


# --- O-93: NUL


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\0b", "a\ufffdb"), ({"a\0b": ["a\0b"]}, '{"a\ufffdb":["a\ufffdb"]}')],
    ids=["text", "members"],
)
async def test_o93_a_nul_in_a_result_is_stored_told_and_shown_as_one_other_character(
    stage: Stage, value: Any, text: str
) -> None:
    result = await returned(stage, value)
    assert told(result) == [kept(result)[0].content] == [text]
    assert "a\ufffdb" in on_screen(result)
    assert not any("\0" in form or "\\u0000" in form for form in everywhere(stage, result))


async def test_o93_a_nul_in_the_task_is_refused_before_anything_is_stored(stage: Stage) -> None:
    agent = stage.agent([], stage.act())
    with pytest.raises(DefinitionInvalid, match="the prompt holds NUL"):
        await stage.run(agent, "a\0b")
    assert await stage.store.tasks("local", limit=10) == ()


async def test_o93_a_nul_in_arguments_is_refused_and_nothing_runs(stage: Stage) -> None:
    got: list[Any] = []
    script = [reply(raw("take", r'{"x":"a\u0000b"}')), say("done")]
    result = await stage.play(script, takes(stage, got, str))
    assert (got, said(result)) == ([], [("failed", "invalid_arguments")])
    assert r"NUL (\u0000) in the string at $.x" in told(result)[0]


async def test_o93_a_nul_in_the_final_answer_comes_after_an_effect_and_loses_nothing_else(
    stage: Stage,
) -> None:
    result = await stage.play([calls(call("act")), say("a\0b")], stage.act())
    assert (result.reason, result.text) == (StopReason.COMPLETED, "a\ufffdb")
    assert stage.ran() == ["act 0"]


async def test_o93_a_nul_that_was_replaced_can_be_cited_as_it_was_told(stage: Stage) -> None:
    claim = {"text": "it was said", "evidence_id": "ev-1.0", "quote": "a\ufffdb"}
    script = [calls(call("look")), answer("It was said.", claim)]
    result = await stage.play(script, returns(stage, "a\0b"), answer="cited")
    assert result.reason is StopReason.COMPLETED


# --- O-94: half a surrogate pair


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud83d", "\ufffd"),
        ("caf\udce9", "caf\ufffd"),
        ([Path("caf\udce9")], '["caf\ufffd"]'),
        ({"\ud83d": "caf\udce9"}, '{"\ufffd":"caf\ufffd"}'),
    ],
    ids=["alone", "file name", "path", "members"],
)
async def test_o94_half_a_pair_is_one_other_character_in_every_form(
    stage: Stage, value: Any, text: str
) -> None:
    result = await returned(stage, value)
    (ended,) = kept(result)
    assert told(result) == [ended.content] == [text]
    assert text.strip('[]{}":') in on_screen(result)
    assert not any("\\ud83d" in form or "\\udce9" in form for form in everywhere(stage, result))


async def test_o94_the_digest_is_that_of_the_text_that_is_stored(stage: Stage) -> None:
    half, whole = await returned(stage, "caf\udce9"), await returned(stage, "caf\ufffd")
    assert kept(half)[0].digest == kept(whole)[0].digest


async def test_o94_an_error_that_names_such_a_file_is_told(stage: Stage) -> None:
    def missing(context: CallContext, n: int) -> None:
        raise FileNotFoundError("caf\udce9")

    result = await stage.play([calls(call("look")), say("done")], stage.look(then=missing))
    assert (result.text, said(result)) == ("done", [("failed", "tool_error")])
    assert "caf" in told(result)[0]
    assert everywhere(stage, result)


# --- O-95: numbers that JSON does not have


async def test_o95_a_result_that_is_no_number_is_a_text_everywhere(stage: Stage) -> None:
    value = {"x": float("nan"), "y": float("inf"), "z": float("-inf")}
    result = await returned(stage, value)
    assert told(result) == ['{"x":"NaN","y":"Infinity","z":"-Infinity"}']
    for text in json_forms(stage, result):
        json.loads(text, parse_constant=no_constant)
    assert all(name in on_screen(result) for name in ('"NaN"', '"Infinity"', '"-Infinity"'))


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"x":NaN}', "NaN"), ('{"x":1e400}', "1e400"), ('{"x":-Infinity}', "-Infinity")],
)
async def test_o95_such_arguments_are_refused_and_go_back_as_none(stage: Stage, text: str, says: str) -> None:
    got: list[Any] = []
    result = await stage.play([reply(raw("take", text)), say("done")], takes(stage, got, float))
    assert (got, result.text, said(result)) == ([], "done", [("failed", "invalid_arguments")])
    assert says in told(result)[0]
    (sent,) = [c.arguments for m in result.messages for c in getattr(m, "calls", ())]
    assert sent == "{}"


# --- O-96: integers that a double cannot hold


async def test_o96_a_tool_is_given_exactly_the_integer_that_was_sent(stage: Stage) -> None:
    got: list[Any] = []
    text = '{"x":2512292042121000001}'
    result = await stage.play([reply(raw("take", text)), say("done")], takes(stage, got, int))
    assert got == [2512292042121000001]
    (sent,) = [c.arguments for m in result.messages for c in getattr(m, "calls", ())]
    assert sent == text
    assert "2512292042121000001" in on_screen(result)
    assert "2512292042121000001" in documents(result)


@pytest.mark.parametrize("number", [9007199254740993, 2**64 + 1, -(10**99)])
async def test_o96_a_result_keeps_every_digit_in_each_form(stage: Stage, number: int) -> None:
    result = await returned(stage, {"id": number})
    assert told(result) == [f'{{"id":{number}}}']
    again = await stage.store.entries("local", result.task)
    assert [ended.content for ended in results([e.body for e in again])] == told(result)
    assert str(number) in on_screen(result)
    assert str(number) in documents(result)


# --- O-97: what is nested too deep

DEEP = '{"x":' * 4000 + "0" + "}" * 4000


async def test_o97_arguments_too_deep_cost_their_call_alone(stage: Stage) -> None:
    got: list[Any] = []
    script = [reply(raw("take", DEEP, "c1"), raw("look", "{}", "c2")), say("done")]
    result = await stage.play(script, takes(stage, got, Any), stage.look())
    assert (got, result.text) == ([], "done")
    assert said(result) == [("failed", "invalid_arguments"), ("ok", "")]
    assert "deep" in told(result)[0]
    assert len(told(result)[0].encode()) < 4096


async def test_o97_an_answer_too_deep_is_no_answer(stage: Stage) -> None:
    script = [reply(raw("answer", DEEP))]
    result = await stage.play(script, stage.look(), answer="cited", recovery=Recovery.strict())
    assert (result.reason, result.answer) == (StopReason.INVALID_EVIDENCE, None)


async def test_o97_a_result_too_deep_is_kept_as_far_as_it_goes(stage: Stage) -> None:
    value: Any = 0
    for _ in range(4000):
        value = {"x": value}
    (text,) = told(await returned(stage, value))
    assert text.count("{") == 64
    assert "<nested more than 64 deep>" in text


async def test_o97_a_tool_with_a_schema_too_deep_is_refused_before_any_task(stage: Stage) -> None:
    node = '{"type":"object","properties":{"x":'

    async def run(arguments: dict[str, Any], context: CallContext) -> str:
        return "never"

    with pytest.raises(DefinitionInvalid, match=r"its schema is refused: .*deep"):
        DeclaredTool("deep", run, schema=node * 1000 + "{}" + "}}" * 1000, description="deep")
    nested: dict[str, Any] = {"type": "object"}
    for _ in range(1000):
        nested = {"type": "object", "properties": {"x": nested}}
    with pytest.raises(DefinitionInvalid, match=r"deep|is not JSON"):
        DeclaredTool("deep", run, schema=nested, description="deep")


# --- O-98: results that are too long

LONG = "<begin>" + "0123456789" * 199_998 + "<the end>" + "!" * 4


async def test_o98_the_model_is_told_the_two_ends_and_how_much_is_missing(stage: Stage) -> None:
    assert len(LONG) == 2_000_000
    result = await returned(stage, LONG)
    (text,) = told(result)
    assert len(text.encode()) <= Limits(steps=1).result_bytes
    assert text.startswith("<begin>0123456789")
    assert text.endswith("<the end>!!!!")
    mark = MARK.search(text)
    assert mark is not None
    assert (int(mark[1]), int(mark[2])) == (Limits(steps=1).result_bytes, len(LONG))
    assert await stage.store.artifact("local", mark[3], task=result.task) == LONG.encode()
    assert sum(len(msgspec.json.encode(e.body)) for e in result.entries) < 100_000


async def test_o98_the_model_reads_what_was_left_out_by_its_digest(stage: Stage) -> None:
    def reads(request: ModelRequest) -> Reply:
        last = request.messages[-1]
        if request.step == 1:
            return calls(call("look"))
        mark = MARK.search(last.content) if isinstance(last, ToolMessage) else None
        if request.step == 2 and mark is not None:
            return calls(call("read_artifact", digest=mark[3], offset=1_000_007, limit=20))
        return say("done")

    agent = stage.agent([], returns(stage, LONG), model=FunctionModel(reads))
    result = await stage.run(dataclasses.replace(agent, artifacts=True))
    assert told(result)[1] == (
        "[bytes 1000007 to 1000027 of 2000000; go on at offset 1000027]\n01234567890123456789"
    )


async def test_o98_sixty_results_fit_the_window_of_the_model(stage: Stage) -> None:
    sizes: list[int] = []
    profile = ModelProfile(
        "narrow", input_nano=0, output_nano=0, max_output_tokens=1000, context_tokens=100_000
    )

    def looks(request: ModelRequest) -> Reply:
        sizes.append(sum(map(size_of, request.messages)))
        return say("done") if request.step > 60 else calls(call("look", n=request.step), usage=None)

    look = stage.look(then=lambda context, n: f"{n} " + "x" * 30_000)
    limits = Limits(steps=61, tool_calls=60, tokens=100_000_000)
    result = await stage.play([], look, model=FunctionModel(looks, profile=profile), limits=limits)
    assert (result.reason, len(sizes)) == (StopReason.COMPLETED, 61)
    assert max(sizes) <= (100_000 - 1000) * profile.bytes_per_token < 60 * 30_000
    elided = [e.body for e in result.entries if isinstance(e.body, ContextElided)]
    assert elided, "what was left out is in the journal"
    assert all(len(ended.content) > 30_000 for ended in kept(result)), "and the results are whole there"


# --- O-99: what a terminal would obey

ESCAPES = "Apache\x1b[2J\x1b]0;PWNED\x07 \u202egpj.exe"
SEEN = r"Apache\u001b[2J\u001b]0;PWNED\u0007 \u202egpj.exe"


def harmless(text: str) -> bool:
    return not any(is_hidden(char) for char in text if char != "\n")


async def test_o99_a_screen_shows_escapes_and_the_store_keeps_them(stage: Stage) -> None:
    result = await returned(stage, ESCAPES)
    assert told(result) == [kept(result)[0].content] == [ESCAPES]
    for text in (on_screen(result), documents(result)):
        assert harmless(text)
        assert SEEN in text


async def test_o99_the_preview_of_a_call_hides_and_reorders_nothing(stage: Stage) -> None:
    got: list[Any] = []
    value = "<script>alert(1)</script>\x1b[1A\u202e\u200b safe"
    script = [calls(call("take", x=value)), say("done")]
    agent = stage.agent(script, takes(stage, got, str), boundary=Says(take="ask"))
    waiting = await stage.run(agent, task="t")
    (question,) = questions(waiting.entries)
    preview = printed(question_lines(question))
    assert harmless(preview)
    (row,) = [line for line in preview.splitlines() if "arguments" in line]
    assert json.loads(row.split(maxsplit=1)[1]) == {"x": value}
    assert r"<script>alert(1)</script>\u001b[1A\u202e\u200b safe" in row
    await stage.decide("t", "1.0")
    result = await stage.resume(agent, "t")
    assert (result.text, got) == ("done", [value]), "what was approved is what ran"
