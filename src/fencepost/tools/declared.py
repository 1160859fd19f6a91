"""A tool whose arguments are declared by a JSON Schema that somebody else wrote, as MCP servers do.

Rule 1: the schema is foreign: it is bounded in size, depth and nodes, and nothing it names is ever fetched;
a `$ref` that leaves the schema is refused at registration (L19).
Rule 2: the arguments go through the same strict JSON as a function's; then the schema decides.
Rule 3: a schema whose root names its properties and says nothing about others is closed: an argument it does
not name is refused (contract 4.3). `additionalProperties` at the root opens it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.core.arguments import read_arguments
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid, JsonInvalid
from fencepost.core.messages import ToolDefinition
from fencepost.core.strictjson import child, loads, named, quoted
from fencepost.ports import CallContext, Prepared, Reconciled
from fencepost.tools.function import EffectName, Repeat, define
from fencepost.tools.refusal import Described

if TYPE_CHECKING:
    import jsonschema_rs

# Sent to the model with every request; larger ones are a mistake or an attack.
MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_NODES = 2_000
# Dialects the validator knows without fetching a metaschema.
DIALECTS = ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema")
OLD_DIALECTS = tuple(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7))

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# With one of these beside `properties`, what else is allowed is said elsewhere in the schema.
_OPENING = frozenset(
    (
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "$ref",
    )
)


class DeclaredTool:
    """An async function behind a JSON Schema; satisfies `ports.Tool`.

    `function(arguments, context)` gets the arguments as decoded JSON. Needs the extra `schema`.
    """

    threaded = False

    def __init__(
        self,
        name: str,
        function: Callable[[dict[str, Any], CallContext], Awaitable[Any]],
        *,
        schema: str | bytes | Mapping[str, Any],
        description: str,
        effect: EffectName = "write",
        version: str = "1",
        parallel: bool = False,
        timeout: float | None = None,
        repeat: Repeat = "stop",
    ) -> None:
        where = f"tool {name!r:.140}"
        text, found = _read(schema, where)
        self._definition = define(
            name,
            description=description,
            schema=text,
            effect=effect,
            version=version,
            parallel=parallel,
            timeout=timeout,
            repeat=repeat,
        )
        self._validator = _validator(found, where)
        self._function = function
        self._described = Described(name, found)
        properties = found.get("properties")
        closed = isinstance(properties, dict) and not _OPENING & found.keys()
        self._known = frozenset(properties or ()) if closed else None

    @property
    def definition(self) -> ToolDefinition:
        """What a task is told of this tool."""
        return self._definition

    def prepare(self, arguments: str, /) -> Prepared:
        """Validated arguments; `ArgumentsInvalid` says in under 4 KiB what to change."""
        try:
            sent, text, name = read_arguments(arguments)
        except JsonInvalid as why:
            raise self._described.refusal(str(why)) from None
        if self._known is not None and not self._known.issuperset(sent):
            raise self._unknown(sent, self._known)
        if not self._validator.is_valid(sent):
            first = next(iter(self._validator.iter_errors(sent)))
            path = tuple(int(step) if isinstance(step, int) else str(step) for step in first.instance_path)
            raise self._described.refusal_at(first.message, path, sent)
        return Prepared(self._definition.name, text, name, sent)

    def operation_key(self, _prepared: Prepared, /) -> str | None:
        """None: a declared tool has no way to name its effect."""
        return None

    def run(self, prepared: Prepared, context: CallContext, /) -> Awaitable[Any]:
        """The function's own result; whatever it raises is raised here."""
        return self._function(prepared.values, context)

    async def reconcile(self, _prepared: Prepared, _context: CallContext, /) -> Reconciled:
        """Always "cannot_tell": a declared tool knows nothing of its earlier starts."""
        return Reconciled("cannot_tell")

    def _unknown(self, sent: dict[str, Any], known: frozenset[str]) -> ArgumentsInvalid:
        key = next(key for key in sent if key not in known)
        allowed = ", ".join(quoted(name) for name in sorted(known)) or "none"
        return self._described.refusal(f"unknown field at {child('$', key)}; the fields there are: {allowed}")


def _read(schema: str | bytes | Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """The schema as bounded text and as strict JSON."""
    if isinstance(schema, Mapping):
        try:
            schema = msgspec.json.encode(schema)
        except (TypeError, ValueError, RecursionError) as why:
            raise DefinitionInvalid(f"{where}: its schema is not JSON ({why})") from None
    try:
        found = loads(schema, max_bytes=MAX_SCHEMA_BYTES, max_depth=MAX_SCHEMA_DEPTH)
    except JsonInvalid as why:
        raise DefinitionInvalid(f"{where}: its schema is refused: {why}") from None
    if not isinstance(found, dict) or found.get("type") != "object":
        kind = named(found) if not isinstance(found, dict) else f"type {found.get('type')!r:.40}"
        raise DefinitionInvalid(f'{where}: the root of its schema must be {{"type": "object"}}, found {kind}')
    _check_references(found, where)
    return schema.decode() if isinstance(schema, bytes) else schema, found


def _check_references(schema: dict[str, Any], where: str) -> None:
    """Refuse too many nodes and every reference that leaves the schema; nothing was fetched to know it."""
    dialect = schema.get("$schema")
    if dialect is not None and str(dialect).rstrip("#") not in DIALECTS + OLD_DIALECTS:
        raise DefinitionInvalid(
            f"{where}: the $schema {quoted(str(dialect))} is not known; it is never fetched"
        )
    waiting: list[Any] = [schema]
    nodes = 0
    while waiting:
        node = waiting.pop()
        nodes += 1
        if nodes > MAX_SCHEMA_NODES:
            raise DefinitionInvalid(f"{where}: its schema has more than {MAX_SCHEMA_NODES} nodes")
        if isinstance(node, dict):
            for key in _REFERENCES:
                target = node.get(key)
                if isinstance(target, str) and not target.startswith("#"):
                    raise DefinitionInvalid(
                        f"{where}: {key} {quoted(target)} leaves the schema and is never fetched; copy what"
                        " it names under $defs"
                    )
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _validator(schema: dict[str, Any], where: str) -> jsonschema_rs.Validator:
    try:
        import jsonschema_rs
    except ImportError:
        raise DefinitionInvalid(
            f"{where}: a JSON Schema needs jsonschema-rs; install fencepost[schema]"
        ) from None
    try:
        # Two locks on one door: no references leave the schema, and none could be followed.
        return jsonschema_rs.validator_for(schema, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError) as why:
        raise DefinitionInvalid(
            f"{where}: its schema is not valid: {str(why).splitlines()[0][:300]}"
        ) from None
