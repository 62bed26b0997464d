"""What did the GPU itself do during a call? The backend `cupti`, from CUPTI's activity records (cupti-python).

A record is a kernel, a copy or a memory set, with the GPU's own times of its start and end; the nodes of CUDA graphs
have theirs. The time of a call is the span from its first start to its last end, over all streams. What lies between
the records are gaps, which as a rule are the host's: launches that had not come yet.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache

# Bound before any candidate is loaded, as everything that the timer uses.
from time import sleep
from typing import Any, NamedTuple, Protocol

import torch

from harness import driver
from harness.sample import Sample

Call = Callable[[], Any]

MISSING = "the package cupti-python is not installed (pip install 'solbench[cupti]')"
NO_ACTIVITY = "no GPU activity in the timed call"
# Room for some 15 000 records; when it is full, CUPTI asks for another one, which takes the host a moment.
BUFFER_BYTES = 4 << 20
# So many names of activities are told one by one.
NAMES_SHOWN = 24
NAME_LENGTH = 120
# A longer activity is a fault of the clock; calls are given up before.
LONGEST_NS = 3600 * 10**9
# By more than this the GPU's times, as CUPTI gives them, are not off from the host's.
CLOCK_ERROR_S = 5e-5
_FLOOR_READINGS = 15
_CLOCK_BITS = 64
_FLUSH_FORCED = 1


class CuptiError(RuntimeError):
    """CUPTI cannot time this call; the message says why."""


class Activity(NamedTuple):
    """One thing that the GPU did. Times in ns of CUPTI's clock."""

    name: str
    kind: str  # kernel, memcpy or memset
    start_ns: int
    end_ns: int
    in_graph: bool = False


def problem() -> str | None:
    """Why CUPTI cannot be used here; None when it can."""
    try:
        _module()
    except ModuleNotFoundError as error:
        return MISSING if (error.name or "").partition(".")[0] == "cupti" else f"cupti-python lacks {error.name}"
    except (ImportError, OSError, RuntimeError) as error:
        return f"cupti-python does not load ({error})"
    return None if torch.cuda.is_available() else "CUPTI needs a CUDA device, and PyTorch sees none"


def _module() -> Any:
    return importlib.import_module("cupti.cupti")


# --- what activities come to ----------------------------------------------------------------------


def summarise(activities: Sequence[Activity]) -> tuple[float, dict[str, Any]]:
    """The span in ms, and the detail of a sample. Raises `CuptiError` for none, or for one without sound times.

    launches: how many activities. graph_nodes: how many of them CUDA graphs launched. device_ms: the time in which
    any was running; gap_ms: the rest of the span. activities: by name and kind, the longest first; what is behind the
    first `NAMES_SHOWN` is summed up under "others". names_sha256: tells sets of names and kinds apart, all of them.
    """
    if not activities:
        raise CuptiError(NO_ACTIVITY)
    origin_ns = activities[0].start_ns
    spans: list[tuple[int, int]] = []
    totals: dict[tuple[str, str], list[int]] = {}
    for activity in activities:
        length_ns = _after(activity.end_ns, activity.start_ns)
        if not activity.start_ns or not activity.end_ns or not 0 <= length_ns <= LONGEST_NS:
            times = f"start {activity.start_ns}, end {activity.end_ns}"
            raise CuptiError(f"CUPTI has no sound times of {activity.name} ({times})")
        start_ns = _after(activity.start_ns, origin_ns)
        spans.append((start_ns, start_ns + length_ns))
        total = totals.setdefault((activity.name, activity.kind), [0, 0])
        total[0] += 1
        total[1] += length_ns
    span_ns = max(end for _, end in spans) - min(start for start, _ in spans)
    busy_ns = _union_ns(spans)
    rows: list[dict[str, Any]] = [
        {"name": name, "kind": kind, "count": count, "ms": ns / 1e6}
        for (name, kind), (count, ns) in sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    ]
    if others := rows[NAMES_SHOWN:]:
        count, ms = (sum(row[key] for row in others) for key in ("count", "ms"))
        rows[NAMES_SHOWN:] = [{"name": "others", "kind": "others", "count": count, "ms": ms}]
    names = "\n".join(f"{kind} {name}" for name, kind in sorted(totals))
    return span_ns / 1e6, {
        "launches": len(activities),
        "graph_nodes": sum(activity.in_graph for activity in activities),
        "device_ms": busy_ns / 1e6,
        "gap_ms": (span_ns - busy_ns) / 1e6,
        "activities": rows,
        "names_sha256": hashlib.sha256(names.encode(errors="replace")).hexdigest(),
    }


def _after(time_ns: int, origin_ns: int) -> int:
    """By how much a time is later than another, also where the clock went over from its last value to 0 between."""
    half = 1 << (_CLOCK_BITS - 1)
    return (time_ns - origin_ns + half) % (1 << _CLOCK_BITS) - half


def _union_ns(spans: Sequence[tuple[int, int]]) -> int:
    """The length that the spans cover; where they overlap it counts once."""
    covered, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            covered, reached = covered + end - start, end
        elif end > reached:
            covered, reached = covered + end - reached, end
    return covered


# --- names ----------------------------------------------------------------------------------------


class _Names:
    """Kernel names as people write them."""

    def __init__(self) -> None:
        self.short: Callable[[str], str] = cache(self._short)
        try:
            # As a key, because within a class Python would change such a name.
            self._demangle: Any = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
            self._free: Any = ctypes.CDLL(None).free
        except (OSError, AttributeError):
            self._demangle = None
            return
        self._demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        self._demangle.restype = ctypes.c_void_p
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None

    def _short(self, name: str) -> str:
        name = _without_arguments(self._demangled(name))
        if len(name) <= NAME_LENGTH:
            return name
        # Names that begin alike stay different ones.
        return f"{name[: NAME_LENGTH - 10]}… {hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"

    def _demangled(self, name: str) -> str:
        if self._demangle is None or not name.startswith("_Z"):
            return name
        status = ctypes.c_int(-1)
        pointer = self._demangle(name.encode(), None, None, ctypes.byref(status))
        if not pointer:
            return name
        text = ctypes.string_at(pointer).decode(errors="replace") if status.value == 0 else name
        self._free(pointer)
        return text


def _without_arguments(name: str) -> str:
    """`void f<4>(int, float*)` as `f<4>`."""
    name = name.removeprefix("void ")
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            return name[:position] or name
    return name


# --- the backend ----------------------------------------------------------------------------------


class _Record(Protocol):
    """What is read of a record, whatever its kind."""

    kind: int
    start: int
    end: int


class CuptiTimer:
    """What is launched between `prepare` and the end of `run` counts; first of all CUPTI sees a launch of the timer's.

    `read` takes the longer the more records there are, and belongs to nobody's time.
    """

    def __init__(self, cupti: Any = None) -> None:
        """`cupti` replaces the package, for tests. Raises `CuptiError`."""
        if cupti is None:
            if reason := problem():
                raise CuptiError(reason)
            cupti = _module()
        self._forget: Call = driver.forget_persisting_l2
        self._synchronize: Call = torch.cuda.synchronize
        self._enable, self._disable = cupti.activity_enable, cupti.activity_disable
        self._flush_all, self._now_ns = cupti.activity_flush_all, cupti.get_timestamp
        self._dropped_records = cupti.activity_get_num_dropped_records
        self._error: type[Exception] = cupti.cuptiError
        kinds = cupti.ActivityKind
        # GRAPH_TRACE is left out: with it a graph is one record, without the kernels that it launches.
        self._kinds: Mapping[int, str] = {
            int(kinds.CONCURRENT_KERNEL): "kernel",
            int(kinds.MEMCPY): "memcpy",
            int(kinds.MEMSET): "memset",
        }
        self._copies = {int(copy): f"memcpy {copy.name}" for copy in cupti.ActivityMemcpyKind}
        self._names = _Names()
        # A launch that does next to nothing: the least that can be timed.
        self.least_call: Call = torch.zeros(1, device=_device()).zero_
        self._records: list[Activity] = []
        self._fault: str | None = None
        self._enabled: list[int] = []
        self._began_ns = 0
        try:
            cupti.activity_register_callbacks(self._buffer_requested, self._buffer_completed)
        except self._error as error:
            raise CuptiError(f"CUPTI does not start ({error})") from None

    # What CUPTI calls, from a thread of its own perhaps. Nothing may be raised here: nobody would see it.

    def _buffer_requested(self) -> tuple[int, int]:
        return BUFFER_BYTES, 0  # 0: as many records as fit

    def _buffer_completed(self, records: Sequence[_Record]) -> None:
        try:
            # Copied at once, because each record keeps the buffer that it lies in.
            self._records += [self._activity(record) for record in records if int(record.kind) in self._kinds]
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"

    def _activity(self, record: Any) -> Activity:
        kind = self._kinds[int(record.kind)]
        if kind == "kernel":
            name = self._names.short(str(record.name))
        elif kind == "memcpy":
            name = self._copies.get(int(record.copy_kind), "memcpy")
        else:
            name = "memset"
        return Activity(name, kind, int(record.start), int(record.end), bool(record.graph_id))

    def prepare(self) -> None:
        """Begin to record; the device is idle then. Raises `CuptiError`."""
        self._forget()
        self._synchronize()
        self._records, self._fault = [], None
        try:
            for kind in self._kinds:
                self._enable(kind)
                self._enabled.append(kind)
        except self._error as error:
            self._stop()
            raise CuptiError(f"CUPTI does not record ({error})") from None
        # The first record makes CUPTI fetch a buffer, which is no part of anybody's call.
        self.least_call()
        self._synchronize()
        sleep(CLOCK_ERROR_S)
        self._began_ns = self._now_ns()
        sleep(CLOCK_ERROR_S)

    def run(self, call: Call) -> Any:
        """Run `call` and wait for everything that it launched; its result. What comes later is not recorded."""
        try:
            result = call()
            self._synchronize()
        finally:
            self._stop()
        return result

    def read(self) -> Sample:
        """What was recorded of the call that `run` made. Raises `CuptiError`, also where the GPU had nothing to do."""
        try:
            self._flush_all(_FLUSH_FORCED)
        except self._error as error:
            raise CuptiError(f"CUPTI does not hand over its records ({error})") from None
        if self._fault:
            raise CuptiError(f"CUPTI's records cannot be read ({self._fault})")
        if dropped := self._dropped():
            raise CuptiError(f"CUPTI dropped {dropped} records, so the span is not known")
        of_the_call = [r for r in self._records if not r.start_ns or _after(r.start_ns, self._began_ns) >= 0]
        if len(of_the_call) == len(self._records):
            raise CuptiError("CUPTI does not show the timer's own launch before the call, so its clock cannot be used")
        span_ms, detail = summarise(of_the_call)
        return Sample(span_ms, detail=detail)

    def _dropped(self) -> int:
        """How many records CUPTI had no room for since it was last asked."""
        count = ctypes.c_size_t(0)
        with suppress(self._error):  # where it cannot tell, it has dropped none
            self._dropped_records(0, 0, ctypes.addressof(count))
        return count.value

    def _stop(self) -> None:
        """Record nothing more."""
        while self._enabled:
            with suppress(self._error):
                self._disable(self._enabled.pop())

    def floor_ms(self) -> float:
        """The median span of one launch that does next to nothing."""
        readings = []
        for _ in range(_FLOOR_READINGS):
            self.prepare()
            self.run(self.least_call)
            readings.append(self.read().time_ms)
        return statistics.median(readings)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
