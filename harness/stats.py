"""Summaries of latency samples. The raw samples are kept; everything here is derived from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle. Raises `ValueError` for none."""
    return statistics.median(samples)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """A distribution-free confidence interval of the median, from order statistics.

    The number of samples under the true median is Binomial(n, 1/2), so [x(k), x(n+1-k)] covers it with
    probability 1 - 2*P(Binomial(n, 1/2) < k). The largest k that keeps `confidence` is taken; None when
    even k = 1 does not (n < 6 at 95%). Source: David and Nagaraja, Order Statistics, section 7.1.
    """
    ordered, n = sorted(samples), len(samples)
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) * 0.5**n
        if 1 - 2 * tail < confidence:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def relative_iqr(samples: Sequence[float]) -> float | None:
    """The spread that tables show: interquartile range over median. None for fewer than 2 samples."""
    if len(samples) < 2:
        return None
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return (third - first) / median(samples)


def geometric_mean(values: Sequence[float]) -> float:
    """Raises `ValueError` for no values, or one that is not above zero."""
    if not values or min(values) <= 0:
        raise ValueError("a geometric mean needs values above zero")
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
