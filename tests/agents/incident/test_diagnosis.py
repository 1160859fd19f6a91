"""The diagnosis on series made by hand: one test a rule of `diagnosis.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.agents.incident.diagnosis import Confidence, Diagnosis, Doubt, Graph, Kind, Series, diagnose
from fencepost.agents.incident.thresholds import THRESHOLDS

STEP = 60.0
ALERT = 3600.0
UNTIL = ALERT + 300


def calm(level: float) -> Callable[[int], float]:
    """A level that wobbles by two percent, in a pattern that does not repeat every few samples."""
    return lambda i: level * (1 + 0.02 * math.sin(1.7 * i))


def series(
    service: str,
    kind: Kind,
    before: Callable[[int], float],
    during: Sequence[float] = (),
    *,
    metric: str | None = None,
    first: float = 0.0,
) -> Series:
    """Samples a minute apart; `during` replaces the samples from the alert on."""
    points = []
    for i in range(int((UNTIL - first) / STEP) + 1):
        at = first + i * STEP
        place = int((at - ALERT) / STEP)
        points.append((at, during[place] if 0 <= place < len(during) else before(i)))
    return Series(service=service, metric=metric or kind.value, kind=kind, points=tuple(points))


def look(*given_series: Series, graph: Graph | None = None) -> Diagnosis:
    return diagnose(given_series, alert_at=ALERT, until=UNTIL, graph=graph)


QUIET = (
    series("gateway", Kind.LATENCY, calm(0.3)),
    series("inventory", Kind.LATENCY, calm(0.02)),
    series("inventory", Kind.SATURATION, calm(0.2)),
)


def test_a_service_that_alone_is_worse_than_its_past_is_named_with_the_time_it_began() -> None:
    said = look(*QUIET, series("payment", Kind.ERRORS, calm(0.002), [0.002, 0.08, 0.08, 0.08, 0.08]))

    assert said.culprit == "payment"
    assert said.doubt is None
    assert said.onset == ALERT + STEP
    deviation = said.suspects[0].deviations[0]
    assert (deviation.metric, deviation.level, deviation.peak) == ("errors", 0.08, 0.08)
    assert deviation.usual == pytest.approx(0.002, rel=0.05)


def test_quiet_data_names_nobody() -> None:
    said = look(*QUIET)

    assert (said.culprit, said.doubt, said.suspects) == (None, Doubt.QUIET, ())
    assert said.confidence is Confidence.NONE
    assert said.onset is None


def test_two_services_that_deviate_equally_name_nobody_but_are_both_suspects() -> None:
    said = look(
        *QUIET,
        series("payment", Kind.ERRORS, calm(0.002), [0.08] * 5),
        series("checkout", Kind.ERRORS, calm(0.002), [0.08] * 5),
    )

    assert (said.culprit, said.doubt) == (None, Doubt.EQUAL)
    assert {s.service for s in said.suspects} == {"payment", "checkout"}


def test_a_weak_deviation_names_nobody_but_is_ranked() -> None:
    said = look(*QUIET, series("payment", Kind.LATENCY, lambda _: 0.1, [0.15] * 5))

    assert (said.culprit, said.doubt, said.confidence) == (None, Doubt.WEAK, Confidence.LOW)
    assert said.suspects[0].service == "payment"


def test_without_a_past_the_answer_is_missing_data_and_names_the_series() -> None:
    young = series("payment", Kind.ERRORS, calm(0.002), [0.08] * 5, first=ALERT - 360)

    said = look(young)

    assert (said.culprit, said.doubt) == (None, Doubt.MISSING_DATA)
    assert said.unmeasurable == ("payment errors",)


def test_no_series_at_all_is_missing_data() -> None:
    assert look().doubt is Doubt.MISSING_DATA


def test_a_series_that_stopped_before_the_alert_is_unmeasurable_and_not_well() -> None:
    whole = series("payment", Kind.LATENCY, calm(0.1))
    stopped = Series(service="gone", metric="latency", kind=Kind.LATENCY, points=whole.points[:-11])

    assert look(whole, stopped).unmeasurable == ("gone latency",)


def test_a_past_that_ended_long_before_the_alert_cannot_be_compared_with() -> None:
    whole = series("payment", Kind.ERRORS, calm(0.002), [0.08] * 5)
    lapse = tuple(p for p in whole.points if p[0] < 600 or p[0] >= ALERT - 300)

    assert look(Series(service="payment", metric="errors", kind=Kind.ERRORS, points=lapse)).unmeasurable


def test_one_bad_sample_is_noise() -> None:
    said = look(*QUIET, series("payment", Kind.ERRORS, calm(0.002), [0.002, 0.9, 0.002, 0.9, 0.002]))

    assert said.doubt is Doubt.QUIET


def test_a_flat_past_does_not_turn_a_rounding_difference_into_an_incident() -> None:
    said = look(
        series("a", Kind.LATENCY, lambda _: 0.0046, [0.0049] * 5),
        series("a", Kind.ERRORS, lambda _: 0.0, [0.0004] * 5),
        series("a", Kind.SATURATION, lambda _: 0.01, [0.03] * 5),
    )

    assert said.doubt is Doubt.QUIET


def test_getting_better_is_no_deviation() -> None:
    said = look(*QUIET, series("payment", Kind.LATENCY, calm(2.0), [0.01] * 5))

    assert said.doubt is Doubt.QUIET


def test_a_past_with_spikes_makes_a_spike_usual() -> None:
    def spiky(i: int) -> float:
        return 2.0 if i % 7 == 0 else calm(0.4)(i)

    assert look(series("payment", Kind.LATENCY, spiky, [2.0, 2.0, 0.4, 0.4, 0.4])).doubt is Doubt.QUIET
    assert look(series("payment", Kind.LATENCY, calm(0.4), [2.0, 2.0, 0.4, 0.4, 0.4])).culprit == "payment"


def test_a_past_that_varies_makes_variation_usual() -> None:
    pattern = (0.2, 0.5, 0.2, 0.5, 0.2, 0.5, 0.2, 0.5, 0.2, 0.5, 0.9)

    def often_lower(i: int) -> float:
        return pattern[i % len(pattern)]

    assert look(series("payment", Kind.SATURATION, often_lower, [0.8] * 5)).doubt is Doubt.QUIET
    assert look(series("payment", Kind.SATURATION, calm(0.5), [0.8] * 5)).culprit == "payment"


def test_a_series_that_had_moved_before_the_alert_is_not_blamed_for_moving() -> None:
    first = -6 * 3600.0  # long enough that the move is not the worst tenth of the past

    def moved_earlier(i: int) -> float:
        return calm(0.1)(i) if first + i * STEP < ALERT - 1500 else calm(0.4)(i)

    moved = series("batch", Kind.LATENCY, moved_earlier, [1.4] * 5, first=first)
    steady = series("batch", Kind.LATENCY, calm(0.1), [1.4] * 5, first=first)
    assert look(moved).doubt is Doubt.QUIET
    assert look(steady).culprit == "batch"


def test_an_earlier_short_incident_does_not_hide_the_next_one() -> None:
    def once_bad(i: int) -> float:
        return 0.9 if 20 <= i < 24 else calm(0.1)(i)

    said = look(*QUIET, series("payment", Kind.SATURATION, once_bad, [0.95] * 5))

    assert said.culprit == "payment"


def test_a_caller_is_explained_by_the_service_it_calls() -> None:
    slow = [0.8] * 5
    chain = (
        series("gateway", Kind.LATENCY, calm(0.3), [1.1] * 5),
        series("checkout", Kind.LATENCY, calm(0.2), [1.0] * 5),
        series("payment", Kind.LATENCY, calm(0.05), slow),
    )

    without = look(*chain)
    with_graph = look(*chain, graph={"gateway": ["checkout"], "checkout": ["payment"]})

    assert (without.culprit, without.doubt) == (None, Doubt.EQUAL)
    assert with_graph.culprit == "payment"
    explained = {s.service: s.explained_by for s in with_graph.suspects}
    assert explained["payment"] is None
    assert explained["checkout"] == "payment"
    assert explained["gateway"] in {"checkout", "payment"}


def test_a_called_service_with_a_far_smaller_change_explains_nothing() -> None:
    said = look(
        series("payment", Kind.LATENCY, calm(0.2), [2.0] * 5),
        series("ledger", Kind.LATENCY, calm(0.004), [0.03] * 5),
        graph={"payment": ["ledger"]},
    )

    assert {s.service: s.explained_by for s in said.suspects} == {"payment": None, "ledger": None}
    assert said.suspects[0].service == "payment"


def test_services_that_call_each_other_do_not_explain_each_other_away() -> None:
    said = look(
        series("a", Kind.ERRORS, calm(0.002), [0.3] * 5),
        series("b", Kind.ERRORS, calm(0.002), [0.2] * 5),
        graph={"a": ["b"], "b": ["a"]},
    )

    assert all(s.explained_by is None for s in said.suspects)
    assert said.doubt is Doubt.EQUAL


def test_saturation_is_a_services_own_and_no_dependency_explains_it() -> None:
    said = look(
        series("payment", Kind.SATURATION, calm(0.1), [0.95] * 5),
        series("ledger", Kind.SATURATION, calm(0.1), [0.95] * 5),
        graph={"payment": ["ledger"]},
    )

    assert all(s.explained_by is None for s in said.suspects)


def test_two_metrics_of_one_kind_are_one_piece_of_evidence() -> None:
    p90 = series("payment", Kind.LATENCY, calm(0.1), [0.9] * 5, metric="latency_p90")
    p99 = series("payment", Kind.LATENCY, calm(0.2), [0.4] * 5, metric="latency_p99")

    assert look(*QUIET, p90, p99).suspects[0].score == look(*QUIET, p90).suspects[0].score


def test_samples_after_the_time_looked_at_do_not_exist_yet() -> None:
    later = series("payment", Kind.ERRORS, calm(0.002), [0.002, 0.002, 0.08, 0.08, 0.08])

    assert diagnose([later], alert_at=ALERT, until=ALERT + STEP).doubt is Doubt.QUIET
    assert diagnose([later], alert_at=ALERT, until=UNTIL).culprit == "payment"


def test_strong_evidence_of_two_kinds_gives_high_confidence_and_of_one_kind_less() -> None:
    both = look(
        *QUIET,
        series("payment", Kind.LATENCY, calm(0.05), [0.9] * 5),
        series("payment", Kind.SATURATION, calm(0.1), [0.98] * 5),
    )
    one = look(*QUIET, series("payment", Kind.LATENCY, lambda _: 0.1, [0.22] * 5))
    one_and_strong = look(*QUIET, series("payment", Kind.LATENCY, calm(0.05), [9.0] * 5))

    assert both.confidence is Confidence.HIGH
    assert (one.culprit, one.confidence) == ("payment", Confidence.MEDIUM)
    assert (one_and_strong.culprit, one_and_strong.confidence) == ("payment", Confidence.MEDIUM)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(Kind), st.lists(st.floats(0, 10), max_size=80)),
        max_size=6,
    )
)
def test_any_samples_give_a_ranked_answer_that_does_not_depend_on_the_order_of_the_series(
    drawn: list[tuple[str, Kind, list[float]]],
) -> None:
    made = [
        Series(
            service=name,
            metric=f"{kind.value}{n}",
            kind=kind,
            points=tuple((UNTIL - STEP * (len(values) - i), v) for i, v in enumerate(values)),
        )
        for n, (name, kind, values) in enumerate(drawn)
    ]
    graph = {"a": ["b"], "b": ["c", "a"]}

    said = look(*made, graph=graph)
    turned = look(*reversed(made), graph=graph)

    assert (said.culprit is None) is (said.doubt is not None)
    assert [s.score for s in said.suspects] == sorted((s.score for s in said.suspects), reverse=True)
    assert [(s.service, s.score) for s in said.suspects] == [(s.service, s.score) for s in turned.suspects]
    for suspect in said.suspects:
        assert all(d.deviations <= THRESHOLDS.deviation_max for d in suspect.deviations)
