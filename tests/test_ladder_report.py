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


def test_the_librarys_products_are_shown_by_their_faster_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rate(product: str, library: str, readings_ms: list[float]) -> dict[str, object]:
        return {
            "tokens": 128, "product": product, "library": library, "floor_ms": 1.0, "flops": 2e12,
            "readings_ms": readings_ms, "sm_clock_mhz": 1755.0, "power_max_w": 690.4,
        }  # fmt: skip

    rates = [rate("d", "cublas", [4.0, 9.0, 3.0]), rate("d", "cublaslt", [2.0]), rate("grad_x", "cublas", [8.0])]
    file = tmp_path / "found.json"
    file.write_text(json.dumps({"device": "some GPU", "torch_version": "2.11", "rates": rates}))
    document = tmp_path / "kernels.md"
    document.write_text("<!-- library -->\n<!-- end of library -->\n")
    report("library", str(file), "--write", str(document))
    text = document.read_text()
    assert text.partition("<!-- library -->\n\n")[2].partition("\n<!--")[0] in capsys.readouterr().out
    assert cells(text, "d") == ["2.00 ms, 2.00x, 1000 Lt"]
    assert cells(text, "grad\\_x") == ["8.00 ms, 8.00x, 250"]
    assert cells(text, "clock and power in a row") == ["1755 MHz, 690 W"]


@pytest.mark.parametrize("content", [None, "", "[]", '{"rates": [{}]}', '{"rates": [1]}'])
def test_figures_without_rates_are_bad_input(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        report("library", str(file))
    assert ended.value.code == 2
    assert "holds no rates" in capsys.readouterr().err


def test_the_librarys_products_are_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report("library", "one.json", "two.json")
    assert ended.value.code == 2
    assert "is given 2 files" in capsys.readouterr().err
