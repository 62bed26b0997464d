"""How long does one call take: the timing backends, as used inside the worker.

Each times one call at a time and says what it saw. The judge makes the cache cold before; which number counts
and how many are taken is decided elsewhere too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

# Bound before any candidate is loaded: one that replaces time.perf_counter_ns changes nothing here.
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from harness import driver
from harness.driver import Event
from harness.hold import HeldQueue
from harness.sample import Sample

Call = Callable[[], Any]

# How far work on other streams must outlast the call's own one before it counts: this much, or this share.
OTHER_STREAMS_MS = 0.003
OTHER_STREAMS_SHARE = 0.03
_FLOOR_READINGS = 15

median = statistics.median


class Timer(Protocol):
    """One backend, ready for a device; times a call whose inputs are there before it begins."""

    def prepare(self) -> None:
        """Make the device idle, before the inputs are there."""
        ...

    def run(self, call: Call) -> Any:
        """Run `call` once; its result. The device is idle afterwards."""
        ...

    def read(self) -> Sample:
        """The time of the call that `run` made."""
        ...

    @property
    def least_call(self) -> Call:
        """The least that this backend can time."""
        ...

    def floor_ms(self) -> float | None:
        """What the least possible call reads with this backend; None where that has no meaning."""
        ...


def make(backend: str, device: torch.device) -> Timer:
    """The named backend for the device. Raises `ValueError` for a pair that does not go together.

    For `queued` this is what times a kernel that cannot be held; `Held` does the rest.
    """
    if backend == "host":
        return HostTimer(device)
    if device.type == "cuda" and backend in ("events", "queued"):
        return EventTimer(held=False if backend == "queued" else None)
    raise ValueError(f"the backend {backend} does not work on {device.type}")


class HostTimer:
    """The host's monotonic clock around the call, the device idle before and after."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._synchronize: Call = torch.cuda.synchronize if on_gpu else lambda: None
        # A launch of next to nothing, because the GPU has to turn from the judge to this process first.
        self._touch: Call = partial(torch.cuda._sleep, 1) if on_gpu else lambda: None
        self._ms = 0.0
        self.least_call: Call = lambda: None

    def prepare(self) -> None:
        self._synchronize()

    def run(self, call: Call) -> Any:
        self._touch()
        self._synchronize()
        start_ns = perf_counter_ns()
        result = call()
        self._synchronize()
        self._ms = (perf_counter_ns() - start_ns) / 1e6
        return result

    def read(self) -> Sample:
        return Sample(self._ms)

    def floor_ms(self) -> float | None:
        return None


class EventTimer:
    """CUDA events around the call: device time plus the host's launch gaps, over all streams."""

    def __init__(self, held: bool | None = None) -> None:
        self._held = held
        self._synchronize: Call = torch.cuda.synchronize
        self._context = driver.current_context()
        self._stream = torch.cuda.current_stream()
        self._start, self._end, self._all = Event(), Event(), Event()
        self._sees_all = driver.sees_all_streams()
        self.least_call: Call = lambda: None
        self._all_later_ms = 0.0
        self._all_later_ms = median(self._readings(lambda: None)[1]) if self._sees_all else 0.0

    def prepare(self) -> None:
        driver.forget_persisting_l2()
        self._synchronize()

    def run(self, call: Call) -> Any:
        queue = driver.handle(self._stream)
        self._start.record(queue)
        result = call()
        self._end.record(queue)
        if self._sees_all:
            self._all.record_all_streams(self._context)
        self._synchronize()
        return result

    def read(self) -> Sample:
        own_ms = self._end.ms_since(self._start)
        time_ms, other = with_other_streams(own_ms, self._all_ms(), self._all_later_ms)
        return Sample(time_ms, self._held, other)

    def _all_ms(self) -> float | None:
        return self._all.ms_since(self._start) if self._sees_all else None

    def _readings(self, call: Call) -> tuple[list[float], list[float]]:
        own, later = [], []
        for _ in range(_FLOOR_READINGS):
            self.prepare()
            self.run(call)
            own.append(self._end.ms_since(self._start))
            later.append((self._all_ms() or own[-1]) - own[-1])
        return own, later

    def floor_ms(self) -> float | None:
        """The median reading of one launch that does next to nothing."""
        return median(self._readings(torch.zeros(1, device="cuda").zero_)[0])


def with_other_streams(own_ms: float, all_ms: float | None, all_later_ms: float) -> tuple[float, bool]:
    """The time that counts, and whether work on other streams than the call's own had to be waited for.

    `all_later_ms` is by how much the reading over all streams comes later when there is no such work.
    """
    if all_ms is None:
        return own_ms, False
    corrected_ms = all_ms - all_later_ms
    if corrected_ms - own_ms > max(OTHER_STREAMS_MS, OTHER_STREAMS_SHARE * own_ms):
        return corrected_ms, True
    return own_ms, False


class Held:
    """`queued`: a call behind the gate that only the judge opens. See `harness.hold`."""

    def __init__(self, descriptor: int) -> None:
        self._synchronize: Call = torch.cuda.synchronize
        self.queue = HeldQueue(descriptor)
        self._all_later_ms = 0.0
        own, later = self._readings(lambda: None)
        self.empty_ms, self._all_later_ms = median(own), median(later)

    def begin(self, ticket: int, hold_all_streams: bool) -> None:
        """Queue everything that comes before the call."""
        self._synchronize()  # nothing of an earlier call may still run
        driver.forget_persisting_l2()
        self.queue.begin(ticket, hold_all_streams)

    def sample(self) -> Sample:
        """The time of the call that has just gone through."""
        self._synchronize()
        reading = self.queue.reading()
        time_ms, other = with_other_streams(reading.own_ms, reading.all_ms, self._all_later_ms)
        return Sample(time_ms, True, other)

    def floor_ms(self) -> float:
        """The median reading of one launch that does next to nothing."""
        return median(self._readings(torch.zeros(1, device="cuda").zero_)[0])

    def _readings(self, call: Call) -> tuple[list[float], list[float]]:
        own, later = [], []
        # What is launched for the first time is loaded first, and loading waits for what is queued.
        call()
        self._synchronize()
        for ticket in range(1, _FLOOR_READINGS + 1):
            self.begin(ticket, hold_all_streams=False)
            call()
            self.queue.end()
            self.queue.copied()
            self.queue.open_from_inside()
            self._synchronize()
            reading = self.queue.reading()
            own.append(reading.own_ms)
            later.append((reading.all_ms or reading.own_ms) - reading.own_ms)
        self.queue.close_from_inside()
        return own, later
