"""Typed functions as tools: schema, strict validation at every depth, refusals at definition, running."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from fencepost.core.canonical import digest
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid, ToolFailed
from fencepost.core.messages import Effect
from fencepost.ports import CallContext, Prepared, Reconciled, Tool
from fencepost.tools.function import FunctionTool, tool

CONTEXT = CallContext("t1", "acme", "ann", step=2, position=1, start=3, key="key-2.1", seconds=60.0)


class Level(enum.Enum):
    HIGH = "high"
    LOW = "low"


@dataclasses.dataclass
class Window:
    start: int
    end: int = 0


class Filter(msgspec.Struct, rename="camel"):
    label_name: str
    inner: Filter | None = None


class Metric(msgspec.Struct, tag=True):
    name: str


class Log(msgspec.Struct, tag=True):
    pattern: str


class Span(msgspec.Struct, array_like=True):
    window: Window
    note: str


class Options(TypedDict):
    limit: int
    window: NotRequired[Window]


class Place(NamedTuple):
    window: Window
    n: int


class Owner(pydantic.BaseModel):
    name: str
    age: int = 0


class Team(pydantic.BaseModel):
    lead: Owner
    members: list[Owner] = []
    since: dt.date | None = None


Service = NewType("Service", str)


def refused(target: FunctionTool, **arguments: Any) -> str:
    """What the tool says of these arguments; the test fails if it takes them."""
    with pytest.raises(ArgumentsInvalid) as refusal:
        target.prepare(json.dumps(arguments))
    text = str(refusal.value)
    assert text.startswith(f"{target.definition.name}: ")
    assert len(text.encode()) < 4096
    return text


@tool(effect="read")
async def query(  # noqa: PLR0917 - as many kinds of parameters as there are
    service: Annotated[Service, "Which service"],
    window: Window,
    level: Level = Level.LOW,
    kind: Literal["errors", "latency"] = "errors",
    filters: list[Filter] | None = None,
    source: Metric | Log | None = None,
    options: Options | None = None,
    by_day: dict[str, Window] | None = None,
    spans: tuple[Span, ...] = (),
    place: Place | None = None,
    pair: tuple[Window, int] | None = None,
    tags: Annotated[set[str], at.MaxLen(3)] = frozenset(),  # type: ignore[assignment]
    rate: Annotated[float, at.Interval(gt=0, le=1)] = 0.5,
    days: dict[int, str] | None = None,
) -> str:
    """Query one service's metrics
    in a window.

    A second paragraph that is for programmers.

    Args:
        service: never used, Annotated says it
        window (Window): when to look,
            both ends in minutes
        level: how bad

    Returns:
        rate: not an argument
    """
    return f"{service} {window.start} {level.value}"


WINDOW = {"start": 1}


def test_the_definition_says_what_the_signature_says() -> None:
    definition = query.definition
    schema = json.loads(definition.schema)
    assert isinstance(query, Tool)
    assert (definition.name, definition.effect, definition.version) == ("query", Effect.READ, "1")
    assert definition.description == "Query one service's metrics in a window."
    assert schema["required"] == ["service", "window"]
    assert schema["additionalProperties"] is False
    assert "$ref" not in schema
    assert "title" not in schema
    properties = schema["properties"]
    assert properties["service"] == {"type": "string", "description": "Which service"}
    assert properties["window"] == {
        "$ref": "#/$defs/Window",
        "description": "when to look, both ends in minutes",
    }
    assert properties["level"] == {"$ref": "#/$defs/Level", "default": "low", "description": "how bad"}
    assert properties["kind"] == {"enum": ["errors", "latency"], "default": "errors"}
    assert properties["rate"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.5}
    assert properties["tags"]["maxItems"] == 3
    objects = [node for node in schema["$defs"].values() if "properties" in node]
    assert len(objects) == 5
    assert all(node["additionalProperties"] is False for node in objects)


def test_valid_arguments_become_what_the_function_expects() -> None:
    sent = {
        "service": "cart",
        "window": {"start": 1.0, "end": 2},
        "level": "high",
        "filters": [{"labelName": "x", "inner": {"labelName": "y"}}],
        "source": {"type": "Log", "pattern": "p"},
        "options": {"limit": 1, "window": WINDOW},
        "by_day": {"mon": WINDOW},
        "spans": [[WINDOW, "n"]],
        "place": [WINDOW, 2],
        "pair": [WINDOW, 3],
        "tags": ["a"],
        "days": {"1": "one"},
    }
    values = query.prepare(json.dumps(sent)).values
    assert values["window"] == Window(1, 2)
    assert values["level"] is Level.HIGH
    assert values["kind"] == "errors"
    assert values["filters"] == [Filter("x", Filter("y"))]
    assert values["source"] == Log("p")
    assert values["options"] == {"limit": 1, "window": Window(1)}
    assert values["spans"] == (Span(Window(1), "n"),)
    assert values["place"] == Place(Window(1), 2)
    assert values["pair"] == (Window(1), 3)
    assert values["tags"] == {"a"}
    assert values["days"] == {1: "one"}
    assert values["rate"] == 0.5


def test_null_is_taken_where_the_signature_allows_it() -> None:
    optional = ("filters", "source", "options", "by_day", "place", "pair", "days")
    values = query.prepare(json.dumps({"service": "a", "window": WINDOW, **dict.fromkeys(optional)})).values
    assert [values[name] for name in optional] == [None] * len(optional)


def test_a_union_of_an_object_and_an_array_is_looked_into_on_both_sides() -> None:
    @tool
    def take(x: Window | list[Window], m: dict[str, Odd] | list[Place]) -> None: ...

    take.prepare('{"x": {"start": 1}, "m": [[{"start": 1}, 2]]}')
    take.prepare('{"x": [{"start": 1}], "m": {"k": {"a[b": 1}}}')
    assert "unknown field at $.x[0].z" in refused(take, x=[{"start": 1, "z": 1}], m=[])
    assert "unknown field at $.x.z" in refused(take, x={"start": 1, "z": 1}, m=[])
    assert 'unknown field at $.m.k["a]"]' in refused(take, x=[], m={"k": {"a[b": 1, "a]": 2}})
    assert "Expected `int`, got `str` at $.m.k" in refused(take, x=[], m={"k": {"a[b": "1"}})


@pytest.mark.parametrize("at", [0, 1, 749, 750, 1499])
def test_the_first_member_that_does_not_fit_is_named_among_many(at: int) -> None:
    many = {f"d{n}": {"start": "1"} if n >= at else WINDOW for n in range(1500)}
    assert f"got `str` at $.by_day.d{at}.start, found" in refused(
        query, service="a", window=WINDOW, by_day=many
    )


def test_a_place_among_very_many_is_found_without_trying_each() -> None:
    @tool
    def take(x: list[dict[str, int]]) -> None: ...

    many = [{"a": 1}] * 25_000 + [{f"k{n}": 1 for n in range(1500)} | {"zz": "s"}]
    text = json.dumps({"x": many}, separators=(",", ":"))
    started = time.perf_counter()
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.x\[25000\]\.zz, found"):
        take.prepare(text)
    assert time.perf_counter() - started < 2  # one by one it was five seconds and more


def test_an_alias_is_read_as_what_it_stands_for() -> None:
    @tool
    def wait(minutes: Minutes, text: Annotated[str, at.Len(0, 3)] = "") -> None: ...

    assert json.loads(wait.definition.schema)["properties"]["minutes"] == {"type": "integer", "minimum": 0}
    assert "at $.minutes, found -1" in refused(wait, minutes=-1)
    assert "at $.text" in refused(wait, minutes=1, text="abcd")


def test_the_canonical_text_is_of_what_was_sent_without_defaults() -> None:
    prepared = query.prepare('{"window": {"start": 1.0}, "service": "cart"}')
    assert prepared.canonical == '{"service":"cart","window":{"start":1}}'
    assert prepared.digest == digest(prepared.canonical)
    assert query.prepare(prepared.canonical) == prepared


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"x": 1}, "$.x"),
        ({"window": {"start": 1, "stop": 2}}, "$.window.stop"),
        ({"filters": [{"labelName": "a"}, {"labelName": "a", "label_name": "b"}]}, "$.filters[1].label_name"),
        ({"filters": [{"labelName": "a", "inner": {"labelName": "b", "no": 1}}]}, "$.filters[0].inner.no"),
        ({"source": {"type": "Log", "pattern": "p", "name": "n"}}, "$.source.name"),
        ({"options": {"limit": 1, "more": 1}}, "$.options.more"),
        ({"options": {"limit": 1, "window": {"start": 1, "z": 1}}}, "$.options.window.z"),
        ({"by_day": {"mon": WINDOW, "tue": {"start": 1, "z": 1}}}, "$.by_day.tue.z"),
        ({"spans": [[{"start": 1, "z": 1}, "n"]]}, "$.spans[0][0].z"),
        ({"place": [{"start": 1, "z": 1}, 1]}, "$.place[0].z"),
        ({"pair": [{"start": 1, "z": 1}, 1]}, "$.pair[0].z"),
    ],
)
def test_an_unknown_field_is_refused_at_every_depth(more: dict[str, Any], place: str) -> None:
    assert f"unknown field at {place}; " in refused(query, **{"service": "a", "window": WINDOW, **more})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"service": 1}, "got `int` at $.service, found 1; expected there: string"),
        ({"window": {}}, "a required field is missing at $.window.start; expected there: integer"),
        ({"window": None}, "got `null` at $.window, found null"),
        (
            {"level": "mid"},
            'not one of those allowed at $.level, found "mid"; expected there: one of "high", "low"',
        ),
        ({"kind": "x" * 9999}, 'expected there: one of "errors", "latency"'),
        ({"rate": 0}, "at $.rate, found 0; expected there: number > 0 and <= 1"),
        ({"rate": "0.5"}, 'at $.rate, found "0.5"'),
        ({"tags": ["a", "b", "c", "d"]}, "at $.tags; expected there: array of string items <= 3"),
        ({"by_day": {"mon": WINDOW, "a.b[0]": {"start": "1"}}}, 'at $.by_day["a.b[0]"].start, found "1"'),
        ({"by_day": {f"d{n}": WINDOW for n in range(50)} | {"bad": 1}}, "at $.by_day.bad, found 1"),
        ({"days": {"one": "1"}}, "a key does not fit: Expected `int`, got `str` at $.days"),
        ({"source": {"type": "Trace", "name": "n"}}, "at $.source.type"),
        ({"pair": [WINDOW]}, "at $.pair; expected there: [{"),
        ({"filters": [{"labelName": "x"}, {"labelName": 1}]}, "at $.filters[1].labelName, found 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_place_and_shape(more: dict[str, Any], says: str) -> None:
    assert says in refused(query, **{"service": "a", "window": WINDOW, **more})


@given(
    st.text(),
    st.recursive(
        st.none() | st.integers() | st.text(), lambda m: st.lists(m) | st.dictionaries(st.text(), m)
    ),
)
def test_every_refusal_is_short_and_can_be_stored(key: str, value: Any) -> None:
    if key == "tags":
        return
    for sent in ({key: value}, {"service": "a", "window": {key: value}}, {"service": "a", "window": value}):
        with pytest.raises(ArgumentsInvalid) as refusal:
            query.prepare(json.dumps(sent))
        assert len(str(refusal.value).encode()) < 4096
        assert "\x00" not in str(refusal.value)


def test_a_tool_with_optional_arguments_only_takes_no_arguments_and_refuses_malformed_ones() -> None:
    @tool
    def ping(times: int = 1) -> None: ...

    assert ping.prepare("").canonical == "{}"
    assert ping.prepare(" ").values == {"times": 1}
    for malformed in ("{", '{"times"', "}", "nothing", '{"times": 01}'):
        with pytest.raises(ArgumentsInvalid, match="not valid JSON"):
            ping.prepare(malformed)
    assert ping.prepare('{"times": 0}').values == {"times": 0}


def test_numbers_are_never_coerced() -> None:
    @tool
    def take(n: int = 0, x: float = 0.0, flag: bool = False, text: str = "") -> None: ...

    assert take.prepare('{"n": 1.0, "x": 1}').values == {"n": 1, "x": 1.0, "flag": False, "text": ""}
    assert take.prepare('{"n": 123456789012345678}').canonical == '{"n":123456789012345678}'
    for wrong in (
        {"n": "1"},
        {"n": True},
        {"n": 1.5},
        {"x": "1"},
        {"x": True},
        {"flag": 1},
        {"flag": "true"},
        {"text": 1},
    ):
        assert "Expected" in refused(take, **wrong)


def test_pydantic_models_are_validated_strictly_with_extra_fields_refused() -> None:
    @tool
    def page(team: Team, backups: list[Owner] = []) -> None:  # noqa: B006 - pydantic users write it
        """Page a team."""

    values = page.prepare(
        '{"team": {"lead": {"name": "a"}, "since": "2022-08-22"}, "backups": [{"name": "b"}]}'
    ).values
    assert values["team"] == Team(lead=Owner(name="a"), since=dt.date(2022, 8, 22))
    assert values["backups"] == [Owner(name="b")]
    lead = {"name": "a"}
    assert 'integer at $.team.lead.age, found "1"' in refused(page, team={"lead": {"name": "a", "age": "1"}})
    assert "at $.team.lead.x, found 1" in refused(page, team={"lead": {"name": "a", "x": 1}})
    assert "at $.team.members[0].name" in refused(page, team={"lead": lead, "members": [{}]})
    assert "at $.backups[1].name" in refused(page, team={"lead": lead}, backups=[lead, {"age": 1}])
    schema = json.loads(page.definition.schema)
    assert schema["properties"]["team"]["properties"]["lead"] == {"$ref": "#/$defs/Owner"}
    assert schema["$defs"]["Owner"]["additionalProperties"] is False
    assert "$defs" not in schema["properties"]["team"]


async def test_python_values_given_directly_meet_the_same_boundary_as_their_json() -> None:
    @tool
    async def page(team: Team, window: Window, when: dt.date, amount: decimal.Decimal) -> list[Any]:
        return [team, window, when, amount]

    team, day = Team(lead=Owner(name="a")), dt.date(2022, 8, 22)
    given = await page(team, Window(1), when=day, amount=decimal.Decimal("1.50"))
    assert given == [team, Window(1, 0), day, decimal.Decimal("1.50")]
    with pytest.raises(ArgumentsInvalid, match="an argument is not JSON"):
        await page(team, object(), when=day, amount=1)
    with pytest.raises(TypeError, match="page got team twice"):
        await page(team, team=team)
    with pytest.raises(TypeError, match="page takes 4 arguments, got 5"):
        await page(1, 2, 3, 4, 5)


async def test_a_nan_given_directly_is_not_turned_into_null() -> None:
    @tool
    async def scale(by: float | None = None) -> float | None:
        return by

    assert await scale(by=None) is None
    with pytest.raises(ArgumentsInvalid, match=r"NaN is not JSON at \$\.by"):
        await scale(by=float("nan"))


# --- what is refused when the tool is defined ---------------------------------------------------------------


class Unsupported:
    pass


def _same_name() -> Any:
    class Owner(pydantic.BaseModel):
        shoe_size: int

    class Shop(pydantic.BaseModel):
        owner: Owner

    return Shop


Shop = _same_name()
Minutes = typing_extensions.TypeAliasType("Minutes", Annotated[int, at.Ge(0)])
Odd = TypedDict("Odd", {"a[b": int})


class Hook(pydantic.BaseModel):
    call: Callable[[], None]


@dataclasses.dataclass
class Hidden:
    n: Annotated[int, at.Ge(0)]


@pydantic.dataclasses.dataclass
class Half:
    n: int = pydantic.Field(ge=0)


def _untyped(a): ...  # type: ignore[no-untyped-def]
def _args(*a: int) -> None: ...
def _kwargs(**a: int) -> None: ...
def _positional(a: int, /) -> None: ...
def _unsupported(a: Unsupported) -> None: ...
def _nested(a: dict[str, list[Unsupported]]) -> None: ...
def _metadata(a: Annotated[int, at.Predicate(bool)]) -> None: ...
def _odd_metadata(a: list[Annotated[int, {"ge": 0}]]) -> None: ...
def _field_metadata(a: Annotated[int, pydantic.Field(ge=0)]) -> None: ...
def _hidden_bound(a: Hidden) -> None: ...
def _half(a: Half) -> None: ...
def _bad_bound(a: Annotated[str, at.Ge(0)]) -> None: ...
def _date_bound(a: Annotated[dt.date, at.Ge(dt.date(2020, 1, 1))]) -> None: ...
def _ambiguous(a: Window | Filter) -> None: ...
def _twice(a: Team, b: Shop) -> None: ...  # type: ignore[valid-type]
def _no_schema(a: Hook) -> None: ...
def _no_syntax(a: "1 +") -> None: ...  # type: ignore[valid-type] # noqa: F722
def _dunder(__class__: int) -> None: ...
def _complex_key(a: dict[complex, int]) -> None: ...
def _raw(a: msgspec.Raw) -> None: ...
def _missing_name(a: NoSuchType) -> None: ...  # type: ignore[name-defined] # noqa: F821
def _two_contexts(a: CallContext, b: CallContext) -> None: ...
def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


def _fine(a: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_untyped, "parameter a: it has no annotation"),
        (_args, r"parameter a: \*args and \*\*kwargs"),
        (_kwargs, r"parameter a: \*args and \*\*kwargs"),
        (_positional, "parameter a: it is positional only"),
        (_unsupported, "the type Unsupported is not supported"),
        (_nested, "the type Unsupported is not supported"),
        (_metadata, r"parameter a: the metadata Predicate\(.* would not be checked"),
        (_odd_metadata, "parameter a: the metadata {'ge': 0} in Annotated would not be checked"),
        (_field_metadata, "parameter a: the metadata FieldInfo.* would not be checked"),
        (
            _hidden_bound,
            r"the metadata Ge\(ge=0\) at Hidden.n would not be checked; inside a class write msgspec.Meta",
        ),
        (_half, "Half is a pydantic dataclass; use a pydantic model"),
        (_bad_bound, "cannot be validated"),
        (_date_bound, r"parameter a: the bound Ge\(.* cannot be used"),
        (_ambiguous, "cannot be validated"),
        (_twice, "two different types are named Owner; rename one"),
        (_no_schema, "no JSON Schema can be made of it"),
        (_no_syntax, "its annotations cannot be read"),
        (_dunder, "parameter __class__: names with two underscores"),
        (_complex_key, "cannot be validated|is not supported"),
        (_raw, "data that nobody has validated"),
        (_missing_name, "name 'NoSuchType' is not defined.*; define the type at the top of the module"),
        (_two_contexts, "one CallContext is enough, found a and b"),
        (_generator, "a generator function cannot be a tool"),
        (_async_generator, "a generator function cannot be a tool"),
    ],
)
def test_a_function_that_cannot_be_validated_is_refused_at_once(function: Any, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says) as refusal:
        tool(function)
    assert f"tool {function.__name__}" in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "a name has 1 to 128"),
        ({"name": "a b"}, "a name has 1 to 128"),
        ({"name": "x" * 129}, "a name has 1 to 128"),
        ({"name": "é"}, "a name has 1 to 128"),
        ({"name": "a\n"}, "a name has 1 to 128"),
        ({"effect": "delete"}, 'effect must be "read", "idempotent" or "write"'),
        ({"effect": ["read"]}, 'effect must be "read", "idempotent" or "write"'),
        ({"repeat": True}, 'repeat must be "stop" or "ok"'),
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"timeout": float("inf")}, "timeout must be seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be seconds above 0"),
        ({"timeout": True}, "timeout must be seconds above 0"),
        ({"version": ""}, "version must be a text"),
        ({"version": 2}, "version must be a text"),
        ({"description": "x" * 5000}, "the description has 5000 characters"),
        ({"effect": "read", "reconcile": print}, "reconcile is only asked about writes"),
        ({"effect": "read", "operation_key": str}, "an operation_key names a write"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        tool(**options)(_fine)


def test_annotations_that_never_end_are_refused() -> None:
    hint: Any = int
    for _ in range(40):
        hint = list[hint]

    def deep(a: int) -> None: ...

    deep.__annotations__["a"] = hint
    with pytest.raises(DefinitionInvalid, match="parameter a: the annotation is nested more than 32 deep"):
        tool(deep)


def test_what_is_not_a_function_is_refused() -> None:
    with pytest.raises(DefinitionInvalid, match="@tool takes a function, got str"):
        tool("read")  # type: ignore[call-overload]


def test_bounds_of_every_mapped_kind_are_kept() -> None:
    @tool
    def take(
        n: Annotated[int, at.Gt(0), at.Lt(10), at.MultipleOf(3)] = 3,
        text: Annotated[str, at.Len(2, 3)] = "ab",
        rows: list[Annotated[int, Meta(le=5)]] | None = None,
        many: Annotated[list[int], at.MinLen(1)] = [1],  # noqa: B006 - a default that is not empty
        code: Annotated[str, Meta(pattern="^[a-z]$")] | None = None,
    ) -> None: ...

    assert take.prepare("{}").values == {"n": 3, "text": "ab", "rows": None, "many": [1], "code": None}
    take.prepare('{"n": 6, "text": "abc", "rows": [5], "many": [0], "code": "x"}')
    wrong: dict[str, Any]
    for wrong in (
        {"n": 0},
        {"n": 10},
        {"n": 4},
        {"text": "a"},
        {"text": "abcd"},
        {"rows": [6]},
        {"many": []},
        {"code": "X"},
    ):
        assert "Expected" in refused(take, **wrong)


def test_the_digest_covers_what_a_model_and_a_rule_rely_on() -> None:
    def make(**options: Any) -> str:
        return FunctionTool(_fine, **options).definition.digest

    digests = [
        make(),
        make(name="other"),
        make(description="other"),
        make(effect="read"),
        make(version="2"),
        make(parallel=True),
        make(repeat="ok"),
        make(timeout=1.0),
        FunctionTool(_same_name_other_schema, name="_fine").definition.digest,
    ]
    assert len(set(digests)) == len(digests)
    assert make() == make()


def _same_name_other_schema(a: str) -> None: ...


# --- running -----------------------------------------------------------------------------------------------

color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


async def test_the_context_is_given_to_a_function_that_asks_for_it() -> None:
    @tool
    async def pay(amount: int, call: CallContext) -> str:
        return f"{amount} {call.key} {call.start}"

    assert "call" not in json.loads(pay.definition.schema)["properties"]
    assert await pay.run(pay.prepare('{"amount": 5}'), CONTEXT) == "5 key-2.1 3"
    assert await pay(amount=5, call=CONTEXT) == "5 key-2.1 3"
    assert await pay(5, CONTEXT) == "5 key-2.1 3"
    with pytest.raises(TypeError, match="pay needs call, a CallContext"):
        await pay(amount=5)
    assert "unknown field at $.call" in refused(pay, amount=5, call={})


async def test_a_sync_function_runs_in_a_thread_with_the_callers_context() -> None:
    @tool
    def where(n: int) -> list[Any]:
        return [n, threading.current_thread() is threading.main_thread(), color.get()]

    color.set("green")
    assert where.threaded
    assert not query.threaded
    assert await where(n=1) == [1, False, "green"]


@pytest.mark.parametrize(
    ("raised", "seen", "says"),
    [
        (ValueError("no"), ValueError, "no"),
        (StopIteration(1), RuntimeError, "the tool raised StopIteration"),
        (SystemExit(1), RuntimeError, "the tool raised SystemExit"),
        (KeyboardInterrupt(), RuntimeError, "the tool raised KeyboardInterrupt"),
        (asyncio.CancelledError(), RuntimeError, "the tool raised CancelledError"),
    ],
)
async def test_whatever_a_thread_raises_is_one_failed_call(
    raised: BaseException, seen: type[Exception], says: str
) -> None:
    @tool
    def fail() -> None:
        raise raised

    with pytest.raises(seen, match=says):
        await fail()


async def test_a_thread_nobody_waits_for_any_more_ends_quietly() -> None:
    go, ended = threading.Event(), threading.Event()

    @tool
    def stuck() -> None:
        go.wait(10)
        ended.set()

    waiting = asyncio.ensure_future(stuck())
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert waiting.cancelled()


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    go = threading.Event()
    started: queue.Queue[threading.Thread] = queue.Queue()

    @tool
    def stuck() -> None:
        started.put(threading.current_thread())
        go.wait(10)

    async def leave() -> threading.Thread:
        asyncio.ensure_future(stuck())  # noqa: RUF006 - abandoned on purpose
        return await asyncio.to_thread(started.get, timeout=10)

    thread = asyncio.run(leave())
    go.set()
    thread.join(10)
    assert not thread.is_alive()


async def test_reconcile_is_asked_with_the_key_and_may_answer_in_a_word() -> None:
    asked: list[Any] = []

    def in_words(key: str) -> str:
        asked.append(key)
        return "did_not_happen"

    async def with_arguments(key: str, arguments: dict[str, Any]) -> Reconciled:
        asked.append((key, arguments))
        return Reconciled("happened", {"id": 7})

    prepared = Prepared("pay", "{}", "", {"amount": 5})
    first = FunctionTool(_fine, reconcile=in_words)
    second = FunctionTool(_fine, reconcile=with_arguments)
    assert first.definition.reconciles
    assert await first.reconcile(prepared, CONTEXT) == Reconciled("did_not_happen")
    assert await second.reconcile(prepared, CONTEXT) == Reconciled("happened", {"id": 7})
    assert asked == ["key-2.1", ("key-2.1", {"amount": 5})]
    assert await FunctionTool(_fine).reconcile(prepared, CONTEXT) == Reconciled("cannot_tell")
    for nonsense in ("maybe", None, Reconciled("perhaps")):
        with pytest.raises(ToolFailed, match="reconcile must answer happened, did_not_happen, cannot_tell"):
            await FunctionTool(_fine, reconcile=_answering(nonsense)).reconcile(prepared, CONTEXT)


def test_an_operation_key_is_made_of_the_validated_arguments() -> None:
    @tool(operation_key=lambda arguments: f"pay-{arguments['order']}")
    def pay(order: int) -> None: ...

    assert pay.operation_key(pay.prepare('{"order": 7.0}')) == "pay-7"
    assert query.operation_key(query.prepare('{"service": "a", "window": {"start": 1}}')) is None
    nonsense: Any
    for nonsense in ("", "x" * 513, 7):
        odd = FunctionTool(_fine, operation_key=_answering(nonsense))
        with pytest.raises(ToolFailed, match="operation_key must be 1 to 512 characters or None"):
            odd.operation_key(odd.prepare('{"a": 1}'))


def _answering(said: Any) -> Callable[..., Any]:
    return lambda _given: said


def test_a_bound_method_and_a_callable_object_can_be_tools() -> None:
    class Desk:
        def look(self, a: int) -> int:
            return a

        async def __call__(self, b: str) -> str:
            return b

    assert tool(Desk().look).prepare('{"a": 1}').values == {"a": 1}
    called = FunctionTool(Desk(), name="desk")
    assert called.prepare('{"b": "x"}').values == {"b": "x"}
    assert not called.threaded
    assert called.function is not None
    assert repr(called) == "<tool desk (write)>"
