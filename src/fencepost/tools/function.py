"""A typed function as a tool: schema and strict validation from its signature.

Rule 1: whoever calls (loop, test, replay, a person) goes through the same validation (contract 4.5).
Rule 2: the schema, the checks and the digest are made once, when the tool is defined; a call only uses them.
Rule 3: a sync function runs in a thread of its own, which nobody can stop (contract 6.7): `threaded` says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import math
import re
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from fencepost.core.arguments import read_arguments
from fencepost.core.canonical import canonical, digest
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid, JsonInvalid, ToolFailed
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.core.strictjson import child
from fencepost.ports import CallContext, Prepared, Reconciled
from fencepost.tools.annotations import check_kinds, inspected, is_model
from fencepost.tools.members import unknown_member_check
from fencepost.tools.refusal import Described, place_of
from fencepost.tools.schema import schema_of
from fencepost.tools.signature import signature_of

if TYPE_CHECKING:
    from fencepost.tools.channel import ProcessLimits

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what every provider accepts (L05)
# One paragraph for the model; a manual belongs in the instructions.
MAX_DESCRIPTION = 4_096
# A key is a name a person may have to read, and a store's index holds it.
MAX_OPERATION_KEY = 512
VERDICTS = ("happened", "did_not_happen", "cannot_tell")

EffectName = Literal["read", "idempotent", "write"]
Repeat = Literal["stop", "ok"]


def define(
    name: Any,
    *,
    description: str,
    schema: str,
    effect: str = "write",
    version: Any = "1",
    parallel: bool = False,
    repeat: str = "stop",
    timeout: float | None = None,
    reconciles: bool = False,
) -> ToolDefinition:
    """The definition of a tool with its digest, or DefinitionInvalid; checked here for every kind of tool.

    The digest covers name, description, schema, effect, version, parallel, repeat and timeout (contract 2.6).
    """
    where = f"tool {name!r:.140}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionInvalid(f"{where}: a name has 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    if effect not in tuple(Effect):
        raise DefinitionInvalid(f'{where}: effect must be "read", "idempotent" or "write", got {effect!r}')
    if repeat not in ("stop", "ok"):
        raise DefinitionInvalid(f'{where}: repeat must be "stop" or "ok", got {repeat!r}')
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        raise DefinitionInvalid(f"{where}: timeout must be seconds above 0 and finite, got {timeout!r}")
    if not isinstance(version, str) or not version:
        raise DefinitionInvalid(
            f"{where}: version must be a text that changes with the code, got {version!r}"
        )
    if len(description) > MAX_DESCRIPTION:
        raise DefinitionInvalid(
            f"{where}: the description has {len(description)} characters, {MAX_DESCRIPTION} are allowed"
        )
    if reconciles and effect != "write":
        raise DefinitionInvalid(
            f"{where}: reconcile is only asked about writes, and the effect is {effect!r}"
        )
    bound = [name, description, schema, str(effect), version, parallel, repeat, timeout]
    return ToolDefinition(
        name=name,
        description=description,
        schema=schema,
        effect=Effect(effect),
        version=version,
        parallel=parallel,
        repeat=repeat,
        timeout=timeout,
        reconciles=reconciles,
        digest=digest(canonical(bound), "tool"),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class FunctionTool:
    """A function that runs only with arguments its signature allows; satisfies `ports.Tool`.

    Calling the object (`await add(a=1, b=2)`) validates as the loop does and returns an awaitable, also for a
    sync function. A parameter annotated `CallContext` must then be given by name.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: EffectName = "write",
        name: str | None = None,
        description: str | None = None,
        version: str = "1",
        parallel: bool = False,
        timeout: float | None = None,
        repeat: Repeat = "stop",
        reconcile: Callable[..., Any] | None = None,
        operation_key: Callable[[dict[str, Any]], str | None] | None = None,
    ) -> None:
        name = name if name is not None else getattr(function, "__name__", "")
        signature = signature_of(function, name)
        where = f"tool {name}"
        kind = inspected(signature.arguments, where)
        check_kinds(kind, where)
        schema = schema_of(signature.arguments, signature.descriptions, where)
        self._definition = define(
            name,
            description=description if description is not None else signature.description,
            schema=json.dumps(schema, ensure_ascii=False, separators=(",", ":")),
            effect=effect,
            version=version,
            parallel=parallel,
            repeat=repeat,
            timeout=timeout,
            reconciles=reconcile is not None,
        )
        if operation_key is not None and effect != "write":
            raise DefinitionInvalid(f"{where}: an operation_key names a write, and the effect is {effect!r}")
        self._function, self._signature = function, signature
        self._awaits = _is_async(function)
        self._reconcile, self._operation_key = reconcile, operation_key
        self._described = Described(name, schema)
        self._known = frozenset(signature.names)
        # msgspec checks the root's members only together with the rest; ours names the place.
        self._unknown = unknown_member_check(kind)
        self._allowed = ", ".join(json.dumps(each) for each in signature.names) or "none"

    @property
    def definition(self) -> ToolDefinition:
        """What a task is told of this tool."""
        return self._definition

    @property
    def threaded(self) -> bool:
        """True for a sync function: it runs in a thread."""
        return not self._awaits

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself, without validation: for its own unit tests."""
        return self._function

    def prepare(self, arguments: str, /) -> Prepared:
        """Validated arguments; `ArgumentsInvalid` says in under 4 KiB what to change."""
        try:
            sent, text, name = read_arguments(arguments)
        except JsonInvalid as why:
            raise self._described.refusal(str(why)) from None
        if not self._known.issuperset(sent):
            raise self._described.refusal(self._unknown_argument(sent))
        try:
            found = msgspec.convert(sent, self._signature.arguments, dec_hook=_model, str_keys=True)
        except msgspec.ValidationError as why:
            raise self._refused(why, sent) from None
        if self._unknown is not None and (problem := self._unknown(sent, "$")) is not None:
            raise self._described.refusal(problem)
        return Prepared(self._definition.name, text, name, msgspec.structs.asdict(found))

    def operation_key(self, prepared: Prepared, /) -> str | None:
        """The tenant-wide name of this effect, if the tool declares one; ToolFailed when it is no name."""
        if self._operation_key is None:
            return None
        key: Any = self._operation_key(dict(prepared.values))
        if key is None or (isinstance(key, str) and 0 < len(key) <= MAX_OPERATION_KEY):
            return None if key is None else str(key)
        raise ToolFailed(
            f"{self._definition.name}: its operation_key must be 1 to {MAX_OPERATION_KEY} characters or None"
        )

    def run(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Any]:
        """The function's own result; whatever it raises is raised here."""
        values = self.values(prepared, context)
        if self._awaits:
            result: Awaitable[Any] = self._function(**values)
            return result
        return in_thread(self._function, values)

    async def warm(self) -> None:
        """Whatever makes the next call start fast is done; for a function in this process that is nothing."""

    def values(self, prepared: Prepared, context: CallContext | None, /) -> dict[str, Any]:
        """What the function is called with: the arguments, and the context where it asks for one."""
        if self._signature.context is None:
            return dict(prepared.values)
        return {**prepared.values, self._signature.context: context}

    async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
        """What the tool's own `reconcile(key)` or `reconcile(key, arguments)` says of an earlier start."""
        if self._reconcile is None:
            return Reconciled("cannot_tell")
        wanted = len(inspect.signature(self._reconcile).parameters)
        given = dict(zip(("key", "arguments")[:wanted], (context.key, dict(prepared.values)), strict=False))
        positional = tuple(given.values())
        if _is_async(self._reconcile):
            said = await self._reconcile(*positional)
        else:
            said = await in_thread(self._reconcile, {}, *positional)
        found = Reconciled(said) if isinstance(said, str) else said
        if isinstance(found, Reconciled) and found.verdict in VERDICTS:
            return found
        raise ToolFailed(
            f"{self._definition.name}: reconcile must answer {', '.join(VERDICTS)}, or a Reconciled"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run with Python values, validated as the same values in JSON would be."""
        given = self._bound(args, kwargs)
        context = None
        if self._signature.context is not None:
            context = given.pop(self._signature.context, None)
            if not isinstance(context, CallContext):
                raise TypeError(f"{self._definition.name} needs {self._signature.context}, a CallContext")
        try:
            text = json.dumps(msgspec.to_builtins(given, enc_hook=_dumped))
        except (TypeError, ValueError) as why:
            raise self._described.refusal(f"an argument is not JSON ({why})") from None
        return self.run(self.prepare(text), context)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<tool {self._definition.name} ({self._definition.effect.value})>"

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = list(inspect.signature(self._function).parameters)
        if len(args) > len(names):
            raise TypeError(f"{self._definition.name} takes {len(names)} arguments, got {len(args)}")
        given = dict(zip(names, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise TypeError(f"{self._definition.name} got {', '.join(sorted(twice))} twice")
        return {**given, **kwargs}

    def _unknown_argument(self, sent: dict[str, Any]) -> str:
        key = next(key for key in sent if key not in self._known)
        return f"unknown field at {child('$', key)}; the fields there are: {self._allowed}"

    def _refused(self, why: msgspec.ValidationError, sent: dict[str, Any]) -> ArgumentsInvalid:
        problem, path = place_of(why, sent, self._failure)
        if isinstance(why.__cause__, _ModelRefused):
            problem, path = why.__cause__.problem, path + why.__cause__.path
        return self._described.refusal_at(problem, path, sent)

    def _failure(self, sent: object) -> str | None:
        try:
            msgspec.convert(sent, self._signature.arguments, dec_hook=_model, str_keys=True)
        except msgspec.ValidationError as why:
            return str(why)
        return None


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    effect: EffectName = "write",
    name: str | None = None,
    description: str | None = None,
    version: str = "1",
    parallel: bool = False,
    timeout: float | None = None,
    repeat: Repeat = "stop",
    reconcile: Callable[..., Any] | None = None,
    operation_key: Callable[[dict[str, Any]], str | None] | None = None,
    isolation: Literal["process"] | None = None,
    process: ProcessLimits | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """The function as a tool; write `@tool` for a write, `@tool(effect="read")` for a read.

    `effect` is what it does to the world (contract 8.1); `parallel` lets it run beside its neighbors;
    `timeout` is in seconds; `repeat="ok"` allows the same call with the same result again; `reconcile(key)`
    says what became of an earlier start; `operation_key(arguments)` names the effect in the whole tenant.
    `isolation="process"` runs each call in a child process that can be killed, limited by `process`.
    """
    if function is None:
        kind = _kind(options)
        return lambda decorated: kind(decorated, **options)
    if not callable(function):
        raise DefinitionInvalid(f"@tool takes a function, got {type(function).__name__}; options go by name")
    return FunctionTool(function, **options)


def _kind(options: dict[str, Any]) -> type[FunctionTool]:
    """The class of tool that the options ask for; takes the option that says so out of them."""
    isolation = options.pop("isolation", None)
    if isolation is None and "process" not in options:
        return FunctionTool
    if isolation != "process":
        raise DefinitionInvalid(
            f'isolation must be "process" or left out, and process limits need it; got {isolation!r}'
        )
    from fencepost.tools.process import ProcessTool

    return ProcessTool


# --- threads -----------------------------------------------------------------------------------------------


def in_thread(function: Callable[..., Any], values: dict[str, Any], *positional: Any) -> Awaitable[Any]:
    """What the function returns or raises in a daemon thread of its own, with the caller's context variables.

    Not the loop's thread pool: a pool's threads are waited for when the process ends, so that one stuck tool
    would keep the command from ending, and a few abandoned ones would use up the pool.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, raised: BaseException | None) -> None:
        if future.done():
            return
        if raised is None:
            future.set_result(result)
        elif isinstance(raised, Exception) and not isinstance(raised, StopIteration):
            future.set_exception(raised)
        else:  # neither may travel through a future; each is one failed call (contract 5.2)
            future.set_exception(RuntimeError(f"the tool raised {type(raised).__name__}"))

    def body() -> None:
        result, raised = None, None
        try:
            result = context.run(function, *positional, **values)
        except BaseException as why:  # noqa: BLE001 - a thread has nobody else to tell
            raised = why
        try:
            loop.call_soon_threadsafe(settle, result, raised)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    threading.Thread(target=body, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    return future


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    )


# --- pydantic models, by what they can do --------------------------------------------------------------


class _ModelRefused(ValueError):
    """A model's own validation failed; becomes the cause of msgspec's error."""

    def __init__(self, problem: str, path: tuple[str | int, ...]) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, path


def _model(kind: Any, value: Any) -> Any:
    """A pydantic model from JSON data, strictly, with unknown fields refused at every depth."""
    try:
        return kind.model_validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValueError as why:
        first = why.errors(include_url=False, include_input=False)[0] if hasattr(why, "errors") else {}
        raise _ModelRefused(first.get("msg", str(why)), tuple(first.get("loc", ()))) from None


def _dumped(value: Any) -> Any:
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
