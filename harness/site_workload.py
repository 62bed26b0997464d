"""What does the page of a workload show? Records, comparison, drawings, history, bounds, meaning, identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import bounds, chart, site_plots
from harness.bounds import CaseBound
from harness.chart import Drawing
from harness.figures import Figures
from harness.frame import COLUMNS
from harness.leaderboard import Board, Row, why_apart
from harness.leaderboard_report import HEADINGS, TRUST_LEGEND, as_rows, cells, history_rows, title
from harness.published import PublishedModel
from harness.report import (
    LEGEND,
    SUMMARY_HEADINGS,
    Group,
    SideBySide,
    cell,
    reasons,
    side_by_side,
    summary,
    summary_row,
)
from harness.site_page import Known, Page, record_path, relative
from harness.spec import DeviceModel, InputModel, Workload
from harness.stats import geometric_mean
from harness.tables import Cell, Table, of_texts, texts
from harness.text import ABSENT, format_ms, format_share

Fact = tuple[str, str]


@dataclass(frozen=True)
class Bounds:
    """The bounds of all cases on one device."""

    device: str
    label: str
    source: str
    cases: Sequence[CaseBound]

    @property
    def mean_ms(self) -> float:
        return geometric_mean([case.bound.ms for case in self.cases])

    @property
    def compared(self) -> bool:
        """Whether published bounds stand beside them."""
        return any(case.published_bound_ms is not None for case in self.cases)

    @property
    def notes(self) -> list[str]:
        return [f"{case.case.id}: {case.note}" for case in self.cases if case.note]


def page(known: Known, devices: Sequence[DeviceModel]) -> Page:
    """`devices` are those whose peaks are known."""
    workload, path = known.workload, known.path
    bounded = _bounds(known, devices)
    view = {
        "workload": workload.model,
        "facts": headline(known),
        "boards": [
            {
                "title": board.hardware,
                "basis": board.basis,
                "table": _board(board, path, f"board-{index}"),
                "outdated": _outdated(workload, board),
            }
            for index, board in enumerate(known.boards)
        ],
        "apart": why_apart(known.boards),
        "trust_legend": TRUST_LEGEND,
        "published_notes": known.published.notes if known.published else [],
        "published_source": known.published.source if known.published else None,
        "left_out": known.ranked[1],
        "aggregates": _aggregates(known.published),
        "implementations": _implementations(known.published),
        "groups": [_group(known, group, f"group-{index}") for index, group in enumerate(known.groups)],
        "plots": _plots(known, devices),
        "history": [_history(known.boards, index) for index in range(len(known.boards))],
        "bounds": [
            (bound, format_ms(bound.mean_ms), _bound_table(bound, f"bounds-{i}")) for i, bound in enumerate(bounded)
        ],
        "cases": _cases(workload),
        "tensors": _tensors(workload),
        "axes": _axes(workload),
        "identity": identity(workload),
        "tolerance": _tolerance(workload),
        "legend": LEGEND,
    }
    return Page(path, "workload.html", workload.model.title, view, _data(known, bounded))


def headline(known: Known) -> list[Fact]:
    """The fastest of each board: how far it may be trusted and where, and what it came to."""
    facts = []
    for board in known.boards:
        first = board.rows[0]
        score = "" if first.score is None else f" · {cells(board, first)['% SOL']}% SOL"
        what = f"{format_ms(first.latency_ms)}{score} · {first.implementation or 'unnamed'}"
        how = "" if board.published else f", {board.basis.partition(',')[0]}"  # a device may have boards of several
        facts.append((f"Fastest {first.trust.value} on {board.hardware}{how}", what))
    return facts


def _board(board: Board, path: str, id: str) -> Table:
    def row_cells(row: Row) -> list[Cell]:
        shown = cells(board, row)
        values: dict[str, float | None] = {
            "#": board.rank(row),
            "mean latency": row.latency_ms,
            "% SOL": row.score,
            "roofline": row.roofline,
            "to first": board.ratio_to_first(row),
        }
        row_of = [Cell(shown[h], values[h]) if h in values else texts(shown[h]) for h in HEADINGS]
        if row.measured:
            at = HEADINGS.index("implementation")
            target = relative(path, f"{record_path(row.measured)}.html")
            row_of[at] = Cell(row_of[at].text, row_of[at].value, target)
        return row_of

    rows = [row_cells(row) for row in board.rows]
    caption = f"Records on {board.hardware}"
    return Table(id, caption, HEADINGS, rows, key=1, filter="Filter records")


def _outdated(workload: Workload, board: Board) -> str | None:
    """A sentence where the rows were measured for another version of the workload than the catalogue has."""
    versions = {row.measured.workload_sha256 for row in board.rows if row.measured} - {workload.sha256}
    if not versions:
        return None
    then = ", ".join(sorted(version[:12] for version in versions))
    return f"Measured for version {then} of this workload; the catalogue has {workload.sha256[:12]} now."


def _aggregates(published: PublishedModel | None) -> Table | None:
    if not published or not published.aggregates:
        return None
    headings = ("hardware", "best known", "implementation", "runs")
    rows = [
        [
            texts(f"{a.hardware}, {a.environment}"),
            Cell(format_ms(a.best_ms), a.best_ms),
            texts(a.implementation or "unnamed"),
            Cell(str(a.runs), a.runs),
        ]
        for a in published.aggregates
    ]
    return Table("aggregates", "Best known of each hardware, as published", headings, rows)


def _implementations(published: PublishedModel | None) -> Table | None:
    if not published or not published.implementations:
        return None
    headings = ("implementation", "runtime", "best latency", "to first", "evidence", "availability")
    rows = [
        [
            texts(i.implementation or "unnamed"),
            texts("unknown"),
            Cell(format_ms(i.best_ms), i.best_ms),
            Cell(f"{i.ratio_to_first:.2f}×", i.ratio_to_first),
            texts("reported"),
            texts("license unknown, no source"),
        ]
        for i in published.implementations
    ]
    caption = f"The {len(rows)} known implementations, in the order in which they were published"
    return Table("implementations", caption, headings, rows, filter="Filter implementations")


def _group(known: Known, group: Group, id: str) -> dict[str, Any]:
    kernels = group.by_kernel()
    pages = {name: relative(known.path, f"{known.page_of(members[0])}.html") for name, members in kernels.items()}
    rows = []
    for name, members in kernels.items():
        found = summary(members)
        values = (found.mean_latency_ms, found.sol_score, found.roofline) if found else (None, None, None)
        named, passed, *figures = summary_row(name, members)
        shown = [Cell(text, value) for text, value in zip(figures, values, strict=True)]
        rows.append([Cell(named, name.casefold(), pages[name]), texts(passed), *shown])
    # A page has room for all kernels side by side, because the table scrolls.
    (beside,) = side_by_side(kernels, per_table=len(kernels))
    return {
        "title": group.title,
        "notes": group.notes,
        "summary": Table(f"{id}-kernels", "Measured kernels", SUMMARY_HEADINGS, rows),
        "cases": _comparison(known.workload, beside, id),
        "reasons": [(name, line) for name, members in kernels.items() for line in reasons(members)],
    }


def _comparison(workload: Workload, beside: SideBySide, id: str) -> Table:
    sizes = {case.id: site_plots.size_of(case) for case in map(workload.case, workload.case_ids())}
    rows = []
    for first, records in beside.rows:
        fastest = min((r.latency_ms for r in records if r and r.latency_ms is not None), default=None)
        rows.append(
            [
                Cell(first.case, first.case.casefold()),
                Cell(str(sizes.get(first.case, ABSENT)), sizes.get(first.case)),
                Cell(format_ms(first.bound_ms), first.bound_ms),
                texts(first.limit),
                *(_compared(record, fastest) for record in records),
            ]
        )
    headings = ("case", site_plots.size_name(workload), "bound", "limit", *beside.kernels)
    caption = "Latency (roofline) by case; the fastest of a case in bold"
    hides = range(4, len(headings))
    return Table(f"{id}-cases", caption, headings, rows, filter="Filter cases", hides=hides)


def _compared(record: Figures | None, fastest: float | None) -> Cell:
    if record is None:
        return Cell(ABSENT)
    best = fastest is not None and record.latency_ms == fastest
    mark = "failed" if record.status.failed else "best" if best else None
    return Cell(cell(record), record.latency_ms, mark=mark)


def _plots(known: Known, devices: Sequence[DeviceModel]) -> list[dict[str, Any]]:
    """For each group of full size, or for what was published alone: its drawings and what they leave out."""
    published = known.workload.model.published
    roofline = next((d.roofline() for d in devices if published and d.name == published.device), None)
    full = [group for group in known.groups if group.records[0].scale == 1]
    plots = []
    for index, group in enumerate(full or [None]):
        drawn: list[Drawing] = []
        for one in site_plots.charts(known.workload, group, known.published, roofline, f"plot-{index}"):
            if drawing := chart.draw(one):
                drawn.append(drawing)
        absent = site_plots.left_out(group) if group else []
        others = any(one.series.look.startswith("other-") for drawing in drawn for one in drawing.drawn)
        plots.append({"title": group.title if group else None, "drawings": drawn, "left_out": absent, "others": others})
    return [plot for plot in plots if plot["drawings"]]


def _history(boards: Sequence[Board], index: int) -> Table:
    board = boards[index]
    several = sum(other.hardware == board.hardware for other in boards) > 1
    where = title(board) if several else board.hardware
    return of_texts(f"history-{index}", f"How the record moved on {where}", history_rows(board))


# --- what is asked ---------------------------------------------------------------------------------


def _bounds(known: Known, devices: Sequence[DeviceModel]) -> list[Bounds]:
    """On the device that the workload was published for, and on each one that it was measured on."""
    published = known.workload.model.published
    names = [published.device] if published else []
    names += [found.device for found in known.sets]
    bounded = []
    for name in dict.fromkeys(names):
        for device in devices:
            if device.name == name or name in device.driver_names:
                peaks = device.roofline()
                cases = bounds.of_cases(known.workload, device, peaks)
                bounded.append(Bounds(device.name, peaks.label, peaks.source, cases))
    return bounded


def _bound_table(bound: Bounds, id: str) -> Table:
    """As `solbench sol` shows them; without the published ones where there are none for the device."""
    headings = ["case", "GFLOP", "MB", "FLOP/B", "limit", "bound"]
    if bound.compared:
        headings += ["published", "computed and published"]
    rows = []
    for case in bound.cases:
        shown = case.texts()
        difference = shown.pop("")
        values: dict[str, float | None] = {
            "GFLOP": case.case.flops,
            "MB": case.case.bytes_moved,
            "FLOP/B": case.flops_per_byte,
            "bound": case.bound.ms,
            "published": case.published_bound_ms,
        }
        row = [Cell(text, values[h]) if h in values else texts(text) for h, text in shown.items() if h in headings]
        if bound.compared:
            agreement = difference or (ABSENT if case.published_bound_ms is None else "agrees")
            row.append(Cell(agreement, mark="failed" if difference else None))
        rows.append(row)
    return Table(id, f"Bounds from the {bound.label} peaks of {bound.device}", headings, rows)


def _cases(workload: Workload) -> Table:
    """What each case has: a column that no case has anything in is left out."""
    rows = []
    for case in map(workload.case, workload.case_ids()):
        widest = max(case.tolerances.values(), key=lambda tolerance: tolerance.atol)
        row = {"case": texts(case.id)}
        row |= {axis: Cell(str(case.axes[axis]), case.axes[axis]) for axis in workload.model.case_axes}
        row |= {"uuid": texts(case.uuid)}
        row |= {name: Cell(f"{limit:g}", limit) for name, limit in (("atol", widest.atol), ("rtol", widest.rtol))}
        for name, ms in (("bound", case.published_bound_ms), ("baseline", case.published_baseline_ms)):
            row[f"published {name}"] = Cell(format_ms(ms), ms)
        rows.append(row)
    headings = [heading for heading in rows[0] if any(row[heading].value is not None for row in rows)]
    shown = [[row[heading] for heading in headings] for row in rows]
    return Table("cases-table", "Cases, their axes and tolerances", headings, shown)


def _tensors(workload: Workload) -> Table:
    def row(name: str, role: str, shape: Sequence[str], dtype: str, values: str) -> list[Cell]:
        return [Cell(name), Cell(role), Cell(f"[{', '.join(shape)}]"), Cell(dtype), Cell(values)]

    model = workload.model
    rows = [row(name, "input", t.shape, t.dtype, _distribution(t)) for name, t in model.inputs.items()]
    rows += [row(name, "output", t.shape, t.dtype, ABSENT) for name, t in model.outputs.items()]
    headings = ("tensor", "role", "shape", "dtype", "values")
    return Table("tensors", "Inputs and outputs, in the order in which a kernel takes and returns them", headings, rows)


def _distribution(tensor: InputModel) -> str:
    if tensor.normal is not None:
        return f"normal, standard deviation {tensor.normal}"
    if tensor.uniform is not None:
        return f"uniform from {tensor.uniform[0]:g} to {tensor.uniform[1]:g}"
    if tensor.constant is not None:
        return f"{tensor.constant:g} everywhere"
    return f"from the reference's {tensor.derived_by}"


def _axes(workload: Workload) -> list[Fact]:
    model = workload.model
    facts = [(axis, "variable") for axis in model.case_axes]
    facts += [(axis, text if text in model.case_axes else f"= {text}") for axis, text in model.axes.items()]
    facts.append(("determinism", str(getattr(model, "determinism", None) or "unspecified")))
    facts.append(("constraints", "no input may be written to, and no output may share memory with one"))
    return facts


def identity(workload: Workload) -> list[Fact]:
    """Names and hashes."""
    model, published = workload.model, workload.model.published
    facts = [("name", model.name), ("short name", model.short_name)]
    if published:
        facts += [
            ("published as", published.name),
            ("collection", published.collection),
            ("model", published.model),
            ("published for", published.device),
            ("published in", published.source),
        ]
        if published.identity_sha256_prefix:
            facts.append(("published sha256", f"{published.identity_sha256_prefix}…"))
    facts += [
        ("workload sha256", workload.sha256),
        ("cases", str(len(model.cases))),
        ("operations", f"{model.work.flops} FLOP"),
        ("least traffic", f"reads {model.work.bytes_read}, writes {model.work.bytes_written} bytes"),
        ("baseline kernel", model.baseline_kernel),
    ]
    return facts


def _tolerance(workload: Workload) -> list[str]:
    """What every output of every case must keep to, in sentences."""
    found = [limits for case in map(workload.case, workload.case_ids()) for limits in case.tolerances.values()]

    def span(name: str) -> str:
        values = sorted({getattr(limits, name) for limits in found})
        return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"

    shares = sorted({limits.match_ratio for limits in found})
    lines = [
        f"An element matches when |out - ref| is at most atol + rtol·|ref|: atol {span('atol')}, rtol {span('rtol')}.",
        f"At least {' or '.join(format_share(share, 0) for share in shares)} of each output's elements must match.",
        f"The norm-relative error of each output, ‖out - ref‖ / ‖ref‖, is at most {span('norm_relative_error')}.",
    ]
    published = workload.model.published
    if published and published.match_ratio_as_written is not None:
        lines.append(f"The published files write a share of {format_share(published.match_ratio_as_written, 0)}.")
    if published and published.note:
        lines.append(published.note)
    return lines


# --- for programs ----------------------------------------------------------------------------------


def _data(known: Known, bounded: Sequence[Bounds]) -> dict[str, Any]:
    workload, published = known.workload, known.published
    return {
        "workload": dict(identity(workload)),
        "title": workload.model.title,
        "semantics": workload.model.semantics,
        "leaderboard": as_rows(known.boards, workload.name),
        "left_out": known.ranked[1],
        "history": [
            {"hardware": board.hardware, "basis": board.basis, "rows": history_rows(board)} for board in known.boards
        ],
        "published": published.model_dump(mode="json") if published else None,
        "bounds": [
            {"device": b.device, "peaks": b.label, "source": b.source, "cases": [case.row() for case in b.cases]}
            for b in bounded
        ],
        "measurements": [
            {name: getattr(record, name) for name in COLUMNS} for _, records in known.figures for record in records
        ],
        "record_sets": [
            {
                "kernel": found.kernel,
                "kernel_sha256": found.kernel_sha256,
                "device": found.device,
                "protocol": found.protocol,
                "scale": found.scale,
                "page": relative(known.path, f"{record_path(found)}.html"),
                "data": relative(known.path, f"{record_path(found)}.json"),
            }
            for found in known.sets
        ],
    }
