"""Who is fastest, where, and how far that may be trusted: published records, and measured ones among them.

Rows stand in one board only when they were measured alike; every board says what that was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness import stats
from harness.compare import Criteria, NotComparable, compare_suite, samples_ms
from harness.comparison import Verdict
from harness.published import BoardModel, PublishedModel
from harness.records import Record, Status


class Trust(StrEnum):
    """How far a row may be trusted.

    reported: a source says so. measured: an installation of solbench measured it and the record is kept.
    reproduced: runs of the same kernel source on different days or machines agree.
    """

    REPORTED = "reported"
    MEASURED = "measured"
    REPRODUCED = "reproduced"


@dataclass(frozen=True)
class Row:
    """One implementation's suite figures. Latency in ms; score and roofline from 0 to 1; absent is None."""

    implementation: str | None
    latency_ms: float
    score: float | None
    roofline: float | None
    trust: Trust
    source: str | None
    license: str | None
    observed: str
    recipe: str | None = None
    listed_rank: int | None = None


@dataclass(frozen=True)
class Board:
    """Rows in order of latency that may be ranked against each other; `basis` says what they share."""

    hardware: str
    basis: str
    published: bool
    rows: Sequence[Row]

    def rank(self, row: Row) -> int:
        """As its source lists it; otherwise 1 for the fastest, and equal latencies share a rank."""
        return row.listed_rank or 1 + sum(other.latency_ms < row.latency_ms for other in self.rows)

    def ratio_to_first(self, row: Row) -> float:
        return row.latency_ms / self.rows[0].latency_ms


def published_board(model: BoardModel, bound_ms: float | None) -> Board:
    """A published board; the roofline is the geometric mean of the published bounds over the latency."""
    rows = [
        Row(
            row.implementation,
            row.latency_ms,
            row.score,
            bound_ms / row.latency_ms if bound_ms else None,
            Trust.REPORTED,
            row.source,
            row.license,
            row.observed.isoformat(),
            listed_rank=row.rank,
        )
        for row in sorted(model.rows, key=lambda row: row.rank)
    ]
    basis = f"{model.protocol}, {model.environment}, {model.statistic}"
    return Board(model.hardware, basis, True, rows)


def measured_boards(records: Sequence[Record], workload: str, cases: Sequence[str]) -> tuple[list[Board], list[str]]:
    """Boards of kernels that were measured at full size on every case, and sentences about those left out."""
    groups: dict[tuple[str, ...], dict[tuple[str, str | None], dict[str, dict[str, Record]]]] = {}
    left_out: list[str] = []
    for record in records:
        if record.workload != workload:
            left_out.append(f"{record.kernel} {record.case}: is of the workload {record.workload}")
        elif record.scale != 1:
            left_out.append(f"{record.kernel} {record.case}: was measured at scale 1/{record.scale}")
        else:
            basis = (record.device, record.protocol, record.protocol_sha256, record.workload_sha256)
            runs = groups.setdefault(basis, {}).setdefault((record.kernel, record.kernel_sha256), {})
            runs.setdefault(record.run_id, {})[record.case] = record
    boards = []
    for (device, protocol, _, _), kernels in groups.items():
        rows = []
        for (kernel, _), runs in kernels.items():
            whole = {run: found for run, found in runs.items() if _complete(found, cases)}
            if not whole:
                most = max(sum(r.latency_ms is not None for r in found.values()) for found in runs.values())
                left_out.append(f"{kernel}: has {most} of {len(cases)} cases measured and passed in one run")
                continue
            rows.append(_measured_row(whole, cases))
        if rows:
            shared = f"protocol {protocol}, geometric mean over {len(cases)} cases of each case's median latency"
            boards.append(Board(device, shared, False, sorted(rows, key=lambda row: row.latency_ms)))
    return boards, list(dict.fromkeys(left_out))


def _complete(found: Mapping[str, Record], cases: Sequence[str]) -> bool:
    return all(c in found and found[c].status is Status.PASSED and found[c].latency_ms is not None for c in cases)


def _measured_row(runs: Mapping[str, Mapping[str, Record]], cases: Sequence[str]) -> Row:
    """The newest complete run's figures; `reproduced` when an earlier one elsewhere or on another day agrees."""
    ordered = sorted(runs.values(), key=lambda found: found[cases[0]].time)
    newest = [ordered[-1][case] for case in cases]
    others = [older for older in ordered[:-1] if _independent(older, ordered[-1])]
    agreeing = any(_agree([older[case] for case in cases], newest) for older in others)
    scores = [_figure(record, "score") for record in newest]
    shares = [_figure(record, "roofline") for record in newest]
    first = newest[0]
    return Row(
        first.kernel,
        stats.geometric_mean([stats.median(samples_ms(record)) for record in newest]),
        _mean(scores),
        _mean(shares),
        Trust.REPRODUCED if agreeing else Trust.MEASURED,
        f"{first.source} ({(first.kernel_sha256 or 'unknown')[:12]})" if first.source else None,
        first.license,
        max(record.time for record in newest)[:10],
        f"solbench run {first.workload} -k {first.kernel} -p {first.protocol} --seed {first.seed}",
    )


def _independent(a: Mapping[str, Record], b: Mapping[str, Record]) -> bool:
    """Whether two runs were on different days or different machines."""
    x, y = next(iter(a.values())), next(iter(b.values()))
    machines = [(r.environment.get("cpu"), r.environment.get("platform"), r.environment.get("gpu")) for r in (x, y)]
    return x.time[:10] != y.time[:10] or machines[0] != machines[1]


def _agree(a: Sequence[Record], b: Sequence[Record]) -> bool:
    try:
        found = compare_suite(a, b, Criteria(confidence=0.95, least_effect=0.02))
    except NotComparable:
        return False
    return found.verdict is Verdict.SAME


def _figure(record: Record, key: str) -> float | None:
    value = (record.sol or {}).get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def history(board: Board) -> list[tuple[str, Row]]:
    """How the record moved: (date, row) for each row that was the fastest when it was observed.

    Dates are those of observation; of several rows on one day only the fastest can be a record.
    """
    best, moved = math.inf, []
    for row in sorted(board.rows, key=lambda row: (row.observed, row.latency_ms)):
        if row.latency_ms < best:
            best = row.latency_ms
            moved.append((row.observed, row))
    return moved


def why_apart(boards: Sequence[Board]) -> str | None:
    """Why the boards are not one ranking; None for a single board."""
    if len(boards) < 2:
        return None
    return (
        "Boards are not ranked against each other: latencies on different hardware, or by different protocols, "
        "do not say which implementation is better."
    )


def all_boards(
    published: PublishedModel | None,
    records: Sequence[Record],
    workload: str,
    cases: Sequence[str],
    bound_ms: float | None,
) -> tuple[list[Board], list[str]]:
    """Published boards first, then the measured ones, and sentences about what was left out."""
    boards = [published_board(board, bound_ms) for board in published.boards] if published else []
    measured, left_out = measured_boards(records, workload, cases)
    return [*boards, *measured], left_out
