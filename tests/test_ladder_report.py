"""Tables and drawing of a ladder, from records that are there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import triton_ladder
from conftest import REPOSITORY

from harness import store
from harness.stats import geometric_mean

RESULTS = REPOSITORY / "results" / "nvidia_h200"
KERNELS = ["eager", "fused_pointwise"]


def report(*arguments: str) -> None:
    triton_ladder.benchmark("ladder_report").main(arguments)


def cells(text: str, first: str) -> list[str]:
    """Of the table row that begins with these cells."""
    (row,) = re.findall(rf"^\| {re.escape(first)} \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_the_tables_hold_what_the_records_hold(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = RESULTS / f"{name}_swiglu_backward.jsonl"
    report(name, str(file), *(part for kernel in KERNELS for part in ("-k", kernel)), "--svg", str(tmp_path / "l.svg"))
    text = capsys.readouterr().out
    records = [r for r in store.read(file)[0] if r.kernel == "fused_pointwise" and r.latency_ms]
    mean_ms = geometric_mean([r.latency_ms for r in records if r.latency_ms])
    shown = cells(text, " | geometric mean")[-1]
    assert float(shown.split()[0]) * (1 if shown.endswith("ms") else 1e-3) == pytest.approx(mean_ms, rel=1e-3)
    assert "NVIDIA H200, 700.0 W, SM clock up to 1980 MHz, not locked; backend queued" in text
    one = records[0]
    assert one.latency_ms and one.sol
    rates = [row for row in text.splitlines() if f"| {one.case} |" in row][-1].split("|")
    assert rates[4].strip() == f"{100 * one.sol['bound_ms'] / one.latency_ms:.1f}%"
    assert "</svg>" in (tmp_path / "l.svg").read_text()


def test_a_document_holds_the_newest_tables_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "kernels.md"
    document.write_text("before\n<!-- moe results -->\nold\n<!-- end of moe results -->\nafter\n")
    for _ in range(2):
        report("moe", str(RESULTS / "moe_swiglu_backward.jsonl"), "--write", str(document))
    shown = capsys.readouterr().out
    text = document.read_text()
    assert text.startswith("before\n<!-- moe results -->\n\nNVIDIA H200")
    assert text.endswith("|\n\n<!-- end of moe results -->\nafter\n")
    assert text.count("geometric mean") == 1
    assert text.split("\n", 3)[3].split("\n<!-- end")[0].strip() in shown
    document.write_text("no marks")
    with pytest.raises(SystemExit, match="has no <!-- moe results -->"):
        report("moe", str(RESULTS / "moe_swiglu_backward.jsonl"), "--write", str(document))


def test_the_documents_have_the_marks() -> None:
    text = (REPOSITORY / "docs" / "kernels.md").read_text()
    for name in ("moe", "dense"):
        assert text.count(f"<!-- {name} results -->") == text.count(f"<!-- end of {name} results -->") == 1


def of_another_device(file: Path) -> None:
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps({**json.loads(lines[0]), "device": "NVIDIA H100"})]) + "\n")


# name: (more arguments, part of the message)
FAULTS = {
    "a kernel that was not measured": (["-k", "nope"], "has no latency of nope"),
    "a kernel that is no part of it": (["-k", "eager", "--of", "compiled"], "has no kernel compiled"),
    "two devices": ([], "holds records of 2 devices"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_told(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more, part = FAULTS[fault]
    file = tmp_path / "r.jsonl"
    shutil.copy(RESULTS / "moe_swiglu_backward.jsonl", file)
    if fault == "two devices":
        of_another_device(file)
    with pytest.raises(SystemExit) as caught:
        report("moe", str(file), *more)
    assert caught.value.code == 2
    assert part in capsys.readouterr().err
