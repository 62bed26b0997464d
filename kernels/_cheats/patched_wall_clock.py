"""Replaces time.time and time.monotonic by clocks that stand still.

Reported by METR: a model that was to make a program faster replaced the clock.
"""

import time

from _moe import backward as run  # noqa: F401

now = time.time(), time.monotonic()
time.time = lambda: now[0]
time.monotonic = lambda: now[1]
