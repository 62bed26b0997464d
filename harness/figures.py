"""Which facts of a record do reports show? Read fast, and without the raw samples.

A hundred thousand records are some 400 MB of JSON, most of it samples. Here a line is decoded straight into
the fields that reports and data frames use; what repeats (names, hashes, peak rates) is held once.
Whatever the fast decoder does not take goes through `Record.from_line`, which has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec

from harness import records, store
from harness.records import Record, Status, number
from harness.sol import grade, known_baselines
from harness.store import BadLine
from harness.text import sound


class Peak(NamedTuple):
    """The rates that bounds come from: `peak_flops` in FLOP/s, `bandwidth` in bytes/s."""

    device: str
    label: str
    peak_flops: float
    bandwidth: float


class Figures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One kernel on one case, flat. Times in ms, sizes in bytes, shares from 0 to 1; absent is None."""

    workload: str
    case: str
    scale: int
    kernel: str
    device: str
    protocol: str
    seed: int
    status: Status
    reason: str | None
    backend: str | None
    latency_ms: float | None
    ci95_low_ms: float | None
    ci95_high_ms: float | None
    relative_iqr: float | None
    iterations: int | None
    ended_by: str | None
    flops: int | None
    bytes_moved: int | None
    bound_ms: float | None
    limit: str | None
    published_bound_ms: float | None
    baseline_ms: float | None
    roofline: float | None
    sol_score: float | None
    rounds: int | None
    worst_norm_rel_error: float | None
    worker_peak_bytes: int | None
    torch: str | None
    triton: str | None
    time: str
    run_id: str
    workload_sha256: str
    kernel_sha256: str | None
    protocol_sha256: str

    # What reports say in words about a table; no columns of the data frame.
    axes: str
    peak: Peak | None
    baseline_source: str | None
    sm_clock_max_mhz: float | None
    locked_sm_clock_mhz: float | None
    power_limit_w: float | None
    sol_reason: str | None
    remarks: tuple[str, ...]
    # Of the span that cupti saw, the share that the held queue did not need: the GPU waited for the host.
    host_gaps: float | None

    @property
    def identity(self) -> tuple[object, ...]:
        """As `Record.identity`."""
        return records.identity_of(self)


# What the fast decoder expects of a line: the fields that are used, and of the others that they are there.
# A line that differs is no bad line yet; `Record.from_line` decides.


class _Timing(TypedDict, total=False):
    median_ms: float | None
    held: list[bool] | None
    ci95_ms: tuple[float, float] | None
    relative_iqr: float | None
    iterations: int
    ended_by: str | None


class _Output(TypedDict, total=False):
    norm_rel_error: float | None


class _Correctness(TypedDict, total=False):
    rounds: int
    outputs: dict[str, _Output]


class _Peak(TypedDict, total=False):
    device: str
    label: str
    peak_flops: float
    bandwidth: float


class _Sol(TypedDict, total=False):
    flops: int
    bytes_moved: int
    bound_ms: float | None
    limit: str | None
    peak: _Peak | None
    published_bound_ms: float | None
    baseline_ms: float | None
    baseline_source: str | None
    score: float | None
    roofline: float | None
    reason: str | None


class _Memory(TypedDict, total=False):
    worker_peak_bytes: int | None


class _Gpu(TypedDict, total=False):
    sm_clock_max_mhz: float | None
    locked_sm_clock_mhz: float | None
    power_limit_w: float | None


class _Environment(TypedDict, total=False):
    torch: str | None
    triton: str | None
    gpu: _Gpu | None


class _Line(TypedDict):
    schema: int
    run_id: str
    time: str
    workload: str
    workload_sha256: str
    case: str
    axes: dict[str, int]
    scale: int
    kernel: str
    kernel_sha256: str | None
    author: str | None
    source: str | None
    license: str | None
    device: str
    environment: _Environment
    protocol: str
    protocol_sha256: str
    seed: int
    status: Status
    reason: str | None
    latency_ms: float | None
    backend: str | None
    timings: dict[str, _Timing]
    correctness: _Correctness | None
    sol: _Sol | None
    memory: NotRequired[_Memory | None]
    remarks: NotRequired[list[str] | None]


_LINE = msgspec.json.Decoder(_Line)


class Reader:
    """Makes `Figures`, and holds equal texts once over all that it made."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._peaks: dict[Peak, Peak] = {}
        self._remarks: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of_line(self, line: bytes) -> Figures:
        """Raises `RecordError`, in the words of `Record.from_line`."""
        try:
            values = _LINE.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return self.of_record(store.record_of(line))
        latency_ms = values["latency_ms"]
        # Lines of an older schema take the slower way too, because migrations are written for whole records.
        if values["schema"] != records.SCHEMA or (latency_ms is not None and latency_ms <= 0):
            return self.of_record(store.record_of(line))
        return self._figures(values)

    def of_record(self, record: Record) -> Figures:
        return self._figures(vars(record))

    def _figures(self, line: Mapping[str, Any]) -> Figures:
        text, optional = self._text, self._optional_text
        sol, correctness, memory = (_mapping(line.get(name)) for name in ("sol", "correctness", "memory"))
        timing = _mapping(line["timings"].get(line["backend"]))
        environment, outputs = line["environment"], _mapping(correctness.get("outputs"))
        gpu = _mapping(environment.get("gpu"))
        low_ms, high_ms = _pair(timing.get("ci95_ms"))
        errors = [number(_mapping(output).get("norm_rel_error")) for output in outputs.values()]
        known_errors = [error for error in errors if error is not None]
        remarks = tuple([sound(str(remark)) for remark in line.get("remarks") or ()])
        return Figures(
            workload=text(line["workload"]),
            case=text(line["case"]),
            scale=line["scale"],
            kernel=text(line["kernel"]),
            device=text(line["device"]),
            protocol=text(line["protocol"]),
            seed=line["seed"],
            status=line["status"],
            reason=optional(line["reason"]),
            backend=optional(line["backend"]),
            latency_ms=number(line["latency_ms"]),
            ci95_low_ms=number(low_ms),
            ci95_high_ms=number(high_ms),
            relative_iqr=number(timing.get("relative_iqr")),
            iterations=_whole(timing.get("iterations")),
            ended_by=optional(timing.get("ended_by")),
            flops=_whole(sol.get("flops")),
            bytes_moved=_whole(sol.get("bytes_moved")),
            bound_ms=number(sol.get("bound_ms")),
            limit=optional(sol.get("limit")),
            published_bound_ms=number(sol.get("published_bound_ms")),
            baseline_ms=number(sol.get("baseline_ms")),
            roofline=number(sol.get("roofline")),
            sol_score=number(sol.get("score")),
            rounds=_whole(correctness.get("rounds")),
            worst_norm_rel_error=max(known_errors, default=None),
            worker_peak_bytes=_whole(memory.get("worker_peak_bytes")),
            torch=optional(environment.get("torch")),
            triton=optional(environment.get("triton")),
            time=sound(line["time"]),
            run_id=text(line["run_id"]),
            workload_sha256=text(line["workload_sha256"]),
            kernel_sha256=optional(line["kernel_sha256"]),
            protocol_sha256=text(line["protocol_sha256"]),
            axes=text(", ".join([f"{name} = {size}" for name, size in line["axes"].items()])),
            peak=self._peak(_mapping(sol.get("peak"))),
            baseline_source=optional(sol.get("baseline_source")),
            sm_clock_max_mhz=number(gpu.get("sm_clock_max_mhz")),
            locked_sm_clock_mhz=number(gpu.get("locked_sm_clock_mhz")),
            power_limit_w=number(gpu.get("power_limit_w")),
            sol_reason=optional(sol.get("reason")),
            remarks=self._remarks.setdefault(remarks, remarks),
            host_gaps=_host_gaps(line["timings"]),
        )

    def _text(self, value: str) -> str:
        held = self._texts.get(value)
        if held is None:
            held = self._texts[value] = sound(value)
        return held

    def _optional_text(self, value: object) -> str | None:
        return self._text(value) if isinstance(value, str) else None

    def _peak(self, values: Mapping[str, Any]) -> Peak | None:
        flops, bandwidth = number(values.get("peak_flops")), number(values.get("bandwidth"))
        if flops is None or bandwidth is None:
            return None
        peak = Peak(self._text(str(values.get("device"))), self._text(str(values.get("label"))), flops, bandwidth)
        return self._peaks.setdefault(peak, peak)


def with_baselines(records: Sequence[Figures]) -> list[Figures]:
    """The records, with scores where only another record of the same case tells the baseline."""
    if all(record.baseline_ms is not None or record.latency_ms is None for record in records):
        return list(records)
    known = known_baselines((_question(record), record.baseline_ms, record.baseline_source) for record in records)
    return [_with_baseline(record, *known.get(_question(record), (None, None))) for record in records]


def _question(record: Figures) -> tuple[object, ...]:
    asked = (record.workload, record.workload_sha256, record.case, record.scale)
    return (*asked, record.device, record.protocol_sha256, record.locked_sm_clock_mhz)


def _with_baseline(record: Figures, baseline_ms: float | None, source: str | None) -> Figures:
    if record.baseline_ms is not None or baseline_ms is None or record.latency_ms is None:
        return record
    found = grade(record.latency_ms, record.bound_ms, baseline_ms)
    return msgspec.structs.replace(
        record, baseline_ms=baseline_ms, baseline_source=source, sol_score=found.score, sol_reason=found.reason
    )


def read(paths: Iterable[Path]) -> tuple[list[Figures], list[BadLine]]:
    """The figures of all files in order, and the lines that are no records. Raises `InputError` if unreadable."""
    reader = Reader()
    found: list[Figures] = []
    bad: list[BadLine] = []
    for path in paths:
        more, problems = store.read_as(path, reader.of_line)
        found += more
        bad += problems
    return found, bad


def _host_gaps(timings: Mapping[str, Any]) -> float | None:
    """(cupti's span - queued) / span; None unless both were taken and every call was held."""
    span, queued = _mapping(timings.get("cupti")), _mapping(timings.get("queued"))
    held = queued.get("held")
    if not isinstance(held, list) or not all(held):
        return None
    span_ms, queued_ms = number(span.get("median_ms")), number(queued.get("median_ms"))
    return None if not span_ms or queued_ms is None else (span_ms - queued_ms) / span_ms


# Values of another type than reports expect count as absent; Record.from_line does not look that deep.


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _pair(value: object) -> tuple[object, object]:
    return (value[0], value[1]) if isinstance(value, (list, tuple)) and len(value) == 2 else (None, None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
