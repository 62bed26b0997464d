"""The GPU's state, on an NVML that is made up here: what is read, what is missing, and a clock that is set back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import REPOSITORY
from rich.console import Console

from harness import gpu_state, machine
from harness.errors import InputError
from harness.gpu_state import Facts, Gpu, Monitor, Process, Sample, locked_clocks, summarise
from harness.preparation import Prepared

UUID = "11111111-2222-3333-4444-555555555555"
IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml:
    """One GPU of one whole card, or a slice of it. `broken` names functions that fail; `calls` is what was set."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(self, *broken: str, mig: bool = False) -> None:
        self.broken, self.mig = set(broken), mig
        self.bits: Iterator[int] = iter(())
        self.last_bits = 0
        self.calls: list[tuple[Any, ...]] = []
        self.state = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):
            return self._fail
        return object.__getattribute__(self, name)

    @staticmethod
    def _fail(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid == f"{'MIG' if self.mig else 'GPU'}-{UUID}":
            return "slice" if self.mig else "card"
        raise NVMLError("Not Found")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:  # noqa: N802
        assert handle == "slice"
        return "card"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return ["card"][index]

    def nvmlDeviceGetName(self, _: str) -> str:  # noqa: N802
        return "Made Up"

    def nvmlDeviceGetMemoryInfo(self, _: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=80 << 30, free=79 << 30)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        assert handle == "card"
        return {1: 1755, 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, _: str, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:  # noqa: N802
        return 698_500

    def nvmlDeviceGetTemperature(self, _: str, __: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: str) -> int:  # noqa: N802
        self.last_bits = next(self.bits, self.last_bits)
        return self.last_bits

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons  # noqa: N815

    def nvmlDeviceGetPerformanceState(self, _: str) -> int:  # noqa: N802
        return self.state

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetPowerManagementLimit(self, _: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetPersistenceMode(self, _: str) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetMigMode(self, _: str) -> list[int]:  # noqa: N802
        return [int(self.mig), 0]

    def nvmlDeviceGetEccMode(self, _: str) -> list[int]:  # noqa: N802
        return [1, 0]

    def nvmlDeviceGetComputeMode(self, _: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1), SimpleNamespace(pid=77, usedGpuMemory=5 << 30)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=78, usedGpuMemory=None)]

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        return f"/somewhere/program{pid} --with arguments"

    def nvmlDeviceGetSupportedGraphicsClocks(self, _: str, memory_mhz: int) -> list[int]:  # noqa: N802
        assert memory_mhz == 3201
        return [1980, 1965, 1410, 345]

    def nvmlDeviceSetGpuLockedClocks(self, _: str, low: int, high: int) -> None:  # noqa: N802
        self.calls.append(("lock", low, high))

    def nvmlDeviceResetGpuLockedClocks(self, _: str) -> None:  # noqa: N802
        self.calls.append(("unlock",))


def gpu(nvml: FakeNvml) -> Gpu:
    found = gpu_state.of_uuid(UUID, nvml)
    assert found.problem is None
    return found


# --- one reading ------------------------------------------------------------------------------------


def test_a_reading_has_units_and_names() -> None:
    nvml = FakeNvml()
    nvml.last_bits = POWER_CAP | SW_THERMAL | 0x4000
    before = time.monotonic()
    found = gpu(nvml).sample()
    assert before <= found.at_s <= time.monotonic()
    assert found == Sample(found.at_s, 1755, 3201, 698.5, 61, ("sw_power_cap", "sw_thermal", "bit_0x4000"), "P0")
    assert found.harmful == {"sw_thermal"}


def test_limits_modes_and_others_are_facts() -> None:
    others = (Process(77, "program77", 5 << 30), Process(78, "program78", None))
    expected = Facts("580.1", 1980, 3201, 700.0, True, False, True, "exclusive_process", others)
    assert gpu(FakeNvml()).facts() == expected


@pytest.mark.parametrize("name", [name for name in vars(FakeNvml) if name.startswith("nvmlDeviceGet")])
def test_what_a_card_does_not_tell_is_none_and_the_rest_is_there(name: str) -> None:
    if name.startswith("nvmlDeviceGetHandle") or name == "nvmlDeviceGetDeviceHandleFromMigDeviceHandle":
        return
    nvml = FakeNvml(name)
    found, facts = gpu(nvml).sample(), gpu(nvml).facts()
    assert found.power_w == 698.5 or name == "nvmlDeviceGetPowerUsage"
    assert facts.power_limit_w == 700.0 or name == "nvmlDeviceGetPowerManagementLimit"
    # The older name of the same figure stands in, and the other way round.
    assert found.throttle == ()


def test_an_older_package_and_driver_know_the_reasons_by_their_older_name() -> None:
    neither = FakeNvml("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    assert gpu(neither).sample().throttle is None


def test_a_performance_state_that_is_unknown_is_none() -> None:
    nvml = FakeNvml()
    nvml.state = 32
    assert gpu(nvml).sample().p_state is None


def test_a_slice_of_a_card_is_read_through_the_card() -> None:
    assert gpu(FakeNvml(mig=True)).sample().sm_clock_mhz == 1755


# name: how the GPU is looked for; what `problem` then says
UNREADABLE: dict[str, tuple[Callable[[], Gpu], str]] = {
    "NVML does not start": (lambda: gpu_state.of_uuid(UUID, FakeNvml("nvmlInit")), "does not start (Not Supported)"),
    "another GPU": (lambda: gpu_state.of_uuid("0000", FakeNvml()), "does not show the GPU 0000 (Not Found)"),
    "a processor": (lambda: gpu_state.of_device(torch.device("cpu")), "the device is cpu"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_gpu_that_cannot_be_read_gives_none_and_a_reason(kind: str) -> None:
    look, problem = UNREADABLE[kind]
    found = look()
    assert problem in (found.problem or "")
    reading = found.sample()
    assert reading == Sample(reading.at_s)
    assert found.facts() == Facts()
    with Monitor(found, 0.001) as monitor:
        pass
    assert monitor.during(0, time.monotonic()) is None
    summary = monitor.summary()
    assert (summary.readings, summary.sm_clock_mhz, summary.problem) == (0, None, found.problem)
    with pytest.raises(InputError, match="leave --lock-clocks out"), locked_clocks(found, 1410):
        pass


def test_without_the_package_everything_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_state.of_uuid(UUID).problem == gpu_state.MISSING
    assert gpu_state.all_gpus() == ([], gpu_state.MISSING)


def test_gpus_are_listed_without_pytorch() -> None:
    (only,), problem = gpu_state.all_gpus(FakeNvml())
    assert problem is None
    assert (only.name, only.memory_bytes, only.free_memory_bytes) == ("Made Up", 80 << 30, 79 << 30)
    assert gpu_state.all_gpus(FakeNvml("nvmlDeviceGetCount")) == ([], "NVML lists no GPU (Not Supported)")


# --- while a case runs ------------------------------------------------------------------------------


def test_a_monitor_reads_before_during_and_after_and_leaves_no_thread() -> None:
    nvml = FakeNvml()
    monitor = Monitor(gpu(nvml), interval_s=0.01)
    for _ in range(2):  # each time begins anew
        started = time.monotonic()
        with monitor:
            while len(monitor.samples) < 3:
                time.sleep(0.005)
            inside = time.monotonic()
        times = [s.at_s for s in monitor.samples]
        assert started <= times[0] <= times[1] <= inside <= times[-1]
        assert times == sorted(times)
        assert all(thread.name != "gpu-state" for thread in threading.enumerate())
    monitor.stop()  # harmless


def test_a_monitor_ends_with_what_fails_inside_it() -> None:
    monitor = Monitor(gpu(FakeNvml()), interval_s=60)
    with pytest.raises(KeyboardInterrupt), monitor:
        raise KeyboardInterrupt
    assert len(monitor.samples) == 2


def readings(*states: tuple[float, int, str]) -> list[Sample]:
    return [Sample(at, mhz, 3201, 100.0 * at, 50 + int(at), tuple(text.split())) for at, mhz, text in states]


def test_a_summary_leaves_idle_readings_out_of_the_clocks_only() -> None:
    samples = readings(
        (0, 345, "gpu_idle"), (1, 1980, ""), (2, 1700, "sw_power_cap"), (3, 1500, "sw_power_cap hw_thermal")
    )
    found = summarise(samples)
    assert found.as_json() == {
        "readings": 4,
        "sm_clock_mhz": {"min": 1500, "median": 1700, "max": 1980},
        "power_max_w": 300.0,
        "temperature_max_c": 53,
        "throttle": {"gpu_idle": 0.25, "hw_thermal": 0.25, "sw_power_cap": 0.5},
        "problem": None,
    }
    assert found.remarks() == ["the GPU was slowed down while this was measured: hw_thermal in 25% of 4 readings"]


def test_a_gpu_that_was_always_idle_still_has_a_clock_and_full_load_is_no_remark() -> None:
    assert summarise(readings((0, 345, "gpu_idle"))).as_json()["sm_clock_mhz"]["max"] == 345
    assert summarise(readings((0, 1700, "sw_power_cap"))).remarks() == []
    assert summarise([Sample(0.0)]).readings == 0


# Readings at 0, 1, 2, 3 s, of which only that at 1 s is harmful: (start, end, whether it is touched)
INTERVALS = [
    (0.1, 0.9, True),  # the next reading is the harmful one
    (0.9, 1.1, True),
    (1.2, 1.3, True),  # the last reading before is
    (1.0, 1.0, True),
    (2.1, 2.2, False),
    (2.0, 3.5, False),
    (-1.0, -0.5, False),
    (-1.0, 5.0, True),
]


@pytest.mark.parametrize(("start_s", "end_s", "touched"), INTERVALS)
def test_an_interval_is_marked_by_the_readings_in_and_around_it(start_s: float, end_s: float, touched: bool) -> None:
    monitor = Monitor(gpu(FakeNvml()))
    monitor._samples = readings((0, 1, ""), (1, 1, "hw_thermal sw_power_cap"), (2, 1, "sw_power_cap"), (3, 1, ""))
    assert monitor.during(start_s, end_s) == ({"hw_thermal"} if touched else frozenset())


# --- the environment of a record --------------------------------------------------------------------


def test_a_record_keeps_the_names_that_it_had_and_new_ones() -> None:
    facts = machine.gpu_now(gpu(FakeNvml()))
    assert facts == {
        "driver": "580.1",
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_clock_max_mhz": 3201,
        "power_w": 698.5,
        "power_limit_w": 700.0,
        "temperature_c": 61,
        "throttle": [],
        "p_state": "P0",
        "persistence_mode": True,
        "mig_mode": False,
        "ecc_mode": True,
        "compute_mode": "exclusive_process",
        "other_processes": 2,
        "reason": None,
    }


def test_without_nvml_the_old_names_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$1" = --id=GPU-{UUID} ] && echo "580.1, 345, 1980, 3201, [N/A], 700.00, 38"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    missing = Gpu(None, None, "missing")
    facts = machine.gpu_now(missing, UUID)
    assert (facts["driver"], facts["sm_clock_mhz"], facts["power_limit_w"]) == ("580.1", 345.0, 700.0)
    assert (facts["memory_clock_max_mhz"], facts["throttle"], facts["reason"]) == (None, None, "missing")
    assert machine.gpu_now(missing, "another")["driver"] is None


# --- locking the clock ------------------------------------------------------------------------------

LOCKED, UNLOCKED = ("lock", 1410, 1410), ("unlock",)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_clock_is_set_back_whatever_ends_the_block(error: type[BaseException]) -> None:
    nvml = FakeNvml()
    with locked_clocks(gpu(nvml), 1410):
        assert nvml.calls == [LOCKED]
    assert nvml.calls == [LOCKED, UNLOCKED]
    with pytest.raises(error), locked_clocks(gpu(nvml), 1410):
        raise error
    assert nvml.calls == [LOCKED, UNLOCKED] * 2


def test_the_clock_is_set_back_after_sigterm() -> None:
    nvml = FakeNvml()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
    try:
        with pytest.raises(KeyboardInterrupt), locked_clocks(gpu(nvml), 1410):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert nvml.calls == [LOCKED, UNLOCKED]


def test_the_clock_is_set_back_at_exit_when_the_block_is_never_left() -> None:
    code = (
        "from test_gpu_state import *\n"
        "nvml = FakeNvml()\n"
        "nvml.nvmlDeviceResetGpuLockedClocks = lambda _: print('unlocked')\n"
        "kept = locked_clocks(gpu(nvml), 1410)\n"
        "kept.__enter__()\n"
    )
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert "unlocked" in done.stdout


def test_a_clock_that_may_not_be_locked_is_one_sentence_and_nothing_is_undone() -> None:
    nvml = FakeNvml("nvmlDeviceSetGpuLockedClocks")
    with pytest.raises(InputError) as caught, locked_clocks(gpu(nvml), 1410):
        pytest.fail("the block ran with a clock that is not locked")
    assert "does not lock the clock (Not Supported)" in str(caught.value)
    assert "run as root" in str(caught.value)
    assert nvml.calls == []


def test_a_clock_that_the_card_does_not_have_is_refused_with_the_nearest() -> None:
    nvml = FakeNvml()
    with pytest.raises(InputError, match=r"take 1410 \(it has 345 to 1980 MHz\)"), locked_clocks(gpu(nvml), 1400):
        pass
    assert nvml.calls == []
    with locked_clocks(gpu(FakeNvml("nvmlDeviceGetSupportedGraphicsClocks")), 1400):
        pass  # unknown which it has: the driver decides


def test_a_clock_that_cannot_be_set_back_is_told() -> None:
    nvml = FakeNvml("nvmlDeviceResetGpuLockedClocks")
    with (
        pytest.warns(RuntimeWarning, match="still locked at 1410 MHz.*nvidia-smi -rgc"),
        locked_clocks(gpu(nvml), 1410),
    ):
        pass


def test_a_run_locks_the_clock_for_itself_and_leaves_nothing_where_it_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    options: Any = SimpleNamespace(target=SimpleNamespace(device=None))
    for nvml, calls in ((FakeNvml(), [LOCKED, UNLOCKED]), (FakeNvml("nvmlDeviceSetGpuLockedClocks"), [])):
        path.touch()
        monkeypatch.setattr(gpu_state, "of_device", lambda _, nvml=nvml: gpu(nvml))
        prepared = Prepared([], options, path, [], Console(stderr=True), 1410)
        with suppress(InputError), prepared.locked():
            assert nvml.calls == [LOCKED]
        assert nvml.calls == calls
        assert path.exists() == bool(calls)
    with Prepared([], options, path, [], Console(stderr=True), None).locked():
        pass


def test_the_clock_is_given_in_mhz_or_is_the_public_one() -> None:
    assert gpu_state.clock_asked("1410", "NVIDIA H200") == 1410
    assert gpu_state.clock_asked("public", "NVIDIA B200") == 1500
    with pytest.raises(InputError, match="locks no clock of NVIDIA H200"):
        gpu_state.clock_asked("public", "NVIDIA H200")
    for text in ("fast", "0", "-5", "1.5", "²"):
        with pytest.raises(InputError, match="is no clock"):
            gpu_state.clock_asked(text, "NVIDIA H200")


# --- a real one -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_gpu_is_read_while_it_works_and_reading_is_quick() -> None:
    pytest.importorskip("pynvml")
    device = torch.device("cuda", 0)
    found = gpu_state.of_device(device)
    assert found.problem is None, found.problem
    started = time.monotonic()
    for _ in range(20):
        found.sample()
    assert (time.monotonic() - started) / 20 < 0.05
    facts = gpu_state.facts(device)
    assert facts.driver
    assert facts.power_limit_w
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    with Monitor(found) as monitor:
        start = time.monotonic()
        while time.monotonic() < start + 1:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
        end = time.monotonic()
    summary = monitor.summary()
    assert summary.readings >= 6
    assert summary.sm_clock_mhz is not None
    assert 500 < summary.sm_clock_mhz.median <= (facts.sm_clock_max_mhz or 0)
    assert summary.power_max_w is not None
    assert summary.power_max_w > 100
    assert monitor.during(start, end) is not None
