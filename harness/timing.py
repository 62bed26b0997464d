"""How long does one call take: the timing backends, as used inside the worker.

Each times one call at a time, with the cache made cold first, and says what it saw. Which number counts
and how many are taken is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Bound before any candidate is loaded: one that replaces time.perf_counter_ns changes nothing here.
from time import perf_counter_ns
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

# Reading several times the cache's size leaves none of the inputs in it, and no dirty lines that the timed
# call would have to write back.
CACHE_MULTIPLE = 4
# Used where the size of the last-level cache cannot be read.
FALLBACK_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Sample:
    """One timed call.

    time_ms: the time, by the backend's meaning.
    held: for `queued`, whether every launch was in the queue before the first one ran.
    """

    time_ms: float
    held: bool | None = None


class Timer(Protocol):
    """One backend, ready for a device."""

    def measure(self, call: Call) -> tuple[Any, Sample]:
        """Run `call` once; its result and its time."""
        ...

    def floor_ms(self) -> float | None:
        """What the least possible call reads with this backend; None where that has no meaning."""
        ...


def make(backend: str, device: torch.device, cold_cache: bool) -> Timer:
    """The named backend for the device. Raises `ValueError` for a pair that does not go together."""
    flush: Call = _flusher(device) if cold_cache else lambda: None
    if backend == "host":
        return HostTimer(device, flush)
    if device.type == "cuda" and backend == "events":
        return EventTimer(flush)
    if device.type == "cuda" and backend == "queued":
        return QueuedTimer(flush)
    raise ValueError(f"the backend {backend} does not work on {device.type}")


def _flusher(device: torch.device) -> Callable[[], Any]:
    if device.type == "cuda":
        nbytes = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        nbytes = _last_level_cache_bytes()
    # Written once, because memory that was never written is one shared page of zeros that stays in cache.
    buffer = torch.ones(CACHE_MULTIPLE * nbytes // 4, dtype=torch.int32, device=device)
    return buffer.max


def _last_level_cache_bytes() -> int:
    sizes = [FALLBACK_CACHE_BYTES // 4]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        if text.rstrip("KM").isdigit():
            sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)


class HostTimer:
    """The host's monotonic clock around the call, the device idle before and after."""

    def __init__(self, device: torch.device, flush: Call) -> None:
        self._flush = flush
        self._synchronize: Call = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def measure(self, call: Call) -> tuple[Any, Sample]:
        self._flush()
        self._synchronize()
        start = perf_counter_ns()
        result = call()
        self._synchronize()
        return result, Sample((perf_counter_ns() - start) / 1e6)

    def floor_ms(self) -> float | None:
        return None


class EventTimer:
    """CUDA events around the call on the current stream: device time plus the host's launch gaps."""

    def __init__(self, flush: Call) -> None:
        self._flush = flush

    def _before(self) -> None:
        pass

    def _held(self, start: torch.cuda.Event) -> bool | None:
        return None

    def measure(self, call: Call) -> tuple[Any, Sample]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush()
        self._before()
        start.record()
        result = call()
        end.record()
        held = self._held(start)
        end.synchronize()
        return result, Sample(start.elapsed_time(end), held)

    def floor_ms(self) -> float | None:
        """The median reading of one launch that does next to nothing."""
        one = torch.zeros(1, device="cuda")
        readings = sorted(self.measure(one.zero_)[1].time_ms for _ in range(15))
        return readings[len(readings) // 2]


class QueuedTimer(EventTimer):
    """Events behind a blocking kernel: the device's time without the host's launch gaps.

    The blocking kernel spins while the host enqueues the whole call. When the start event has already
    happened by the time the last launch is in, the hold was too short: the sample says so, and the next
    hold is longer. A call that waits for the device never gets ahead of it, whatever the hold.
    """

    MIN_HOLD_MS = 0.2
    MAX_HOLD_MS = 50.0
    # How much longer than the slowest of the latest enqueuings the next hold is.
    MARGIN = 3.0

    def __init__(self, flush: Call) -> None:
        super().__init__(flush)
        self._recent_ms: list[float] = []
        self._longer = 1.0
        self._enqueue_start_ns = 0
        self._cycles_per_ms = self._spin_rate()

    @staticmethod
    def _spin_rate() -> float:
        cycles = 4_000_000
        rates = []
        for _ in range(5):  # the first ones run while the clock is still rising
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            rates.append(cycles / float(start.elapsed_time(end)))
        return max(rates)

    @property
    def hold_ms(self) -> float:
        wanted = self.MARGIN * self._longer * max(self._recent_ms, default=1.0)
        return min(max(wanted, self.MIN_HOLD_MS), self.MAX_HOLD_MS)

    def _before(self) -> None:
        torch.cuda._sleep(int(self.hold_ms * self._cycles_per_ms))
        self._enqueue_start_ns = perf_counter_ns()

    def _held(self, start: torch.cuda.Event) -> bool:
        self._recent_ms = [*self._recent_ms[-4:], (perf_counter_ns() - self._enqueue_start_ns) / 1e6]
        held = not start.query()
        self._longer = max(self._longer / 1.5, 1.0) if held else min(self._longer * 2, 64.0)
        return held
