"""Walks up the call stack to the worker and puts timers of its own into it.

Reported for pygpubench (pull request 22) and by METR: the caller's frames lead to the result.
"""

import dataclasses
import sys

from _moe import slow_backward


class Tenth:
    def __init__(self, timer):
        self.true = timer

    def __getattr__(self, name):
        return getattr(self.true, name)

    def read(self):
        sample = self.true.read()
        return dataclasses.replace(sample, time_ms=sample.time_ms / 10)

    def sample(self):
        sample = self.true.sample()
        return dataclasses.replace(sample, time_ms=sample.time_ms / 10)


def run(*inputs):
    frame = sys._getframe()
    while frame := frame.f_back:
        worker = frame.f_locals.get("self")
        for timers in (getattr(worker, "timers", {}), getattr(worker, "__dict__", {})):
            for name, timer in timers.items():
                if hasattr(timer, "floor_ms") and not isinstance(timer, Tenth):
                    timers[name] = Tenth(timer)
    return slow_backward(*inputs)
