"""Measured rooflines: what is timed, what is written, and how it stands beside a datasheet's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import made_record, solbench
from typer.testing import CliRunner

import cli
from harness import calibrate, gpu_state, machine, measured, rooflines, sol, store
from harness.calibrate import Calibration, Copy, HostClock, Plan, Product, Read
from harness.catalog import Catalog
from harness.errors import InputError
from harness.figures import Figures, Reader
from harness.measured import MeasuredModel
from harness.records import Record, Status

CPU = machine.target("cpu")
NOTHING = gpu_state.of_device(CPU.device)
SMALL = Plan(
    products=(Product(32, 16, 8), Product(32, 16, 8, torch.float32), Product(16, 8, 32, transposed=True)),
    transfers=(Copy(1 << 16), Read(1 << 16)),
    warm_up_s=0.0,
    product_s=0.01,
    transfer_s=0.01,
    window_s=0.0,
    sustained=False,
)


class MadeUpClock:
    """Two windows for every load: twice its first window is its second. `seconds` are of the loads in order."""

    def __init__(self, *seconds: float) -> None:
        self.left, self.asked = list(seconds), list[float]()

    def windows(self, call: Callable[[], Any], seconds: float, window_s: float) -> list[float]:
        self.asked.append(seconds)
        if seconds == 0.0:  # warming up
            return [1e9]
        call()
        first = self.left.pop(0)
        return [first, 2 * first, 2 * first]


# --- what is measured -------------------------------------------------------------------------------


def test_rates_are_work_over_time_kept_up_and_at_best() -> None:
    clock = MadeUpClock(1e-6, 2e-6, 4e-6, 1e-3, 1e-3)
    products, transfers = Calibration(CPU, SMALL, clock, NOTHING).rates()
    flops, nbytes = 2 * 32 * 16 * 8, 1 << 16
    assert [(r.best_per_s, r.sustained_per_s) for r in products] == [
        (pytest.approx(flops / t, rel=1e-5), pytest.approx(flops / (2 * t), rel=1e-5)) for t in (1e-6, 2e-6, 4e-6)
    ]
    assert [r.best_per_s for r in transfers] == [
        pytest.approx(2 * nbytes / 1e-3, rel=1e-5),
        pytest.approx(nbytes / 1e-3),
    ]
    assert [r.what for r in products] == [
        "bf16 product 32 x 16 x 8",
        "float32 product 32 x 16 x 8",
        "bf16 product 16 x 8 x 32, first factor transposed",
    ]
    assert transfers[0].what == "copy of 0 MiB, bytes read and written"
    assert clock.asked == [0.0, 0.01] * 5


@pytest.mark.parametrize("sustained", [True, False])
def test_the_roofline_is_the_fastest_load_kept_up_or_at_best(sustained: bool) -> None:
    plan = replace(SMALL, sustained=sustained)
    calibration = Calibration(CPU, plan, MadeUpClock(3e-6, 1e-6, 2e-6, 1e-3, 1e-3), NOTHING)
    products, transfers = calibration.rates()
    found = calibration.roofline(products, transfers, "made up")
    assert found.bf16_dense_flops == (products[1].sustained_per_s if sustained else products[1].best_per_s)
    assert found.bandwidth_bytes_per_s == (transfers[0].sustained_per_s if sustained else transfers[0].best_per_s)
    for part in ("made up", products[1].what, transfers[0].what, "kept up" if sustained else "reached"):
        assert part in found.source


def test_a_product_that_would_take_too_long_is_left_out_and_the_first_never() -> None:
    plan = replace(SMALL, products=(Product(32, 16, 8), Product(320, 16, 8), Product(3200, 16, 8)))
    products, _ = Calibration(CPU, plan, MadeUpClock(1e-3, 1e-3, 1e-3, 1e-3), NOTHING).rates()
    assert [r.what for r in products] == ["bf16 product 32 x 16 x 8"]


def test_loads_shrink_to_the_memory_and_where_there_is_none_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(SMALL, transfers=(Copy(64 << 20), Read(64 << 20), Read(32 << 20)))
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: (64 << 20) / calibrate.MEMORY_SHARE)
    _, transfers = Calibration(CPU, large, MadeUpClock(*[1e-3] * 6), NOTHING).rates()
    assert [r.what for r in transfers] == [
        "copy of 32 MiB, bytes read and written",
        "sum over 64 MiB, bytes read",
        "sum over 32 MiB, bytes read",
    ]
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 100)
    with pytest.raises(InputError, match="has room for 0 MiB"):
        Calibration(CPU, large, MadeUpClock(), NOTHING).rates()


def test_products_multiply_what_they_say() -> None:
    for product in SMALL.products:
        assert product.prepared(CPU.device)().shape == (product.m, product.n)
    call = Copy(1 << 10).prepared(CPU.device)
    assert call().numel() == 256
    assert Read(1 << 10).prepared(CPU.device)().ndim == 0
    assert calibrate._random(128 << 20, CPU.device).std() == pytest.approx(1, abs=0.01)


def test_a_window_holds_as_many_calls_as_fill_it() -> None:
    calls = []
    found = HostClock().windows(lambda: calls.append(1), 0.02, 0.005)
    assert len(calls) > 50 * len(found)
    assert all(0 < seconds < 1e-3 for seconds in found)
    assert len(HostClock().windows(lambda: None, 0.0, 0.005)) == 1


class MadeUpEvent:
    """Device time goes on by 1 ms for each call, however the host's goes."""

    calls = 0
    outstanding, most_outstanding = 0, 0

    def __init__(self) -> None:
        self.at_ms = float(MadeUpEvent.calls)
        MadeUpEvent.outstanding += 1
        MadeUpEvent.most_outstanding = max(MadeUpEvent.most_outstanding, MadeUpEvent.outstanding)

    def synchronize(self) -> None:
        MadeUpEvent.outstanding = 0

    def elapsed_time(self, later: MadeUpEvent) -> float:
        return later.at_ms - self.at_ms


def test_events_bound_windows_of_the_device_and_the_queue_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate.EventClock, "_event", staticmethod(MadeUpEvent))

    def call() -> None:
        MadeUpEvent.calls += 1

    found = calibrate.EventClock().windows(call, 0.01, 0.05)
    assert len(found) > 3
    assert found == pytest.approx([1e-3] * len(found))
    assert MadeUpEvent.calls == 2 + 50 * len(found)
    assert MadeUpEvent.most_outstanding <= 3
    assert len(calibrate.EventClock().windows(call, 0.0, 0.05)) == 1


def test_a_real_calibration_of_this_processor_scaled_small() -> None:
    found = calibrate.calibrate(CPU, SMALL)
    assert (found.device, found.kind, found.sm_count) == (CPU.name, "cpu", None)
    assert found.conditions.threads == torch.get_num_threads()
    assert 1e6 < found.roofline.bf16_dense_flops < 1e15
    assert 1e6 < found.roofline.bandwidth_bytes_per_s < 1e14
    assert found.warnings == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_calibration_of_a_gpu_is_below_the_datasheet_and_takes_half_a_minute_at_most() -> None:
    import time

    target = machine.target("cuda")
    started = time.monotonic()
    found = calibrate.calibrate(target)
    assert time.monotonic() - started < 30
    assert found.device == target.name
    assert all(rate.sustained_per_s <= rate.best_per_s for rate in [*found.products, *found.transfers])
    described = {d.name: d for d in Catalog().devices().values() if d.answers_to(target.name)}
    for device in described.values():
        if "datasheet" in device.rooflines:
            sheet = device.rooflines["datasheet"]
            assert 0.5 < found.roofline.bf16_dense_flops / sheet.bf16_dense_flops < 1.1
            assert 0.5 < found.roofline.bandwidth_bytes_per_s / sheet.bandwidth_bytes_per_s < 1


# --- the file ---------------------------------------------------------------------------------------


def h200(**changes: Any) -> MeasuredModel:
    rate = {
        "what": "bf16 product 8192 x 8192 x 8192",
        "sustained_per_s": 7.7e14,
        "best_per_s": 8.123456e14,
        "windows": 40,
    }
    state = {"sm_clock_mhz": 1500, "power_max_w": 700.25, "temperature_max_c": 60, "throttle": {"sw_power_cap": 0.95}}
    values: dict[str, Any] = {
        "schema": 1,
        "device": "NVIDIA H200",
        "kind": "cuda",
        "time": "2026-12-01T10:00:00+00:00",
        "compute_capability": "9.0",
        "sm_count": 132,
        "conditions": {
            "solbench": "0.1.0",
            "torch": "2.11.0+cu130",
            "cuda": "13.0",
            "driver": "580.10",
            "threads": None,
        },
        "roofline": {
            "bf16_dense_flops": 7.7e14,
            "bandwidth_bytes_per_s": 4.3e12,
            "source": "solbench calibrate: a sentence that is long enough to be folded over two lines, with a colon",
        },
        "products": [rate | state],
        "transfers": [{**rate, "what": "copy", "sustained_per_s": 4.3e12, "best_per_s": 4.4e12, "throttle": {}}],
    }
    return MeasuredModel.model_validate(values | changes)


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.yaml"
    measured.prepare(path)
    measured.write(path, h200())
    assert measured.read(path) == h200()
    assert path.read_text().startswith("# Written by solbench calibrate")
    assert list(path.parent.iterdir()) == [path]


def test_faults_in_the_file_name_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    measured.write(path, h200())
    path.write_text(path.read_text().replace("bandwidth_bytes_per_s: 4300000000000.0", "bandwidth_bytes_per_s: fast"))
    with pytest.raises(InputError, match=r'x\.yaml:\d+: roofline\.bandwidth_bytes_per_s: "fast" is not a number'):
        measured.read(path)


@pytest.mark.parametrize("where", ["folder", "file/x.yaml"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        measured.prepare(tmp_path / where)


def test_a_slowed_or_shared_gpu_is_a_warning() -> None:
    hot = h200().products[0].model_copy(update={"throttle": {"hw_thermal": 0.5, "sw_power_cap": 1.0}})
    conditions = h200().conditions.model_copy(update={"other_processes": 2})
    found = h200().model_copy(update={"products": [hot], "conditions": conditions}).warnings
    assert found == [
        "2 other processes were on the GPU",
        "the GPU was slowed down (hw_thermal) in bf16 product 8192 x 8192 x 8192",
    ]
    assert h200().warnings == []


# --- beside the datasheet ---------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root where an H200 and a GPU that no file describes were measured."""
    for name, model in (("nvidia_h200", h200()), ("unheard_of", h200(device="Unheard Of"))):
        path = tmp_path / "configs" / "measured" / f"{name}.yaml"
        measured.prepare(path)
        measured.write(path, model)
    return tmp_path


def test_measured_peaks_join_those_of_the_device_file(root: Path) -> None:
    device = Catalog(root).device("nvidia_h200")
    assert device.default_roofline == "datasheet"
    assert device.roofline().peak_flops == 9.894e14
    assert device.roofline("measured").peak_flops == 7.7e14
    assert Catalog(root).measured_path("NVIDIA H200") == root / "configs" / "measured" / "nvidia_h200.yaml"


def test_a_gpu_without_a_device_file_has_its_measured_peaks(root: Path) -> None:
    device = Catalog(root).device("Unheard Of")
    assert device.roofline() == device.roofline("measured")
    assert (device.name, device.compute_capability) == ("Unheard Of", "9.0")
    assert Catalog(root).measured_path("Never Seen: 3") == root / "configs" / "measured" / "never_seen_3.yaml"


def test_the_nearest_measurement_of_a_device_counts(root: Path) -> None:
    path = root / "configs" / "measured" / "aaa.yaml"
    measured.write(path, h200(roofline={**h200().roofline.model_dump(), "bf16_dense_flops": 1e14}))
    assert Catalog(root).device("nvidia_h200").roofline("measured").peak_flops == 1e14


def h200_records() -> list[Record]:
    """Two cases of the MoE workload on an H200, one limited by memory and one by compute, and one that failed."""
    sheet = Catalog().device("nvidia_h200").roofline()
    records = []
    for case, flops, nbytes, latency_ms in (("t1", 18874368, 18894336, 0.05), ("t8192", 154618822656, 182452224, 0.25)):
        bound = sol.bound(flops, nbytes, sheet)
        grade = sol.grade(latency_ms, bound.ms, 0.3)
        work = {"flops": flops, "bytes_moved": nbytes, "bound_ms": bound.ms, "limit": bound.limit}
        compared = {"baseline_ms": 0.3, "score": grade.score, "roofline": grade.roofline, "reason": None}
        found = {**work, **compared, "peak": vars(sheet)}
        timings = {"queued": {"samples_ms": [latency_ms]}}
        records.append(
            made_record(
                case=case, device="NVIDIA H200", latency_ms=latency_ms, backend="queued", timings=timings, sol=found
            )
        )
    failed = {"status": Status.TIMEOUT, "reason": "late", "latency_ms": None, "backend": None, "timings": {}}
    return [*records, made_record(case="t2", device="NVIDIA H200", **failed)]


@pytest.fixture
def figures() -> list[Figures]:
    return list(map(Reader().of_record, h200_records()))


def test_figures_move_to_other_peaks_and_back(root: Path, figures: list[Figures]) -> None:
    catalog = Catalog(root)
    moved = rooflines.against(figures, "measured", catalog)
    for before, after in zip(figures[:2], moved[:2], strict=True):
        assert before.flops is not None
        assert before.bytes_moved is not None
        assert after.bound_ms == pytest.approx(max(before.flops / 7.7e14, before.bytes_moved / 4.3e12) * 1e3)
        assert (after.latency_ms, after.kernel, after.case) == (before.latency_ms, before.kernel, before.case)
        assert after.roofline == pytest.approx((after.bound_ms or 0) / (after.latency_ms or 1))
        assert after.sol_score is not None
        assert after.peak is not None
        assert after.peak.label == "measured"
    assert [r.limit for r in moved] == ["memory", "compute", None]
    assert moved[2] == figures[2]
    assert rooflines.against(moved, "datasheet", catalog) == figures


def test_peaks_that_nobody_knows_are_one_sentence_and_a_records_own_stay(root: Path, figures: list[Figures]) -> None:
    with pytest.raises(InputError, match=r'did you mean "measured"\? \(solbench calibrate makes measured\)'):
        rooflines.against(figures, "measurd", Catalog(root))
    one = figures[0]
    assert one.peak is not None
    own = replace_figures(one, device="Another", peak=one.peak._replace(label="calibrated"))
    assert rooflines.against([own], "calibrated", Catalog(root)) == [own]
    with pytest.raises(InputError, match="no such peaks are known of Another; measure them: solbench calibrate"):
        rooflines.against([own], "measured", Catalog(root))


def replace_figures(figures: Figures, **changes: Any) -> Figures:
    import msgspec

    return msgspec.structs.replace(figures, **changes)


# --- the commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_writes_the_file_and_shows_it(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "CPU", SMALL)
    done = CliRunner().invoke(cli.app, ["calibrate", "-d", "cpu", *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "configs" / "measured").iterdir()
    found = measured.read(path)
    assert found.device == CPU.name
    if as_json:
        assert MeasuredModel.model_validate(json.loads(done.stdout)) == found
    else:
        assert "bf16 product 32 x 16 x 8" in done.stdout
    assert "--roofline measured" in " ".join(done.stderr.split())
    assert Catalog().device(CPU.name).roofline("measured").peak_flops == found.roofline.bf16_dense_flops


def test_sol_run_and_report_take_the_measured_peaks(root: Path, toy_root: Path) -> None:
    rows = solbench("sol", "moe", "-d", "nvidia_h200", "--roofline", "measured", "--json", cwd=root).stdout
    first = json.loads(rows.splitlines()[0])
    assert first["bound_ms"] == pytest.approx(first["bytes_moved"] / 4.3e12 * 1e3)
    file = "h200.jsonl"
    for record in h200_records():
        store.append(root / file, record)
    shown = solbench("report", file, "--roofline", "measured", "-f", "json", cwd=root)
    assert json.loads(shown.stdout.splitlines()[0])["bound_ms"] == pytest.approx(first["bound_ms"])
    assert (
        "measured peaks of NVIDIA H200: 770 TFLOP/s"
        in solbench("report", file, "--roofline", "measured", cwd=root).stdout
    )

    (toy_root / "k.py").write_text("def run(a, b, bias):\n    p = a @ b\n    return p, p + bias\n")
    arguments = ["run", "toy", "-k", "k.py", "-c", "r3", "-p", "quick", "-d", "cpu", "--json", "-o", "r.jsonl"]
    unknown = solbench(*arguments, "--roofline", "measured", cwd=toy_root)
    assert unknown.returncode == 2
    assert "no such peaks are known" in unknown.stderr
    assert not (toy_root / "r.jsonl").exists()
    path = Catalog(toy_root).measured_path(CPU.name)
    measured.prepare(path)
    measured.write(path, h200(device=CPU.name, kind="cpu"))
    done = solbench(*arguments, "--roofline", "measured", cwd=toy_root)
    assert "Calibrating" not in done.stderr
    assert json.loads(done.stdout)["sol"]["peak"]["label"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["calibrate", "-d", "cuds"], ['no device "cuds"', 'did you mean "cuda"']),
        (["calibrate", "-d", "cpu", "-o", "."], ["--output .", "cannot be written (is a folder)"]),
        (["run", "toy", "-d", "cpu", "--lock-clocks", "1410"], ["the device is the CPU", "-d cuda"]),
        (["report", "none.jsonl", "--roofline", "measured"], ["cannot be read"]),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], parts: list[str], toy_root: Path) -> None:
    (toy_root / "kernels" / "toy").mkdir(parents=True)
    (toy_root / "kernels" / "toy" / "k.py").write_text("def run(a, b, bias): ...\n")
    done = solbench(*arguments, cwd=toy_root)
    assert done.returncode == 2
    for part in parts:
        assert part in " ".join(done.stderr.split())
