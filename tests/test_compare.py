"""Comparisons: who is paired with whom, what is left out and said, and kernels measured in turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import HONEST, solbench
from test_gate import AFTER, BEFORE, failing, measured, written

from harness import store
from harness.compare import (
    Criteria,
    NotComparable,
    compare_files,
    compare_interleaved,
    compare_suite,
    ranking,
)
from harness.compare_report import plot, rows
from harness.comparison import Verdict
from harness.errors import InputError
from harness.records import Record

CRITERIA = Criteria()


def renamed(records: list[Record], kernel: str) -> list[Record]:
    return [replace(r, kernel=kernel) for r in records]


def test_cases_of_one_side_are_listed_and_not_dropped() -> None:
    suite = compare_suite(BEFORE[:3], measured("after", cases=4)[1:], CRITERIA)
    assert [c.case for c in suite.cases] == ["t1", "t2"]
    assert (suite.only_a, suite.only_b) == (["t0"], ["t3"])
    assert suite.verdict is Verdict.SAME


def test_a_case_without_a_latency_is_named_with_its_reason() -> None:
    suite = compare_suite(BEFORE, failing(AFTER, 2), CRITERIA)
    assert suite.unmeasured == {"t2": "B is INCORRECT_NUMERICAL"}
    assert len(suite.cases) == 3


def test_the_suite_ratio_is_that_of_the_geometric_means() -> None:
    suite = compare_suite(BEFORE, measured("after", 1.2), CRITERIA)
    assert suite.ratio is not None
    assert suite.a_mean_ms is not None
    assert suite.b_mean_ms is not None
    assert suite.ratio.ratio == pytest.approx(suite.b_mean_ms / suite.a_mean_ms)
    assert suite.ratio.ratio == pytest.approx(1.2, rel=0.01)
    assert suite.verdict is Verdict.SLOWER
    assert rows(suite, CRITERIA)[-1][0] == "geo. mean"


def test_kernels_are_paired_by_name_or_when_each_side_has_one() -> None:
    suites, alone = compare_files([*BEFORE, *renamed(BEFORE, "old")], [*AFTER, *renamed(AFTER, "new")], CRITERIA)
    assert [(s.kernel_a, s.kernel_b) for s in suites] == [("k", "k")]
    assert alone == ["only A has w old", "only B has w new"]
    suites, alone = compare_files(renamed(BEFORE, "old"), renamed(AFTER, "new"), CRITERIA)
    assert [(s.kernel_a, s.kernel_b) for s in suites] == [("old", "new")]
    assert alone == []


def test_what_was_measured_differently_is_not_compared() -> None:
    with pytest.raises(NotComparable) as caught:
        compare_suite(BEFORE, [replace(r, device="e", scale=2) for r in AFTER], CRITERIA)
    assert caught.value.reasons == ["device: d and e", "scale: 1 and 2"]


def test_a_ranking_has_ties_where_kernels_cannot_be_told_apart() -> None:
    kernels = {
        "slow": renamed(measured("1", 1.5), "slow"),
        "fast": renamed(measured("2", 1.0), "fast"),
        "as fast": renamed(measured("3", 1.001), "as fast"),
        "partial": renamed(measured("4", 0.5), "partial")[:3],
    }
    places, left_out = ranking(kernels, CRITERIA)
    assert [(p.rank, p.kernel) for p in places] == [(1, "partial"), (2, "fast"), (2, "as fast"), (4, "slow")]
    assert left_out == ["t3"]
    with pytest.raises(InputError, match="no measured case in common"):
        ranking({"a": BEFORE[:1], "b": AFTER[1:]}, CRITERIA)


def test_interleaved_runs_are_compared_block_by_block() -> None:
    drift = (1.0, 1.1, 1.25, 1.4)
    blocks = [(measured(f"a{d}", d), measured(f"b{d}", 1.05 * d)) for d in drift]
    (suite,) = compare_interleaved(blocks, CRITERIA)
    assert suite.ratio is not None
    assert suite.ratio.ratio == pytest.approx(1.05, rel=0.005)
    assert {c.verdict for c in suite.cases} == {Verdict.SLOWER}
    lost = [(a, b if i else failing(b, 1)) for i, (a, b) in enumerate(blocks)]
    (suite,) = compare_interleaved(lost, CRITERIA)
    assert suite.unmeasured == {"t1": "B is INCORRECT_NUMERICAL"}


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"c.{suffix}"
    plot([compare_suite(BEFORE, measured("after", 1.2), CRITERIA)], CRITERIA, path)
    assert path.stat().st_size > 5000


def test_files_are_compared_in_the_terminal_in_markdown_and_in_json(tmp_path: Path) -> None:
    a, b = written(tmp_path, "a.jsonl", BEFORE), written(tmp_path, "b.jsonl", measured("after", 1.2)[:3])
    table = solbench("compare", a, b, "--plot", "c.png", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "slower" in table.stdout
    assert "only A has t3" in table.stdout
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    assert (tmp_path / "c.png").exists()
    assert "| t1 |" in solbench("compare", a, b, "--markdown", cwd=tmp_path).stdout
    found = json.loads(solbench("compare", a, b, "--json", cwd=tmp_path).stdout)
    assert found["only_a"] == ["t3"]
    low, high = found["b_over_a"]["interval"]
    assert low < 1.2 < high
    other = written(tmp_path, "o.jsonl", [replace(r, device="e") for r in AFTER])
    refused = solbench("compare", a, other, cwd=tmp_path)
    assert refused.returncode == 5
    assert "device: d and e" in refused.stderr


def test_kernels_of_one_file_are_compared_or_ranked(tmp_path: Path) -> None:
    records = [*renamed(measured("1"), "a"), *renamed(measured("2", 1.1), "b"), *renamed(measured("3", 1.2), "c")]
    path = written(tmp_path, "r.jsonl", records)
    pair = solbench("compare", "a", "b", "--file", path, cwd=tmp_path)
    assert "A = a, B = b" in pair.stdout
    ranked = solbench("compare", "c", "a", "b", "--file", path, "--json", cwd=tmp_path)
    places = [json.loads(line) for line in ranked.stdout.splitlines()]
    assert [(p["rank"], p["kernel"]) for p in places] == [(1, "a"), (2, "b"), (3, "c")]
    assert "to first" in solbench("compare", "c", "a", "b", "--file", path, cwd=tmp_path).stdout


def test_two_kernels_are_measured_in_turn_in_fresh_processes(toy_root: Path) -> None:
    (toy_root / "first.py").write_text(HONEST)
    (toy_root / "second.py").write_text(HONEST + "# another source\n")
    done = solbench(
        "compare", "first.py", "second.py", "-w", "toy", "-c", "r3", "-p", "quick", "--blocks", "2", "-o", "r.jsonl",
        "--json", cwd=toy_root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kernel_a"], found["kernel_b"]) == ("first", "second")
    assert [case["case"] for case in found["cases"]] == ["r3"]
    assert found["verdict"] in ("faster", "slower", "same", "inconclusive")
    records, _ = store.read(toy_root / "r.jsonl")
    # The order turns round from block to block.
    assert [r.kernel for r in records] == ["first", "second", "second", "first"]
    assert len({r.run_id for r in records}) == 4
