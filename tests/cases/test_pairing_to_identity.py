"""Cases O-01 to O-19: calls and results in pairs, incomplete output, arguments, and who a call is.

A test is named by the number of its case. `not_applicable.md` lists the cases, or parts of one, that nothing in this
release can meet, with the rule that says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from fencepost import (
    AssistantMessage,
    CallContext,
    FunctionModel,
    Limits,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    Recovery,
    Reply,
    Result,
    StopReason,
    TaskState,
    Tool,
    ToolCall,
    ToolMessage,
    Usage,
    tool,
)
from fencepost.core.assemble import Assembler
from fencepost.core.entries import AttemptFailed, ContextElided, Replied, Stopped, encode_body
from fencepost.core.recovery import Reaction
from fencepost.core.state import fold
from fencepost.models.scripted import answer, call, calls, say
from fencepost.ports import Delta, Sink
from tests.conformance.stage import Says, Stage, forever, held, raw, reply, said

TELL = Recovery(
    duplicate_call_id=Reaction.TELL_MODEL, truncated=Reaction.TELL_MODEL, invalid_reply=Reaction.TELL_MODEL
)
FRAGMENT = '{"path":"/tmp/a'


class Tools:
    """The tools of the cases; each writes down that its body began."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.waiting = asyncio.Event()

    @property
    def echo(self) -> Tool:
        @tool(name="echo", effect="read")
        async def body(context: CallContext, text: str) -> str:
            """Say it again."""
            self.stage.note("echo", context)
            return text

        return body

    @property
    def add(self) -> Tool:
        @tool(name="add", effect="read")
        async def body(context: CallContext, a: int, b: int, dry_run: bool = False) -> int:
            """Add two numbers."""
            self.stage.note("add", context, a + b)
            return a + b

        return body

    @property
    def send_mail(self) -> Tool:
        @tool(name="send_mail")
        async def body(context: CallContext, to: str, body: str) -> str:
            """Send a mail."""
            self.stage.note("send_mail", context)
            return "sent"

        return body

    @property
    def noargs(self) -> Tool:
        @tool(name="noargs", effect="read")
        async def body(context: CallContext) -> str:
            """Take nothing."""
            self.stage.note("noargs", context)
            return "ok"

        return body

    @property
    def slow(self) -> Tool:
        @tool(name="slow", effect="read")
        async def body(context: CallContext) -> str:
            """Never end."""
            self.stage.note("slow", context)
            self.waiting.set()
            await asyncio.Event().wait()
            return "never"

        return body


@pytest.fixture
def tools(stage: Stage) -> Tools:
    return Tools(stage)


def told(result: Result) -> list[str]:
    """What the model was told of each call, in order."""
    return [m.content for m in result.messages if isinstance(m, ToolMessage)]


def paired(result: Result) -> bool:
    """Whether each call of the transcript is followed by its results, in the order of the calls."""
    open_: list[str] = []
    for message in result.messages:
        if isinstance(message, AssistantMessage):
            if open_:
                return False
            open_ = [c.id for c in message.calls]
        elif isinstance(message, ToolMessage) and (not open_ or message.call_id != open_.pop(0)):
            return False
    return not open_


def sent_ids(result: Result) -> list[str]:
    return [c.id for m in result.messages if isinstance(m, AssistantMessage) for c in m.calls]


def journal(result: Result) -> str:
    """All that was stored of a task."""
    return "\n".join(encode_body(entry.body).decode() for entry in result.entries)


class Cut:
    """A model whose first stream brings some deltas and then does not end: it waits, or it breaks off."""

    profile = ModelProfile("cut", input_nano=0, output_nano=0)

    def __init__(self, ends: Callable[[], Any], *then: Reply) -> None:
        self._ends, self._then = ends, list(then)
        self.shown = asyncio.Event()
        self.asked = 0

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        self.asked += 1
        if self.asked > 1 and self._then:
            return self._then.pop(0)
        stream = Assembler()
        stream.text("The answer is")
        stream.call(0, id="c1", name="echo")
        stream.arguments(0, FRAGMENT)
        if sink is not None:
            sink(Delta("text", "The answer is"))
            sink(Delta("arguments", FRAGMENT, 0))
        self.shown.set()
        return await self._ends()  # type: ignore[no-any-return]


# --- K01: calls and their results


async def cancelled_in_the_last(stage: Stage, tools: Tools, *first: ToolCall) -> Result:
    """A task that is cancelled while the last call of its one reply runs."""
    agent = stage.agent([calls(*first, call("slow"))], tools.echo, tools.slow)
    running = asyncio.create_task(stage.run(agent, task="t"))
    await held(tools.waiting)
    await stage.cancel("t")
    return await running


async def test_o01_a_cancel_in_a_call_leaves_two_results_for_two_calls(stage: Stage, tools: Tools) -> None:
    result = await cancelled_in_the_last(stage, tools, call("echo", text="x"))
    assert result.state is TaskState.CANCELLED
    assert told(result) == ["x", "cancelled"]
    assert [m.failed for m in result.messages if isinstance(m, ToolMessage)] == [False, True]
    assert paired(result)


async def test_o02_what_had_ended_before_a_cancel_is_told_as_it_ended(stage: Stage, tools: Tools) -> None:
    text = "na\u00efve \u2603 text \U0001f30d"
    result = await cancelled_in_the_last(stage, tools, call("echo", text=text), call("echo", text="y"))
    assert told(result) == [text, "y", "cancelled"]
    assert said(result) == [("ok", ""), ("ok", ""), ("cancelled", "CANCELLED")]


async def test_o03_a_fragment_of_a_reply_that_was_cancelled_is_stored_nowhere(
    stage: Stage, tools: Tools
) -> None:
    model = Cut(forever)
    running = asyncio.create_task(stage.run(stage.agent([], tools.echo, model=model), task="t"))
    await held(model.shown)
    await stage.cancel("t")
    result = await running
    assert len(result.messages) == 1
    assert FRAGMENT not in journal(result).replace("\\", "")
    assert any(event.delta is not None and event.delta.text == FRAGMENT for event in stage.events)


async def test_o03_a_task_given_back_in_a_stream_is_resumed_without_the_fragment(
    stage: Stage, tools: Tools
) -> None:
    model = Cut(forever, calls(call("echo", text="whole")), say("done"))
    agent = stage.agent([], tools.echo, model=model)
    running = asyncio.create_task(stage.run(agent, task="t"))
    await held(model.shown)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await stage.resume(agent, "t")
    assert (result.text, told(result)) == ("done", ["whole"])
    assert FRAGMENT not in journal(result).replace("\\", "")


async def test_o04_making_a_transcript_shorter_never_parts_a_call_from_its_result(stage: Stage) -> None:
    requests: list[ModelRequest] = []

    def says(request: ModelRequest) -> Reply:
        requests.append(request)
        return say("done") if request.step > 6 else calls(call("look", n=request.step), usage=None)

    profile = ModelProfile("narrow", input_nano=0, output_nano=0, max_output_tokens=100, context_tokens=4000)
    look = stage.look(then=lambda *_: "x" * 3000)
    result = await stage.play([], look, model=FunctionModel(says, profile=profile))
    assert any(isinstance(e.body, ContextElided) for e in result.entries)
    for request in requests:
        asked = [c.id for m in request.messages if isinstance(m, AssistantMessage) for c in m.calls]
        assert asked == [m.call_id for m in request.messages if isinstance(m, ToolMessage)]
    assert paired(result)


async def test_o05_the_arguments_of_an_approved_call_are_told_once(stage: Stage, tools: Tools) -> None:
    arguments = {"to": "a@x.io", "body": "hi"}
    script = [calls(call("send_mail", id="m", **arguments)), say("done")]
    agent = stage.agent(script, tools.send_mail, boundary=Says(send_mail="ask"))
    await stage.run(agent, task="t")
    await stage.decide("t", "1.0")
    result = await stage.resume(agent, "t")
    assert result.text == "done"
    pieces = [e.delta.text for e in stage.events if e.delta is not None and e.delta.kind == "arguments"]
    assert json.loads("".join(pieces)) == arguments


async def test_o05_an_answer_that_is_refused_takes_no_effect_out_of_the_history(stage: Stage) -> None:
    wrong = answer("It was done.", {"text": "so", "evidence_id": "ev-9.0", "quote": "no such result at all"})
    agent = stage.agent([calls(call("act")), wrong], stage.act(), answer="cited", recovery=Recovery.strict())
    result = await stage.run(agent, task="t")
    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.INVALID_EVIDENCE)
    assert told(result) == ["act 0"]
    again = await stage.resume(agent, "t")
    assert (again.reason, stage.ran()) == (StopReason.INVALID_EVIDENCE, ["act 0"])


# --- K02: incomplete output


@pytest.mark.parametrize("recovery", [Recovery.default(), TELL], ids=["stop", "tell"])
async def test_o06_a_valid_call_in_a_reply_cut_by_length_does_not_run(
    stage: Stage, tools: Tools, recovery: Recovery
) -> None:
    cut = reply(call("echo", text="# Title\n"), finish="length")
    limits = Limits(steps=1)
    result = await stage.play([cut], tools.echo, recovery=recovery, limits=limits)
    assert stage.ran() == []
    assert result.state is TaskState.FAILED
    assert said(result) == [("not_executed", "truncated" if recovery is TELL else "TRUNCATED_REPLY")]


async def test_o07_a_cut_reply_is_one_batch_of_which_nothing_runs(stage: Stage, tools: Tools) -> None:
    cut = reply(call("act"), raw("echo", '{"text":"hel', "c2"), finish="length")
    result = await stage.play([cut], stage.act(), tools.echo)
    assert (stage.ran(), result.reason) == ([], StopReason.TRUNCATED_REPLY)
    assert told(result) == ["not executed: truncated"] * 2


async def test_o08_arguments_that_break_off_never_go_back_as_they_came(stage: Stage, tools: Tools) -> None:
    relabeled = reply(raw("echo", '{"text":"hel', "c1"), usage=Usage(input_tokens=10, output_tokens=300))
    result = await stage.play([relabeled, say("done")], tools.echo)
    assert stage.ran() == []
    for message in result.messages:
        if isinstance(message, AssistantMessage):
            assert [json.loads(c.arguments) for c in message.calls] in ([{}], [])
    assert said(result) == [("failed", "invalid_arguments")]


async def ends_early() -> Any:
    raise ModelFailed("the stream ended without its terminal signal", kind="incomplete", retriable=True)


async def breaks() -> Any:
    raise ModelFailed("connection reset", kind="transport", retriable=True)


async def test_o09_a_stream_without_its_end_is_no_answer_and_runs_nothing(stage: Stage, tools: Tools) -> None:
    model = Cut(ends_early)
    result = await stage.play([], tools.echo, model=model, limits=Limits(steps=2, attempts_per_step=1))
    assert (result.reason, result.text, stage.ran()) == (StopReason.LLM_ERROR, "", [])
    assert "The answer is" not in journal(result)
    (failed,) = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert failed.retry_in is not None, "it is of the kind that is tried again"
    assert failed.charged_tokens > 0, "unknown usage is charged as reserved"


@pytest.mark.parametrize(("ends", "kind"), [(ends_early, "incomplete"), (breaks, "transport")])
async def test_o10_an_early_end_and_a_broken_transport_are_told_apart(
    stage: Stage, tools: Tools, ends: Callable[[], Any], kind: str
) -> None:
    limits = Limits(steps=2, attempts_per_step=1)
    result = await stage.play([], tools.echo, model=Cut(ends), limits=limits)
    assert [e.body.kind for e in result.entries if isinstance(e.body, AttemptFailed)] == [kind]
    end = result.entries[-1].body
    assert isinstance(end, Stopped)
    assert kind in end.detail
    assert any(isinstance(e.entry, AttemptFailed) and e.entry.kind == kind for e in stage.events)


# --- K03: arguments


@pytest.mark.parametrize("broken", ['{"to":"a@b.c",}', '{"to":' + '"x' * 500_000], ids=["comma", "mebibyte"])
async def test_o11_broken_arguments_cost_their_call_alone(stage: Stage, tools: Tools, broken: str) -> None:
    script = [reply(call("echo", text="ok"), raw("send_mail", broken, "c2")), say("done")]
    result = await stage.play(script, tools.echo, tools.send_mail, boundary=Says(send_mail="ask"))
    assert stage.ran() == ["echo 0"]
    assert result.text == "done", "nobody was asked"
    good, bad = told(result)
    assert good == "ok"
    assert "send_mail" in bad
    assert len(bad.encode()) < 4096


async def test_o11_the_error_names_place_and_shape(stage: Stage, tools: Tools) -> None:
    script = [reply(raw("send_mail", '{"to":"a@b.c",}', "c2")), say("done")]
    (bad,) = told(await stage.play(script, tools.send_mail))
    assert bad.startswith("send_mail: not valid JSON: ")
    assert "at line 1, column 15. Nothing was run." in bad
    assert bad.endswith('one JSON object: {"to": string, "body": string}')


NO_OBJECTS = ["[1,2]", '"abc"', "123", "null", "true", "NaN", '{"a":1} trailing', '{"a":1}{"a":2}']


@pytest.mark.parametrize("text", NO_OBJECTS)
async def test_o12_what_is_not_one_object_is_an_invalid_argument(
    stage: Stage, tools: Tools, text: str
) -> None:
    script = [reply(raw("echo", text)), say("done")]
    result = await stage.play(script, tools.echo)
    assert (stage.ran(), result.text) == ([], "done")
    assert said(result) == [("failed", "invalid_arguments")]


async def test_o13_no_text_at_all_is_an_object_without_members(stage: Stage, tools: Tools) -> None:
    script = [reply(raw("noargs", "", "c1")), reply(raw("echo", "", "c2")), say("done")]
    result = await stage.play(script, tools.noargs, tools.echo)
    assert stage.ran() == ["noargs 0"]
    sent = [c.arguments for m in result.messages if isinstance(m, AssistantMessage) for c in m.calls]
    assert sent == ["{}", "{}"]
    assert "text" in told(result)[1]
    assert said(result)[1] == ("failed", "invalid_arguments")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":"2","b":"3"}', "integer"),
        ('{"a":2,"b":3,"dry_run":"false"}', "boolean"),
        ('{"a":"[2]","b":3}', "integer"),
    ],
)
async def test_o15_json_in_a_string_is_a_string(stage: Stage, tools: Tools, text: str, says: str) -> None:
    result = await stage.play([reply(raw("add", text)), say("done")], tools.add)
    assert stage.ran() == []
    assert says in told(result)[0]
    assert "$.dry_run" in told(result)[0] if "dry_run" in text else "$.a" in told(result)[0]


# --- K04: who a call is


@pytest.mark.parametrize("recovery", [Recovery.default(), TELL], ids=["stop", "tell"])
async def test_o16_two_calls_with_one_id_run_neither_and_go_back_as_two(
    stage: Stage, tools: Tools, recovery: Recovery
) -> None:
    twins = calls(call("echo", id="call_1", text="first"), call("echo", id="call_1", text="second"))
    result = await stage.play([twins], tools.echo, recovery=recovery, limits=Limits(steps=1))
    assert stage.ran() == []
    assert ["duplicate_call_id" in text for text in told(result)] == [True, True]
    assert len(set(sent_ids(result))) == 2
    assert paired(result)


@pytest.mark.parametrize("missing", ["", None])
async def test_o17_calls_without_ids_run_neither_and_go_back_with_ids(
    stage: Stage, tools: Tools, missing: Any
) -> None:
    asked = reply(raw("echo", '{"text":"a"}', ""), raw("echo", '{"text":"b"}', missing))
    result = await stage.play([asked], tools.echo, recovery=TELL, limits=Limits(steps=1))
    assert stage.ran() == []
    assert len(set(sent_ids(result))) == 2
    assert all(sent_ids(result))
    assert paired(result)


async def test_o18_minted_ids_do_not_begin_again_and_are_the_same_in_a_replay(
    stage: Stage, tools: Tools
) -> None:
    turns = [reply(raw("echo", f'{{"text":"{text}"}}', "")) for text in "ab"]
    first = await stage.play([*turns, say("done")], tools.echo, recovery=TELL)
    again = await stage.play([*turns, say("done")], tools.echo, recovery=TELL)
    assert len(set(sent_ids(first))) == 2
    assert len(told(first)) == 2
    assert sent_ids(first) == sent_ids(again)
    folded = fold(entry.body for entry in first.entries)
    assert [m for m in folded.messages if isinstance(m, ToolMessage)] == [
        m for m in first.messages if isinstance(m, ToolMessage)
    ]


def test_o19_fragments_belong_to_the_call_of_their_index_and_never_to_another() -> None:
    stream = Assembler()
    for index, id_, piece in (
        (0, "A", '{"a":1,'),
        (1, "B", '{"a":3,'),
        (0, "A", '"b":2}'),
        (1, "B", '"b":4}'),
    ):
        stream.call(index, id=id_, name="add")
        stream.arguments(index, piece)
    whole = stream.finish(reply().finish)
    assert [(c.id, json.loads(c.arguments)) for c in whole.calls] == [
        ("A", {"a": 1, "b": 2}),
        ("B", {"a": 3, "b": 4}),
    ]
    other = Assembler()
    other.call(0, id="A", name="add")
    with pytest.raises(ModelFailed) as caught:
        other.call(0, id="B", name="add")
    assert caught.value.kind == "protocol"


async def test_o19_an_id_of_another_provider_is_kept_as_it_came(stage: Stage, tools: Tools) -> None:
    result = await stage.play([calls(call("echo", id="functions.echo:0", text="x")), say("done")], tools.echo)
    (entry,) = [e.body for e in result.entries if isinstance(e.body, Replied) and e.body.calls]
    assert entry.calls[0].id == "functions.echo:0"
    assert sent_ids(result) == [m.call_id for m in result.messages if isinstance(m, ToolMessage)]
