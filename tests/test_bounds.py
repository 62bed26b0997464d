"""The computed bounds, means and scores against what was published."""

from __future__ import annotations

import math

import pytest

from harness.catalog import Catalog
from harness.sol import Grade, Roofline, bound, bound_at_clock, grade, summarise
from harness.spec import Workload
from harness.stats import geometric_mean

CATALOG = Catalog()
B200 = CATALOG.device("nvidia_b200").roofline()
WORKLOADS = {name: CATALOG.workload(name) for name in ("moe", "dense")}
CASES = [(name, case) for name, workload in WORKLOADS.items() for case in workload.case_ids()]

# The published bound of this case is shorter than moving its six weight-sized tensors once takes.
EXCEPTION = ("dense", "b1-s128")


def computed_ms(name: str, case_id: str) -> float:
    case = WORKLOADS[name].case(case_id)
    return bound(case.flops, case.bytes_moved, B200).ms


@pytest.mark.parametrize(("name", "case_id"), [case for case in CASES if case != EXCEPTION])
def test_the_bound_reproduces_the_published_one_to_its_last_decimal(name: str, case_id: str) -> None:
    published = WORKLOADS[name].case(case_id).published_bound_ms
    assert published is not None
    assert abs(round(computed_ms(name, case_id), 4) - published) < 1.5e-4  # within one unit of the fourth decimal


def test_the_one_published_bound_that_differs_cannot_be_reached() -> None:
    name, case_id = EXCEPTION
    case = WORKLOADS[name].case(case_id)
    weights_ms = 6 * 2 * case.axes["H"] * case.axes["I"] / B200.bandwidth * 1e3
    assert case.published_bound_ms == 0.92
    assert case.published_bound_ms < weights_ms < computed_ms(name, case_id)
    assert round(computed_ms(name, case_id), 4) == 1.3728
    assert case.published_note is not None
    assert "1.3728" in case.published_note


def test_every_published_case_is_there() -> None:
    assert [len(w.model.cases) for w in WORKLOADS.values()] == [16, 18]
    uuids = [case.uuid for w in WORKLOADS.values() for case in w.model.cases]
    assert len(set(uuids)) == 34
    tokens = sorted(case.axes["num_tokens"] for case in WORKLOADS["moe"].model.cases)
    assert tokens == [1, 2, 4, 8, 16, 128, 512, 1087, 1321, 1571, 2447, 2767, 3089, 4093, 7168, 8192]


# (workload, published geometric mean of bounds, of baselines, in ms)
MEANS = [("moe", 0.011308, 0.09469), ("dense", 11.9276, 17.172)]


@pytest.mark.parametrize(("name", "bounds_ms", "baselines_ms"), MEANS)
def test_geometric_means_are_the_published_ones(name: str, bounds_ms: float, baselines_ms: float) -> None:
    cases = [WORKLOADS[name].case(case) for case in WORKLOADS[name].case_ids()]
    bounds = geometric_mean([case.published_bound_ms or math.nan for case in cases])
    baselines = geometric_mean([case.published_baseline_ms or math.nan for case in cases])
    assert bounds == pytest.approx(bounds_ms, rel=5e-5)
    assert baselines == pytest.approx(baselines_ms, rel=5e-5)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_stated_traffic_is_every_tensor_moved_once(name: str) -> None:
    workload: Workload = WORKLOADS[name]
    for case in map(workload.case, workload.case_ids()):
        assert case.bytes_read == sum(tensor.nbytes for tensor in case.inputs)
        assert case.bytes_written == sum(tensor.nbytes for tensor in case.outputs)


def test_score_is_one_half_at_the_baseline_and_one_at_the_bound() -> None:
    assert grade(0.09, 0.01, 0.09) == Grade(0.5, 0.01 / 0.09)
    assert grade(0.01, 0.01, 0.09) == Grade(1.0, 1.0)


def test_score_is_not_the_roofline_share() -> None:
    # The published MoE record: 42.2 us at a bound of 11.308 and a baseline of 94.69 is listed as 71%.
    found = grade(42.2, 11.308, 94.69)
    assert found.score == pytest.approx(0.73, abs=0.005)
    assert found.roofline == pytest.approx(0.27, abs=0.005)


# (latency, bound, baseline, what the reason says, whether the roofline share is there)
DEGENERATE = [
    (0.5, 1.0, 2.0, "under the bound", False),
    (2.0, 1.0, 1.0, "not above the bound", True),
    (2.0, 1.0, 0.5, "not above the bound", True),
    (2.0, 1.0, math.nan, "not above the bound", True),
    (2.0, None, 3.0, "no peak rates", False),
    (2.0, 1.0, None, "no baseline", True),
    (math.nan, 1.0, 2.0, "no measurement", False),
    (0.0, 1.0, 2.0, "no measurement", False),
    (-1.0, 1.0, 2.0, "no measurement", False),
    (math.inf, 1.0, 2.0, "no measurement", False),
]


@pytest.mark.parametrize(("latency_ms", "bound_ms", "baseline_ms", "reason", "has_roofline"), DEGENERATE)
def test_an_impossible_figure_gets_no_score_but_a_reason(
    latency_ms: float, bound_ms: float | None, baseline_ms: float | None, reason: str, has_roofline: bool
) -> None:
    found = grade(latency_ms, bound_ms, baseline_ms)
    assert found.score is None
    assert found.reason is not None
    assert reason in found.reason
    assert (found.roofline is not None) is has_roofline


def test_the_suite_score_is_the_mean_over_cases_and_the_latency_their_geometric_mean() -> None:
    found = summarise([1.0, 4.0], [Grade(0.4, 0.2), Grade(0.8, 0.4)])
    assert (found.mean_latency_ms, found.sol_score, found.roofline) == pytest.approx((2.0, 0.6, 0.3))


def test_a_case_without_a_score_leaves_the_suite_without_one() -> None:
    found = summarise([1.0, 4.0], [Grade(0.4, 0.2), Grade(None, 0.4)])
    assert found.sol_score is None
    assert found.roofline == pytest.approx(0.3)


def test_the_limit_is_the_slower_of_the_two() -> None:
    roofline = Roofline("x", "x", peak_flops=1e12, bandwidth=1e12, overhead_s=1e-6, source="x")
    assert bound(2_000_000, 1_000_000, roofline) == bound(2_000_000, 0, roofline)
    assert bound(2_000_000, 1_000_000, roofline).limit == "compute"
    assert bound(1_000_000, 2_000_000, roofline).limit == "memory"
    assert bound(1_000_000, 2_000_000, roofline).ms == pytest.approx(3e-3)


def test_every_device_states_its_sources() -> None:
    for device in CATALOG.devices().values():
        assert device.default_roofline in device.rooflines
        assert all(len(peak.source) > 20 for peak in device.rooflines.values())


def test_the_bound_at_a_clock_is_the_datasheets_at_the_datasheets_clock() -> None:
    h200 = CATALOG.device("NVIDIA H200").roofline()
    flops, small = 10**15, 10**6
    at_boost = bound_at_clock(flops, small, h200, 1830)
    slower = bound_at_clock(flops, small, h200, 915)
    assert at_boost is not None and slower is not None
    assert at_boost.ms == pytest.approx(bound(flops, small, h200).ms, rel=2e-4)
    assert slower.ms == pytest.approx(2 * at_boost.ms)
    assert bound_at_clock(flops, small, B200, 1500) is None
