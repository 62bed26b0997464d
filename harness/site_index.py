"""What does a site's first page show? The workloads, the devices, and every measured kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.figures import Figures
from harness.leaderboard import Trust
from harness.report import summary
from harness.site_page import INDEX, Known, Page, record_path
from harness.site_workload import headline
from harness.tables import Cell, Table, texts
from harness.text import ABSENT, format_ms, format_share

Fact = tuple[str, str]


def page(known: Sequence[Known]) -> Page:
    figures = [record for one in known for _, records in one.figures for record in records]
    records = sum(len(one.records) for one in known)
    facts: list[Fact] = [
        ("workloads", str(len(known))),
        ("devices", str(len({record.device for record in figures}))),
        ("records", str(records)),
        ("published rows", str(sum(len(board.rows) for one in known for board in one.boards if board.published))),
    ]
    view = {
        "facts": facts,
        "workloads": [{"model": one.workload.model, "path": one.path, "facts": headline(one)} for one in known],
        "summary": _workloads(known),
        "devices": _devices(figures),
        "sets": _sets(known),
    }
    return Page(INDEX, "index.html", "Records of GPU kernels", view, _data(known, records, figures))


def _workloads(known: Sequence[Known]) -> Table:
    headings = ("workload", "title", "cases", "published rows", "fastest published", "measured kernels", "records")
    rows = []
    for one in known:
        published = [row for board in one.boards for row in board.rows if row.trust is Trust.REPORTED]
        fastest = min((row.latency_ms for row in published), default=None)
        cases = len(one.workload.model.cases)
        rows.append(
            [
                Cell(one.workload.name, one.workload.name, f"{one.path}.html"),
                texts(one.workload.model.title),
                Cell(str(cases), cases),
                Cell(str(len(published)), len(published)),
                Cell(format_ms(fastest), fastest),
                Cell(str(len(one.sets)), len(one.sets)),
                Cell(str(len(one.records)), len(one.records)),
            ]
        )
    return Table("workloads", "Workloads, what was published of them and what was measured", headings, rows)


def _devices(figures: Sequence[Figures]) -> Table:
    headings = ("device", "protocols", "workloads", "kernels", "records shown", "versions", "measured")
    rows = []
    for device in dict.fromkeys(record.device for record in figures):
        of = [record for record in figures if record.device == device]
        kernels = {(r.workload, r.kernel, r.kernel_sha256) for r in of}
        days = sorted({record.time[:10] for record in of})
        versions = dict.fromkeys(
            f"{name} {version}" for r in of for name, version in (("torch", r.torch), ("triton", r.triton)) if version
        )
        rows.append(
            [
                texts(device),
                texts(", ".join(sorted({record.protocol for record in of}))),
                Cell(str(len({r.workload for r in of})), len({r.workload for r in of})),
                Cell(str(len(kernels)), len(kernels)),
                Cell(str(len(of)), len(of)),
                texts(", ".join(versions)),
                texts(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
            ]
        )
    return Table("devices", "Devices that kernels were measured on", headings, rows)


def _sets(known: Sequence[Known]) -> Table:
    headings = ("kernel", "workload", "device", "protocol", "cases", "mean latency", "% SOL", "roofline", "measured")
    rows = []
    for one in known:
        for found, records in one.figures:
            whole = summary(records) if len(records) == len(one.workload.model.cases) else None
            latency, score, roofline = (
                (whole.mean_latency_ms, whole.sol_score, whole.roofline) if whole else (None, None, None)
            )
            size = f" at 1/{found.scale}" if found.scale > 1 else ""
            rows.append(
                [
                    Cell(found.kernel, found.kernel.casefold(), f"{record_path(found)}.html"),
                    texts(one.workload.name + size),
                    texts(found.device),
                    texts(found.protocol),
                    Cell(str(len(records)), len(records)),
                    Cell(format_ms(latency), latency),
                    Cell(ABSENT if score is None else f"{score * 100:.1f}", score),
                    Cell(format_share(roofline), roofline),
                    texts(max(record.time[:10] for record in records)),
                ]
            )
    caption = "Measured kernels; only rows of one workload, device and protocol are comparable"
    return Table("sets", caption, headings, rows, filter="Filter kernels")


def _data(known: Sequence[Known], records: int, figures: Sequence[Figures]) -> dict[str, Any]:
    return {
        "records": records,
        "devices": list(dict.fromkeys(record.device for record in figures)),
        "workloads": [
            {
                "name": one.workload.name,
                "title": one.workload.model.title,
                "cases": len(one.workload.model.cases),
                "records": len(one.records),
                "page": f"{one.path}.html",
                "data": f"{one.path}.json",
                "record_sets": [f"{record_path(found)}.json" for found in one.sets],
            }
            for one in known
        ],
    }
