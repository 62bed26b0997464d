"""What a worker claims against what the judge saw."""

from __future__ import annotations

import random

import pytest

from harness.plausibility import HELD, OPEN, SPAN, Slack, claims_problem, empty_problem, slack_of, wide_problem

TRUE_MS = [0.100, 0.101, 0.099, 0.102, 0.100, 0.098, 0.100, 0.103, 0.101, 0.100]

# name: (claimed, judged, slack, whether it is a problem)
CLAIMS = {
    "honest": (TRUE_MS, [t + 0.004 for t in TRUE_MS], HELD, False),
    "the judge is early by its own error": (TRUE_MS, [t - 0.004 for t in TRUE_MS], HELD, False),
    "a busy machine delays most readings": (TRUE_MS, [t + 0.004 + 5.0 * (i % 5 > 0) for i, t in enumerate(TRUE_MS)],
                                            HELD, False),
    "half the time": ([t / 2 for t in TRUE_MS], TRUE_MS, HELD, True),
    "a tenth in just over half of the calls": ([t / 10 if i % 5 < 3 else t for i, t in enumerate(TRUE_MS)], TRUE_MS,
                                               HELD, True),
    "a tenth in less than half of the calls": ([t / 10 if i % 5 < 2 else t for i, t in enumerate(TRUE_MS)], TRUE_MS,
                                               HELD, False),
    "less than the slack": ([t - 0.015 for t in TRUE_MS], TRUE_MS, HELD, False),
    "a tenth on the CPU": ([1.0] * 5, [10.0] * 5, OPEN["cpu"], True),
    "the host prepares a launch for longer than it runs": ([0.226] * 5, [0.95] * 5, SPAN, False),
    "a tenth of a span of milliseconds": ([1.0] * 5, [10.0] * 5, SPAN, True),
    "nothing was seen": ([], [], HELD, False),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_shorter_than_the_judges_clock_is_a_problem(kind: str) -> None:
    claimed, judged, slack, is_problem = CLAIMS[kind]
    problem = claims_problem(claimed, judged, slack)
    assert (problem is not None) == is_problem
    assert problem is None or "the judge's own clock" in problem


@pytest.mark.parametrize(
    ("backend", "held", "device", "slack"),
    [
        ("queued", True, "cuda", HELD),
        ("queued", False, "cuda", OPEN["cuda"]),
        ("events", False, "cuda", OPEN["cuda"]),
        ("cupti", False, "cuda", SPAN),
        ("host", False, "cpu", OPEN["cpu"]),
    ],
)
def test_what_a_backend_leaves_out_is_allowed_for(backend: str, held: bool, device: str, slack: Slack) -> None:
    assert slack_of(backend, held, device) == slack


@pytest.mark.parametrize("factor", [0.9, 0.7, 0.5, 0.1])
@pytest.mark.parametrize("ms", [0.3, 1.0, 30.0, 500.0])
def test_whatever_the_noise_a_shortened_claim_is_found(factor: float, ms: float) -> None:
    noise = random.Random(1)
    judged = [ms * (1 + abs(noise.gauss(0, 0.02))) for _ in range(30)]
    assert claims_problem([t * factor for t in judged], judged, HELD) is not None


# name: (times with all streams held, median with the own one held, whether it is a problem)
WIDE = {
    "alike": ([0.031, 0.030], 0.030, False),
    "many launches wait for an event each": ([0.045], 0.031, False),
    "the work was done before the clock began": ([0.120, 0.110], 0.005, True),
    "not known": ([], 0.005, False),
}


@pytest.mark.parametrize("kind", WIDE)
def test_work_that_runs_ahead_on_another_stream_is_a_problem(kind: str) -> None:
    wide_ms, median_ms, is_problem = WIDE[kind]
    assert (wide_problem(wide_ms, median_ms) is not None) == is_problem


@pytest.mark.parametrize(
    ("median_ms", "empty_ms", "is_problem"), [(0.0013, 0.0013, True), (0.003, 0.0013, False), (1e-6, None, False)]
)
def test_a_call_without_work_is_a_problem(median_ms: float, empty_ms: float | None, is_problem: bool) -> None:
    assert (empty_problem(median_ms, empty_ms) is not None) == is_problem
