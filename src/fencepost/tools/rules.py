"""The boundary: who may have which tool run with which arguments (contract 4.6), from a small TOML file.

Rule 1: a matching deny wins over everything; else the first matching rule; else reads are allowed and all
other effects are asked about.
Rule 2: rules are about canonical arguments, the same that will run; an argument that was not sent meets no
condition.
Rule 3: the version is a digest of what the rules say, so that a changed rule is a new version by itself.
docs/rules.md says the same for the person who writes the file.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fencepost.core.canonical import canonical, digest
from fencepost.core.entries import Verdict
from fencepost.core.errors import RulesInvalid
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.ports import Authorization

# A file that a person still reads; each call looks at each rule.
MAX_FILE_BYTES = 64 * 1024
MAX_RULES = 500
MAX_REASON = 500

_RULE_KEYS = ("tool", "effect", "principal", "arguments", "then", "reason")
_FILE_KEYS = ("rule", "self_approval")
_HEADER = re.compile(r"\s*\[\[\s*[\"']?rule[\"']?\s*\]\]")


class Condition(Struct, frozen=True):
    """An argument by name and the canonical JSON texts it may have."""

    argument: str
    values: tuple[str, ...]


class Rule(Struct, frozen=True):
    """One rule. `tool` and `principal` are globs; no effects and no conditions mean any."""

    then: Verdict
    tool: str = "*"
    principal: str = "*"
    effects: tuple[Effect, ...] = ()
    conditions: tuple[Condition, ...] = ()
    reason: str = ""


class Rules(Struct, frozen=True):
    """An ordered list of rules; satisfies `ports.Boundary`."""

    rules: tuple[Rule, ...] = ()
    self_approval: bool = False
    version: str = ""

    def __post_init__(self) -> None:
        said = msgspec.to_builtins((self.rules, self.self_approval))
        msgspec.structs.force_setattr(self, "version", digest(canonical(said), "rules"))

    @classmethod
    def load(cls, path: str | Path) -> Rules:
        """The rules of a TOML file; RulesInvalid names file, line and key."""
        try:
            data = Path(path).read_bytes()
        except OSError as why:
            raise RulesInvalid(
                f"{path}: the rules cannot be read ({why.strerror}); name a TOML file"
            ) from None
        return cls.read(data, str(path))

    @classmethod
    def read(cls, data: str | bytes, name: str = "rules") -> Rules:
        """The rules of a TOML text; `name` is what errors call it."""
        raw = data.encode() if isinstance(data, str) else data
        if len(raw) > MAX_FILE_BYTES:
            raise RulesInvalid(f"{name}: {len(raw)} bytes of rules, at most {MAX_FILE_BYTES} are read")
        try:
            text = raw.decode()
            found = tomllib.loads(text)
        except (ValueError, RecursionError) as why:
            raise RulesInvalid(f"{name}: not TOML: {why}") from None
        _check_keys(found, _FILE_KEYS, name)
        self_approval = found.get("self_approval", False)
        if not isinstance(self_approval, bool):
            raise RulesInvalid(f"{name}: self_approval must be true or false, got {_shown(self_approval)}")
        tables = found.get("rule", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise RulesInvalid(f"{name}: write each rule under a line [[rule]]")
        if len(tables) > MAX_RULES:
            raise RulesInvalid(
                f"{name}: {len(tables)} rules, at most {MAX_RULES} are looked at for each call"
            )
        lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
        rules = [_rule(table, _spot(name, index, lines)) for index, table in enumerate(tables)]
        return cls(tuple(rules), self_approval)

    @classmethod
    def allow_all(cls) -> Rules:
        """Rules that allow every call of everybody: for tests and examples."""
        return cls((Rule(Verdict.ALLOW, reason="everything is allowed"),))

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        """The verdict on one call; `arguments` is canonical JSON."""
        sent: dict[str, Any] | None = None
        first: Rule | None = None
        for rule in self.rules:
            if first is not None and rule.then is not Verdict.DENY:
                continue
            if not _concerns(rule, principal, definition):
                continue
            if rule.conditions:
                sent = sent if sent is not None else json.loads(arguments)
                if not all(_meets(condition, sent) for condition in rule.conditions):
                    continue
            if rule.then is Verdict.DENY:
                return Authorization(Verdict.DENY, rule.reason or "denied by a rule", self.version)
            first = rule
        if first is not None:
            return Authorization(first.then, first.reason, self.version)
        if definition.effect is Effect.READ:
            return Authorization(Verdict.ALLOW, "", self.version)
        return Authorization(Verdict.ASK, "no rule allows it and it is not a read", self.version)


def _concerns(rule: Rule, principal: str, definition: ToolDefinition) -> bool:
    return (
        fnmatchcase(definition.name, rule.tool)
        and (not rule.effects or definition.effect in rule.effects)
        and fnmatchcase(principal, rule.principal)
    )


def _meets(condition: Condition, sent: dict[str, Any] | None) -> bool:
    return (
        sent is not None
        and condition.argument in sent
        and canonical(sent[condition.argument]) in condition.values
    )


# --- reading a file --------------------------------------------------------------------------------------


def _spot(name: str, index: int, lines: list[int]) -> str:
    return f"{name}, rule {index + 1}" + (f" (line {lines[index]})" if index < len(lines) else "")


def _check_keys(table: dict[str, Any], allowed: tuple[str, ...], spot: str) -> None:
    for key in table:
        if key not in allowed:
            raise RulesInvalid(f"{spot}: unknown key {_shown(key)}; the keys are: {', '.join(allowed)}")


def _rule(table: dict[str, Any], spot: str) -> Rule:
    _check_keys(table, _RULE_KEYS, spot)
    if table.get("then") not in tuple(Verdict):
        problem = f"got {_shown(table['then'])}" if "then" in table else "it is missing"
        raise RulesInvalid(f'{spot}: then must be "allow", "ask" or "deny", {problem}')
    return Rule(
        then=Verdict(table["then"]),
        tool=_word(table, "tool", "*", spot),
        principal=_word(table, "principal", "*", spot),
        effects=_effects(table["effect"], spot) if "effect" in table else (),
        conditions=_conditions(table.get("arguments", {}), spot),
        reason=_word(table, "reason", "", spot)[:MAX_REASON],
    )


def _word(table: dict[str, Any], key: str, default: str, spot: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or (key in table and not value):
        raise RulesInvalid(f"{spot}: {key} must be a text that is not empty, got {_shown(value)}")
    return value


def _effects(value: Any, spot: str) -> tuple[Effect, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise RulesInvalid(f"{spot}: effect is an empty list; leave it out for every effect, or name some")
    for each in values:
        if each not in tuple(Effect):
            raise RulesInvalid(f'{spot}: effect must be "read", "idempotent" or "write", got {_shown(each)}')
    return tuple(Effect(each) for each in values)


def _conditions(value: Any, spot: str) -> tuple[Condition, ...]:
    if not isinstance(value, dict):
        raise RulesInvalid(
            f'{spot}: arguments must be a table like {{ service = "payment" }}, got {_shown(value)}'
        )
    found = []
    for argument, wanted in value.items():
        one_of = wanted
        if isinstance(wanted, dict):
            one_of = wanted.get("in")
            if set(wanted) != {"in"} or not isinstance(one_of, list) or not one_of:
                raise RulesInvalid(f"{spot}: arguments.{argument} must be a value or {{ in = [values] }}")
        values = one_of if isinstance(wanted, dict) else [wanted]
        for each in values:
            if not isinstance(each, (str, int, float)) or not _is_finite(each):
                raise RulesInvalid(
                    f"{spot}: arguments.{argument} can be compared with texts, numbers and true or false,"
                    f" got {_shown(each)}"
                )
        found.append(Condition(argument, tuple(canonical(each) for each in values)))
    return tuple(found)


def _is_finite(value: str | float) -> bool:
    return isinstance(value, str) or math.isfinite(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
