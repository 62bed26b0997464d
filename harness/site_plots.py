"""Which figures does a workload's page draw? Measured kernels beside bound, baseline and published record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.chart import Chart, Point, Series
from harness.figures import Figures
from harness.published import PublishedModel
from harness.report import Group, summary
from harness.sol import Roofline
from harness.spec import Case, Workload
from harness.stats import geometric_mean
from harness.text import format_ms

# As many looks as the style sheet tells apart.
LOOKS = 8


@dataclass(frozen=True)
class PublishedRecord:
    """The fastest published mean latency on one hardware."""

    hardware: str
    latency_ms: float


def charts(
    workload: Workload, group: Group | None, published: PublishedModel | None, roofline: Roofline | None, id: str
) -> list[Chart]:
    """Latency over the size of the case, and the roofline: of one group of measured kernels, or of none.

    `roofline` holds the peaks of the device that the workload was published for.
    """
    cases = {case.id: case for case in map(workload.case, workload.case_ids())}
    kernels = _fastest(group) if group else {}
    records = [
        PublishedRecord(board.hardware, min(row.latency_ms for row in board.rows))
        for board in (published.boards if published else ())
    ]
    return [
        _latency(workload, cases, kernels, records, id),
        _roofline(workload, cases, kernels, records, roofline, id),
    ]


def left_out(group: Group) -> list[str]:
    """Kernels that a drawing has no room or no figures for."""
    drawn = _fastest(group)
    return [name for name in group.by_kernel() if name not in drawn]


def _fastest(group: Group) -> dict[str, Sequence[Figures]]:
    """Measured kernels, those with the least mean latency first when there are more than looks."""
    measured = {
        name: records
        for name, members in group.by_kernel().items()
        if (records := [record for record in members if record.latency_ms is not None])
    }
    if len(measured) <= LOOKS:
        return dict(measured)

    def mean_ms(name: str) -> float:
        whole = summary(measured[name])
        return whole.mean_latency_ms if whole and whole.mean_latency_ms else math.inf

    return {name: measured[name] for name in sorted(measured, key=mean_ms)[:LOOKS]}


def _latency(
    workload: Workload,
    cases: Mapping[str, Case],
    kernels: Mapping[str, Sequence[Figures]],
    records: Sequence[PublishedRecord],
    id: str,
) -> Chart:
    series = list(_measured(workload, cases, kernels, size_of, lambda case, ms: ms))
    bounds = {r.case: (r.bound_ms, r.device) for of in kernels.values() for r in of if r.case in cases}
    known = [(cases[case], ms, device) for case, (ms, device) in bounds.items() if ms]
    if known:
        points = [Point(size_of(case), ms, f"bound of {case.id}: {format_ms(ms)}") for case, ms, _ in known]
        series.append(Series(f"bound, {known[0][2]}", "bound", points))
    if workload.model.published:
        where = workload.model.published.device
        for name, look, of in (
            ("published baseline", "other-baseline", "published_baseline_ms"),
            ("published bound", "other-bound", "published_bound_ms"),
        ):
            figures = [(case, getattr(case, of)) for case in cases.values()]
            points = [Point(size_of(c), ms, f"{name} of {c.id}: {format_ms(ms)}") for c, ms in figures if ms]
            series.append(Series(f"{name}, {where}", look, points))
    sizes = [size_of(case) for case in cases.values()]
    for record in records:
        label = f"published record, mean of all cases: {format_ms(record.latency_ms)}"
        ends = [Point(size, record.latency_ms, label) for size in (min(sizes), max(sizes))]
        series.append(Series(f"{label}, {record.hardware}", "other-record", ends))
    return Chart(
        f"{id}-latency",
        f"Latency over {size_name(workload)}",
        f"Both axes are logarithmic. Median latency of each case over its {size_name(workload)}; "
        "the tables hold the same figures.",
        size_name(workload),
        "latency",
        _count_text,
        _time_text,
        series,
    )


def _roofline(
    workload: Workload,
    cases: Mapping[str, Case],
    kernels: Mapping[str, Sequence[Figures]],
    records: Sequence[PublishedRecord],
    roofline: Roofline | None,
    id: str,
) -> Chart:
    series = [
        Series(one.name, one.look, one.points, line=False, mark=one.mark)
        for one in _measured(workload, cases, kernels, intensity, lambda case, ms: _tflops(case.flops, ms))
    ]
    known = {record.peak for of in kernels.values() for record in of if record.peak}
    shares = [intensity(case) for case in cases.values()]
    for peak in sorted(known):
        series.append(_roof(f"{peak.label} peaks, {peak.device}", "bound", peak.peak_flops, peak.bandwidth, shares))
    if roofline:
        name = f"{roofline.label} peaks, {roofline.device}"
        series.append(_roof(name, "other-bound", roofline.peak_flops, roofline.bandwidth, shares))
    if workload.model.published:
        points = [
            Point(intensity(case), _tflops(case.flops, ms), f"published baseline of {case.id}: {format_ms(ms)}")
            for case in cases.values()
            if (ms := case.published_baseline_ms)
        ]
        name = f"published baseline, {workload.model.published.device}"
        series.append(Series(name, "other-baseline", points, line=False, mark=0))
    flops = geometric_mean([case.flops for case in cases.values()])
    for record in records:
        rate = _tflops(flops, record.latency_ms)
        label = f"published record, mean of all cases: {format_ms(record.latency_ms)}, {rate:.4g} TFLOP/s"
        at = [Point(geometric_mean(shares), rate, label)]
        series.append(Series(f"{label}, {record.hardware}", "other-record", at, line=False, mark=3))
    return Chart(
        f"{id}-roofline",
        "Roofline",
        "Both axes are logarithmic. Rate of each case over the FLOPs that it has for each byte of least traffic, "
        "below what the peaks of each device allow.",
        "FLOP per byte of least traffic",
        "TFLOP/s",
        _count_text,
        _count_text,
        series,
    )


def _measured(
    workload: Workload,
    cases: Mapping[str, Case],
    kernels: Mapping[str, Sequence[Figures]],
    x: Callable[[Case], float],
    y: Callable[[Case, float], float],
) -> Iterator[Series]:
    for index, (name, records) in enumerate(kernels.items()):
        points = [
            Point(x(cases[r.case]), y(cases[r.case], r.latency_ms), f"{name} {r.case}: {format_ms(r.latency_ms)}")
            for r in records
            if r.case in cases and r.latency_ms is not None
        ]
        label = f"{name} (baseline)" if records[0].kernel == workload.model.baseline_kernel else name
        yield Series(label, f"s{index}", points, mark=index)


def _roof(name: str, look: str, peak_flops: float, bandwidth: float, shares: Sequence[float]) -> Series:
    """What the peaks allow over the intensities of the cases, and to where bandwidth stops to be the limit."""
    ridge = peak_flops / bandwidth
    places = sorted({min(*shares, ridge), ridge, max(*shares, ridge)})
    points = [Point(x, min(peak_flops, bandwidth * x) / 1e12, name) for x in places]
    return Series(name, look, points)


def intensity(case: Case) -> float:
    """FLOPs for each byte of least traffic."""
    return case.flops / case.bytes_moved


def size_of(case: Case) -> int:
    """The size that a case is drawn over: T where the workload has it, else the product of its axes."""
    return case.axes.get("T") or math.prod(case.axes.values())


def size_name(workload: Workload) -> str:
    return "tokens" if "T" in workload.model.axes or "T" in workload.model.case_axes else "size"


def _tflops(flops: float, ms: float) -> float:
    return flops / ms / 1e9


def _count_text(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _time_text(ms: float) -> str:
    """`10 µs`, `2 ms`: a round time without decimals."""
    for unit, factor in (("ns", 1e6), ("µs", 1e3), ("ms", 1.0), ("s", 1e-3)):
        if ms * factor < 999.5 or unit == "s":
            return f"{ms * factor:.3g} {unit}"
    raise AssertionError
