"""What does the page of one measured kernel show? How to measure it again, what it ran on, and every figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness.catalog import Catalog
from harness.errors import InputError
from harness.figures import Figures
from harness.leaderboard import Board, MeasuredSet, Row, recipe
from harness.leaderboard_report import cells
from harness.records import Record, Status, number
from harness.report import LEGEND, reasons, summary
from harness.site_page import Known, Page, record_path
from harness.site_plots import size_name, size_of
from harness.tables import Cell, Table, texts
from harness.text import ABSENT, format_bytes, format_ms, format_share

Fact = tuple[str, str]


def page(known: Known, found: MeasuredSet, figures: Sequence[Figures], catalog: Catalog) -> Page:
    """`figures` are those of the records that stand for the set of runs."""
    records = found.shown(known.workload.case_ids())
    path = record_path(found)
    placed = _place(known, found)
    view = {
        "workload": known.workload.model,
        "workload_path": known.path,
        "found": found,
        "facts": _headline(figures, placed, found),
        "recipe": recipe(records[0]),
        "source": _source(known, found, records, catalog),
        "environment": _environment(records),
        "protocol": _protocol(found, records, catalog),
        "worst": _worst(known, found, records),
        "correctness": _correctness(records),
        "cases": _cases(known, records, figures),
        "whole": bool(found.whole(known.workload.case_ids())),
        "remarks": reasons(figures),
        "determinism": _determinism(records),
        "runs": _runs(known, found),
        "legend": LEGEND,
    }
    title = f"{found.kernel} · {found.workload} · {found.device} · {found.protocol}"
    return Page(path, "record.html", title, view, _data(known, found, records, placed))


def _place(known: Known, found: MeasuredSet) -> tuple[Board, Row] | None:
    return next(
        (
            (board, row)
            for board in known.boards
            for row in board.rows
            if row.measured and row.measured.key == found.key
        ),
        None,
    )


def _headline(figures: Sequence[Figures], placed: tuple[Board, Row] | None, found: MeasuredSet) -> list[Fact]:
    passed = sum(record.status is Status.PASSED for record in figures)
    facts = []
    if placed:
        board, row = placed
        shown = cells(board, row)
        facts = [("mean latency", shown["mean latency"]), ("% SOL", shown["% SOL"]), ("roofline", shown["roofline"])]
        facts += [("rank", f"{shown['#']} of {len(board.rows)}"), ("trust", shown["trust"])]
    elif whole := summary(figures):
        facts = [("mean latency", format_ms(whole.mean_latency_ms)), ("roofline", format_share(whole.roofline, 0))]
    facts.append(("passed", f"{passed} of {len(figures)}"))
    if found.scale > 1:
        facts.append(("size", f"hidden sizes divided by {found.scale}: not comparable with full size"))
    return facts


def _source(known: Known, found: MeasuredSet, records: Sequence[Record], catalog: Catalog) -> list[Fact]:
    first = records[0]
    try:
        kernel = catalog.kernel(found.kernel, known.workload) if _is_name(found.kernel) else None
        here = kernel is not None and kernel.sha256 == found.kernel_sha256
    except (InputError, OSError):
        kernel, here = None, False
    facts = [("source", first.source or "none known")]
    if kernel is not None and here:
        root = next((r for r in catalog.roots if kernel.entry.resolve().is_relative_to(r)), None)
        file = kernel.entry.resolve().relative_to(root).as_posix() if root else kernel.entry.name
        facts += [("file", f"{file}, unchanged since it was measured"), ("idea", kernel.idea or ABSENT)]
    else:
        facts.append(("file", "not in this catalogue in the version that was measured"))
    return [
        *facts,
        ("kernel sha256", found.kernel_sha256 or "unknown"),
        ("author", first.author or "unknown"),
        ("license", first.license or "unknown"),
        ("git commit", str(first.environment.get("git_commit") or "not recorded")),
        ("workload sha256", found.workload_sha256 + _changed(found.workload_sha256, known.workload.sha256)),
    ]


def _is_name(kernel: str) -> bool:
    """Whether it can be a name of the catalogue; a path would be looked up where the site is made."""
    return "/" not in kernel and "\\" not in kernel and not kernel.startswith(".")


def _changed(then: str, now: str) -> str:
    return "" if then == now else f"; the catalogue has another version now, {now[:12]}"


# --- conditions ------------------------------------------------------------------------------------


def _environment(records: Sequence[Record]) -> list[Fact]:
    """Each thing that the records say of where they were measured; several values are all listed."""
    found: dict[str, list[str]] = {}
    for record in records:
        for name, value in _flat(record.environment):
            shown = _shown(name, value)
            if shown not in found.setdefault(_words(name), []):
                found[_words(name)].append(shown)
    facts = [(name, "; ".join(values[:4]) + (" …" if len(values) > 4 else "")) for name, values in found.items()]
    return facts or [("environment", "not recorded")]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict) and not prefix:
            flat += _flat(value, f"{name} ")
        elif not (prefix == "" and name == "git_commit"):
            flat.append((f"{prefix}{name}", value))
    return flat


# Endings of names that hold a unit, and how such a value is written.
_UNITS = {"_mhz": "MHz", "_w": "W", "_c": "°C", "_ms": "ms", "_s": "s"}


_SHORT = {"gpu": "GPU", "cpu": "CPU", "sm": "SM", "l2": "L2 cache", "cuda": "CUDA"}


def _words(name: str) -> str:
    for ending in (*_UNITS, "_bytes"):
        name = name.removesuffix(ending)
    return " ".join(_SHORT.get(word, word) for word in name.replace("_", " ").split())


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "not locked" if name.endswith("locked_sm_clock_mhz") else "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (size := number(value)) is not None:
        if name.endswith("_bytes"):
            return format_bytes(size)
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
        return f"{size:g} {unit}" if unit else str(value)
    return value if isinstance(value, str) else json.dumps(value)


def _protocol(found: MeasuredSet, records: Sequence[Record], catalog: Catalog) -> list[Fact]:
    facts = [("protocol", found.protocol), ("protocol sha256", found.protocol_sha256)]
    try:
        known = catalog.protocol(found.protocol) if found.protocol in catalog.protocol_names() else None
    except InputError:
        known = None
    if known is None or known.sha256 != found.protocol_sha256:
        facts.append(("settings", "not in this catalogue in the version that was used"))
    else:
        rounds, timing = known.correctness, known.timing
        facts += [
            ("what it measures", known.description),
            ("backend", known.backend),
            ("correctness", f"{rounds.rounds} rounds, at least {rounds.at_least} within {rounds.budget_s:g} s"),
            (
                "timing",
                f"{timing.warmup} calls to warm up, then {timing.samples} timed ones, at least {timing.at_least} "
                f"within {timing.budget_s:g} s{_until(getattr(timing, 'half_width', None))}",
            ),
            ("cache", "cold before each call" if known.cold_cache else "as the call before left it"),
            ("new content", _every(known.fresh_content_every)),
        ]
    facts.append(("seed", ", ".join(str(seed) for seed in dict.fromkeys(record.seed for record in records))))
    return facts


def _until(half_width: float | None) -> str:
    return f", or until the median is known to ±{half_width:.3g} of it" if half_width else ""


def _every(calls: int) -> str:
    return "in every timed call" if calls == 1 else f"in every {calls} timed calls"


# --- figures ---------------------------------------------------------------------------------------


def _cases(known: Known, records: Sequence[Record], figures: Sequence[Figures]) -> Table:
    sizes = {case.id: size_of(case) for case in map(known.workload.case, known.workload.case_ids())}
    headings = ("case", size_name(known.workload), "status", "latency", "95% interval", "spread", "bound", "limit",
                "roofline", "% SOL", "backend", "calls", "held", "checked", "floor")  # fmt: skip
    rows = []
    for record, shown in zip(records, figures, strict=True):
        timing = _mapping(record.timings.get(record.backend or ""))
        held, (checked, count) = _share(timing.get("held")), _checked(record, timing)
        floor_ms = number(timing.get("floor_ms"))
        size = sizes.get(record.case) if record.scale == 1 else None
        low, high = shown.ci95_low_ms, shown.ci95_high_ms
        interval = f"{format_ms(low)} to {format_ms(high)}" if low is not None and high is not None else ABSENT
        width = high - low if low is not None and high is not None else None
        rows.append(
            [
                texts(record.case),
                Cell(ABSENT if size is None else str(size), size),
                Cell(record.status.value, record.status.value, mark="failed" if record.status.failed else None),
                Cell(format_ms(shown.latency_ms), shown.latency_ms),
                Cell(interval, width),
                Cell(format_share(shown.relative_iqr), shown.relative_iqr),
                Cell(format_ms(shown.bound_ms), shown.bound_ms),
                texts(shown.limit),
                Cell(format_share(shown.roofline), shown.roofline),
                Cell(ABSENT if shown.sol_score is None else f"{shown.sol_score * 100:.1f}", shown.sol_score),
                texts(shown.backend),
                Cell(ABSENT if shown.iterations is None else str(shown.iterations), shown.iterations),
                Cell(format_share(held, 0), held),
                Cell(checked, count),
                Cell(format_ms(floor_ms), floor_ms),
            ]
        )
    return Table("cases", "Figures of each case", headings, rows)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _share(held: object) -> float | None:
    known = [flag for flag in held if isinstance(flag, bool)] if isinstance(held, list) else []
    return sum(known) / len(known) if known else None


def _checked(record: Record, timing: Mapping[str, Any]) -> tuple[str, float | None]:
    """How many timed calls were compared with the reference as a whole, as text and number."""
    listed = timing.get("checked_calls")
    if isinstance(listed, list):
        return str(len(listed)), len(listed)
    referee = _mapping(getattr(record, "referee", None) or record.unknown_fields.get("referee"))
    whole = referee.get("whole_calls")
    if not isinstance(whole, list):
        return ABSENT, None
    parts = " + parts" if referee.get("parts_of_the_others") is True else ""
    return f"{len(whole)}{parts}", len(whole)


# Of each output: the figure, how it is headed, and whether the least or the largest is the worst.
_ERRORS = (
    ("matched_ratio", "matched", min),
    ("max_abs_error", "largest error", max),
    ("norm_rel_error", "norm-relative error", max),
)


def _outputs(record: Record) -> dict[str, dict[str, float | None]]:
    outputs = _mapping(_mapping(record.correctness).get("outputs"))
    return {
        str(name): {key: number(_mapping(found).get(key)) for key, _, _ in _ERRORS} for name, found in outputs.items()
    }


def _error(key: str, value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4%}" if key == "matched_ratio" else f"{value:.3g}"


def _worst(known: Known, found: MeasuredSet, records: Sequence[Record]) -> Table:
    """For each output the worst figures of all cases, with the case that they are of, and the limits."""
    by_output: dict[str, list[tuple[str, dict[str, float | None]]]] = {}
    for record in records:
        for output, errors in _outputs(record).items():
            by_output.setdefault(output, []).append((record.case, errors))
    rows = []
    for output, errors_of in by_output.items():
        row = [texts(output)]
        for key, _, worst in _ERRORS:
            figures = [(value, case) for case, errors in errors_of if (value := errors[key]) is not None]
            value, case = worst(figures, default=(None, ""))
            row.append(Cell(f"{_error(key, value)} ({case})" if case else ABSENT, value))
        rows.append([*row, *(Cell(text) for text in _limits(known, found, output))])
    headings = ("output", *(heading for _, heading, _ in _ERRORS), "must match", "norm-relative limit")
    return Table("worst", "The worst figures of each output, and the case that they are of", headings, rows)


def _limits(known: Known, found: MeasuredSet, output: str) -> tuple[str, str]:
    model = known.workload.model
    if found.workload_sha256 != known.workload.sha256 or output not in model.outputs:
        return ABSENT, ABSENT
    limits = known.workload.case(known.workload.case_ids()[0]).tolerances[output]
    return format_share(limits.match_ratio, 0), f"{limits.norm_relative_error:g}"


def _correctness(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        checked = _mapping(record.correctness)
        rounds = f"{checked.get('rounds', ABSENT)} of {checked.get('rounds_asked', ABSENT)}"
        for output, errors in _outputs(record).items():
            figures = [Cell(_error(key, errors[key]), errors[key]) for key, _, _ in _ERRORS]
            rows.append([texts(record.case), texts(output), texts(rounds), *figures])
    headings = ("case", "output", "rounds", *(heading for _, heading, _ in _ERRORS))
    return Table("correctness", "Every output of every case", headings, rows, filter="Filter outputs")


def _determinism(records: Sequence[Record]) -> list[str]:
    """What the records say of it, each once with its cases; older ones say nothing."""
    cases: dict[str, list[str]] = {}
    for record in records:
        places = (getattr(record, "determinism", None), _mapping(record.correctness).get("determinism"))
        said = next((place for place in (*places, record.unknown_fields.get("determinism")) if place is not None), None)
        text = "not recorded" if said is None else _said(said)
        cases.setdefault(text, []).append(record.case)
    if len(cases) == 1:
        return list(cases)
    return [f"{', '.join(of)}: {text}" for text, of in cases.items()]


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_words(str(name))} {_shown(str(name), one)}" for name, one in value.items())
    return _shown("", value)


def _runs(known: Known, found: MeasuredSet) -> Table:
    cases = known.workload.case_ids()
    shown = {record.run_id for record in found.shown(cases)}
    rows = []
    for run_id, records in found.ordered:
        measured = sum(record.latency_ms is not None for record in records.values())
        first = min(record.time for record in records.values())
        rows.append(
            [
                texts(run_id[:12]),
                texts(first),
                Cell(f"{measured} of {len(cases)}", measured),
                texts("yes" if run_id in shown else "no"),
            ]
        )
    return Table(
        "runs", "Every run of this kernel, oldest first", ("run", "began", "cases measured", "shown here"), rows
    )


# --- for programs ----------------------------------------------------------------------------------


def _data(
    known: Known, found: MeasuredSet, records: Sequence[Record], placed: tuple[Board, Row] | None
) -> dict[str, Any]:
    board, row = placed or (None, None)
    return {
        "workload": found.workload,
        "workload_sha256": found.workload_sha256,
        "kernel": found.kernel,
        "kernel_sha256": found.kernel_sha256,
        "device": found.device,
        "protocol": found.protocol,
        "protocol_sha256": found.protocol_sha256,
        "scale": found.scale,
        "recipe": recipe(records[0]),
        "rank": board.rank(row) if board and row else None,
        "trust": row.trust.value if row else None,
        "mean_latency_ms": row.latency_ms if row else None,
        "sol_score": row.score if row else None,
        "roofline": row.roofline if row else None,
        "records": [_values(record) for record in records],
    }


def _values(record: Record) -> dict[str, Any]:
    """A record as its line in the results file has it."""
    values = {f.name: getattr(record, f.name) for f in fields(Record) if f.name != "unknown_fields"}
    return {**record.unknown_fields, **values}
