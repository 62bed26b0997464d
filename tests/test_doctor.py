"""What `solbench doctor` finds and says, also where something is missing."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, solbench
from rich.console import Console
from test_gpu_state import HW_THERMAL, UUID, FakeNvml, Gpu
from test_gpu_state import gpu as seen

from harness import doctor, doctor_report, driver, gpu_state, machine
from harness.doctor import Examination, Part, Peaks, Problem, Rates, Run
from harness.errors import InputError


def facts(nvml: FakeNvml, **changes: Any) -> dict[str, Any]:
    """A made-up GPU as the examination holds it."""
    gpu = seen(nvml)
    sizes = {"sm_count": 132, "l2_bytes": 60 << 20, "compute_capability": "9.0"}
    memory = {"memory_bytes": gpu.memory_bytes, "free_memory_bytes": gpu.free_memory_bytes}
    names = {"device": "cuda:0", "name": "NVIDIA H200"}
    return {**names, **memory, **sizes, **machine.gpu_now(gpu), "processes": doctor._processes(gpu), **changes}


QUIET = {"compute_mode": "default", "processes": [], "other_processes": 0}

# what is wrong: (a change to a GPU in order, what is said, whether no run is possible)
STATES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "forbidden": ({"compute_mode": "prohibited"}, "forbids its use", True),
    "one process": ({"compute_mode": "exclusive_process"}, "lets only one process in", True),
    "shared": (
        {"processes": [{"pid": 7, "name": "train", "used_memory_bytes": 3 << 30}]},
        "train 7 with 3.0 GiB",
        False,
    ),
    "hot": ({"throttle": ["hw_thermal", "sw_power_cap"]}, "slowed down now (hw_thermal)", False),
    "sliced": ({"mig_mode": True}, "MIG is on", False),
    "not persistent": ({"persistence_mode": False}, "persistence mode is off", False),
    "not watched": ({"reason": "NVML does not start"}, "not watched: NVML does not start", False),
}


@pytest.mark.parametrize("kind", STATES)
def test_what_is_wrong_with_a_gpu_is_said_with_a_remedy(kind: str) -> None:
    change, part, stops = STATES[kind]
    (problem,) = doctor.of_state(facts(FakeNvml(), **QUIET) | change)
    assert part in problem.text
    assert problem.remedy
    assert problem.stops is stops


def test_nothing_is_wrong_with_a_gpu_in_order_at_its_power_limit() -> None:
    assert list(doctor.of_state(facts(FakeNvml(), **QUIET) | {"throttle": ["sw_power_cap"]})) == []
    nothing_known = dict.fromkeys(facts(FakeNvml()))
    assert list(doctor.of_state(nothing_known)) == []


# capability of the GPU, what the PyTorch build has code for, whether it fits
BUILDS = [
    ("9.0", ["sm_80", "sm_90"], True),
    ("8.9", ["sm_80", "sm_90"], True),
    ("7.0", ["sm_75", "sm_90"], False),
    ("12.0", ["sm_90", "compute_90"], True),
    ("10.3", ["sm_90", "sm_100a"], True),
    ("12.0", ["sm_100"], False),
    ("9.0", [], True),  # it does not say
]


@pytest.mark.parametrize(("capability", "codes", "fits"), BUILDS)
def test_a_pytorch_without_code_for_the_gpu_is_told(
    capability: str, codes: list[str], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "version", lambda _: "3.6")
    build = SimpleNamespace(cuda=SimpleNamespace(get_arch_list=lambda: codes))
    assert [p.stops for p in doctor._of_build(build, {"compute_capability": capability})] == ([] if fits else [True])


def test_a_gpu_that_pytorch_cannot_use_is_found_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_state, "all_gpus", lambda: ([seen(FakeNvml())], None))
    for cuda, part in ((None, "is a CPU build"), ("13.0", "made for CUDA 13.0, cannot use it")):
        build = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(cuda=cuda))
        (problem,) = doctor._unused_gpu(build, "auto")
        assert f"Made Up is here, and this PyTorch{', ' if cuda else ' '}{part}" in problem.text
        assert list(doctor._unused_gpu(build, "cpu")) == []
    (gpu,) = doctor._gpus(None)
    assert (gpu["device"], gpu["name"], gpu["sm_clock_mhz"]) == (None, "Made Up", 1755)


def test_the_examination_of_a_gpu_says_what_a_run_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeMode", lambda _: 0)
    properties = SimpleNamespace(
        total_memory=80 << 30, multi_processor_count=132, L2_cache_size=60 << 20, major=9, minor=0, uuid=UUID
    )
    for name, value in (
        ("is_available", True),
        ("device_count", 1),
        ("get_device_name", "NVIDIA H200"),
        ("get_device_properties", properties),
        ("get_arch_list", ["sm_90"]),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(gpu_state, "of_device", lambda _: seen(nvml))
    monkeypatch.setattr(driver, "has", lambda _: True)
    found = doctor.examine("auto")
    assert found.possible, found.problems
    assert found.run is not None
    assert (found.run.device, found.run.protocol) == ("cuda:0", "queued")
    assert [part.scale for part in found.run.parts] == [1, 1]
    assert found.run.peaks is not None
    assert found.run.peaks.file == "configs/devices/nvidia_h200.yaml"
    assert found.run.default_peaks == "datasheet"
    assert [ability.name for ability in found.backends if ability.there][:1] == ["queued"]
    assert [problem.text.partition(":")[0] for problem in found.problems] == ["others use the GPU"]
    assert "cuda:0: NVIDIA H200" in shown(found, 80)
    # An old driver lacks something, and a run is possible all the same.
    monkeypatch.setattr(driver, "has", lambda name: name != "cuCtxWaitEvent")
    old = doctor.examine("auto")
    assert old.possible
    assert any("cannot time all streams" in problem.text and "CUDA 12.5" in problem.remedy for problem in old.problems)
    # A card that no file describes can be measured.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Unheard Of")
    nameless = doctor.examine("auto")
    assert nameless.possible
    assert any("solbench calibrate" in problem.remedy for problem in nameless.problems)


def test_the_examination_of_a_cpu_says_what_a_run_would_do() -> None:
    found = doctor.examine("cpu")
    assert found.possible
    assert found.run is not None
    assert (found.run.device, found.run.protocol, found.run.suite) == ("cpu", "host", "main")
    assert [(part.cases, part.scale) for part in found.run.parts] == [(16, 1), (18, 64)]
    assert found.run.records == sum(part.cases * len(part.kernels) for part in found.run.parts)
    assert any("fused_pointwise: it runs on cuda" in text for text in found.run.skipped)
    assert [ability.there for ability in found.backends] == [False, False, False, True] or torch.cuda.is_available()
    assert found.protections


def test_a_disk_that_is_nearly_full_and_one_that_is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=500 << 20))
    monkeypatch.setattr("os.access", lambda *_: False)
    first, *full = doctor._disk()
    assert first.stops
    assert "-o FILE" in first.remedy
    assert [problem.text.startswith("500.0 MiB are left") for problem in full] == [True, True]
    assert not any(problem.stops for problem in full)


def test_another_system_stops_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert any(problem.stops and "Darwin" in problem.text for problem in doctor.examine("cpu").problems)


def test_a_name_of_no_device_is_bad_input_and_a_missing_device_is_a_finding() -> None:
    with pytest.raises(InputError, match='there is no device "cuds"; did you mean "cuda"'):
        doctor.examine("cuds")
    found = doctor.examine("cuda:77")
    assert not found.possible
    assert found.run is None
    assert [problem.stops for problem in found.problems][:1] == [True]


# --- how it looks -----------------------------------------------------------------------------------


def shown(found: Examination, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(*doctor_report.terminal(found), sep="\n", markup=False)
    return capture.get()


@pytest.fixture
def on_a_gpu() -> Examination:
    nvml = FakeNvml()
    nvml.last_bits = HW_THERMAL
    gpu = facts(nvml)
    here = doctor.examine("cpu")
    peaks = Peaks("configs/devices/nvidia_h200.yaml", "datasheet", {"datasheet": Rates(989.4, 4800.0)})
    parts = [Part("dense_swiglu_backward", ["eager"], 18, 1)]
    run = Run("cuda:0", "NVIDIA H200", "queued", "main", parts, peaks, ["b64-s128: 90.0 GiB are needed, 79.0 GiB free"])
    problems = [Problem("a small thing", "see to it"), *doctor.of_state(gpu)]
    return Examination(here.machine, [gpu], here.backends, here.protections, here.packages, run, problems)


@pytest.mark.parametrize("width", [80, 120])
def test_an_examination_fits_the_terminal_and_names_what_it_found(width: int, on_a_gpu: Examination) -> None:
    text = shown(on_a_gpu, width)
    assert all(len(line) <= width for line in text.splitlines())
    plain = re.sub(r"\s+", " ", text)
    for part in (
        "cuda:0: NVIDIA H200",
        "memory 80.0 GiB, 79.0 GiB free",
        "SM clock 1755 MHz of at most 1980 MHz",
        "power 698 W of at most 700 W",
        "clocks held back by hw_thermal",
        "persistence, MIG, ECC on, off, on",
        "compute mode exclusive process",
        "other processes 2",
        "--roofline datasheet 989.4 TFLOP/s, 4800 GB/s, the default",
        "suite main, about 18 records",
        "would be skipped b64-s128",
        "others use the GPU: program77 77 with 5.0 GiB, program78 78; wait for them",
        "solbench run is not possible here.",
    ):
        assert part in plain
    # What stops a run comes first.
    assert plain.index("lets only one process in") < plain.index("a small thing")


def test_a_gpu_of_which_nothing_is_known_is_shown_as_such(on_a_gpu: Examination) -> None:
    unread = Gpu(None, None, "missing")
    gpu = {**machine.gpu_now(unread), "device": None, "name": None, "memory_bytes": None, "free_memory_bytes": None}
    found = Examination(on_a_gpu.machine, [{**gpu, "processes": None}], [], [], [], None, [])
    plain = re.sub(r"\s+", " ", shown(found, 80))
    assert "GPU, not usable by PyTorch: unknown memory – driver – SM clock –" in plain


# --- the command ------------------------------------------------------------------------------------


def test_the_command_prints_json_for_programs(tmp_path: Path) -> None:
    done = solbench("doctor", "-d", "cpu", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["possible"] is True
    assert found["machine"]["torch"] == str(torch.__version__)
    assert found["run"]["records"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_fails_where_no_run_is_possible(tmp_path: Path) -> None:
    done = solbench("doctor", "-d", "cuda:77", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "solbench run is not possible here." in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert solbench("doctor", "-d", "cuds", cwd=tmp_path).returncode == 2


def test_without_pytorch_the_rest_is_shown(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['solbench', 'doctor']; import cli; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 1, done.stderr
    assert "PyTorch is not installed; pip install torch" in " ".join(done.stdout.split())
    for part in ("processor", "protections of the worker", "needs PyTorch", "optional packages"):
        assert part in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_gpu_is_examined() -> None:
    found = doctor.examine("cuda")
    assert found.run is not None
    assert found.run.protocol == "queued"
    assert found.gpus[0]["name"] == found.run.name
    assert found.gpus[0]["memory_bytes"] > 1 << 30
    assert shown(found, 80)


def test_a_uuid_is_what_finds_the_gpu() -> None:
    # Numbers would not: CUDA_VISIBLE_DEVICES renumbers.
    assert gpu_state.of_uuid(f"GPU-{UUID}", FakeNvml()).problem is None
