"""What do records look like on a page? One HTML file that needs no network and no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.figures import Figures
from harness.report import LEGEND, SUMMARY_HEADINGS, Group, SideBySide, cell, groups, reasons, side_by_side, summary_row
from harness.text import ABSENT, format_ms, one_line


def html(records: Iterable[Figures]) -> Iterator[str]:
    """The groups of the Markdown report as a page, in pieces; whatever names and reasons hold stays text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    views = [_view(group) for group in groups(records)]
    page = environment.get_template("report.html")
    return page.generate(groups=views, headings=SUMMARY_HEADINGS, legend=LEGEND)


def _view(group: Group) -> dict[str, Any]:
    kernels = group.by_kernel()
    return {
        "title": one_line(group.title),
        "notes": [one_line(note) for note in group.notes],
        "summary": (summary_row(one_line(name), members) for name, members in kernels.items()),
        "tables": ({"kernels": map(one_line, table.kernels), "rows": _rows(table)} for table in side_by_side(kernels)),
        "reasons": _reasons(kernels),
    }


Row = tuple[str, str, str, list[tuple[str, bool]]]


def _rows(table: SideBySide) -> Iterator[Row]:
    """Case, bound, what limits it, and for each kernel a text and whether it tells of a failure."""
    for first, records in table.rows:
        cells = [(cell(record), record is not None and record.status.failed) for record in records]
        yield one_line(first.case), format_ms(first.bound_ms), one_line(first.limit or ABSENT), cells


def _reasons(kernels: Mapping[str, Sequence[Figures]]) -> list[tuple[str, str]]:
    return [(one_line(name), one_line(line)) for name, members in kernels.items() for line in reasons(members)]
