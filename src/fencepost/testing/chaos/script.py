"""What a rehearsed model says: one reply for each step, however often that step is asked.

Rule 1: a script answers by the number of the step, so it says the same after a crash as before it.
Rule 2: a file of replies is JSON lines: a text, or an object with `text`, `calls`, `answer` and `finish`; what
is wrong with a line is said with its number. Arguments that are a text go out as they are, broken or not.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fencepost.core.errors import DefinitionInvalid, ModelFailed
from fencepost.core.messages import Finish, ModelProfile, ModelRequest, Reply, ToolCall
from fencepost.models.scripted import SCRIPTED_USAGE, Line, streamed
from fencepost.models.wrappers import Fault, FaultyModel
from fencepost.ports import Model, Sink

KNOWN = frozenset({"text", "calls", "answer", "finish"})
KNOWN_OF_A_CALL = frozenset({"name", "arguments", "id"})
# The reply before it, once more: what a provider or a proxy that repeats itself sends.
REPEATED = "repeated"


class StepModel:
    """Says the line of the step it is asked for; past the last line it fails with ModelFailed."""

    def __init__(self, script: Sequence[Line | str]) -> None:
        self._script = [
            Reply(line, usage=SCRIPTED_USAGE) if isinstance(line, str) else line for line in script
        ]
        self.profile = ModelProfile("script", input_nano=0, output_nano=0)

    def line(self, step: int, request: ModelRequest) -> Reply:
        """The reply of this step, whatever was said before."""
        if step > len(self._script):
            raise ModelFailed(f"the script has {len(self._script)} lines, and step {step} was asked for")
        line = self._script[step - 1]
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, Reply) else line(request)

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The line of the request's step."""
        reply = self.line(request.step, request)
        return reply if sink is None else streamed(reply, sink)


class RehearsedModel:
    """The model of one rehearsal: `quiet` is awaited before each reply, and one step's reply has a fault.

    `faults` counts the attempts that met it; only the first attempt at the step does.
    """

    def __init__(
        self, model: Model, *, quiet: Callable[[], Awaitable[None]], step: int = 0, fault: str = ""
    ) -> None:
        self._model, self._quiet, self._step, self._fault = model, quiet, step, fault
        self._last: Reply | None = None
        self.faults = 0

    @property
    def profile(self) -> ModelProfile:
        """The profile of the model behind it."""
        return self._model.profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The model's reply, or what the fault makes of it."""
        await self._quiet()
        if request.step != self._step or self.faults:
            self._last = await self._model.reply(request, sink)
            return self._last
        self.faults += 1
        if self._fault == REPEATED:
            assert self._last is not None
            return self._last
        if self._fault == Fault.DUPLICATE_IDS.name:
            reply = await self._model.reply(request, sink)
            return replace(reply, calls=reply.calls * 2)
        return await FaultyModel(self._model, faults={1: Fault[self._fault]}).reply(request, sink)


def read_lines(place: str, named: Callable[[str], object]) -> list[Line | str]:
    """The script at a place: a file of JSON lines, else what `named` finds there, a list or what makes one."""
    if ":" in place:
        found = named(place)
        lines = found() if callable(found) else found
        if not isinstance(lines, (list, tuple)) or not lines:
            raise DefinitionInvalid(f"{place} is no script; it must be a list of replies, or return one")
        return list(lines)
    try:
        text = Path(place).read_text(encoding="utf-8")
    except (OSError, ValueError) as why:
        raise DefinitionInvalid(
            f"the script {place} cannot be read ({why}); name a file of JSON lines"
        ) from None
    return read_script(text, name=place)


def read_script(text: str, *, name: str = "the script") -> list[Line | str]:
    """The replies of JSON lines; DefinitionInvalid names the line that is none."""
    script: list[Line | str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            said = json.loads(line)
        except ValueError as why:
            raise DefinitionInvalid(f"{where} is not JSON ({why}); each line is one reply") from None
        script.append(_reply(said, where, step=len(script) + 1))
    if not script:
        raise DefinitionInvalid(f"{name} holds no reply; write one JSON text or object on each line")
    return script


def _reply(said: Any, where: str, *, step: int) -> Line | str:
    if isinstance(said, str):
        return said
    if not isinstance(said, dict) or not said or set(said) - KNOWN:
        raise DefinitionInvalid(
            f"{where} must be a text or an object with some of {', '.join(sorted(KNOWN))}; got {said!r:.80}"
        )
    calls = said.get("calls", [])
    if not isinstance(calls, list) or not isinstance(said.get("text", ""), str):
        raise DefinitionInvalid(f"{where}: text must be a text, and calls a list of objects")
    if "answer" in said:
        calls = [*calls, {"name": "answer", "arguments": _cited(said["answer"], where)}]
    made = tuple(_call(one, f"{where}, call {at}", f"s{step}-{at}") for at, one in enumerate(calls))
    finish = said.get("finish", "tool_calls" if made else "stop")
    if finish not in tuple(Finish):
        raise DefinitionInvalid(f"{where}: finish must be one of {', '.join(Finish)}; got {finish!r:.40}")
    return Reply(said.get("text", ""), made, Finish(finish), usage=SCRIPTED_USAGE)


def _cited(answer: Any, where: str) -> Any:
    """The arguments of the answer tool; the ids its claims cite need not be listed twice."""
    if not isinstance(answer, dict) or not isinstance(answer.get("claims", []), list):
        raise DefinitionInvalid(f"{where}: answer must be an object with summary and claims")
    cited = [claim.get("evidence_id", "") for claim in answer.get("claims", []) if isinstance(claim, dict)]
    return {"evidence_ids": list(dict.fromkeys(cited)), "claims": [], **answer}


def _call(said: Any, where: str, id: str) -> ToolCall:
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or set(said) - KNOWN_OF_A_CALL:
        raise DefinitionInvalid(f"{where} must be an object with name, arguments and perhaps id")
    arguments = said.get("arguments", {})
    given = said.get("id", id)
    if not isinstance(given, str):
        raise DefinitionInvalid(f"{where}: id must be a text, got {given!r:.40}")
    return ToolCall(given, said["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
