"""How fast could it be: the speed-of-light bound, the score and the roofline share.

`sol_score` is what the public leaderboards print as "% SOL"; `roofline` is bound over latency. They are
different numbers and both are always shown under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.stats import geometric_mean


@dataclass(frozen=True)
class Roofline:
    """Peak rates of a device: `peak_flops` in FLOP/s, `bandwidth` in bytes/s, with their source.

    flops_per_cycle: of the whole device, in FLOP for each cycle of the SM clock; None where it is not known.
    """

    device: str
    label: str
    peak_flops: float
    bandwidth: float
    overhead_s: float
    source: str
    flops_per_cycle: float | None = None


@dataclass(frozen=True)
class Bound:
    """The least time a case can take, in milliseconds, and which limit sets it."""

    ms: float
    limit: Literal["compute", "memory"]


def bound(flops: int, bytes_moved: int, roofline: Roofline) -> Bound:
    """max(FLOPs / peak, bytes / bandwidth) + overhead.

    Source: the public benchmark's speed-of-light model; with its B200 rates it reproduces 33 of the 34
    published bounds to the printed precision.
    """
    compute_s, memory_s = flops / roofline.peak_flops, bytes_moved / roofline.bandwidth
    slower = max(compute_s, memory_s)
    return Bound((slower + roofline.overhead_s) * 1e3, "compute" if compute_s >= memory_s else "memory")


def bound_at_clock(flops: int, bytes_moved: int, roofline: Roofline, sm_clock_mhz: float) -> Bound | None:
    """The bound with the compute peak of an SM clock that was seen; None where FLOP per cycle are not known."""
    if roofline.flops_per_cycle is None or sm_clock_mhz <= 0:
        return None
    return bound(flops, bytes_moved, replace(roofline, peak_flops=roofline.flops_per_cycle * sm_clock_mhz * 1e6))


def known_baselines(
    rows: Iterable[tuple[Hashable, float | None, str | None]],
) -> dict[Hashable, tuple[float, str | None]]:
    """The baseline of each question (a case as it was measured), and its source, from whichever row knows it.

    A kernel that was measured before the baseline kernel has none in its own record, and the same one as its
    neighbours. Of several the last one counts.
    """
    return {question: (baseline_ms, source) for question, baseline_ms, source in rows if baseline_ms is not None}


@dataclass(frozen=True)
class Grade:
    """Score and roofline of one latency; each is None where it has no meaning, and `reason` says why."""

    score: float | None
    roofline: float | None
    reason: str | None = None


def grade(latency_ms: float, bound_ms: float | None, baseline_ms: float | None) -> Grade:
    """S = 1 / (1 + (T - T_bound) / (T_baseline - T_bound)): 0.5 at the baseline, 1 at the bound.

    Source: the public benchmark's score. A latency under the bound is impossible, so it gets no score
    instead of one above 1; likewise a baseline at or under the bound.
    """
    if bound_ms is None:
        return Grade(None, None, "no peak rates are known for this device")
    if not (math.isfinite(latency_ms) and latency_ms > 0):
        return Grade(None, None, f"a latency of {latency_ms} ms is no measurement")
    if latency_ms < bound_ms:
        reason = f"{latency_ms:.4g} ms is under the bound of {bound_ms:.4g} ms: the bound or the measurement is wrong"
        return Grade(None, None, reason)
    roofline = bound_ms / latency_ms
    if baseline_ms is None:
        return Grade(None, roofline, "no baseline latency is known on this device; run the baseline kernel too")
    if not (math.isfinite(baseline_ms) and baseline_ms > bound_ms):
        return Grade(None, roofline, f"the baseline of {baseline_ms:.4g} ms is not above the bound")
    return Grade(1 / (1 + (latency_ms - bound_ms) / (baseline_ms - bound_ms)), roofline)


@dataclass(frozen=True)
class SuiteSummary:
    """One kernel over the cases of a workload.

    mean_latency_ms: geometric mean over the cases of each case's median latency, in ms.
    sol_score: arithmetic mean over the cases of the per-case score, from 0 to 1.
    roofline: arithmetic mean over the cases of bound over latency, from 0 to 1.
    """

    mean_latency_ms: float | None
    sol_score: float | None
    roofline: float | None


def summarise(latencies_ms: Sequence[float], grades: Sequence[Grade]) -> SuiteSummary:
    """Source: the public pages; geometric means of their bounds and baselines match what they print."""
    scores = [g.score for g in grades if g.score is not None]
    shares = [g.roofline for g in grades if g.roofline is not None]
    return SuiteSummary(
        geometric_mean(latencies_ms) if latencies_ms else None,
        math.fsum(scores) / len(scores) if scores and len(scores) == len(grades) else None,
        math.fsum(shares) / len(shares) if shares and len(shares) == len(grades) else None,
    )
