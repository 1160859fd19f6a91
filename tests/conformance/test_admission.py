"""Rows A, L01 to L30: what a reply must be before anything in it runs (contract 3 and 4)."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
import pytest

from fencepost import (
    CallContext,
    DefinitionInvalid,
    Limits,
    ModelProfile,
    Recovery,
    Reply,
    Result,
    StopReason,
    TaskState,
    Tool,
    ToolMessage,
    Usage,
    tool,
)
from fencepost.core.entries import Replied
from fencepost.core.errors import ArgumentsInvalid
from fencepost.core.messages import AssistantMessage
from fencepost.core.recovery import Reaction
from fencepost.models.scripted import answer, call, calls, say
from fencepost.tools.declared import DeclaredTool
from tests.conformance.stage import Crash, Stage, crash_at, raw, reply, said

TELL_DUPLICATE = Recovery(duplicate_call_id=Reaction.TELL_MODEL)


def told(result: Result) -> list[str]:
    """What the model was told of each call, in order."""
    return [m.content for m in result.messages if isinstance(m, ToolMessage)]


async def stops(stage: Stage, reply_: Any, reason: StopReason, *tools: Tool, **agent: Any) -> Result:
    """Play one reply that must end the task before anything of it runs."""
    result = await stage.play([reply_], *(tools or (stage.act(),)), **agent)
    assert result.reason is reason
    assert result.state is TaskState.FAILED
    assert stage.ran() == []
    return result


# --- L01 to L05: ids and names -------------------------------------------------------------------------


def twice(second: int) -> Reply:
    """Two calls with one id; the second pays `second`."""
    return calls(call("act", id="x", n=1), call("act", id="x", n=second))


async def closes_both_and_goes_on(stage: Stage, asked: Reply) -> None:
    script = [asked, calls(call("act", id="y", n=3)), say("done")]
    result = await stage.play(script, stage.act(), recovery=TELL_DUPLICATE)
    assert result.reason is StopReason.COMPLETED
    assert stage.ran() == ["act 3"]
    assert said(result)[:2] == [("not_executed", "duplicate_call_id")] * 2
    assert all("duplicate_call_id" in text for text in told(result)[:2])


async def test_l01_one_id_for_two_different_calls_runs_nothing_and_stops(stage: Stage) -> None:
    result = await stops(stage, twice(2), StopReason.DUPLICATE_CALL_ID)
    assert said(result) == [("not_executed", "DUPLICATE_CALL_ID")] * 2


async def test_l01_told_to_the_model_both_are_closed_and_the_run_goes_on(stage: Stage) -> None:
    await closes_both_and_goes_on(stage, twice(2))


async def test_l02_one_id_for_two_identical_calls_is_not_merged_into_one(stage: Stage) -> None:
    result = await stops(stage, twice(1), StopReason.DUPLICATE_CALL_ID)
    assert said(result) == [("not_executed", "DUPLICATE_CALL_ID")] * 2


async def test_l02_told_to_the_model_identical_calls_are_both_closed(stage: Stage) -> None:
    await closes_both_and_goes_on(stage, twice(1))


async def test_l03_an_id_of_an_earlier_step_stops_before_anything_runs(stage: Stage) -> None:
    script = [calls(call("act", id="x", n=1)), calls(call("act", id="x", n=2))]
    result = await stage.play(script, stage.act())
    assert result.reason is StopReason.DUPLICATE_CALL_ID
    assert stage.ran() == ["act 1"]


async def test_l03_an_id_used_before_a_restart_is_still_used(stage: Stage) -> None:
    act = stage.act()
    script = [calls(call("act", id="x", n=1)), calls(call("act", id="x", n=2))]
    agent = stage.agent(script, act)
    stage.store.after = crash_at(3)  # the result of the first call is durable
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    stage.store.after = None
    again = stage.agent(script[1:], act)
    result = await stage.resume(again, "task-1", take_over=True)
    assert result.reason is StopReason.DUPLICATE_CALL_ID
    assert stage.ran() == ["act 1"]


@pytest.mark.parametrize("bad", ["", None, 7, "i" * 257], ids=["empty", "null", "number", "too-long"])
async def test_l04_an_id_that_is_none_rejects_the_whole_reply(stage: Stage, bad: Any) -> None:
    asked = reply(raw("act", '{"n": 1}', bad), call("act", n=2))
    result = await stops(stage, asked, StopReason.DUPLICATE_CALL_ID)
    assert len(said(result)) == 2
    sent = [c.id for m in result.messages if isinstance(m, AssistantMessage) for c in m.calls]
    assert all(0 < len(each) <= 256 for each in sent)


@pytest.mark.parametrize("name", ["a b", "a\n", "n" * 129, "ä", "a/b"])
async def test_l05_a_name_outside_the_allowed_is_an_unknown_tool(stage: Stage, name: str) -> None:
    script = [reply(raw(name, "{}", "c1"), call("act", n=1)), say("done")]
    result = await stage.play(script, stage.act())
    assert result.reason is StopReason.COMPLETED
    assert stage.ran() == ["act 1"]
    assert said(result) == [("failed", "unknown_tool"), ("ok", "")]


@pytest.mark.parametrize("name", ["", None], ids=["empty", "null"])
async def test_l05_an_empty_name_rejects_the_whole_reply(stage: Stage, name: Any) -> None:
    await stops(stage, reply(raw(name, "{}", "c1"), call("act", n=1)), StopReason.DUPLICATE_CALL_ID)


# --- L06 to L19: tools and arguments -------------------------------------------------------------------


async def test_l06_an_unknown_tool_beside_a_good_one_is_told_the_names_there_are(stage: Stage) -> None:
    others = [stage.look(f"look-{i:02}") for i in range(60)]
    script = [calls(call("nothing", n=1), call("act", n=2)), say("done")]
    result = await stage.play(script, stage.act(), *others)
    assert result.reason is StopReason.COMPLETED
    assert stage.ran() == ["act 2"]
    assert said(result) == [("failed", "unknown_tool"), ("ok", "")]
    assert told(result)[0].count("look-") == 49  # 50 names, `act` among them
    assert "11 more" in told(result)[0]
    assert len(told(result)[0].encode()) < 4096


async def test_l06_strict_stops_with_tool_denied_and_runs_nothing(stage: Stage) -> None:
    await stops(stage, calls(call("nothing")), StopReason.TOOL_DENIED, recovery=Recovery.strict())


@dataclasses.dataclass
class Window:
    start: int
    end: int | None = None


def pay(stage: Stage) -> Tool:
    """A write with one required and several optional arguments."""

    @tool(name="pay")
    async def body(
        context: CallContext,
        amount: int,
        note: str = "",
        window: Window | None = None,
        tags: list[str] | None = None,
    ) -> str:
        stage.note("pay", context, amount)
        return f"paid {amount}"

    return body


def optional(stage: Stage) -> Tool:
    """A write without required arguments."""

    @tool(name="pay")
    async def body(context: CallContext, amount: int = 1, note: str = "") -> str:
        stage.note("pay", context, amount)
        return f"paid {amount}"

    return body


async def refused(
    stage: Stage, arguments: str, *expected: str, pays: Tool | None = None, **model: Any
) -> Result:
    """Play a call with these arguments: it must be refused, told why, and cost one call."""
    result = await stage.play([reply(raw("pay", arguments)), say("done")], pays or pay(stage), **model)
    assert stage.ran() == []
    assert said(result) == [("failed", "invalid_arguments")]
    assert result.reason is StopReason.COMPLETED
    assert result.row.calls == 1
    (text,) = told(result)
    assert len(text.encode()) < 4096
    for words in ("pay", *expected):
        assert words in text, text
    (entry,) = [e.body for e in result.entries if isinstance(e.body, Replied) and e.body.calls]
    refusal = entry.calls[0].refusal
    assert refusal is not None
    assert refusal.raw_bytes == len(arguments.encode("utf-8", "replace"))
    assert len(refusal.raw) <= 1024
    sent = [c.arguments for m in result.messages if isinstance(m, AssistantMessage) for c in m.calls]
    assert sent == ["{}"]
    return result


@pytest.mark.parametrize("text", ['{"amount": 1', "{amount: 1}", "{'amount': 1}", '{"amount": 1}}', "pay"])
async def test_l07_malformed_json_never_runs_a_tool_with_its_defaults(stage: Stage, text: str) -> None:
    await refused(stage, text, pays=optional(stage))


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
async def test_l08_no_text_is_the_empty_object(stage: Stage, text: str) -> None:
    result = await stage.play([reply(raw("pay", text)), say("done")], optional(stage))
    assert stage.ran() == ["pay 1"]
    sent = [c.arguments for m in result.messages if isinstance(m, AssistantMessage) for c in m.calls]
    assert sent == ["{}"]


async def test_l08_no_text_is_refused_where_a_field_is_required(stage: Stage) -> None:
    await refused(stage, "", "amount")


@pytest.mark.parametrize("text", ["[1]", '"x"', "123", "null", "true"])
async def test_l09_what_is_not_an_object_is_refused(stage: Stage, text: str) -> None:
    await refused(stage, text, "object", pays=optional(stage))


@pytest.mark.parametrize(
    "text",
    [
        '{"amount": 1, "amount": 2}',
        '{"amount": 1, "window": {"start": 1, "start": 2}}',
        '{"amount": 1, "amou\\u006et": 2}',
    ],
    ids=["plain", "nested", "escaped"],
)
async def test_l10_a_duplicate_key_is_refused(stage: Stage, text: str) -> None:
    await refused(stage, text, "duplicate key")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
async def test_l11_a_number_that_is_none_is_refused(stage: Stage, number: str) -> None:
    await refused(stage, f'{{"amount": {number}}}')


@pytest.mark.parametrize("depth", [65, 3_000, 20_000])
async def test_l12_deep_nesting_is_refused_at_once(stage: Stage, depth: int) -> None:
    text = '{"tags": ' + "[" * depth + "]" * depth + "}"
    pays = optional(stage)
    began = time.perf_counter()
    with pytest.raises(ArgumentsInvalid):
        pays.prepare(text)
    assert time.perf_counter() - began < 0.5  # ten times the row's 50 ms: linear, not hung
    await refused(stage, text, "64 deep", pays=pays)


async def test_l13_a_number_of_400_digits_is_refused(stage: Stage) -> None:
    await refused(stage, f'{{"amount": {"9" * 400}}}', "digits")


async def test_l14_ten_megabytes_are_refused_before_parsing(stage: Stage) -> None:
    broken_at_the_end = '{"note": "' + "x" * 10_000_000  # a parser would complain of the missing end
    await refused(stage, broken_at_the_end, "bytes", "262144", stream=False)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"amount": 1, "note": "a\\ud800b"}', "$.note"),
        ('{"amount": 1, "note": "a\\u0000b"}', "$.note"),
        ('{"amount": 1, "tags": ["ok", "\\udc00"]}', "$.tags[1]"),
        ('{"amount": 1, "note": "a\ud800b"}', "surrogate"),
    ],
    ids=["surrogate", "nul", "nested", "raw-surrogate"],
)
async def test_l15_text_that_cannot_be_stored_is_refused_with_its_place(
    stage: Stage, text: str, where: str
) -> None:
    await refused(stage, text, where)


@pytest.mark.parametrize("value", ['"1"', "true", "1.5", "[1]", "{}"])
async def test_l16_nothing_is_coerced_to_an_integer(stage: Stage, value: str) -> None:
    await refused(stage, f'{{"amount": {value}}}', "$.amount", "integer")


async def test_l16_an_integral_float_is_the_integer(stage: Stage) -> None:
    result = await stage.play([reply(raw("pay", '{"amount": 1.0}')), say("done")], pay(stage))
    assert stage.ran() == ["pay 1"]
    (entry,) = [e.body for e in result.entries if isinstance(e.body, Replied) and e.body.calls]
    assert entry.calls[0].arguments == '{"amount":1}'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"amount": 1, "extra": 2}', "$.extra"),
        ('{"amount": 1, "__proto__": {}}', "$.__proto__"),
        ('{"amount": 1, "window": {"start": 1, "extra": 2}}', "$.window.extra"),
    ],
)
async def test_l17_an_extra_field_is_refused(stage: Stage, text: str, where: str) -> None:
    await refused(stage, text, where)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{}", "amount"),
        ('{"amount": null}', "$.amount"),
        ('{"amount": 1, "note": null}', "$.note"),
        ('{"amount": 1, "window": {}}', "start"),
    ],
)
async def test_l18_missing_and_null_are_refused_with_the_place(stage: Stage, text: str, where: str) -> None:
    await refused(stage, text, where)


async def test_l18_an_explicit_zero_is_not_missing(stage: Stage) -> None:
    await stage.play([reply(raw("pay", '{"amount": 0}')), say("done")], pay(stage))
    assert stage.ran() == ["pay 0"]


@pytest.mark.parametrize(
    "ref", ["https://127.0.0.1:9/schema.json", "file:///etc/hostname", "other.json", "//127.0.0.1:9/x"]
)
def test_l19_a_schema_that_refers_elsewhere_is_refused_at_registration(ref: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": ref}}, "additionalProperties": False}

    async def body(arguments: dict[str, Any], context: CallContext) -> None: ...

    with pytest.raises(DefinitionInvalid, match="ref"):
        DeclaredTool("remote", body, schema=schema, description="refers elsewhere")


# --- L20 to L30: finishes, shapes and costs ------------------------------------------------------------


async def test_l20_a_truncated_reply_with_a_complete_call_runs_nothing(stage: Stage) -> None:
    await is_truncated(stage, '{"n": 1}')


async def test_l21_a_truncated_reply_with_half_a_call_runs_nothing(stage: Stage) -> None:
    await is_truncated(stage, '{"n": 1')


async def is_truncated(stage: Stage, arguments: str) -> None:
    asked = reply(raw("act", arguments), finish="length")
    result = await stops(stage, asked, StopReason.TRUNCATED_REPLY)
    assert said(result) == [("not_executed", "TRUNCATED_REPLY")]
    assert told(result) == ["not executed: truncated"]


async def test_l20_a_truncated_reply_told_to_the_model_still_runs_nothing(stage: Stage) -> None:
    script = [reply(raw("act", '{"n": 1}'), finish="length"), calls(call("act", id="c2", n=2)), say("done")]
    result = await stage.play(script, stage.act(), recovery=Recovery(truncated=Reaction.TELL_MODEL))
    assert stage.ran() == ["act 2"]
    assert said(result) == [("not_executed", "truncated"), ("ok", "")]


@pytest.mark.parametrize("finish", ["filter", "refusal"])
async def test_l22_a_filtered_or_refused_reply_runs_nothing_and_no_resume_does(
    stage: Stage, finish: str
) -> None:
    agent = stage.agent([reply(raw("act", '{"n": 1}'), finish=finish)], stage.act())
    result = await stage.run(agent)
    assert result.reason is StopReason.REFUSED
    assert said(result) == [("not_executed", "REFUSED")]
    again = await stage.resume(agent, result.task)
    assert (again.reason, stage.ran()) == (StopReason.REFUSED, [])


@pytest.mark.parametrize("finish", ["filter", "refusal"])
async def test_l22_a_crash_right_after_the_reply_does_not_make_its_calls_run(
    stage: Stage, finish: str
) -> None:
    act = stage.act()
    agent = stage.agent([reply(raw("act", '{"n": 1}'), finish=finish)], act)
    stage.store.before = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    stage.store.before = None
    again = stage.agent([reply(raw("act", '{"n": 1}'), finish=finish)], act)
    result = await stage.resume(again, "task-1", take_over=True)
    assert (result.reason, stage.ran()) == (StopReason.REFUSED, [])


@pytest.mark.parametrize("finish", ["unknown", "error"])
async def test_l23_an_unknown_finish_executes_nothing(stage: Stage, finish: str) -> None:
    await stops(stage, reply(call("act", n=1), finish=finish), StopReason.INVALID_DECISION)


@pytest.mark.parametrize("finish", ["unknown", "error"])
async def test_l23_text_with_an_unknown_finish_is_no_answer(stage: Stage, finish: str) -> None:
    result = await stops(stage, reply(text="done", finish=finish), StopReason.INVALID_DECISION)
    assert result.answer is None


async def test_l24_a_plain_stop_with_calls_is_allowed(stage: Stage) -> None:
    result = await stage.play([reply(call("act", n=1), finish="stop"), say("done")], stage.act())
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1"])


@pytest.mark.parametrize("text", ["", " \n\t "], ids=["empty", "white-space"])
async def test_l25_an_empty_reply_is_never_success(stage: Stage, text: str) -> None:
    result = await stops(stage, reply(text=text, finish="stop"), StopReason.INVALID_DECISION)
    assert result.answer is None


async def test_l25_reasoning_alone_is_never_success(stage: Stage) -> None:
    hidden = reply(finish="stop", opaque=(msgspec.Raw(b'{"thinking":"the answer is 42"}'),))
    await stops(stage, hidden, StopReason.INVALID_DECISION)


async def test_l26_a_refusal_in_words_is_refused_when_the_provider_says_so(stage: Stage) -> None:
    result = await stops(stage, reply(text="I cannot do that.", finish="refusal"), StopReason.REFUSED)
    assert result.answer is None


async def test_l27_text_beside_calls_is_kept_and_is_not_the_answer(stage: Stage) -> None:
    script = [calls(call("act", n=1), text="I will look."), say("done")]
    result = await stage.play(script, stage.act())
    assert (result.text, stage.ran()) == ("done", ["act 1"])
    assert "I will look." in [m.text for m in result.messages if isinstance(m, AssistantMessage)]


async def test_l27_strict_takes_either_calls_or_an_answer(stage: Stage) -> None:
    both = calls(call("act", n=1), text="I will look.")
    await stops(stage, both, StopReason.INVALID_DECISION, recovery=Recovery.strict())


async def test_l28_the_answer_is_taken_and_its_sibling_is_closed_unrun(stage: Stage) -> None:
    claim = {"text": "it looks so", "evidence_id": "ev-1.0", "quote": "look 7"}
    taken = answer("It was looked at.", claim)
    script = [calls(call("look", n=7)), reply(call("act", n=1), *taken.calls)]
    result = await stage.play(script, stage.look(), stage.act(), answer="cited")
    assert result.reason is StopReason.COMPLETED
    assert result.text == "It was looked at."
    assert stage.ran() == ["look 7"]
    assert said(result) == [("ok", ""), ("not_executed", "COMPLETED")]


async def test_l28_two_answers_in_one_reply_are_none(stage: Stage) -> None:
    claim = {"text": "it looks so", "evidence_id": "ev-1.0", "quote": "look 7"}
    both = reply(*(answer(f"Answer {i}.", claim).calls[0] for i in range(2)))
    script = [calls(call("look", n=7)), both, answer("It was looked at.", claim)]
    result = await stage.play(script, stage.look(), answer="cited")
    assert (result.reason, result.text) == (StopReason.COMPLETED, "It was looked at.")


async def test_l28_an_answer_whose_id_was_used_before_rejects_the_reply(stage: Stage) -> None:
    claim = {"text": "it looks so", "evidence_id": "ev-1.0", "quote": "look 7"}
    script = [calls(call("look", id="x", n=7)), answer("It was looked at.", claim, id="x")]
    result = await stage.play(script, stage.look(), answer="cited")
    assert (result.reason, result.answer) == (StopReason.DUPLICATE_CALL_ID, None)


async def test_l28_an_answer_in_a_truncated_reply_is_none(stage: Stage) -> None:
    claim = {"text": "it looks so", "evidence_id": "ev-1.0", "quote": "look 7"}
    cut = reply(*answer("It was looked at.", claim).calls, finish="length")
    result = await stage.play([calls(call("look", n=7)), cut], stage.look(), answer="cited")
    assert (result.reason, result.answer) == (StopReason.TRUNCATED_REPLY, None)


async def test_l29_a_thousand_calls_run_not_one(stage: Stage) -> None:
    flood = reply(*(call("act", n=i) for i in range(1000)))
    result = await stops(stage, flood, StopReason.INVALID_DECISION)
    assert said(result) == [("not_executed", "INVALID_DECISION")] * 1000


async def test_l29_as_many_as_the_limit_run_all(stage: Stage) -> None:
    limits = Limits(steps=3, calls_per_reply=3)
    script = [calls(*(call("act", n=i) for i in range(3))), say("done")]
    result = await stage.play(script, stage.act(), limits=limits)
    assert (result.reason, len(stage.ran())) == (StopReason.COMPLETED, 3)


@pytest.mark.parametrize("finish", ["length", "refusal", "unknown"])
async def test_l30_a_rejected_reply_is_charged(stage: Stage, finish: str) -> None:
    profile = ModelProfile("priced", input_nano=3, output_nano=5)
    costly = reply(call("act", n=1), finish=finish, usage=Usage(input_tokens=100, output_tokens=50))
    result = await stage.play([costly], stage.act(), profile=profile)
    assert (result.row.tokens, result.row.cost_nano) == (150, 550)
    assert stage.ran() == []


async def test_l30_a_rejected_reply_without_usage_is_charged_its_reservation(stage: Stage) -> None:
    profile = ModelProfile("priced", input_nano=3, output_nano=5, max_output_tokens=1000)
    unknown = reply(call("act", n=1), finish="length", usage=None)
    result = await stage.play([unknown], stage.act(), profile=profile)
    assert result.row.tokens >= 1000
    assert result.row.cost_nano is not None
    assert result.row.cost_nano >= 5000
