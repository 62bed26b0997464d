"""How much do results of one kernel differ from process to process, when nothing has changed?

A against A: what is measured again without a change and comes out different is noise, and no smaller difference
between two runs means anything. All of it is derived from records, one for each process and case.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from harness import stats
from harness.compare import Criteria, compare_suite, differences, samples_ms
from harness.comparison import Verdict
from harness.errors import InputError
from harness.records import Record, number
from harness.text import ABSENT, format_ms, format_share

# The greatest of fewer medians says little of the next one.
FEWEST_PROCESSES = 5
HEADINGS = ("case", "processes", "median", "spread", "95% of them", "IQR", "false differences")


@dataclass(frozen=True)
class CaseNoise:
    """One case of one kernel over several processes. Shares are of `median_ms`.

    median_ms: the median of the processes' medians.
    spread: between the least and the greatest of those medians.
    low, high: how far below and above `median_ms` the middle 95% of them lie.
    relative_iqr: of the samples within a process, the median over the processes.
    false_differences: of all pairs of processes, the share that a comparison calls faster or slower.
    """

    workload: str
    kernel: str
    case: str
    processes: int
    median_ms: float
    spread: float
    low: float
    high: float
    relative_iqr: float | None
    pairs: int
    false_differences: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        """The cells under `HEADINGS`."""
        return (
            self.case,
            str(self.processes),
            format_ms(self.median_ms),
            format_share(self.spread, 2),
            f"{self.low * 100:+.2f}% to {self.high * 100:+.2f}%",
            ABSENT if self.relative_iqr is None else format_share(self.relative_iqr, 2),
            f"{self.false_differences * self.pairs:.0f} of {self.pairs}",
        )


def by_case(records: Iterable[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """Records with a latency by workload, kernel and case, in order of first appearance."""
    found: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.latency_ms is not None:
            found.setdefault((record.workload, record.kernel, record.case), []).append(record)
    return found


def summarise(records: Iterable[Record], criteria: Criteria) -> list[CaseNoise]:
    """The noise of every case that two processes or more have measured. Raises `NotComparable`, `InputError`."""
    return [
        _of_case(same, criteria)
        for same in by_case(records).values()
        if len(same) > 1  # of one alone nothing can be said
    ]


def _of_case(same: Sequence[Record], criteria: Criteria) -> CaseNoise:
    medians = _medians_ms(same)
    middle_ms = stats.median(medians)
    fortieths = statistics.quantiles(medians, n=40, method="inclusive")
    verdicts = [compare_suite([a], [b], criteria).cases[0].verdict for a, b in combinations(same, 2)]
    within = [iqr for iqr in (stats.relative_iqr(samples_ms(record)) for record in same) if iqr is not None]
    return CaseNoise(
        same[0].workload,
        same[0].kernel,
        same[0].case,
        len(same),
        middle_ms,
        _spread(medians),
        fortieths[0] / middle_ms - 1,
        fortieths[-1] / middle_ms - 1,
        stats.median(within) if within else None,
        len(verdicts),
        sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts) / len(verdicts),
    )


def _medians_ms(same: Iterable[Record]) -> list[float]:
    return [stats.median(samples_ms(record)) for record in same]


def _spread(medians: Sequence[float]) -> float:
    return (max(medians) - min(medians)) / stats.median(medians)


def legend(criteria: Criteria) -> str:
    """What the table's words mean."""
    return (
        "median: of the processes' medians. spread: between the least and the greatest of them; 95% of them: how far "
        "the middle 95% lie from the median. IQR: of the samples within a process. false differences: pairs of "
        f"processes that a comparison calls different at {criteria.confidence:.0%} confidence and a least effect of "
        f"{criteria.least_effect:.1%}, though nothing has changed."
    )


# --- what limits it -------------------------------------------------------------------------------


def limits(records: Iterable[Record]) -> list[str]:
    """What the GPU's clock did meanwhile, in sentences; none where the records do not say."""
    states = list(_gpu_states(records))
    clocks = [clock for state in states if (clock := _clock_mhz(state)) is not None]
    lines = []
    if clocks:
        low, high = min(least for least, _ in clocks), max(greatest for _, greatest in clocks)
        moved = "stood at" if low == high else f"moved between {low:g} and"
        lines.append(f"The SM clock {moved} {high:g} MHz over the {len(clocks)} measurements that watched it.")
    held_back: dict[str, list[float]] = {}
    watched = [state for state in states if state.get("readings")]
    for state in watched:
        for reason, share in _mapping(state.get("throttle")).items():
            if reason != "gpu_idle" and (known := number(share)):
                held_back.setdefault(str(reason), []).append(known)
    if held_back:
        mean = {reason: sum(shares) / len(watched) for reason, shares in held_back.items()}
        ordered = sorted(mean.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{reason} in {share:.0%}" for reason, share in ordered)
        lines.append(f"The clock was held back: {shown} of the readings.")
    return lines


def _gpu_states(records: Iterable[Record]) -> Iterator[Mapping[str, Any]]:
    for record in records:
        timing = record.timings.get(record.backend or "")
        if state := _mapping(_mapping(timing).get("gpu")):
            yield state


def _clock_mhz(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """The least and the greatest."""
    seen = _mapping(state.get("sm_clock_mhz"))
    least, greatest = number(seen.get("min")), number(seen.get("max"))
    return None if least is None or greatest is None else (least, greatest)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- for the gate ---------------------------------------------------------------------------------


def least_effects(noise: Sequence[Record], current: Sequence[Record], place: str) -> dict[tuple[str, str], float]:
    """For each workload and case, the greatest spread that a kernel showed there: no smaller change is one.

    `place` is where the noise came from. Raises `InputError` where it was measured otherwise than `current`, by too
    few processes, or for none of its cases.
    """
    wanted = {(record.workload, record.case): record for record in current if record.latency_ms is not None}
    found: dict[tuple[str, str], float] = {}
    for (workload, kernel, case), same in by_case(noise).items():
        if (workload, case) not in wanted:
            continue
        what = f"{place}: {workload} {kernel} {case}"
        reasons = [reason for record in same for reason in differences(record, wanted[workload, case])]
        if reasons:
            remedy = "measure the noise as the results are measured"
            raise InputError(what, f"was measured differently ({reasons[0]})", remedy)
        if len(same) < FEWEST_PROCESSES:
            remedy = f"measure {FEWEST_PROCESSES} or more with solbench noise"
            raise InputError(what, f"was measured by {len(same)} processes, which is too few", remedy)
        found[workload, case] = max(found.get((workload, case), 0.0), _spread(_medians_ms(same)))
    if not found:
        raise InputError(place, "holds the noise of none of these cases", "measure it with solbench noise")
    return found
