"""The boundary's rules: which rule counts, what it compares, and what a wrong file is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.core.errors import RulesInvalid
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.ports import Boundary
from fencepost.tools.rules import MAX_FILE_BYTES, Rules


def verdict(
    rules: Rules, tool: str = "rollback", effect: str = "write", who: str = "ann", sent: str = "{}"
) -> str:
    return rules.authorize(who, ToolDefinition(tool, "", "{}", Effect(effect)), sent).verdict


def test_without_rules_reads_are_allowed_and_everything_else_is_asked_about() -> None:
    rules: Boundary = Rules()
    assert not rules.self_approval
    assert verdict(Rules(), effect="read") == "allow"
    assert verdict(Rules(), effect="idempotent") == "ask"
    assert verdict(Rules(), effect="write") == "ask"


def test_the_rules_for_tests_allow_everything_to_everybody() -> None:
    assert {verdict(Rules.allow_all(), effect=effect) for effect in Effect} == {"allow"}


def test_the_first_rule_that_applies_counts() -> None:
    rules = Rules.read("""
        [[rule]]
        tool = "roll*"
        then = "ask"
        reason = "look first"
        [[rule]]
        tool = "rollback"
        then = "allow"
        [[rule]]
        then = "allow"
    """)
    said = rules.authorize("ann", ToolDefinition("rollback", "", "{}"), "{}")
    assert (said.verdict, said.reason, said.rules) == ("ask", "look first", rules.version)
    assert verdict(rules, tool="restart") == "allow"


def test_a_deny_wins_wherever_it_stands() -> None:
    rules = Rules.read("""
        [[rule]]
        then = "allow"
        [[rule]]
        tool = "rollback"
        arguments = { service = "payment" }
        then = "deny"
        reason = "not payment"
        [[rule]]
        tool = "rollback"
        then = "ask"
    """)
    said = rules.authorize("ann", ToolDefinition("rollback", "", "{}"), '{"service":"payment"}')
    assert (said.verdict, said.reason) == ("deny", "not payment")
    assert verdict(rules, sent='{"service":"cart"}') == "allow"
    assert Rules.read('[[rule]]\nthen = "deny"').authorize("a", ToolDefinition("t", "", "{}"), "{}").reason


@pytest.mark.parametrize(
    ("selector", "call", "applies"),
    [
        ('tool = "rollback"', {}, True),
        ('tool = "Rollback"', {}, False),
        ('tool = "roll[ab]?ck"', {"tool": "rollback"}, True),
        ('tool = "rollback"', {"tool": "rollback.v2"}, False),
        ('effect = "read"', {"effect": "read"}, True),
        ('effect = "read"', {"effect": "write"}, False),
        ('effect = ["read", "idempotent"]', {"effect": "idempotent"}, True),
        ('principal = "oncall-*"', {"who": "oncall-ann"}, True),
        ('principal = "oncall-*"', {"who": "ann"}, False),
        ("arguments = { n = 1 }", {"sent": '{"n":1}'}, True),
        ("arguments = { n = 1.0 }", {"sent": '{"n":1}'}, True),
        ("arguments = { n = 1 }", {"sent": '{"n":true}'}, False),
        ("arguments = { n = 1 }", {"sent": '{"n":"1"}'}, False),
        ("arguments = { n = true }", {"sent": '{"n":true}'}, True),
        ('arguments = { n = "x" }', {"sent": '{"n":"x","m":1}'}, True),
        ('arguments = { n = "x", m = 2 }', {"sent": '{"n":"x","m":1}'}, False),
        ('arguments = { n = { in = ["x", 2] } }', {"sent": '{"n":2}'}, True),
        ('arguments = { n = { in = ["x", 2] } }', {"sent": '{"n":3}'}, False),
        ("arguments = { n = 123456789012345678 }", {"sent": '{"n":123456789012345679}'}, False),
        ("arguments = { n = 0 }", {"sent": "{}"}, False),
        ('tool = "rollback"\nprincipal = "bob"', {}, False),
    ],
)  # fmt: skip
def test_a_rule_applies_when_everything_it_says_matches(
    selector: str, call: dict[str, str], applies: bool
) -> None:
    rules = Rules.read(f'[[rule]]\n{selector}\nthen = "deny"\n')
    assert (verdict(rules, **call) == "deny") is applies


def test_the_version_changes_with_what_the_rules_say_and_with_nothing_else() -> None:
    text = '[[rule]]\ntool = "a"\nthen = "ask"\n'
    version = Rules.read(text).version
    assert Rules.read("# a comment\n\n" + text).version == version
    others = [
        "",
        text.replace("ask", "deny"),
        text.replace('"a"', '"b"'),
        text + 'reason = "x"\n',
        "self_approval = true\n" + text,
        text + text,
    ]
    assert len({version, *(Rules.read(other).version for other in others)}) == len(others) + 1
    assert Rules.read("self_approval = true").self_approval


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[rule]]\nthen = "ask"\n\n[[rule]]\ntol = "x"\n', "rule 2 (line 4): unknown key 'tol'; "),
        ("rules = []", "rules.toml: unknown key 'rules'; the keys are: rule, self_approval"),
        ('[[rule]]\ntool = "x"', 'rule 1 (line 1): then must be "allow", "ask" or "deny", it is missing'),
        ('[[rule]]\nthen = "maybe"', "then must be \"allow\", \"ask\" or \"deny\", got 'maybe'"),
        ('[[rule]]\nthen = ["allow"]', "got ['allow']"),
        ('[[rule]]\nthen = "ask"\neffect = "delete"', "\"idempotent\" or \"write\", got 'delete'"),
        ('[[rule]]\nthen = "ask"\neffect = [["read"]]', "got ['read']"),
        ('[[rule]]\nthen = "allow"\neffect = []', "effect is an empty list; leave it out for every effect"),
        ('[[rule]]\nthen = "ask"\ntool = ""', "tool must be a text that is not empty, got ''"),
        ('[[rule]]\nthen = "ask"\nprincipal = 7', "principal must be a text that is not empty, got 7"),
        ('[[rule]]\nthen = "ask"\narguments = "x"', "arguments must be a table like"),
        ('[[rule]]\nthen = "ask"\narguments = { a = { is = 1 } }', "arguments.a must be a value or { in"),
        ('[[rule]]\nthen = "ask"\narguments = { a = { in = [] } }', "arguments.a must be a value or { in"),
        ('[[rule]]\nthen = "ask"\narguments = { a = [1] }', "arguments.a can be compared with texts"),
        ('[[rule]]\nthen = "ask"\narguments = { a = nan }', "arguments.a can be compared with texts"),
        ('[[rule]]\nthen = "ask"\narguments = { a = inf }', "arguments.a can be compared with texts"),
        ('[[rule]]\nthen = "ask"\narguments = { a = 2020-01-01 }', "arguments.a can be compared with texts"),
        ('[rule]\nthen = "ask"', "write each rule under a line [[rule]]"),
        ('self_approval = "yes"', "self_approval must be true or false, got 'yes'"),
        ("n = " + "9" * 5000, "rules.toml: not TOML: "),
        ('[[rule]\nthen = "ask"', "rules.toml: not TOML: "),
        ('[[rule]]\nthen = "ask"\n' * 501, "501 rules, at most 500"),
        ("#" * (MAX_FILE_BYTES + 1), "bytes of rules, at most 65536"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesInvalid, match=re.escape(says)) as refusal:
        Rules.load(path)
    assert str(path) in str(refusal.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        RulesInvalid, match=r"none\.toml: the rules cannot be read \(No such file or directory\)"
    ):
        Rules.load(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with pytest.raises(RulesInvalid, match="not TOML"):
        Rules.load(tmp_path / "odd.toml")


def test_the_file_in_the_documentation_does_what_the_documentation_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
    rules = Rules.read(text.split("```toml\n")[1].split("```")[0])
    sent: Any = '{{"service":"{}"}}'.format
    assert verdict(rules, sent=sent("payment"), who="oncall-ann") == "deny"
    assert verdict(rules, sent=sent("cart"), who="oncall-ann") == "allow"
    assert verdict(rules, sent=sent("cart")) == "ask"
    assert verdict(rules, tool="query", effect="read") == "allow"
    assert not rules.self_approval
