"""From a diagnosis and what was observed to sentences that quote it.

Rules of this file:
- A number or a name that was read stands in a sentence only together with the claim that holds it.
- Texts from logs and records are data: quoted cut and printable, never looked at for instructions.
- A rollback is only suggested, and only to a release that the record shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from fencepost.agents.incident.diagnosis import Deviation, Diagnosis, Kind
from fencepost.agents.incident.findings import (
    Claim,
    Conclusion,
    Observation,
    RollbackOutcome,
    RollbackSuggestion,
    Statement,
    Tool,
)
from fencepost.agents.incident.sources.rollback import VALUE
from fencepost.agents.incident.sources.window import read_moment, write_moment
from fencepost.agents.incident.thresholds import Thresholds

SUSPECTS_TOLD = 3  # what a person follows up by hand
PLAIN = re.compile(r"[\x20-\x21\x23-\x5b\x5d-\x7e]*")  # ASCII that JSON writes as it is
PATTERN_CHARS = 120  # of a log message in a sentence
REFUSING = ("denied", "rejected", "expired")  # how a result begins when the rules or a person said no
NOT_KNOWN = "outcome unknown"
NO_TIME = "The prompt names no time, so the present was taken for that of the alert."
RETURNABLE = ("tag", "change")  # kinds of release that one can go back to; a commit is part of one


class _Seen(msgspec.Struct, frozen=True):
    """An observation that has a result."""

    evidence: str
    result: dict[str, Any]

    def claim(self, pointer: str) -> Claim:
        return Claim(evidence=self.evidence, pointer=pointer, value=at_pointer(self.result, pointer))


class _Suspected(msgspec.Struct, frozen=True):
    """The release before the onset and the one before that, as places in the list of releases."""

    release: int | None = None
    previous: int | None = None


def conclude(
    diagnosis: Diagnosis,
    observations: Sequence[Observation],
    *,
    onset: float,
    thresholds: Thresholds,
    left_out: bool = False,
    present: bool = False,
) -> Conclusion:
    """The conclusion: what was seen, which release may have caused it, and what was not seen.

    `left_out` says that there are more metrics than were asked for, `present` that nobody named the time.
    """
    statements: list[Statement] = []
    for place, suspect in enumerate(diagnosis.suspects[:SUSPECTS_TOLD]):
        told = suspect.deviations if place == 0 else suspect.deviations[:1]
        statements += [_deviation(d, observations, suspect.explained_by) for d in told]
    statements = statements or list(_quiet(observations))
    logs = _seen("search_logs", observations)
    if logs is not None:
        statements.append(_logs(logs, new_from=onset - thresholds.alert_lag))
    releases = _seen("list_releases", observations)
    found = _Suspected()
    if releases is not None:
        found = _released_before(releases.result, diagnosis.culprit, onset, thresholds)
        statements += _releases(releases, found)
    outcome = _rollback_outcome(observations)
    done = _seen("rollback", observations)
    if done is not None:
        claim = done.claim("/exit_code")
        text = f"A rollback was run and its command ended with {_text(claim)}."
        statements.append(Statement(text=text, claims=(claim,)))
    return Conclusion(
        culprit=diagnosis.culprit,
        confidence=diagnosis.confidence,
        observations=tuple(statements),
        cause=_cause(diagnosis, releases, found),
        missing=(
            *((NO_TIME,) if present else ()),
            *_missing(diagnosis, observations, found, left_out=left_out),
        ),
        rollback=None if done is not None else _rollback(diagnosis, releases, found),
        rollback_outcome=outcome,
        synthetic=any((one.result or {}).get("synthetic") is True for one in observations),
    )


def at_pointer(document: Any, pointer: str) -> Any:
    """The value at a JSON Pointer (RFC 6901). Raises KeyError, IndexError or ValueError without one."""
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def _seen(tool: Tool, observations: Iterable[Observation]) -> _Seen | None:
    for one in observations:
        if one.tool == tool and one.result is not None:
            return _Seen(one.evidence, one.result)
    return None


# -- metrics ----------------------------------------------------------------------------------------------


def _deviation(
    deviation: Deviation, observations: Sequence[Observation], explained_by: str | None
) -> Statement:
    number, place = deviation.origin.split("/")
    observation = observations[int(number)]
    assert observation.result is not None, "a deviation comes from a result"
    seen = _Seen(observation.evidence, observation.result)
    at = f"/series/{place}"
    points = at_pointer(seen.result, f"{at}/points")
    run = [i for i, (t, _) in enumerate(points) if deviation.onset <= t <= deviation.until]
    worst = max(run, key=lambda i: (points[i][1], -i))
    highest: tuple[Claim, ...] = (seen.claim(f"{at}/points/{worst}/1"),)
    # The summary has the time as people write it, of the first sample as high, which may be an older one.
    summary = at_pointer(seen.result, f"{at}/summary")
    if (points[worst][1], write_moment(points[worst][0])) == (summary["max"], summary["max_at"]):
        highest = (seen.claim(f"{at}/summary/max"), seen.claim(f"{at}/summary/max_at"))
    metric, service = seen.claim("/metric"), seen.claim(f"{at}/service")
    median, began = seen.claim(f"{at}/summary/median"), seen.claim(f"{at}/points/{run[0]}/0")
    what = f"{_text(metric)} of {_text(service)}"
    reached = " at ".join(_text(claim) for claim in highest)
    because = "" if explained_by is None else " Its calls to a deviant service would explain that."
    text = f"{what} reached {reached}; its median there is {_text(median)}.{because}"
    return Statement(text=text, claims=(metric, service, *highest, median, began))


def _quiet(observations: Sequence[Observation]) -> Iterable[Statement]:
    """The highest value of each metric, which is all there is to quote."""
    for one in observations:
        if one.tool != "query_metrics" or one.result is None:
            continue
        seen = _Seen(one.evidence, one.result)
        highest = [(s["summary"]["max"], -i) for i, s in enumerate(one.result["series"]) if s["points"]]
        if not highest:
            continue
        place = -max(highest)[1]
        metric, service = seen.claim("/metric"), seen.claim(f"/series/{place}/service")
        high = seen.claim(f"/series/{place}/summary/max")
        text = f"The highest {_text(metric)} is {_text(high)}, of {_text(service)}."
        yield Statement(text=text, claims=(metric, service, high))


# -- logs and releases ------------------------------------------------------------------------------------


def _logs(seen: _Seen, *, new_from: float) -> Statement:
    matched = seen.claim("/matched")
    service = seen.claim("/service")
    where = f"logs of {_text(service)}" if service.value else "logs of all services"
    text = f"The {where} have {_text(matched)} lines of errors in their window."
    patterns = seen.result["patterns"]
    if not patterns:
        return Statement(text=text, claims=(matched, service))
    fresh = [i for i, p in enumerate(patterns) if (read_moment(p["first"]) or 0.0) >= new_from]
    place = max(fresh or range(len(patterns)), key=lambda i: (patterns[i]["count"], -i))
    pattern, count, first = (
        seen.claim(f"/patterns/{place}/{name}") for name in ("pattern", "count", "first")
    )
    kind = "new one" if fresh else "one, which is not new,"
    text += (
        f" The most frequent {kind} is {_quoted(pattern.value)}, {_text(count)} times from {_text(first)} on."
    )
    return Statement(text=text, claims=(matched, service, pattern, count, first))


def _released_before(
    result: dict[str, Any], culprit: str | None, onset: float, thresholds: Thresholds
) -> _Suspected:
    """The newest release shortly before the onset: the culprit's own, else one of no named service."""
    releases = result["releases"]
    earliest = onset - thresholds.release_before
    near = [i for i, one in enumerate(releases) if earliest <= (read_moment(one["at"]) or 0.0) <= onset]
    if culprit is None:
        return _Suspected(near[0] if near else None)
    own = [i for i in near if releases[i]["service"] == culprit]
    if own:
        return _Suspected(own[0], _previous(releases, own[0]))
    of_none = [i for i in near if releases[i]["service"] is None]
    return _Suspected(of_none[0] if of_none else None)


def _previous(releases: Sequence[dict[str, Any]], place: int) -> int | None:
    """The release before this one, of the same service and kind; releases are listed newest first."""
    this = releases[place]
    if this["kind"] not in RETURNABLE:
        return None
    for i, one in enumerate(releases[place + 1 :], start=place + 1):
        same = (one["service"], one["kind"]) == (this["service"], this["kind"])
        if same and one["release"] != this["release"] and VALUE.fullmatch(one["release"]):
            return i
    return None


def _releases(seen: _Seen, found: _Suspected) -> Iterable[Statement]:
    if found.release is None:
        claim = seen.claim("/found")
        text = f"Of {_text(claim)} releases on record in their window none came shortly before the deviation."
        yield Statement(text=text, claims=(claim,))
        return
    release, at, service = (
        seen.claim(f"/releases/{found.release}/{n}") for n in ("release", "at", "service")
    )
    of = f" of {_text(service)}" if service.value is not None else ""
    text = f"Release {_text(release)}{of} is on record at {_text(at)}, shortly before the deviation."
    yield Statement(text=text, claims=(release, at, service))
    if found.previous is not None:
        before, when = (seen.claim(f"/releases/{found.previous}/{n}") for n in ("release", "at"))
        text = f"The release before it is {_text(before)}, at {_text(when)}."
        yield Statement(text=text, claims=(before, when))


# -- cause, rollback, what is missing ---------------------------------------------------------------------


def _cause(diagnosis: Diagnosis, releases: _Seen | None, found: _Suspected) -> str | None:
    if diagnosis.doubt is not None:
        return f"{diagnosis.doubt.value[0].upper()}{diagnosis.doubt.value[1:]}."
    if releases is None or found.release is None:
        return None
    release = _text(releases.claim(f"/releases/{found.release}/release"))
    return (
        f"release {release} came shortly before {diagnosis.culprit} began to deviate; "
        "the order in time alone does not prove it."
    )


def _rollback(diagnosis: Diagnosis, releases: _Seen | None, found: _Suspected) -> RollbackSuggestion | None:
    if diagnosis.culprit is None or releases is None or found.release is None or found.previous is None:
        return None
    return RollbackSuggestion(
        service=diagnosis.culprit,
        release=releases.result["releases"][found.previous]["release"],
        from_release=_printable(releases.result["releases"][found.release]["release"]),
    )


def _rollback_outcome(observations: Iterable[Observation]) -> RollbackOutcome:
    """What the runtime says of the call; a command's own words never begin like the runtime's."""
    for one in observations:
        if one.tool != "rollback":
            continue
        if one.failure is None:
            return RollbackOutcome.CONFIRMED if one.result is None else RollbackOutcome.DONE
        if one.failure.startswith(REFUSING):
            return RollbackOutcome.REFUSED
        return RollbackOutcome.UNKNOWN if one.failure.startswith(NOT_KNOWN) else RollbackOutcome.FAILED
    return RollbackOutcome.NOT_ASKED


def _missing(
    diagnosis: Diagnosis, observations: Sequence[Observation], found: _Suspected, *, left_out: bool
) -> Iterable[str]:
    failed = {one.tool for one in observations if one.result is None}
    if "query_metrics" in failed:
        yield "Not every metric could be read."
    if left_out:
        yield "There are more metrics than were looked at."
    if "search_logs" in failed:
        yield "The logs could not be read."
    if "list_releases" in failed:
        yield "The record of releases could not be read."
    kinds = {one.result.get("kind") for one in observations if one.result is not None}
    for kind in Kind:
        if kind.value not in kinds:
            yield f"No metric of {kind.value} was seen."
    if diagnosis.unmeasurable:
        yield "Some series are too short or too sparse to compare with their past."
    logs = _seen("search_logs", observations)
    if logs is not None and not logs.result["in_window"]:
        yield "The logs have no line at all, good or bad, of that service in that window."
    if logs is not None and logs.result["cut"] is not None:
        yield "The search of the logs ended before all were read."
    if logs is not None and logs.result["bad_lines"]:
        yield "Some log lines could not be understood."
    if found.release is not None and found.previous is None and diagnosis.culprit is not None:
        yield "The record shows no earlier release to go back to."
    if diagnosis.culprit is not None:
        yield "What changed inside the suspected service, and whether taking it back ends this, was not seen."
    yield "Traces and the network were not looked at."


# -- values in sentences ----------------------------------------------------------------------------------


def _text(claim: Claim) -> str:
    """The value as JSON writes it, so that the number in the sentence is the number that was read."""
    return _printable(claim.value) if isinstance(claim.value, str) else json.dumps(claim.value)


def _quoted(text: str) -> str:
    cut = text if len(text) <= PATTERN_CHARS else text[:PATTERN_CHARS] + "…"
    return f'"{_printable(cut)}"'


def _printable(text: str) -> str:
    """The text on one line; one that is not plain is shown without its digits.

    Its claim holds it as it is, and a number that reads otherwise in a sentence has no evidence.
    """
    if PLAIN.fullmatch(text):
        return text
    return "".join("#" if c.isnumeric() else c if c.isprintable() else "?" for c in text)
