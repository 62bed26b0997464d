"""Two sets of records side by side: which cases differ, by how much, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness import comparison, stats
from harness.comparison import LogRatio, Verdict
from harness.errors import InputError
from harness.records import Record, Status


@dataclass(frozen=True)
class Criteria:
    """How sure to be, and how large a change must be to be called one (as a share: 0.01 for 1%)."""

    confidence: float = 0.95
    least_effect: float = 0.01


@dataclass(frozen=True)
class CaseComparison:
    """One case on both sides. Latencies in ms with their 95% intervals; the ratio is B over A."""

    case: str
    axes: Mapping[str, int]
    a_ms: float
    b_ms: float
    a_interval_ms: tuple[float, float] | None
    b_interval_ms: tuple[float, float] | None
    a_samples_ms: Sequence[float]
    b_samples_ms: Sequence[float]
    ratio: LogRatio
    verdict: Verdict

    @property
    def samples(self) -> int:
        """How many both sides have at least."""
        return min(len(self.a_samples_ms), len(self.b_samples_ms))


@dataclass(frozen=True)
class SuiteComparison:
    """One kernel (or pair of kernels) over the cases of a workload.

    only_a, only_b: cases that one side lacks. unmeasured: cases without a latency on a side, and why.
    ratio: of the geometric means over `cases`; None when no case can be compared.
    """

    workload: str
    kernel_a: str
    kernel_b: str
    cases: Sequence[CaseComparison]
    only_a: Sequence[str]
    only_b: Sequence[str]
    unmeasured: Mapping[str, str]
    ratio: LogRatio | None
    verdict: Verdict | None
    a_mean_ms: float | None
    b_mean_ms: float | None


def differences(a: Record, b: Record) -> list[str]:
    """Why two records must not be compared: each thing that differs, with both values."""
    gpus = (r.environment.get("gpu") for r in (a, b))
    gpu_a, gpu_b = (gpu if isinstance(gpu, dict) else {} for gpu in gpus)
    pairs: dict[str, tuple[Any, Any]] = {
        "device": (a.device, b.device),
        "protocol": (a.protocol, b.protocol),
        "protocol's content": (a.protocol_sha256[:12], b.protocol_sha256[:12]),
        "backend": (a.backend, b.backend),
        "workload's content": (a.workload_sha256[:12], b.workload_sha256[:12]),
        "scale": (a.scale, b.scale),
        "maximum SM clock (MHz)": (gpu_a.get("sm_clock_max_mhz"), gpu_b.get("sm_clock_max_mhz")),
        "locked SM clock (MHz)": (gpu_a.get("locked_sm_clock_mhz"), gpu_b.get("locked_sm_clock_mhz")),
        "maximum memory clock (MHz)": (gpu_a.get("memory_clock_max_mhz"), gpu_b.get("memory_clock_max_mhz")),
        "power limit (W)": (gpu_a.get("power_limit_w"), gpu_b.get("power_limit_w")),
    }
    return [f"{name}: {x} and {y}" for name, (x, y) in pairs.items() if x != y]


class NotComparable(Exception):
    """The two sides measured different things; `reasons` names each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(dict.fromkeys(reasons))


def samples_ms(record: Record) -> Sequence[float]:
    """The raw samples behind a record's latency. Raises `InputError` where there are none, or impossible ones."""
    timing = record.timings.get(record.backend or "")
    samples = timing.get("samples_ms") if isinstance(timing, dict) else None
    place = f"record of {record.workload} {record.kernel} {record.case}"
    if not isinstance(samples, list) or not samples:
        raise InputError(place, "has a latency without samples", "measure it again with solbench run")
    for value in samples:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(place, f"has the sample {value} ms, which is no latency", "measure it again")
    return samples


def measured_at(record: Record) -> datetime:
    """When a record was measured; a time without zone counts as UTC. Raises `InputError` for what is no time."""
    try:
        time = datetime.fromisoformat(record.time)
    except ValueError:
        place = f"record of {record.workload} {record.kernel} {record.case}"
        raise InputError(place, f'has the time "{record.time}", which is no ISO 8601', "measure it again") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def compare_suite(a: Sequence[Record], b: Sequence[Record], criteria: Criteria) -> SuiteComparison:
    """One kernel's records of one workload on each side, newest per case.

    Raises `NotComparable` when a case was measured differently, and `InputError` for impossible samples.
    """
    side_a, side_b = ({r.case: r for r in records} for records in (a, b))
    common = [case for case in side_a if case in side_b]
    unmeasured: dict[str, str] = {}
    cases: list[CaseComparison] = []
    reasons: list[str] = []
    for case in common:
        first, second = side_a[case], side_b[case]
        missing = [f"{name} {_why_unmeasured(r)}" for name, r in (("A", first), ("B", second)) if r.latency_ms is None]
        if missing:
            unmeasured[case] = "; ".join(missing)
            continue
        reasons += differences(first, second)
        if not reasons:
            cases.append(_compare_case(case, first, second, samples_ms(first), samples_ms(second), criteria))
    if reasons:
        raise NotComparable(reasons)
    return _suite(
        (a or b)[0].workload,
        a[0].kernel if a else "–",
        b[0].kernel if b else "–",
        cases,
        [case for case in side_a if case not in side_b],
        [case for case in side_b if case not in side_a],
        unmeasured,
        criteria,
    )


def _why_unmeasured(record: Record) -> str:
    return "was only checked" if record.status is Status.PASSED else f"is {record.status}"


def _compare_case(
    case: str, a: Record, b: Record, a_samples: Sequence[float], b_samples: Sequence[float], criteria: Criteria
) -> CaseComparison:
    ratio = comparison.ratio_of_medians(a_samples, b_samples)
    verdict = comparison.judge(ratio, criteria.confidence, criteria.least_effect)
    changed = verdict in (Verdict.FASTER, Verdict.SLOWER)
    if changed and comparison.rank_p_value(a_samples, b_samples) > 1 - criteria.confidence:
        verdict = Verdict.INCONCLUSIVE
    return CaseComparison(
        case,
        a.axes,
        stats.median(a_samples),
        stats.median(b_samples),
        stats.median_interval(a_samples),
        stats.median_interval(b_samples),
        a_samples,
        b_samples,
        ratio,
        verdict,
    )


def _suite(
    workload: str,
    kernel_a: str,
    kernel_b: str,
    cases: Sequence[CaseComparison],
    only_a: Sequence[str],
    only_b: Sequence[str],
    unmeasured: Mapping[str, str],
    criteria: Criteria,
) -> SuiteComparison:
    ratio = comparison.geometric_mean_ratio([c.ratio for c in cases]) if cases else None
    return SuiteComparison(
        workload,
        kernel_a,
        kernel_b,
        cases,
        only_a,
        only_b,
        unmeasured,
        ratio,
        comparison.judge(ratio, criteria.confidence, criteria.least_effect) if ratio else None,
        stats.geometric_mean([c.a_ms for c in cases]) if cases else None,
        stats.geometric_mean([c.b_ms for c in cases]) if cases else None,
    )


def compare_interleaved(
    blocks: Sequence[tuple[Sequence[Record], Sequence[Record]]], criteria: Criteria
) -> list[SuiteComparison]:
    """Kernels measured in turn: one (A's records, B's records) pair for each block.

    Ratios come from the blocks, so drift that both share is not in them. A case that has no latency in
    every block is unmeasured.
    """
    every = [record for block in blocks for side in block for record in side]
    suites = []
    for workload in dict.fromkeys(record.workload for record in every):
        of_a, of_b = ([r for block in blocks for r in block[side] if r.workload == workload] for side in (0, 1))
        cases: list[CaseComparison] = []
        unmeasured: dict[str, str] = {}
        for case in dict.fromkeys(r.case for r in of_a):
            runs_a, runs_b = ([r for r in side if r.case == case] for side in (of_a, of_b))
            missing = [
                f"{name} {_why_unmeasured(r)}"
                for name, runs in (("A", runs_a), ("B", runs_b))
                for r in runs
                if r.latency_ms is None
            ]
            if missing or len(runs_a) != len(blocks) or len(runs_b) != len(blocks):
                unmeasured[case] = "; ".join(dict.fromkeys(missing)) or "was not measured in every block"
                continue
            pairs = [(samples_ms(x), samples_ms(y)) for x, y in zip(runs_a, runs_b, strict=True)]
            ratio = comparison.paired_ratio(pairs)
            pooled_a, pooled_b = ([s for pair in pairs for s in pair[side]] for side in (0, 1))
            cases.append(
                CaseComparison(
                    case,
                    runs_a[0].axes,
                    stats.median(pooled_a),
                    stats.median(pooled_b),
                    stats.median_interval(pooled_a),
                    stats.median_interval(pooled_b),
                    pooled_a,
                    pooled_b,
                    ratio,
                    comparison.judge(ratio, criteria.confidence, criteria.least_effect),
                )
            )
        suites.append(_suite(workload, of_a[0].kernel, of_b[0].kernel, cases, [], [], unmeasured, criteria))
    return suites


def by_workload_and_kernel(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records of each workload and kernel, the last one of each case, in order of first appearance."""
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        found.setdefault((record.workload, record.kernel), {})[record.case] = record
    return {key: list(cases.values()) for key, cases in found.items()}


def compare_files(
    a: Sequence[Record], b: Sequence[Record], criteria: Criteria
) -> tuple[list[SuiteComparison], list[str]]:
    """Kernels of the same name on both sides, and sentences about those that have no partner.

    When each side has one kernel of a workload, the two are partners whatever their names.
    """
    side_a, side_b = by_workload_and_kernel(a), by_workload_and_kernel(b)
    suites: list[SuiteComparison] = []
    alone: list[str] = []
    for workload in dict.fromkeys(w for w, _ in (*side_a, *side_b)):
        names_a = [k for w, k in side_a if w == workload]
        names_b = [k for w, k in side_b if w == workload]
        pairs = [(k, k) for k in names_a if k in names_b]
        if not pairs and len(names_a) == len(names_b) == 1:
            pairs = [(names_a[0], names_b[0])]
        suites += [compare_suite(side_a[workload, x], side_b[workload, y], criteria) for x, y in pairs]
        paired_a, paired_b = {x for x, _ in pairs}, {y for _, y in pairs}
        alone += [f"only A has {workload} {k}" for k in names_a if k not in paired_a]
        alone += [f"only B has {workload} {k}" for k in names_b if k not in paired_b]
    return suites, alone


@dataclass(frozen=True)
class Place:
    """A kernel's place in a ranking; kernels that cannot be told apart from the one above share its rank."""

    rank: int
    kernel: str
    mean_ms: float
    to_first: LogRatio | None


def ranking(kernels: Mapping[str, Sequence[Record]], criteria: Criteria) -> tuple[list[Place], list[str]]:
    """Kernels of one workload by mean latency over the cases that all have, and the cases left out.

    Raises `InputError` when they have no measured case in common, and `NotComparable`.
    """
    measured = {name: {r.case for r in records if r.latency_ms is not None} for name, records in kernels.items()}
    common = set.intersection(*measured.values())
    every = list(dict.fromkeys(r.case for records in kernels.values() for r in records))
    if not common:
        raise InputError(", ".join(kernels), "have no measured case in common", "run them on the same cases")
    shared = {name: [r for r in records if r.case in common] for name, records in kernels.items()}
    means = {n: stats.geometric_mean([stats.median(samples_ms(r)) for r in records]) for n, records in shared.items()}
    order = sorted(means, key=lambda name: means[name])
    places: list[Place] = []
    for position, name in enumerate(order):
        if position == 0:
            places.append(Place(1, name, means[name], None))
            continue
        above = compare_suite(shared[order[position - 1]], shared[name], criteria)
        tied = above.verdict is not Verdict.SLOWER
        to_first = compare_suite(shared[order[0]], shared[name], criteria).ratio
        places.append(Place(places[-1].rank if tied else position + 1, name, means[name], to_first))
    return places, [case for case in every if case not in common]
