"""Summaries against known distributions and by hand."""

from __future__ import annotations

import random
import statistics

import pytest

from harness import stats


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(1)
    trials = 2000
    for count in (6, 10, 25, 50):
        covered = 0
        for _ in range(trials):
            interval = stats.median_interval([generator.lognormvariate(0, 1) for _ in range(count)])
            assert interval is not None
            covered += interval[0] <= 1.0 <= interval[1]  # the median of lognormal(0, 1)
        assert covered / trials > 0.94  # 0.95 less three standard errors of the estimate


def test_the_interval_of_fifty_samples_is_the_tabulated_one() -> None:
    assert stats.median_interval(range(1, 51)) == (18, 33)


def test_too_few_samples_have_no_interval() -> None:
    assert stats.median_interval([1.0] * 5) is None
    assert stats.median_interval([]) is None
    assert stats.relative_iqr([1.0]) is None


def test_the_spread_is_robust_against_an_outlier() -> None:
    samples = [10.0, 10.1, 10.2, 10.3, 10.4]
    assert stats.relative_iqr([*samples, 1e6]) == pytest.approx(stats.relative_iqr(samples), rel=0.5)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0]])
def test_a_geometric_mean_of_no_or_impossible_values_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        stats.geometric_mean(values)


def test_the_geometric_mean_is_that_of_the_library() -> None:
    values = [0.5, 3.0, 7.25]
    assert stats.geometric_mean(values) == pytest.approx(statistics.geometric_mean(values))
