"""One small mutation of our own code for each conformance row: what its tests must notice.

Rule 1: a mutation is a place (file under src/fencepost), a text that occurs there exactly once, and what
stands there instead; it is the smallest change that breaks the row's promise, not a syntax error.
Rule 2: whoever rewrites such a line brings its mutation along: `test_mutations.py` says which text is gone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    file: str
    old: str
    new: str


ADMISSION, LOOP, PERFORM, LIVE = "run/admission.py", "run/loop.py", "run/perform.py", "run/live.py"
STARTING = "run/starting.py"
DECIDE, STATE, CLOSING = "core/decide.py", "core/state.py", "core/closing.py"
JSON, FUNCTION, TASKS, RULES = (
    "core/strictjson.py",
    "tools/function.py",
    "service/tasks.py",
    "stores/rules.py",
)

MUTATIONS: dict[str, Mutation] = {
    "L01": Mutation(
        STATE, "not call.id or not call.name or ids.has(call.id)", "not call.id or not call.name"
    ),
    "L02": Mutation(
        ADMISSION,
        "calls=tuple(calls),",
        "calls=tuple({(call.id, call.digest): call for call in calls}.values()),",
    ),
    "L03": Mutation(
        STATE, "    ids, duplicate = state.ids, False", "    ids, duplicate = Log[None](), False"
    ),
    "L04": Mutation(STATE, "duplicate or not call.id or not call.name", "duplicate or not call.name"),
    "L05": Mutation(STATE, "duplicate or not call.id or not call.name", "duplicate or not call.id"),
    "L06": Mutation(ADMISSION, "TOOL_NAMES_TOLD_MOST = 50", "TOOL_NAMES_TOLD_MOST = 5000"),
    "L07": Mutation(
        FUNCTION,
        "        except JsonInvalid as why:\n            raise self._described.refusal(str(why)) from None",
        "        except JsonInvalid:\n            sent = {}",
    ),
    "L08": Mutation(JSON, "not text or (len(text) <= max_bytes and text.isspace())", "not text"),
    "L09": Mutation(
        JSON,
        'raise JsonInvalid(f"expected a JSON object, found {named(value)}")',
        "return {}",
    ),
    "L10": Mutation(JSON, "if len(found) != len(pairs):", "if not pairs and found:"),
    "L11": Mutation(
        JSON,
        "def _constant(_text: str) -> Any:\n    raise _Spotted",
        "def _constant(_text: str) -> Any:\n    return 0",
    ),
    "L12": Mutation(JSON, "MAX_DEPTH = 64", "MAX_DEPTH = 640_000"),
    "L13": Mutation(JSON, "MAX_DIGITS = 100", "MAX_DIGITS = 1000"),
    "L14": Mutation(JSON, "MAX_BYTES = 256 * 1024", "MAX_BYTES = 256 * 1024 * 1024"),
    "L15": Mutation(
        JSON, 'if "\\\\u" in text:\n        _check_escapes', 'if "\\\\v" in text:\n        _check_escapes'
    ),
    "L16": Mutation(
        FUNCTION,
        "found = msgspec.convert(sent, self._signature.arguments, dec_hook=_model, str_keys=True)",
        "found = msgspec.convert(sent, self._signature.arguments, dec_hook=_model, strict=False)",
    ),
    "L17": Mutation(
        FUNCTION,
        'if self._unknown is not None and (problem := self._unknown(sent, "$")) is not None:',
        "if self._unknown is None and (problem := self._unknown_argument(sent)) is not None:",
    ),
    "L18": Mutation(
        FUNCTION,
        "problem, path = place_of(why, sent, self._failure)",
        'problem, path = "something is wrong", ()',
    ),
    "L19": Mutation(
        "tools/declared.py",
        'isinstance(target, str) and not target.startswith("#")',
        'isinstance(target, str) and target == "#"',
    ),
    "L20": Mutation(DECIDE, "if reply.finish is Finish.LENGTH:", "if reply.finish is Finish.ERROR:"),
    "L21": Mutation(
        CLOSING, 'StopReason.TRUNCATED_REPLY: "not executed: truncated"', 'StopReason.TRUNCATED_REPLY: ""'
    ),
    "L22": Mutation(DECIDE, "in (Finish.REFUSAL, Finish.FILTER)", "in (Finish.REFUSAL,)"),
    "L23": Mutation(
        DECIDE,
        "if finish is not Finish.TOOL_CALLS and finish is not Finish.STOP:",
        "if finish is Finish.ERROR:",
    ),
    "L24": Mutation(
        DECIDE,
        "if finish is not Finish.TOOL_CALLS and finish is not Finish.STOP:",
        "if finish is not (Finish.TOOL_CALLS if calls else Finish.STOP):",
    ),
    "L25": Mutation(
        DECIDE,
        "if not calls and not answers and not reply.text.strip():",
        "if not calls and not answers and not reply.text:",
    ),
    "L26": Mutation(DECIDE, "in (Finish.REFUSAL, Finish.FILTER)", "in (Finish.FILTER,)"),
    "L27": Mutation(
        DECIDE,
        "    if not reply.calls:\n        return _plain",
        "    if reply.text.strip():\n        return _plain",
    ),
    "L28": Mutation(
        DECIDE,
        "if reply.answer is not None or reply.answer_problem:",
        "if not reply.calls and (reply.answer is not None or reply.answer_problem):",
    ),
    "L29": Mutation(
        DECIDE, "if len(calls) > limits.calls_per_reply:", "if len(calls) > 100 * limits.calls_per_reply:"
    ),
    "L30": Mutation(
        ADMISSION,
        "return reserved, reserved_nano if known is None else known",
        "return 0, 0 if known is None else known",
    ),
    "L31": Mutation(
        PERFORM,
        "if isinstance(outcome, Raised):\n        return _failed(",
        "if isinstance(outcome, Raised) and isinstance(outcome.error, Exception):\n        return _failed(",
    ),
    "L32": Mutation(LOOP, "self._artifacts.append((body.digest, whole))", "pass"),
    "L33": Mutation(
        LOOP,
        "if outcome is Lost.TIMEOUT and not write:",
        "if outcome is Lost.TIMEOUT:",
    ),
    "L34": Mutation(
        CLOSING,
        "if effect_of(state, call.call) is Effect.WRITE:",
        "if effect_of(state, call.call) is not Effect.WRITE:",
    ),
    "L35": Mutation(LOOP, "await self._late.put_refused(self._pending, self.state)", "self._pending.clear()"),
    "L36": Mutation(
        LOOP,
        "if self.lost is not None or (self.lease_until is not None and not self._owns()):\n"
        "            self.state = lost(",
        "if self.lease_until is not None and not self._owns():\n            self.state = lost(",
    ),
    "L37": Mutation(
        CLOSING,
        "status = CallStatus.CANCELLED if reason is StopReason.CANCELLED else CallStatus.NOT_EXECUTED",
        "status = CallStatus.NOT_EXECUTED",
    ),
    "L38": Mutation(
        LOOP,
        "await self._finished(self.world.store.release(self.lease, seconds=self.seconds()))",
        "self.seconds()",
    ),
    "L39": Mutation(
        TASKS,
        "            return None\n        return stop_change(",
        "            pass\n        return stop_change(",
    ),
    "L40": Mutation(
        LOOP,
        "if self.lost is None and self.state.steps + 1 == step and self.state.attempts == attempt:",
        "if self.state.attempts == attempt:",
    ),
    "L41": Mutation(
        LOOP,
        "if self._pending and not self._flights.any_landed and self.lost is None:",
        "if not self._loop:",
    ),
    "L42": Mutation(DECIDE, "(not parallel and (flying or starts))", "(not parallel and starts)"),
    "L43": Mutation(DECIDE, "failed.kind, StopReason.LLM_ERROR", "failed.kind, StopReason.INVALID_DECISION"),
    "L45": Mutation(
        DECIDE,
        "        if position >= allowed:\n            said",
        "        if position > allowed:\n            said",
    ),
    "L46": Mutation(
        STATE,
        "calls=state.calls + len(body.calls),",
        "calls=state.calls + sum(call.refusal is None for call in body.calls),",
    ),
    "L47": Mutation(DECIDE, "if state.tokens > limits.tokens:", "if state.tokens > 2 * limits.tokens:"),
    "L49": Mutation(
        DECIDE, "if seconds >= opened.limits.task_seconds:", "if seconds >= 2 * opened.limits.task_seconds:"
    ),
    "L51": Mutation(DECIDE, "if not 0 < wanted <= len(at):", "if not 0 < wanted < len(at):"),
    "L52": Mutation(DECIDE, ', "overflow": StopReason.CONTEXT_OVERFLOW}', "}"),
    "L53": Mutation(DECIDE, "if state.steps >= limits.steps:", "if state.steps > limits.steps:"),
    "L54": Mutation("core/limits.py", "if not enough or value >= LARGEST:", "if not enough:"),
    "L55": Mutation(
        TASKS, "    digest: str | None = None,", '    digest: str | None = None,\n    arguments: str = "",'
    ),
    "L56": Mutation(TASKS, "if _same_again(", "if not _same_again("),
    "L57": Mutation(TASKS, "AuditRecord(tenant, by, decision,", 'AuditRecord("", by, decision,'),
    "L58": Mutation(
        DECIDE, '_CLOSED_DECISIONS = ("rejected", "expired")', '_CLOSED_DECISIONS = ("expired",)'
    ),
    "L59": Mutation(
        STARTING, 'if verdict.verdict == "deny":', 'if verdict.verdict == "deny" and not approved:'
    ),
    "L60": Mutation(
        TASKS, "if digest is not None and digest != ask.digest:", "if digest is not None and not ask.digest:"
    ),
    "L61": Mutation(
        STARTING,
        "(ask.rules, ask.definition) == (boundary.version, definition.digest)",
        "ask.rules == boundary.version",
    ),
    "L66": Mutation(
        "service/replay/playback.py",
        "        self.differ(compare_bodies(entry.seq, entry.body, body))\n",
        "",
    ),
    "L67": Mutation(
        "core/entries.py",
        "if version != ENTRY_VERSION or kind not in _decoders:",
        "if version < ENTRY_VERSION or kind not in _decoders:",
    ),
    "L68": Mutation("stores/memory.py", "                or task.state not in commit.states\n", ""),
    "L69": Mutation(
        STATE,
        "if done.ended.status is CallStatus.OK and not done.ended.failure",
        "if done.ended.status is not CallStatus.UNKNOWN",
    ),
    "L70": Mutation(ADMISSION, "verdict=_VERDICTS[verdict.verdict],", "verdict=Verdict.ALLOW,"),
    "L71": Mutation(
        LIVE,
        "return self._epochs.get((tenant, task), 0)",
        "return -self._epochs.get((tenant, task), 0)",
    ),
    "L72": Mutation(
        LIVE,
        "if event.epoch < self._epochs.get((event.tenant, event.task), 0):",
        "if event.epoch < 0:",
    ),
    "L74": Mutation(
        RULES, "if type(getattr(body, name)) is not tuple:", "if type(getattr(body, name)) is dict:"
    ),
    "L75": Mutation(
        RULES,
        "if held is not None and not ours and held.status in HOLDING:",
        "if held is not None and not ours and held.status not in HOLDING:",
    ),
    "L76": Mutation(
        "stores/memory.py",
        "task.entries[end - 1].commit_id == commit.commit_id",
        "task.entries[end - 1].commit_id != commit.commit_id",
    ),
    "L77": Mutation(
        "stores/sqlite/writer.py", "self._fail_all(members, why)", "self._fail_all(members[:1], why)"
    ),
    "L78": Mutation(
        DECIDE,
        'given_up = resolved is not None and resolved.source == "person"',
        "given_up = resolved is None",
    ),
    "L79": Mutation(
        DECIDE,
        "if resolved is None and definition is not None and definition.reconciles and not call.reconciled:",
        "if resolved is None and definition is not None and not definition.reconciles:",
    ),
}
