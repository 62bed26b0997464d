"""What the comparison of timing backends makes of its readings; that they agree shows on a GPU only."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, module_of


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return module_of(REPOSITORY / "benchmarks" / "backend_agreement.py")


NCU_HEAD = """\
==PROF== Connected to process 7 (/usr/bin/python3)
==PROF== Profiling "stream_through": 0%....50%....100% - 1 pass
==PROF== Disconnected from process 7
"ID","Process ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"
"""


def ncu_output(times: list[str], unit: str = "ns", clock: tuple[str, str] = ("1,980,000,000", "hz")) -> str:
    rows = []
    for i, value in enumerate(times):
        launch = f'"{i}","7","stream_through","(128, 1, 1)","(1056, 1, 1)"'
        rows.append(f'{launch},"gpc__cycles_elapsed.avg.per_second","{clock[1]}","{clock[0]}"')
        rows.append(f'{launch},"gpu__time_duration.sum","{unit}","{value}"')
    return NCU_HEAD + "\n".join(rows) + "\n"


def test_ncus_table_is_read_as_the_median_of_each_loads_launches(benchmark: Any) -> None:
    times = ["4,512", "5000", "4000", "4,600", "4,511"] * (len(benchmark.LOADS) - 1)
    times += ["100,000,000", "99,000,000", "101,000,000", "102,000,000", "98,000,000"]
    read = benchmark.of_ncu(ncu_output(times))
    assert read.times_ms == pytest.approx([0.004512] * (len(benchmark.LOADS) - 1) + [100.0])
    assert read.clock_mhz == pytest.approx((1980, 1980))
    read = benchmark.of_ncu(ncu_output(["4.512"] * len(times), "usecond", ("1.75", "Ghz")))
    assert (read.times_ms[0], read.clock_mhz[0]) == (pytest.approx(0.004512), pytest.approx(1750))


UNREADABLE = {
    "no right": ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
    "nothing": ("", "no table"),
    "too few": (ncu_output(["1"]), "1 times and 1 clocks"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_ncu_does_not_tell_is_said(kind: str, benchmark: Any) -> None:
    output, part = UNREADABLE[kind]
    with pytest.raises(ValueError, match=part):
        benchmark.of_ncu(output)


def test_a_missing_or_slow_ncu_is_a_reason(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ncu"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(benchmark, "NCU_LIMIT_S", 0.2)
    monkeypatch.setattr(benchmark.shutil, "which", lambda _: str(program))
    assert benchmark.by_ncu() == (None, "ncu took longer than 0.2 s")
    program.write_text("#!/bin/sh\necho '==ERROR== nothing there'; exit 3\n")
    monkeypatch.setattr(benchmark, "NCU_LIMIT_S", 30)
    assert benchmark.by_ncu() == (None, "ncu does not measure: ==ERROR== nothing there (exit code 3)")
    monkeypatch.setattr(benchmark.shutil, "which", lambda _: None)
    monkeypatch.setattr(benchmark.Path, "glob", lambda *_: iter(()))
    assert benchmark.by_ncu() == (None, "ncu is not installed")


@pytest.mark.parametrize(
    ("ms", "reference_ms", "agreed"),
    [(0.0059, 0.005, True), (0.0061, 0.005, False), (103.0, 100.0, True), (96.9, 100.0, False), (0.0305, 0.03, True)],
)
def test_agreement_is_a_share_or_a_microsecond(ms: float, reference_ms: float, agreed: bool, benchmark: Any) -> None:
    assert benchmark.agrees(ms, reference_ms) is agreed


def found(benchmark: Any, ncu: bool) -> Any:
    times = [0.005 * 4**i for i in range(len(benchmark.LOADS))]
    rows = [{"cupti": t, "queued": t + 0.003, benchmark.LESS_FLOOR: t + 0.0005, "events": t + 0.01} for t in times]
    floors = {"queued": 0.0025, "events": None}
    told = benchmark.Ncu(times, (1755.2, 1980.0)) if ncu else None
    return benchmark.joined(rows, floors, told, [] if ncu else ["ncu (ncu is not installed)"])


@pytest.mark.parametrize("ncu", [True, False])
def test_the_table_says_who_agrees_and_what_is_missing(ncu: bool, benchmark: Any, tmp_path: Path) -> None:
    agreement = found(benchmark, ncu)
    assert agreement.reference == ("ncu" if ncu else "cupti")
    text = benchmark.markdown(agreement)
    assert "queued in 4 of 7, queued less its floor in 7 of 7, events in 3 of 7" in text
    assert ("cupti in 7 of 7" in text) is ncu
    assert ("The clock under ncu was 1755 to 1980 MHz." in text) is ncu
    assert "reads: queued 2.50 µs." in text
    assert "| 2 × 8 MiB | 5.00 µs |" in text
    assert "8.00 µs (+60.0%) ≠" in text
    assert ("Missing: ncu (ncu is not installed)." in text) is not ncu
    assert benchmark.markdown(benchmark.Agreement(**json.loads(json.dumps(asdict(agreement))))) == text
    benchmark.draw(agreement, tmp_path / "agreement.svg")
    assert "</svg>" in (tmp_path / "agreement.svg").read_text()


def test_without_ncu_and_cupti_there_is_nothing_to_compare_with(benchmark: Any) -> None:
    with pytest.raises(ValueError, match="no CUPTI"):
        benchmark.joined([{"queued": 1.0, "events": 1.0}], {}, None, ["no CUPTI", "no ncu"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_the_kernel_streams_through_its_whole_buffer(benchmark: Any) -> None:
    source, target = torch.arange(5_000, dtype=torch.float32), torch.zeros(5_000)
    benchmark.stream_through[(2,)](source, target, 5_000, 3, BLOCK=512)
    assert torch.equal(target, source + 1)


def test_the_document_has_the_marks(benchmark: Any) -> None:
    text = (REPOSITORY / "docs" / "measuring.md").read_text()
    assert "<!-- agreement -->" in text
    assert "<!-- end of agreement -->" in text
