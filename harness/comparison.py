"""Is there a difference? Ratios of medians with intervals, and what may be said of them.

Only numbers come in and go out. A ratio is B over A: above 1, B is slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from harness import stats

NORMAL = NormalDist()
# With fewer samples the order statistics say nothing of the spread.
FEWEST_SAMPLES = 5


class Verdict(StrEnum):
    """What may be said of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class LogRatio:
    """An estimated ratio on the log scale, with its standard error; `freedom` is None for a normal one."""

    log: float
    error: float
    freedom: int | None = None

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    def _reach(self, confidence: float) -> float:
        """Half the width of the two-sided interval, on the log scale."""
        if not math.isfinite(self.error):
            return math.inf
        upper = (1 + confidence) / 2
        if self.freedom is None:
            return NORMAL.inv_cdf(upper) * self.error
        from scipy import stats as distributions  # slow to import, and needed for interleaved runs only

        return float(distributions.t.ppf(upper, self.freedom)) * self.error

    def interval(self, confidence: float) -> tuple[float, float]:
        """Two-sided, as ratios; (0, inf) where the samples do not allow one."""
        reach = self._reach(confidence)
        return (0.0, math.inf) if reach == math.inf else (math.exp(self.log - reach), math.exp(self.log + reach))


def log_median_error(samples: Sequence[float]) -> float:
    """Standard error of the log of the sample median, free of the distribution's shape.

    From the distance of two order statistics about the median, divided by the normal quantile that their
    exact binomial coverage corresponds to. Infinite for fewer than `FEWEST_SAMPLES`. Source: Price and
    Bonett, Distribution-free confidence intervals for difference and ratio of medians, Journal of
    Statistical Computation and Simulation 72 (2002), 119-124.
    """
    n = len(samples)
    if n < FEWEST_SAMPLES:
        return math.inf
    ordered = sorted(samples)
    k = max(1, round((n + 1) / 2 - math.sqrt(n)))
    outside = 2 * math.fsum(math.comb(n, i) for i in range(k)) * 0.5**n
    width = math.log(ordered[n - k]) - math.log(ordered[k - 1])
    return width / (2 * NORMAL.inv_cdf(1 - outside / 2))


def ratio_of_medians(a: Sequence[float], b: Sequence[float]) -> LogRatio:
    """Median of `b` over median of `a`, from independent samples. Raises `ValueError` for values not above 0."""
    for value in (*a, *b):
        if not 0 < value < math.inf:
            raise ValueError(f"{value} is no latency")
    log = math.log(stats.median(b)) - math.log(stats.median(a))
    return LogRatio(log, math.hypot(log_median_error(a), log_median_error(b)))


def paired_ratio(blocks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> LogRatio:
    """The ratio from interleaved runs: one (a, b) pair of sample sets per block.

    Each block gives one log ratio of medians; what moves both runs of a block alike cancels, and what
    differs from run to run is in the spread between blocks. Student's t with blocks - 1 degrees.
    """
    logs = [ratio_of_medians(a, b).log for a, b in blocks]
    count = len(logs)
    mean = math.fsum(logs) / count
    if count < 2:
        return LogRatio(mean, math.inf)
    variance = math.fsum((log - mean) ** 2 for log in logs) / (count - 1)
    return LogRatio(mean, math.sqrt(variance / count), count - 1)


def geometric_mean_ratio(ratios: Sequence[LogRatio]) -> LogRatio:
    """The suite's ratio from those of its cases, taken as independent. Raises `ValueError` for none."""
    if not ratios:
        raise ValueError("a suite's ratio needs at least one case")
    count = len(ratios)
    error = math.sqrt(math.fsum(r.error**2 for r in ratios)) / count
    freedoms = [r.freedom for r in ratios if r.freedom is not None]
    return LogRatio(math.fsum(r.log for r in ratios) / count, error, min(freedoms) if freedoms else None)


def rank_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney test: how likely such ranks are if both are one distribution.

    Medians of samples with two modes jump between them, and no interval of the median sees that; ranks do.
    """
    from scipy import stats as distributions  # slow to import, and needed only where a change is about to be called

    return float(distributions.mannwhitneyu(a, b, alternative="two-sided", method="asymptotic").pvalue)


def beyond_by_ranks(a: Sequence[float], b: Sequence[float], allowed: float, confidence: float) -> bool:
    """Whether ranks show `b` above `a` by more than the share `allowed`, at the one-sided `confidence`.

    With few samples and long tails the interval of a median is wide long before the two sets overlap.
    """
    from scipy import stats as distributions

    raised = [value * (1 + allowed) for value in a]
    return float(distributions.mannwhitneyu(raised, b, alternative="less").pvalue) < 1 - confidence


def judge(found: LogRatio, confidence: float, least_effect: float) -> Verdict:
    """A change is called one when its interval leaves 1 out and it is larger than `least_effect`.

    `least_effect` is the known noise, as a share (0.01 for 1%). "Same" is a finding too: the whole interval
    lies within it. Everything else is inconclusive.
    """
    low, high = found.interval(confidence)
    band = 1 + least_effect
    if low > 1 and found.ratio > band:
        return Verdict.SLOWER
    if high < 1 and found.ratio < 1 / band:
        return Verdict.FASTER
    if 1 / band <= low and high <= band:
        return Verdict.SAME
    # Shown to differ from 1, and by less than noise: that is no change either.
    if (low > 1 or high < 1) and 1 / band <= found.ratio <= band:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


class Limit(StrEnum):
    """Whether a ratio is shown to be within, or beyond, what is allowed."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNDECIDED = "undecided"


def against_limit(found: LogRatio, confidence: float, allowed: float, least_effect: float) -> Limit:
    """Whether B is slower than A by more than the share `allowed`, at the one-sided `confidence`.

    A slowdown that is smaller than `least_effect` is noise whatever its interval.
    """
    two_sided = 2 * confidence - 1
    low, high = found.interval(two_sided)
    if low > 1 + allowed and found.ratio > 1 + least_effect:
        return Limit.BEYOND
    if high <= 1 + allowed:
        return Limit.WITHIN
    return Limit.UNDECIDED


def samples_to_decide(found: LogRatio, confidence: float, allowed: float, have: int) -> int | None:
    """How many samples for each side would settle `against_limit`, if the ratio stays as it is.

    The interval's reach falls with the square root of the number of samples. None when no number would:
    the ratio is at the limit itself, or there is no error to scale.
    """
    distance = abs(found.log - math.log1p(allowed))
    if not math.isfinite(found.error) or distance == 0:
        return None
    reach = NORMAL.inv_cdf(confidence) * found.error
    needed = math.ceil(have * (reach / distance) ** 2)
    return max(needed, have + 1) if needed < 1_000_000 else None
