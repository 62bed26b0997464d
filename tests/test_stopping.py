"""When sampling stops, on made-up samples."""

from __future__ import annotations

import random

import pytest

from harness import stats
from harness.stopping import StoppingRule


def stopped_at(samples: list[float], took_s: float = 0.0, **rule: float | None) -> tuple[int, str | None]:
    stopping = StoppingRule(**{"at_least": 10, "at_most": 50, "budget_s": 1.0, "half_width": 0.005, **rule})  # type: ignore[arg-type]
    for sample in samples:
        if stopping.ended_by:
            break
        stopping.add(sample, took_s)
    return len(stopping.samples_ms), stopping.ended_by


NOISE = random.Random(7)
STEADY = [1.0 + 0.0005 * (i % 3) for i in range(200)]
WILD = [NOISE.uniform(0.5, 1.5) for _ in range(200)]

# name: (samples, seconds that each takes, what differs in the rule, number of samples, why)
ENDS = {
    "steady ones end at the least number": (STEADY, 0.0, {}, 10, "precision"),
    "wild ones go on to the end": (WILD, 0.0, {}, 50, "samples"),
    "wild ones end when time is up": (WILD, 0.05, {}, 20, "time budget"),
    "slow calls cannot shrink the least number": (WILD, 100.0, {}, 10, "time budget"),
    "a slow start cannot either": ([500.0, 300.0, *STEADY], 10.0, {}, 10, "time budget"),
    "without a precision all are taken": (STEADY, 0.0, {"half_width": None}, 50, "samples"),
    "the least number may be the greatest": (STEADY, 0.0, {"at_least": 50}, 50, "samples"),
    "under six samples there is no interval": (STEADY, 0.0, {"at_least": 2, "at_most": 5}, 5, "samples"),
    "a first one far off delays by little": ([9.0, *STEADY], 0.0, {}, 10, "precision"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_sampling_stops(kind: str) -> None:
    samples, took_s, rule, count, why = ENDS[kind]
    assert stopped_at(samples, took_s, **rule) == (count, why)


@pytest.mark.parametrize("seed", range(20))
def test_a_stop_for_precision_means_a_narrow_interval(seed: int) -> None:
    noise = random.Random(seed)
    stopping = StoppingRule(10, 1000, 1e9, 0.005)
    while stopping.ended_by is None:
        stopping.add(noise.gauss(1.0, 0.01), 0.0)
    assert stopping.ended_by == "precision"
    interval = stats.median_interval(stopping.samples_ms)
    assert interval is not None
    assert (interval[1] - interval[0]) / 2 <= 0.005 * stats.median(stopping.samples_ms)
