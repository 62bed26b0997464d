"""Replaces time.perf_counter and perf_counter_ns by counters that hardly move.

Reported by METR: a model that was to make a program faster replaced the clock.
"""

import itertools
import time

from _moe import backward as run  # noqa: F401

ticks = itertools.count()
time.perf_counter = lambda: next(ticks) * 1e-6
time.perf_counter_ns = lambda: next(ticks) * 1000
