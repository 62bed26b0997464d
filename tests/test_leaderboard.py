"""The published records are consistent in themselves, and measured ones stand where they may."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import REPOSITORY, made_record, solbench
from test_gate import written

from harness import published, store
from harness.catalog import Catalog
from harness.errors import InputError
from harness.leaderboard import Trust, all_boards, history, measured_boards, published_board
from harness.records import Record
from harness.sol import grade
from harness.spec import Workload
from harness.stats import geometric_mean

CATALOG = Catalog(REPOSITORY)
WORKLOADS = {name: CATALOG.workload(name) for name in ("moe", "dense")}
BOARDS = {name: published.load(CATALOG.roots, workload.name) for name, workload in WORKLOADS.items()}


def rows_of(name: str) -> list[published.RowModel]:
    model = BOARDS[name]
    assert model is not None
    return model.boards[0].rows


def means_ms(workload: Workload) -> tuple[float, float]:
    cases = [case.published for case in workload.model.cases if case.published]
    return geometric_mean([c.bound_ms for c in cases]), geometric_mean([c.baseline_ms for c in cases])


# (workload, rows, first, its latency in ms, last rank's latency)
KNOWN = [("moe", 34, None, 0.0422, 0.326), ("dense", 19, "ac4k", 14.8, 31.1)]


@pytest.mark.parametrize(("name", "count", "first", "first_ms", "last_ms"), KNOWN)
def test_every_published_row_is_there_in_order(
    name: str, count: int, first: str | None, first_ms: float, last_ms: float
) -> None:
    rows = rows_of(name)
    assert [row.rank for row in rows] == list(range(1, count + 1))
    latencies = [row.latency_ms for row in rows]
    assert latencies == sorted(latencies)
    assert (rows[0].implementation, latencies[0], latencies[-1]) == (first, first_ms, last_ms)


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_ratios_to_the_first_are_those_of_the_latencies(name: str) -> None:
    rows = rows_of(name)
    unit = 1e-4 if name == "moe" else 0.1  # the last printed digit of a latency, in ms
    for row in rows:
        low = (row.latency_ms - unit / 2) / (rows[0].latency_ms + unit / 2) - 0.005
        high = (row.latency_ms + unit / 2) / (rows[0].latency_ms - unit / 2) + 0.005
        assert low <= row.ratio_to_first <= high, row


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_percent_sol_fits_the_score_formula(name: str) -> None:
    """Within what rounding and the unknown times of the single cases allow: 2 points under to 3.5 over."""
    bound_ms, baseline_ms = means_ms(WORKLOADS[name])
    for row in rows_of(name):
        at_the_means = grade(row.latency_ms, bound_ms, baseline_ms).score
        assert at_the_means is not None
        assert -0.02 - 0.005 <= row.score - at_the_means <= 0.035 + 0.005, row


def test_the_dense_implementations_are_the_29_runs_of_both_environments() -> None:
    model = BOARDS["dense"]
    assert model is not None
    assert len(model.implementations) == 29 == sum(aggregate.runs for aggregate in model.aggregates)
    assert [(a.environment, a.best_ms, a.implementation, a.runs) for a in model.aggregates] == [
        ("env 1", 14.8, "ac4k", 19), ("env 2", 15.1, "doubleAI", 10),
    ]  # fmt: skip
    best = min(model.implementations, key=lambda i: i.best_ms)
    for i in model.implementations:
        assert i.ratio_to_first == pytest.approx(i.best_ms / best.best_ms, abs=0.011)
    listed = {(i.implementation, i.best_ms) for i in model.implementations}
    assert {(row.implementation, row.latency_ms) for row in rows_of("dense")} <= listed


def test_a_row_says_what_is_unknown_and_how_far_to_trust_it() -> None:
    model = BOARDS["moe"]
    assert model is not None
    board = published_board(model.boards[0], means_ms(WORKLOADS["moe"])[0])
    assert {row.trust for row in board.rows} == {Trust.REPORTED}
    assert board.rows[0].roofline == pytest.approx(0.268, abs=0.001)
    assert board.rank(board.rows[3]) == 4
    assert board.ratio_to_first(board.rows[-1]) == pytest.approx(7.73, abs=0.01)


def test_the_history_is_falling_and_ends_at_the_record() -> None:
    model = BOARDS["dense"]
    assert model is not None
    moved = history(published_board(model.boards[0], None))
    latencies = [row.latency_ms for _, row in moved]
    assert latencies == sorted(latencies, reverse=True)
    assert [observed for observed, _ in moved] == sorted(observed for observed, _ in moved)
    assert latencies[-1] == 14.8


def suite(run_id: str, factor: float = 1.0, **fields: object) -> list[Record]:
    values = [factor * (1 + index / 1000) for index in range(30)]
    return [
        made_record(run_id=run_id, case=case, latency_ms=factor, timings={"host": {"samples_ms": values}},
                    sol={"score": 0.5, "roofline": 0.25}, source="kernels/w/k", kernel_sha256="a" * 64, **fields)
        for case in ("t1", "t2")
    ]  # fmt: skip


CASES = ("t1", "t2")
LATER = "2026-02-02T00:00:00+00:00"

# name: (records, expected trusts by row, part of what was left out)
MEASURED: dict[str, tuple[list[Record], list[Trust], str | None]] = {
    "one run": (suite("a"), [Trust.MEASURED], None),
    "two runs of one day and machine": ([*suite("a"), *suite("b")], [Trust.MEASURED], None),
    "two days that agree": ([*suite("a"), *suite("b", time=LATER)], [Trust.REPRODUCED], None),
    "two days that differ": ([*suite("a"), *suite("b", 1.2, time=LATER)], [Trust.MEASURED], None),
    "two machines that agree": ([*suite("a"), *suite("b", environment={"cpu": "x"})], [Trust.REPRODUCED], None),
    "a case short": (suite("a")[:1], [], "has 1 of 2 cases"),
    "cases from two runs": ([suite("a")[0], suite("b")[1]], [], "has 1 of 2 cases"),
    "scaled": (suite("a", scale=64), [], "scale 1/64"),
    "another workload": (suite("a", workload="v"), [], "of the workload v"),
}


@pytest.mark.parametrize("kind", MEASURED)
def test_a_measured_kernel_is_ranked_when_it_is_whole(kind: str) -> None:
    records, trusts, part = MEASURED[kind]
    boards, left_out = measured_boards(records, "w", CASES)
    assert [row.trust for board in boards for row in board.rows] == trusts
    assert part is None or any(part in line for line in left_out)


def test_a_measured_row_is_complete() -> None:
    ((board,), _) = measured_boards(suite("a", license="MIT"), "w", CASES)
    (row,) = board.rows
    assert row.recipe == "solbench run w -k k -p p --seed 1"
    assert row.source == "kernels/w/k (aaaaaaaaaaaa)"
    assert (row.license, row.score, row.roofline, row.observed) == ("MIT", 0.5, 0.25, "2026-01-01")


def test_devices_and_protocols_have_boards_of_their_own() -> None:
    other = [replace(r, kernel="other") for r in suite("c", 0.5)]
    records = [*suite("a"), *other, *suite("b", device="e"), *suite("d", protocol="q", protocol_sha256="2")]
    boards, _ = measured_boards(records, "w", CASES)
    assert [[row.implementation for row in board.rows] for board in boards] == [["other", "k"], ["k"], ["k"]]


def test_the_h200_records_stand_apart_from_the_published_ones() -> None:
    workload = WORKLOADS["moe"]
    records, _ = store.read(REPOSITORY / "results" / "nvidia_h200" / "moe_swiglu_backward.jsonl")
    boards, left_out = all_boards(BOARDS["moe"], records, workload.name, workload.case_ids(), None)
    assert [board.hardware for board in boards] == ["NVIDIA B200", "NVIDIA H200"]
    assert left_out == []
    means = {
        kernel: geometric_mean([r.latency_ms for r in records if r.kernel == kernel and r.latency_ms])
        for kernel in {record.kernel for record in records}
    }
    assert [row.implementation for row in boards[1].rows] == sorted(means, key=lambda kernel: means[kernel])


# name: (change to the file, what the message must contain)
FAULTS = {
    "unknown key": ("rank: 1,", "rnak: 1,", 'did you mean "rank"'),
    "no date": ("observed: 2026-07-14", "observed: July", '"July" is no date'),
    "a score over one": ("score: 0.71", "score: 71", "less than or equal to 1"),
    "another workload": ("workload: moe_swiglu_backward", "workload: other", "not the file's name"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_file_is_named(kind: str, tmp_path: Path) -> None:
    before, after, part = FAULTS[kind]
    folder = tmp_path / "results" / "published"
    folder.mkdir(parents=True)
    text = (REPOSITORY / "results" / "published" / "moe_swiglu_backward.yaml").read_text()
    assert before in text
    (folder / "moe_swiglu_backward.yaml").write_text(text.replace(before, after, 1))
    with pytest.raises(InputError) as caught:
        published.load([tmp_path], "moe_swiglu_backward")
    assert part in str(caught.value)
    assert "moe_swiglu_backward.yaml:" in str(caught.value)


def test_the_command_shows_boards_in_every_form(tmp_path: Path) -> None:
    measured = (REPOSITORY / "results" / "nvidia_h200" / "dense_swiglu_backward.jsonl").read_text().splitlines()
    partly = json.dumps({**json.loads(measured[0]), "kernel": "partly", "run_id": "another"})
    (tmp_path / "mine.jsonl").write_text("\n".join([*measured, partly]) + "\n")
    mine = "mine.jsonl"
    table = solbench("leaderboard", "dense", mine, cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    for part in ("ac4k", "14.80 ms", "fused_pointwise", "not ranked against each other", "reported", "measured"):
        assert part in table.stdout
    assert table.stdout.index("ac4k") < table.stdout.index("NVIDIA H200")
    assert "left out: partly: has 1 of 18" in table.stdout
    rows = [
        json.loads(line) for line in solbench("leaderboard", "dense", mine, "--json", cwd=tmp_path).stdout.splitlines()
    ]
    assert len(rows) == 19 + 3
    listed = list(csv.DictReader(io.StringIO(solbench("leaderboard", "dense", mine, "--csv", cwd=tmp_path).stdout)))
    assert [row["implementation"] for row in listed] == [row["implementation"] for row in rows]
    markdown = solbench("leaderboard", "dense", mine, "--markdown", cwd=tmp_path).stdout
    assert r"Amir M. Mir \| SF Tensor" in markdown
    assert "`solbench run dense_swiglu_backward -k eager -p queued --seed 200`" in markdown
    moved = solbench("leaderboard", "dense", "--history", cwd=tmp_path).stdout
    assert "2026-07-10" in moved
    assert moved.index("14.90 ms") < moved.index("14.80 ms")


def test_a_workload_without_records_has_no_leaderboard(toy_root: Path) -> None:
    done = solbench("leaderboard", "toy", cwd=toy_root)
    assert done.returncode == 2
    assert "nothing is published" in done.stderr
    damaged = written(toy_root, "r.jsonl", suite("a"))
    with (toy_root / damaged).open("a") as file:
        file.write("{")
    done = solbench("leaderboard", "moe", damaged, cwd=toy_root)
    assert done.returncode == 2
    assert "r.jsonl:3" in done.stderr


def test_sol_takes_another_pair_of_peaks_and_marks_what_differs(tmp_path: Path) -> None:
    shown = solbench("sol", "dense", cwd=tmp_path)
    assert "differs by -33%" in shown.stdout
    assert shown.stdout.count("differs") == 1
    assert "--roofline datasheet" in shown.stderr
    rows = [json.loads(line) for line in solbench("sol", "dense", "--roofline", "datasheet", "--json", cwd=tmp_path)
            .stdout.splitlines()]  # fmt: skip
    assert rows[-1]["bound_ms"] == pytest.approx(38.12, abs=0.01)
    wrong = solbench("sol", "dense", "--roofline", "datashet", cwd=tmp_path)
    assert wrong.returncode == 2
    assert 'did you mean "datasheet"' in wrong.stderr
