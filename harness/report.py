"""What do records look like to a reader? Groups of comparable ones, their figures as texts; and as Markdown.

Full-size and scaled figures, devices, protocols and versions of a workload never share a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness import sol
from harness.figures import Figures
from harness.records import Status
from harness.sol import Grade, SuiteSummary
from harness.text import ABSENT, escaped, format_ms, format_share, markdown_table

LEGEND = (
    "latency: median of the timed calls. spread: interquartile range over median. bound: the least time "
    "that peak FLOP/s and bandwidth allow. roofline: bound over latency.",
    "mean latency: geometric mean over the cases. % SOL: mean over the cases of "
    "1/(1 + (latency - bound)/(baseline - bound)), so 50 at the baseline and 100 at the bound; "
    "it is not the roofline share.",
)

T = TypeVar("T")

# More kernels than these side by side are wider than a page.
KERNELS_PER_TABLE = 6


@dataclass(frozen=True)
class Column:
    """One figure of a record: its heading and how it is written."""

    heading: str
    text: Callable[[Figures], str]


COLUMNS = (
    Column("case", lambda r: r.case),
    Column("status", lambda r: r.status.value),
    Column("latency", lambda r: format_ms(r.latency_ms)),
    Column("spread", lambda r: format_share(r.relative_iqr)),
    Column("bound", lambda r: format_ms(r.bound_ms)),
    Column("limit", lambda r: r.limit or ABSENT),
    Column("roofline", lambda r: format_share(r.roofline)),
    Column("score", lambda r: ABSENT if r.sol_score is None else f"{r.sol_score:.3f}"),
)
SUMMARY_HEADINGS = ("kernel", "passed", "mean latency", "% SOL", "roofline")


@dataclass(frozen=True)
class SideBySide:
    """Kernels beside each other: for each case its bound, what sets it, and what each kernel came to."""

    kernels: Sequence[str]
    rows: Sequence[tuple[Figures, Sequence[Figures | None]]]

    @property
    def headings(self) -> list[str]:
        return ["case", "bound", "limit", *self.kernels]

    def texts(self) -> Iterator[list[str]]:
        for first, cells in self.rows:
            yield [first.case, format_ms(first.bound_ms), first.limit or ABSENT, *map(cell, cells)]


@dataclass(frozen=True)
class Group:
    """Records that may stand in one table, and what they have in common."""

    title: str
    records: Sequence[Figures]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of this group beside the legend."""
        first = self.records[0]
        lines = []
        if first.scale > 1:
            shown = f"Hidden sizes are divided by {first.scale} ({first.case}: {first.axes})"
            lines.append(f"{shown}: not comparable with full-size figures.")
        # Without a peak there is no bound, and a record that never came to a bound has neither.
        peaks = _distinct(r.peak for r in self.records)
        rates = [
            f"{label} peaks of {device}: {flops / 1e12:.4g} TFLOP/s, {bandwidth / 1e9:.4g} GB/s"
            for device, label, flops, bandwidth in peaks
        ]
        if rates:
            lines.append(f"Bound from {_listed(rates, '; ')}.")
        else:
            lines.append("No peak rates are known for this device, so there is no bound.")
        if sources := sorted(_distinct(r.baseline_source for r in self.records)):
            lines.append(f"Baseline: {_listed(sources, '; ')}.")
        backends = ", ".join(sorted(_distinct(r.backend for r in self.records))) or "none"
        versions = "".join(
            f"{separator}{name} {_listed(found)}"
            for separator, name, found in (
                ("; ", "torch", _distinct(r.torch for r in self.records)),
                (", ", "triton", _distinct(r.triton for r in self.records)),
            )
            if found
        )
        clock = "".join(
            f"; SM clock {how.format(_listed(found))}"
            for how, found in (
                ("up to {} MHz, not locked", _clocks(r.sm_clock_max_mhz for r in self.records if not _locked(r))),
                ("locked at {} MHz", _clocks(r.locked_sm_clock_mhz for r in self.records if _locked(r))),
            )
            if found
        )
        watts = [f"{watt:g}" for watt in _distinct(r.power_limit_w for r in self.records)]
        power = f"; power limit {_listed(watts)} W" if watts else ""
        days = sorted({r.time[:10] for r in self.records})
        dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        lines.append(f"Backend {backends}{versions}{clock}{power}; {dates}.")
        return lines

    def by_kernel(self) -> dict[str, list[Figures]]:
        """Records by kernel; a name that stands for several sources or seeds carries which one."""
        sources: dict[str, set[str | None]] = {}
        seeds: dict[str, set[int]] = {}
        for record in self.records:
            sources.setdefault(record.kernel, set()).add(record.kernel_sha256)
            seeds.setdefault(record.kernel, set()).add(record.seed)
        kernels: dict[str, list[Figures]] = {}
        for record in self.records:
            label = record.kernel
            if len(sources[record.kernel]) > 1:
                label += f"@{(record.kernel_sha256 or 'unknown')[:7]}"
            if len(seeds[record.kernel]) > 1:
                label += f" seed {record.seed}"
            kernels.setdefault(label, []).append(record)
        return kernels


def groups(records: Iterable[Figures]) -> list[Group]:
    """Split records so that only comparable ones stand together, in order of first appearance."""
    found: dict[tuple[str, str, str, int, str, str], list[Figures]] = {}
    for r in records:
        key = (r.workload, r.device, r.protocol, r.scale, r.workload_sha256, r.protocol_sha256)
        found.setdefault(key, []).append(r)
    # Two versions of one name are told apart in the titles of both.
    workloads: dict[str, set[str]] = {}
    protocols: dict[str, set[str]] = {}
    for workload, _, protocol, _, workload_sha256, protocol_sha256 in found:
        workloads.setdefault(workload, set()).add(workload_sha256)
        protocols.setdefault(protocol, set()).add(protocol_sha256)
    titled = []
    for (workload, device, protocol, scale, workload_sha256, protocol_sha256), members in found.items():
        name = f"{workload}@{workload_sha256[:7]}" if len(workloads[workload]) > 1 else workload
        how = f"{protocol}@{protocol_sha256[:7]}" if len(protocols[protocol]) > 1 else protocol
        size = f" · SCALED 1/{scale}" if scale > 1 else ""
        titled.append(Group(f"{name}{size} · {device} · {how}", members))
    return titled


def side_by_side(kernels: Mapping[str, Sequence[Figures]], per_table: int = KERNELS_PER_TABLE) -> Iterator[SideBySide]:
    """Tables of at most `per_table` kernels, each with the cases that its kernels have."""
    names = list(kernels)
    for start in range(0, len(names), per_table):
        chosen = names[start : start + per_table]
        cells: dict[str, dict[str, Figures]] = {}
        for name in chosen:
            for record in kernels[name]:
                cells.setdefault(record.case, {})[name] = record
        rows = [(next(iter(row.values())), [row.get(name) for name in chosen]) for row in cells.values()]
        yield SideBySide(chosen, rows)


def summary(records: Sequence[Figures]) -> SuiteSummary | None:
    """Suite figures of one kernel; None unless every case has a latency."""
    latencies = [r.latency_ms for r in records if r.latency_ms is not None and r.status is Status.PASSED]
    if not latencies or len(latencies) < len(records):
        return None
    return sol.summarise(latencies, [Grade(r.sol_score, r.roofline) for r in records])


def summary_row(kernel: str, records: Sequence[Figures]) -> tuple[str, ...]:
    """The cells under `SUMMARY_HEADINGS`."""
    passed = sum(r.status is Status.PASSED for r in records)
    found = summary(records) or SuiteSummary(None, None, None)
    score = ABSENT if found.sol_score is None else f"{found.sol_score * 100:.1f}"
    latency, roofline = format_ms(found.mean_latency_ms), format_share(found.roofline)
    return kernel, f"{passed} of {len(records)}", latency, score, roofline


def reasons(records: Sequence[Figures]) -> list[str]:
    """Each different reason or remark once, with the cases that it concerns; and what was spent in host gaps."""
    cases: dict[str, list[str]] = {}
    for record in records:
        for text in (record.reason, record.sol_reason, *record.remarks):
            if text:
                cases.setdefault(text, []).append(record.case)
    gaps = host_gaps(records)
    return [f"{_listed(ids)}: {text}" for text, ids in cases.items()] + ([gaps] if gaps else [])


def host_gaps(records: Sequence[Figures]) -> str | None:
    """What each case's GPU spent waiting for the host, where two backends together tell; see docs/measuring.md."""
    shares = [f"{r.case} {format_share(max(r.host_gaps, 0.0), 0)}" for r in records if r.host_gaps is not None]
    return f"host gaps (of the cupti span): {', '.join(shares)}" if shares else None


def cell(record: Figures | None) -> str:
    """Latency and roofline share, or else how the case ended."""
    if record is None:
        return ABSENT
    if record.latency_ms is None:
        return record.status.value
    return f"{format_ms(record.latency_ms)} ({format_share(record.roofline, 0)})"


def markdown(records: Iterable[Figures]) -> str:
    """Per group a summary of the kernels, and their latencies (with roofline share) side by side."""
    blocks: list[str] = []
    for group in groups(records):
        kernels = group.by_kernel()
        blocks.append(f"### {escaped(group.title)}")
        blocks.append(markdown_table(SUMMARY_HEADINGS, [summary_row(k, m) for k, m in kernels.items()]))
        blocks += [markdown_table(table.headings, list(table.texts())) for table in side_by_side(kernels)]
        blocks.append("\n".join(f"- {escaped(line)}" for line in group.notes))
        lines = [f"- {escaped(k)}: {escaped(line)}" for k, m in kernels.items() for line in reasons(m)]
        if lines:
            blocks.append("\n".join(lines))
    if blocks:
        blocks.append("\n".join(f"- {line}" for line in LEGEND))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _distinct(values: Iterable[T | None]) -> list[T]:
    """Each value once, in order of first appearance, without None."""
    return [value for value in dict.fromkeys(values) if value is not None]


def _locked(record: Figures) -> bool:
    return record.locked_sm_clock_mhz is not None


def _clocks(mhz: Iterable[float | None]) -> list[str]:
    return [f"{value:g}" for value in _distinct(mhz)]


def _listed(texts: Sequence[str], separator: str = ", ") -> str:
    return separator.join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
