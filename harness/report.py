"""Records as tables that people read: in the terminal, or as Markdown.

Full-size and scaled figures, devices, protocols and versions of a workload never share a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import sol
from harness.records import Record, Status
from harness.sol import Grade, SuiteSummary

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    "latency: median of the timed calls. spread: interquartile range over median. bound: the least time "
    "that peak FLOP/s and bandwidth allow. roofline: bound over latency.",
    "mean latency: geometric mean over the cases. % SOL: mean over the cases of "
    "1/(1 + (latency - bound)/(baseline - bound)), so 50 at the baseline and 100 at the bound; "
    "it is not the roofline share.",
)
ABSENT = "–"


@dataclass(frozen=True)
class Column:
    """One figure of a record: its heading and how it is written."""

    heading: str
    text: Callable[[Record], str]


def format_ms(ms: float | None) -> str:
    """A time with the unit that suits it, in four significant digits: `38.90 µs`, `68.86 ms`."""
    if ms is None:
        return ABSENT
    for unit, factor in (("µs", 1e3), ("ms", 1.0), ("s", 1e-3)):
        value = ms * factor
        if value < 999.95 or unit == "s":
            digits = 2 if value < 99.995 else 1
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


def format_share(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None else f"{share * 100:.{digits}f}%"


def _sol(record: Record, key: str) -> float | None:
    value = (record.sol or {}).get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _spread(record: Record) -> float | None:
    value = record.timings.get(record.backend or "", {}).get("relative_iqr")
    return float(value) if isinstance(value, (int, float)) else None


COLUMNS = (
    Column("case", lambda r: r.case),
    Column("status", lambda r: r.status.value),
    Column("latency", lambda r: format_ms(r.latency_ms)),
    Column("spread", lambda r: format_share(_spread(r))),
    Column("bound", lambda r: format_ms(_sol(r, "bound_ms"))),
    Column("limit", lambda r: str((r.sol or {}).get("limit") or ABSENT)),
    Column("roofline", lambda r: format_share(_sol(r, "roofline"))),
    Column("score", lambda r: ABSENT if _sol(r, "score") is None else f"{_sol(r, 'score'):.3f}"),
)


@dataclass(frozen=True)
class Group:
    """Records that may stand in one table, and what they have in common."""

    workload: str
    device: str
    protocol: str
    scale: int
    version: str
    records: Sequence[Record]

    @property
    def title(self) -> str:
        size = f" · SCALED 1/{self.scale}" if self.scale > 1 else ""
        return f"{self.workload}{size} · {self.device} · {self.protocol}"

    @property
    def notes(self) -> list[str]:
        """What a reader must know of this group beside the legend."""
        first = self.records[0]
        lines = []
        if self.scale > 1:
            axes = ", ".join(f"{name} = {size}" for name, size in first.axes.items())
            shown = f"Hidden sizes are divided by {self.scale} ({first.case}: {axes})"
            lines.append(f"{shown}: not comparable with full-size figures.")
        if peak := (first.sol or {}).get("peak"):
            lines.append(
                f"Bound from {peak['label']} peaks of {peak['device']}: {peak['peak_flops'] / 1e12:.4g} TFLOP/s, "
                f"{peak['bandwidth'] / 1e9:.4g} GB/s."
            )
        else:
            lines.append("No peak rates are known for this device, so there is no bound.")
        if sources := {str(source) for r in self.records if (source := (r.sol or {}).get("baseline_source"))}:
            lines.append(f"Baseline: {'; '.join(sorted(sources))}.")
        gpu = first.environment.get("gpu") or {}
        clock = f"; SM clock up to {gpu['sm_clock_max_mhz']:g} MHz, not locked" if gpu.get("sm_clock_max_mhz") else ""
        power = f"; power limit {gpu['power_limit_w']:g} W" if gpu.get("power_limit_w") else ""
        days = sorted({r.time[:10] for r in self.records})
        dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        backends = ", ".join(sorted({r.backend for r in self.records if r.backend})) or "none"
        lines.append(
            f"Backend {backends}; torch {first.environment.get('torch')}, triton {first.environment.get('triton')}"
            f"{clock}{power}; {dates}."
        )
        return lines

    def by_kernel(self) -> dict[str, list[Record]]:
        """Records by kernel; where a name stands for several sources, the name carries their hash."""
        sources: dict[str, set[str | None]] = {}
        for record in self.records:
            sources.setdefault(record.kernel, set()).add(record.kernel_sha256)
        kernels: dict[str, list[Record]] = {}
        for record in self.records:
            several = len(sources[record.kernel]) > 1
            label = f"{record.kernel}@{(record.kernel_sha256 or 'unknown')[:7]}" if several else record.kernel
            kernels.setdefault(label, []).append(record)
        return kernels


def groups(records: Iterable[Record]) -> list[Group]:
    """Split records so that only comparable ones stand together, in order of first appearance."""
    found: dict[tuple[str, str, str, int, str], list[Record]] = {}
    for r in records:
        key = (r.workload, r.device, r.protocol, r.scale, f"{r.workload_sha256}{r.protocol_sha256}")
        found.setdefault(key, []).append(r)
    return [Group(*key, members) for key, members in found.items()]


def summary(records: Sequence[Record]) -> SuiteSummary | None:
    """Suite figures of one kernel; None unless every case has a latency."""
    latencies = [r.latency_ms for r in records if r.latency_ms is not None and r.status is Status.PASSED]
    if not latencies or len(latencies) < len(records):
        return None
    return sol.summarise(latencies, [Grade(_sol(r, "score"), _sol(r, "roofline")) for r in records])


SUMMARY_HEADINGS = ("kernel", "passed", "mean latency", "% SOL", "roofline")


def _summary_row(kernel: str, records: Sequence[Record]) -> tuple[str, ...]:
    passed = sum(r.status is Status.PASSED for r in records)
    found = summary(records) or SuiteSummary(None, None, None)
    score = ABSENT if found.sol_score is None else f"{found.sol_score * 100:.1f}"
    latency, roofline = format_ms(found.mean_latency_ms), format_share(found.roofline)
    return kernel, f"{passed} of {len(records)}", latency, score, roofline


def terminal(records: Iterable[Record]) -> list[RenderableType]:
    """What to print: per kernel a table of its cases, per group a summary; fits 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for group in groups(records):
        parts.append(Text(f"\n{group.title}", style="bold"))
        for kernel, members in group.by_kernel().items():
            if all(record.status is Status.SKIPPED for record in members):
                parts += [Text(f"{kernel}: {line}", style="yellow") for line in _reasons(members)]
                continue
            table = Table(box=box.SIMPLE_HEAD, title=kernel, title_justify="left", padding=(0, 1), pad_edge=False)
            for column in COLUMNS:
                table.add_column(column.heading, justify="left" if column.heading in ("case", "status") else "right")
            for record in members:
                style = "red" if record.status.failed else "dim" if record.status is Status.SKIPPED else None
                table.add_row(*(Text(column.text(record)) for column in COLUMNS), style=style)
            parts.append(table)
            parts += [Text(line, style="yellow") for line in _reasons(members)]
        table = Table(box=box.SIMPLE_HEAD, title="summary", title_justify="left", padding=(0, 1), pad_edge=False)
        for heading in SUMMARY_HEADINGS:
            table.add_column(heading, justify="left" if heading == "kernel" else "right")
        for kernel, members in group.by_kernel().items():
            table.add_row(*map(Text, _summary_row(kernel, members)))
        parts.append(table)
        parts += [Text(line, style="dim") for line in group.notes]
    if parts:
        parts += [Text(line, style="dim") for line in LEGEND]
    return parts


def _reasons(records: Sequence[Record]) -> list[str]:
    """Each different reason or remark once, with the cases that it concerns."""
    cases: dict[str, list[str]] = {}
    for record in records:
        texts = [record.reason, (record.sol or {}).get("reason"), *record.remarks]
        for text in filter(None, texts):
            cases.setdefault(text, []).append(record.case)
    return [f"{_listed(ids)}: {text}" for text, ids in cases.items()]


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")


def markdown(records: Iterable[Record]) -> str:
    """Per group a summary of the kernels, and their latencies (with roofline share) side by side."""
    blocks: list[str] = []
    for group in groups(records):
        kernels = group.by_kernel()
        blocks.append(f"### {_escaped(group.title)}")
        blocks.append(_markdown_table(SUMMARY_HEADINGS, [_summary_row(k, m) for k, m in kernels.items()], left=1))
        rows = []
        for case in dict.fromkeys(record.case for record in group.records):
            cells = {k: r for k, members in kernels.items() for r in members if r.case == case}
            first = next(iter(cells.values()))
            limit = str((first.sol or {}).get("limit") or ABSENT)
            row = [case, format_ms(_sol(first, "bound_ms")), limit]
            rows.append([*row, *(_cell(cells.get(kernel)) for kernel in kernels)])
        blocks.append(_markdown_table(["case", "bound", "limit", *kernels], rows, left=1))
        blocks.append("\n".join(f"- {_escaped(line)}" for line in [*group.notes]))
        reasons = [f"- {_escaped(k)}: {_escaped(line)}" for k, m in kernels.items() for line in _reasons(m)]
        if reasons:
            blocks.append("\n".join(reasons))
    if blocks:
        blocks.append("\n".join(f"- {line}" for line in LEGEND))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _cell(record: Record | None) -> str:
    if record is None:
        return ABSENT
    if record.latency_ms is None:
        return record.status.value
    return f"{format_ms(record.latency_ms)} ({format_share(_sol(record, 'roofline'), 0)})"


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    align = [":--" if index < left else "--:" for index in range(len(headings))]
    heading, *cells = ([_escaped(cell) for cell in row] for row in [headings, *rows])
    lines = [heading, align, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(text: str) -> str:
    """Text that stays text: no table cell is broken, no markup is made."""
    for character in ("\\", "|", "<", ">", "`", "*", "_", "[", "]"):
        text = text.replace(character, "\\" + character)
    return text.replace("\r", " ").replace("\n", " ")
