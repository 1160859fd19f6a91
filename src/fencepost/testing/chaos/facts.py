"""The facts of a rehearsal: what was planned, what was seen of each call, and what does not hold.

Rule: everything here crosses a process as JSON, so it holds plain values only.
"""

from __future__ import annotations

from msgspec import Struct, field

from fencepost.core.entries import Entry, kind_of
from fencepost.models.wrappers import Fault
from fencepost.testing.chaos.script import REPEATED

# A journal line is read beside others; what is longer is in the journal itself. Characters.
LINE_CHARS = 100
# What a child process says of its journal begins so.
JOURNAL = "| "
# What a sentence quotes of the world. Characters.
WORLD_CHARS = 300


class Plan(Struct, frozen=True):
    """One disturbance. `kind` is a key of WORDS; `nth` numbers commits, `pause` the awaits of a call's body."""

    kind: str
    nth: int = 0
    call: str = ""
    tool: str = ""
    pause: int = 0
    step: int = 0
    fault: str = ""

    @property
    def words(self) -> str:
        """What is done, as a clause."""
        return WORDS[self.kind].format(
            nth=self.nth,
            call=f"call {self.call} of {self.tool}",
            pause=f"at its await number {self.pause}",
            step=self.step,
            fault=MEANINGS.get(self.fault) or _meaning(self.fault),
        )


WORDS = {
    "none": "nothing was disturbed",
    "crash_before": "the process died just before commit {nth}",
    "crash_after": "the process died just after commit {nth}",
    "cancel": "the task was cancelled just after commit {nth}",
    "crash_at": "the process died when {call} was about to do its work",
    "crash_in": "the process died during {call}, {pause}",
    "cancel_in": "the task was cancelled during {call}, {pause}",
    "timeout_in": "the time of {call} was over, {pause}",
    "reply": "the reply of step {step} was spoilt: {fault}",
}
MEANINGS = {REPEATED: "the reply before it came again", Fault.DUPLICATE_IDS.name: "each call came twice"}
UNDISTURBED = Plan("none")


def _meaning(fault: str) -> str:
    return Fault[fault].value if fault in Fault.__members__ else fault


class Ran(Struct):
    """One start of one call, as seen from around the tool's body.

    `before`, `asked_world` and `after` are digests of the world; `asked` and `ended` are seconds of a monotonic
    clock, None where that did not happen; `longest` is the longest time between two awaits, seconds. `cut` says that
    the process died around it, so that nothing was cleaned up.
    """

    call: str
    tool: str
    effect: str
    key: str
    start: int
    before: str
    after: str = ""
    finished: bool = False
    raised: str = ""
    longest: float = 0.0
    pauses: int = 0
    alone: bool = True
    asked: float | None = None
    asked_world: str = ""
    ended: float | None = None
    late: bool = False
    waited: bool = False
    cut: bool = False
    left: dict[int, str] = field(default_factory=dict)

    @property
    def had_effect(self) -> bool:
        """Whether the body came to its end or the world is another one than before it."""
        return self.finished or (self.after or self.before) != self.before


class Problem(Struct, frozen=True):
    """A rule that does not hold: its name, the tool it is about ("" for none), and a sentence."""

    rule: str
    tool: str
    says: str


class Seen(Struct, frozen=True):
    """What one rehearsal showed. `comparable` says that it must have led where an undisturbed run leads.

    `calls` are the names of the tools that were asked for, by call, and `statuses` how those calls ended that came to
    an end of their own.
    """

    plan: Plan
    state: str
    reason: str
    commits: int
    steps: int
    world: str
    comparable: bool
    journal: tuple[str, ...]
    calls: dict[str, str]
    statuses: dict[str, str]
    runs: tuple[Ran, ...]
    problems: tuple[Problem, ...]


class Finding(Struct, frozen=True):
    """A rule that does not hold, the disturbance that showed it, and the shortest journal that shows it."""

    rule: str
    tool: str
    says: str
    did: str
    journal: tuple[str, ...]


class Report(Struct, frozen=True):
    """What chaos found. `trials` is how many runs there were; `notes` is what it could not look at."""

    agent: str
    trials: int
    commits: int
    calls: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def line_of(entry: Entry) -> str:
    """An entry as one short line."""
    body = entry.body
    told = [str(entry.seq), kind_of(body)]
    step, position = getattr(body, "step", None), getattr(body, "position", None)
    if step is not None:
        told.append(f"step {step}" if position is None else f"call {step}.{position}")
    for name in ("attempt", "start", "status", "decision", "verdict", "source", "kind", "reason", "problem"):
        value = getattr(body, name, "")
        if value != "":
            told.append(f"{name} {value}")
    told.extend(f"{call.name}({call.arguments})" for call in getattr(body, "calls", ()))
    text = " ".join(told)
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"
