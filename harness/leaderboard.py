"""Who is fastest, where, and how far that may be trusted: published records, and measured ones among them.

Rows stand in one board only when they were measured alike; every board says what that was.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from harness import stats, store
from harness.compare import Criteria, NotComparable, compare_suite, measured_at, samples_ms
from harness.comparison import Verdict
from harness.published import BoardModel, PublishedModel
from harness.records import Record, Status, number
from harness.sol import grade, known_baselines
from harness.spec import Workload


class Trust(StrEnum):
    """How far a row may be trusted.

    reported: a source says so. measured: an installation of solbench measured it and the record is kept.
    reproduced: runs of the same kernel source on different days or machines agree.
    """

    REPORTED = "reported"
    MEASURED = "measured"
    REPRODUCED = "reproduced"


@dataclass(frozen=True)
class MeasuredSet:
    """Every run of one kernel source on one device by one protocol, at one size of one version of a workload.

    `runs` holds records by run id and case.
    """

    workload: str
    workload_sha256: str
    device: str
    protocol: str
    protocol_sha256: str
    kernel: str
    kernel_sha256: str | None
    scale: int
    runs: Mapping[str, Mapping[str, Record]]

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """What tells one set from all others."""
        version = (self.workload, self.workload_sha256, self.scale)
        return (*version, self.kernel, self.kernel_sha256, self.device, self.protocol, self.protocol_sha256)

    @cached_property
    def ordered(self) -> Sequence[tuple[str, Mapping[str, Record]]]:
        """(run id, records by case), oldest first. Raises `InputError` for a time that is none."""
        return sorted(self.runs.items(), key=lambda run: max(map(measured_at, run[1].values())))

    def whole(self, cases: Sequence[str]) -> list[tuple[str, Mapping[str, Record]]]:
        """The runs, oldest first, in which every case was measured and passed."""
        return [(run_id, found) for run_id, found in self.ordered if _complete(found, cases)]

    def shown(self, cases: Sequence[str]) -> list[Record]:
        """What stands for the kernel: its newest whole run, or else the newest record of each case."""
        if whole := self.whole(cases):
            return [whole[-1][1][case] for case in cases]
        newest = {r.case: r for r in store.newest(r for _, found in self.ordered for r in found.values())}
        order = {case: index for index, case in enumerate(cases)}
        return sorted(newest.values(), key=lambda record: order.get(record.case, len(order)))


def measured_sets(records: Iterable[Record]) -> list[MeasuredSet]:
    """The records by what was measured, in order of first appearance."""
    found: dict[tuple[str, str, str, str, str, str, str | None, int], dict[str, dict[str, Record]]] = {}
    for r in records:
        version = (r.workload, r.workload_sha256)
        key = (*version, r.device, r.protocol, r.protocol_sha256, r.kernel, r.kernel_sha256, r.scale)
        found.setdefault(key, {}).setdefault(r.run_id, {})[r.case] = r
    return [MeasuredSet(*key, runs) for key, runs in found.items()]


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
    listed_ratio: float | None = None
    measured: MeasuredSet | None = field(default=None, repr=False, compare=False)


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
        """As its source lists it, which had more digits than it shows; otherwise of the latencies."""
        return row.listed_ratio or row.latency_ms / self.rows[0].latency_ms


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
            listed_ratio=row.ratio_to_first,
        )
        for row in sorted(model.rows, key=lambda row: row.rank)
    ]
    basis = f"{model.protocol}, {model.environment}, {model.statistic}"
    return Board(model.hardware, basis, True, rows)


def measured_boards(records: Iterable[Record], workload: str, cases: Sequence[str]) -> tuple[list[Board], list[str]]:
    """Boards of kernels that were measured at full size on every case, and sentences about those left out."""
    boards: dict[tuple[str, str, str, str], list[Row]] = {}
    left_out: list[str] = []
    for found in measured_sets(_with_baselines(list(records))):
        if found.workload != workload:
            left_out.append(f"{found.kernel}: is of the workload {found.workload}")
        elif found.scale != 1:
            left_out.append(f"{found.kernel}: was measured at scale 1/{found.scale}")
        elif not found.whole(cases):
            measured = (sum(r.latency_ms is not None for r in run.values()) for run in found.runs.values())
            left_out.append(f"{found.kernel}: has {max(measured)} of {len(cases)} cases measured and passed in one run")
        else:
            basis = (found.device, found.protocol, found.protocol_sha256, found.workload_sha256)
            boards.setdefault(basis, []).append(_measured_row(found, cases))
    # Two versions of one name are told apart in the bases of both.
    protocols = {(protocol, sha256) for _, protocol, sha256, _ in boards}
    versions = {sha256 for _, _, _, sha256 in boards}
    shown = []
    for (device, protocol, protocol_sha256, workload_sha256), rows in boards.items():
        several = sum(name == protocol for name, _ in protocols) > 1
        how = f"protocol {protocol}@{protocol_sha256[:7]}" if several else f"protocol {protocol}"
        version = f", workload version {workload_sha256[:7]}" if len(versions) > 1 else ""
        basis_text = f"{how}{version}, geometric mean over {len(cases)} cases of each case's median latency"
        shown.append(Board(device, basis_text, False, sorted(rows, key=lambda row: row.latency_ms)))
    return shown, list(dict.fromkeys(left_out))


def _with_baselines(records: Sequence[Record]) -> list[Record]:
    """The records, with scores where only another record of the same case tells the baseline."""
    rows = [(_question(r), _figure(r, "baseline_ms"), (r.sol or {}).get("baseline_source")) for r in records]
    known, scored = known_baselines(rows), []
    for record, (question, own_ms, _) in zip(records, rows, strict=True):
        baseline_ms, source = known.get(question, (None, None))
        if own_ms is None and baseline_ms is not None and record.latency_ms is not None:
            found = grade(record.latency_ms, _figure(record, "bound_ms"), baseline_ms)
            more = {"baseline_ms": baseline_ms, "baseline_source": source, "score": found.score, "reason": found.reason}
            record = replace(record, sol={**(record.sol or {}), **more})
        scored.append(record)
    return scored


def _question(record: Record) -> tuple[object, ...]:
    asked = (record.workload, record.workload_sha256, record.case, record.scale)
    return (*asked, record.device, record.protocol_sha256)


def _complete(found: Mapping[str, Record], cases: Sequence[str]) -> bool:
    return all(c in found and found[c].status is Status.PASSED and found[c].latency_ms is not None for c in cases)


def _measured_row(found: MeasuredSet, cases: Sequence[str]) -> Row:
    """The newest whole run's figures; `reproduced` when an earlier one elsewhere or on another day agrees."""
    *earlier, (_, last) = found.whole(cases)
    newest = [last[case] for case in cases]
    others = [older for _, older in earlier if _independent(older, last)]
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
        max(newest, key=measured_at).time[:10],
        recipe(first),
        measured=found,
    )


def recipe(record: Record) -> str:
    """The command that measures a record's kernel again in the same way, or checks it where it was only checked."""
    only_checked = record.status is Status.PASSED and record.latency_ms is None
    words = ["solbench", "check" if only_checked else "run", record.workload, "-k", record.kernel]
    words += ["-p", record.protocol, "--seed", str(record.seed)]
    if record.scale != 1:
        words += ["--scale", str(record.scale)]
    return shlex.join(words)


def _independent(a: Mapping[str, Record], b: Mapping[str, Record]) -> bool:
    """Whether two runs were on different days or different machines."""
    x, y = next(iter(a.values())), next(iter(b.values()))
    return x.time[:10] != y.time[:10] or _machine(x) != _machine(y)


def _machine(record: Record) -> tuple[object, ...]:
    """What tells machines apart and does not change from run to run."""
    gpu = record.environment.get("gpu")
    card = gpu.get("uuid") if isinstance(gpu, Mapping) else None
    return (record.environment.get("cpu"), record.environment.get("host_memory_bytes"), card)


def _agree(a: Sequence[Record], b: Sequence[Record]) -> bool:
    try:
        found = compare_suite(a, b, Criteria(confidence=0.95, least_effect=0.02))
    except NotComparable:
        return False
    return found.verdict is Verdict.SAME


def _figure(record: Record, key: str) -> float | None:
    return number((record.sol or {}).get(key))


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
    records: Iterable[Record],
    workload: str,
    cases: Sequence[str],
    bound_ms: float | None,
) -> tuple[list[Board], list[str]]:
    """Published boards first, then the measured ones, and sentences about what was left out."""
    boards = [published_board(board, bound_ms) for board in published.boards] if published else []
    measured, left_out = measured_boards(records, workload, cases)
    return [*boards, *measured], left_out


def boards_of(
    workload: Workload, published: PublishedModel | None, records: Iterable[Record]
) -> tuple[list[Board], list[str]]:
    """As `all_boards`, with the workload's cases and the geometric mean of its published bounds."""
    return all_boards(published, records, workload.name, workload.case_ids(), published_bound_ms(workload))


def published_bound_ms(workload: Workload) -> float | None:
    """Geometric mean over the cases; None unless every case has a published bound."""
    bounds = [case.published.bound_ms for case in workload.model.cases if case.published]
    return stats.geometric_mean(bounds) if len(bounds) == len(workload.model.cases) else None
