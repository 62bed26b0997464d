"""How samples are taken, with calls that are made up: no process, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any

import pytest

from harness.calls import Call
from harness.gpu_state import Summary
from harness.hold import Passage
from harness.records import Status
from harness.sampling import Sampler, Taken, implausible
from harness.spec import SamplesModel

ASKED = SamplesModel(warmup=0, samples=10, at_least=4, budget_s=100)
FACTS: dict[str, Any] = {"detail": None, "returned": {"items": [{"contiguous": True}]}}


def call(time_ms: float = 1.0, held: bool | None = True, judged_ms: float | None = None, **facts: Any) -> Call:
    seen_ms = time_ms if judged_ms is None else judged_ms
    return Call(time_ms, held, False, Passage(seen_ms, seen_ms), {**FACTS, **facts})


class Caller:
    """Says that calls are held until so many were made."""

    backend = "queued"

    def __init__(self, calls: Iterator[Call], holds_until: int = 10**9) -> None:
        self.calls, self.made, self.until = calls, 0, holds_until
        self.wholes: list[bool] = []

    @property
    def holds(self) -> bool:
        return self.made < self.until

    def timed(self, whole: bool) -> Call:
        self.made += 1
        self.wholes.append(whole)
        return next(self.calls)


class Monitor:
    """Finds the same reasons at every time."""

    def __init__(self, *reasons: str) -> None:
        self.reasons, self.entered = frozenset(reasons), 0

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, *_: object) -> None: ...

    def during(self, start_s: float, end_s: float) -> frozenset[str]:
        assert start_s <= end_s
        return self.reasons

    def summary(self) -> Summary:
        return Summary(0, None, None, None, {}, None)


def taken(caller: Caller, monitor: Monitor | None = None) -> Taken:
    return Sampler(ASKED, caller.timed, caller, monitor, lambda _: None).take()  # type: ignore[arg-type]


def test_two_calls_at_least_are_compared_as_a_whole() -> None:
    for _ in range(20):
        caller = Caller(repeat(call()))
        taken(caller)
        assert len(caller.wholes) == 10
        assert sum(caller.wholes[:4]) >= 2


def test_calls_that_were_not_held_do_not_count() -> None:
    found = taken(Caller(cycle([call(1.0), call(9.0, held=False)])))
    assert found.samples_ms == [1.0] * 10
    assert found.attempts > 10
    assert "were not in the queue in time" in found.remarks("queued")[0]


def test_a_kernel_that_cannot_be_held_is_measured_open_from_the_start() -> None:
    found = taken(Caller(iter([call(1.0), call(1.0), *repeat(call(2.0, held=False), 13)]), holds_until=5))
    assert found.samples_ms == [2.0] * 10, "none of those that were held is among them"
    assert "waits for the device inside its call" in found.remarks("queued")[0]


@pytest.mark.parametrize(("reasons", "times"), [((), 1), (("hw_thermal",), 2)])
def test_a_throttled_case_is_measured_again_once(reasons: tuple[str, ...], times: int) -> None:
    monitor = Monitor(*reasons)
    found = taken(Caller(repeat(call())), monitor)
    assert monitor.entered == times
    assert found.measured_again == (times == 2)
    assert bool(found.remarks("queued")) == bool(reasons)
    assert found.as_json(0, None)["throttled"] == (list(range(10)) if reasons else [])


def test_the_record_holds_what_was_taken() -> None:
    found = taken(Caller(cycle([call(1.0, judged_ms=1.01), call(3.0, judged_ms=3.01)]))).as_json(7, 0.003)
    assert found["samples_ms"] == [1.0, 3.0] * 5
    assert (found["median_ms"], found["mean_ms"], found["iterations"], found["warmup_calls"]) == (2.0, 2.0, 10, 7)
    assert found["judge_median_ms"] == pytest.approx(2.01)
    assert found["ended_by"] == "samples"
    assert found["gpu"] is None


def test_another_set_of_kernels_in_some_calls_is_remarked_on() -> None:
    details = [call(detail={"names_sha256": name}) for name in "aaab"]
    assert "differ in name from call to call (2 sets)" in taken(Caller(cycle(details))).remarks("cupti")[0]


# name: (calls, times with all streams held, what an empty call reads, status, part of the reason)
BELIEF = {
    "all is well": ([call(0.1, judged_ms=0.105)] * 10, [0.12], 0.001, None, None),
    "a claim of a tenth": ([call(0.1, judged_ms=1.0)] * 10, [], 0.001, Status.REWARD_HACK, "claimed time"),
    "work ahead on another stream": ([call(0.005)] * 10, [0.1], 0.001, Status.REWARD_HACK, "another stream"),
    "no work": ([call(0.001)] * 10, [], 0.001, Status.REWARD_HACK, "no work of the kernel"),
    "no time": ([call(0.0)] * 10, [], 0.001, Status.RUNTIME_ERROR, "no time"),
}


@pytest.mark.parametrize("kind", BELIEF)
def test_samples_are_believed_or_not(kind: str) -> None:
    calls, wide_ms, empty_ms, status, part = BELIEF[kind]
    found = implausible(Taken(calls, 10, "samples", [None] * 10, None), "queued", "cuda", wide_ms, empty_ms, 10**6)
    assert (found and found.status) is status
    assert part is None or part in ((found and found.reason) or "")


def test_the_mark_behind_the_copy_bounds_a_forged_end() -> None:
    forged = [Call(0.01, True, False, Passage(0.01, 0.1), FACTS)] * 10
    found = implausible(Taken(forged, 10, "samples", [None] * 10, None), "queued", "cuda", [], 0.001, 10**6)
    assert found is not None and found.status is Status.REWARD_HACK
