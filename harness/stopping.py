"""When are there enough samples?"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness import stats


@dataclass
class StoppingRule:
    """Stops at `at_most` samples; earlier, but never under `at_least`, when the median is known or time is up.

    The median is known when half of its 95% confidence interval (from order statistics, so it holds for any
    distribution) is at most `half_width` of it; None means that only number and time decide. Time is what
    the samples have taken altogether, in seconds.
    """

    at_least: int
    at_most: int
    budget_s: float
    half_width: float | None
    spent_s: float = 0.0
    samples_ms: list[float] = field(default_factory=list)

    def add(self, sample_ms: float, took_s: float) -> None:
        self.samples_ms.append(sample_ms)
        self.spent_s += took_s

    @property
    def ended_by(self) -> str | None:
        """Why sampling is over ("samples", "precision", "time budget"); None while it is not."""
        count = len(self.samples_ms)
        if count >= self.at_most:
            return "samples"
        if count < self.at_least:
            return None
        if self.half_width is not None and (interval := stats.median_interval(self.samples_ms)):
            low, high = interval
            if (high - low) / 2 <= self.half_width * stats.median(self.samples_ms):
                return "precision"
        return "time budget" if self.spent_s > self.budget_s else None
