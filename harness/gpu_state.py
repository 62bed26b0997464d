"""What state is the GPU in: clocks, power, heat, and what holds it back? Through NVML (the package nvidia-ml-py).

Nothing here fails a measurement: where NVML is missing or does not answer, values are None and `problem` says
why. A device is found by its UUID, because CUDA_VISIBLE_DEVICES renumbers. The one function that changes
anything, `locked_clocks`, sets it back.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Bits of NVML's "clocks event reasons" (once called throttle reasons), from nvml.h.
REASONS: Mapping[int, str] = {
    1 << 0: "gpu_idle",
    1 << 1: "applications_clocks",
    1 << 2: "sw_power_cap",
    1 << 3: "hw_slowdown",
    1 << 4: "sync_boost",
    1 << 5: "sw_thermal",
    1 << 6: "hw_thermal",
    1 << 7: "hw_power_brake",
    1 << 8: "display_clock",
    1 << 9: "board_limit",
    1 << 10: "reliability",
}
# A GPU held back by one of these is not in order, and a time taken meanwhile is no figure of a kernel.
HARMFUL = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
# At full load it is normal that power sets the clock: noted, not held against a figure.
LIMITED = frozenset({"sw_power_cap", "sync_boost", "board_limit", "reliability"})
IDLE = "gpu_idle"

INTERVAL_S = 0.1

# SM clocks (MHz) at which the public benchmark locks its devices, by the driver's name.
PUBLIC_CLOCKS_MHZ: Mapping[str, int] = {
    "NVIDIA B200": 1500,
    "NVIDIA H100 80GB HBM3": 1410,
    "NVIDIA H100 PCIe": 1410,
    "NVIDIA A100-SXM4-40GB": 1065,
    "NVIDIA A100-SXM4-80GB": 1065,
}

MISSING = "the package nvidia-ml-py is not installed (pip install 'solbench[gpu]')"


@dataclass(frozen=True)
class Sample:
    """One reading. `at_s` is `time.monotonic()`; `throttle` names what holds the clocks back just now."""

    at_s: float
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] | None = None
    p_state: str | None = None

    @property
    def harmful(self) -> frozenset[str]:
        return HARMFUL.intersection(self.throttle or ())


@dataclass(frozen=True)
class Process:
    """Another process on the GPU."""

    pid: int
    name: str | None
    used_memory_bytes: int | None


@dataclass(frozen=True)
class Facts:
    """What does not change from call to call. `processes` are those on the GPU but for this one."""

    driver: str | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    ecc_mode: bool | None = None
    compute_mode: str | None = None
    processes: tuple[Process, ...] | None = None


_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


class Gpu:
    """One GPU as NVML shows it. `problem` is None, or says why nothing can be read."""

    def __init__(self, nvml: Any, handle: Any, problem: str | None = None) -> None:
        self._nvml, self._handle, self.problem = nvml, handle, problem

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What an NVML function says of this GPU; None where driver, package or card do not know it."""
        if self.problem is not None:
            return None
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError, ValueError):
            return None

    def sample(self) -> Sample:
        """Clocks (MHz), power (W), temperature (°C) and what holds the clocks back, now."""
        at_s = time.monotonic()
        if self.problem is not None:
            return Sample(at_s)
        nvml = self._nvml
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the same by its older name
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        state = self._ask("nvmlDeviceGetPerformanceState")
        return Sample(
            at_s,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=_map(lambda mw: mw / 1e3, self._ask("nvmlDeviceGetPowerUsage")),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle=_map(reasons_of, bits),
            p_state=None if state is None or state > 15 else f"P{state}",
        )

    def facts(self) -> Facts:
        """Driver, limits and modes, and who else uses this GPU."""
        if self.problem is not None:
            return Facts()
        nvml = self._nvml
        return Facts(
            driver=self._driver(),
            sm_clock_max_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_max_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            power_limit_w=_map(lambda mw: mw / 1e3, self._ask("nvmlDeviceGetPowerManagementLimit")),
            persistence_mode=_map(bool, self._ask("nvmlDeviceGetPersistenceMode")),
            mig_mode=_map(lambda modes: bool(modes[0]), self._ask("nvmlDeviceGetMigMode")),
            ecc_mode=_map(lambda modes: bool(modes[0]), self._ask("nvmlDeviceGetEccMode")),
            compute_mode=_map(lambda mode: _COMPUTE_MODES.get(mode, str(mode)), self._ask("nvmlDeviceGetComputeMode")),
            processes=self._processes(),
        )

    def _driver(self) -> str | None:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except (self._nvml.NVMLError, ValueError):
            return None

    def _processes(self) -> tuple[Process, ...] | None:
        compute = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if compute is None:
            return None
        graphics = self._ask("nvmlDeviceGetGraphicsRunningProcesses") or []
        found = {int(p.pid): p.usedGpuMemory for p in [*graphics, *compute]}
        return tuple(Process(pid, self._name(pid), used) for pid, used in sorted(found.items()) if pid != os.getpid())

    def _name(self, pid: int) -> str | None:
        """The program's name without its folder."""
        try:
            return os.path.basename(str(self._nvml.nvmlSystemGetProcessName(pid)).split(" ")[0]) or None
        except (self._nvml.NVMLError, ValueError):
            pass
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip() or None
        except OSError:
            return None

    @property
    def name(self) -> str | None:
        return _map(str, self._ask("nvmlDeviceGetName"))

    @property
    def memory_bytes(self) -> int | None:
        return _map(lambda memory: int(memory.total), self._ask("nvmlDeviceGetMemoryInfo"))

    @property
    def free_memory_bytes(self) -> int | None:
        return _map(lambda memory: int(memory.free), self._ask("nvmlDeviceGetMemoryInfo"))

    # Clocks ---------------------------------------------------------------------------------

    def supported_clocks_mhz(self) -> list[int]:
        """The SM clocks that can be locked at the highest memory clock, rising; empty where unknown."""
        if self.problem is not None:
            return []
        memory = self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_MEM)
        clocks = None if memory is None else self._ask("nvmlDeviceGetSupportedGraphicsClocks", memory)
        return sorted(set(clocks or []))

    def lock_clocks(self, mhz: int) -> None:
        """Raises NVML's own error."""
        self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle, mhz, mhz)

    def unlock_clocks(self) -> None:
        """Raises NVML's own error."""
        self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle)

    @property
    def error(self) -> type[Exception]:
        """NVML's type of error."""
        kind: type[Exception] = self._nvml.NVMLError
        return kind


def _map(function: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else function(value)


def reasons_of(bits: int) -> tuple[str, ...]:
    """NVML's bits as names; one that this version does not know keeps its number."""
    set_bits = (1 << position for position in range(bits.bit_length()) if bits >> position & 1)
    return tuple(REASONS.get(bit, f"bit_{bit:#x}") for bit in set_bits)


def _started(nvml: Any | None) -> tuple[Any, str | None]:
    """The NVML module, initialised, or why there is none."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        return None, MISSING
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return nvml, f"NVML does not start ({error})"
    return nvml, None


def of_uuid(uuid: str, nvml: Any | None = None) -> Gpu:
    """The GPU with that UUID, as CUDA gives it (without the GPU- in front). Never raises."""
    nvml, problem = _started(nvml)
    if problem is not None:
        return Gpu(nvml, None, problem)
    uuid = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError as error:
        problem = f"NVML does not show the GPU {uuid} ({error})"
    try:  # a slice of a GPU; clocks and power are those of the whole one
        part = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        return Gpu(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
    except nvml.NVMLError:
        return Gpu(nvml, None, problem)


def of_device(device: torch.device, nvml: Any | None = None) -> Gpu:
    """The GPU that PyTorch calls `device`. Never raises."""
    import torch

    if device.type != "cuda":
        return Gpu(None, None, f"the device is {device.type}")
    return of_uuid(str(torch.cuda.get_device_properties(device).uuid), nvml)


def sample(device: torch.device, nvml: Any | None = None) -> Sample:
    """One reading of a PyTorch device; for several, keep `of_device(device)`."""
    return of_device(device, nvml).sample()


def facts(device: torch.device, nvml: Any | None = None) -> Facts:
    """Driver, limits, modes and other processes of a PyTorch device."""
    return of_device(device, nvml).facts()


def all_gpus(nvml: Any | None = None) -> tuple[list[Gpu], str | None]:
    """Every GPU of this machine, without PyTorch; or none and why."""
    nvml, problem = _started(nvml)
    if problem is not None:
        return [], problem
    try:
        return [Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())], None
    except nvml.NVMLError as error:
        return [], f"NVML lists no GPU ({error})"


# --- while a case runs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """The least, the middle and the greatest of some readings."""

    min: float
    median: float
    max: float

    @staticmethod
    def of(values: Sequence[float]) -> Range | None:
        return Range(min(values), median(values), max(values)) if values else None


@dataclass(frozen=True)
class Summary:
    """What the readings of one case come to.

    sm_clock_mhz: over the readings in which the GPU was not idle, or over all when it always was.
    throttle: each reason that was seen, with the share of the readings that held it.
    problem: why there are no readings.
    """

    readings: int = 0
    sm_clock_mhz: Range | None = None
    power_max_w: float | None = None
    temperature_max_c: int | None = None
    throttle: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def harmful(self) -> dict[str, float]:
        return {reason: share for reason, share in self.throttle.items() if reason in HARMFUL}

    def as_json(self) -> dict[str, Any]:
        """For a record: clocks in MHz, power in W, temperature in °C, shares from 0 to 1."""
        return asdict(self)

    def remarks(self) -> list[str]:
        """What a reader of the figures must be told, or nothing."""
        if not self.harmful:
            return []
        shown = ", ".join(f"{reason} in {share:.0%}" for reason, share in self.harmful.items())
        return [f"the GPU was slowed down while this was measured: {shown} of {self.readings} readings"]


def summarise(samples: Sequence[Sample], problem: str | None = None) -> Summary:
    """Readings without any value, as of a GPU that NVML lost, do not count."""
    samples = [s for s in samples if s.sm_clock_mhz is not None or s.throttle is not None]
    busy = [s for s in samples if IDLE not in (s.throttle or ())] or samples
    seen = [reason for s in samples for reason in s.throttle or ()]
    return Summary(
        readings=len(samples),
        sm_clock_mhz=Range.of([s.sm_clock_mhz for s in busy if s.sm_clock_mhz is not None]),
        power_max_w=max((s.power_w for s in samples if s.power_w is not None), default=None),
        temperature_max_c=max((s.temperature_c for s in samples if s.temperature_c is not None), default=None),
        throttle={reason: seen.count(reason) / len(samples) for reason in sorted(set(seen))},
        problem=problem,
    )


class Monitor:
    """Reads a GPU's state before, about every `interval_s` during, and after what runs inside `with`.

    The thread belongs to the judge's process and waits in the driver without holding Python's lock.
    Can be entered again; each time begins anew.
    """

    def __init__(self, gpu: Gpu, interval_s: float = INTERVAL_S) -> None:
        self._gpu, self._interval_s = gpu, interval_s
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._samples = []
        if self._gpu.problem is not None:
            return
        self._ended.clear()
        self._samples.append(self._gpu.sample())
        self._thread = threading.Thread(target=self._watch, name="gpu-state", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the last reading. Harmless when it was never started."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._samples.append(self._gpu.sample())

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._samples.append(self._gpu.sample())

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    def summary(self) -> Summary:
        """After `stop`."""
        return summarise(self.samples, self._gpu.problem)

    def during(self, start_s: float, end_s: float) -> frozenset[str] | None:
        """The harmful reasons of the readings in an interval of `time.monotonic()`; None without readings.

        Between readings nothing is known, so the last one before and the first one after count too. Ask
        after `stop`, when the reading that follows the interval has been taken.
        """
        samples = [s for s in self.samples if s.throttle is not None]
        if not samples:
            return None
        first = max((i for i, s in enumerate(samples) if s.at_s <= start_s), default=0)
        last = min((i for i, s in enumerate(samples) if s.at_s >= end_s), default=len(samples) - 1)
        return frozenset().union(*(s.harmful for s in samples[first : last + 1]))


# --- locking the clock ------------------------------------------------------------------------------


def clock_asked(text: str, device_name: str) -> int:
    """`--lock-clocks` as MHz: a whole number, or `public` for the public benchmark's. Raises `InputError`."""
    place = f"--lock-clocks {text}"
    if text == "public":
        if device_name not in PUBLIC_CLOCKS_MHZ:
            raise InputError(place, f"the public benchmark locks no clock of {device_name}", "give MHz, such as 1410")
        return PUBLIC_CLOCKS_MHZ[device_name]
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise InputError(place, f'"{text}" is no clock', "give MHz, such as 1410, or public")
    return int(text)


@contextmanager
def locked_clocks(gpu: Gpu, mhz: int) -> Iterator[None]:
    """Lock the SM clock at `mhz` for as long as the block runs.

    It is unlocked whatever ends the block, also at the exit of an interpreter that never got that far; only
    a process that is killed (SIGKILL) leaves it locked. Raises `InputError` where it cannot be locked.
    """
    place = f"--lock-clocks {mhz}"
    if gpu.problem is not None:
        raise InputError(place, gpu.problem, "put that right, or leave --lock-clocks out")
    supported = gpu.supported_clocks_mhz()
    if supported and mhz not in supported:
        nearest = min(supported, key=lambda clock: abs(clock - mhz))
        remedy = f"take {nearest} (it has {supported[0]} to {supported[-1]} MHz)"
        raise InputError(place, "this GPU has no such SM clock", remedy)

    def unlock() -> None:
        try:
            gpu.unlock_clocks()
        except gpu.error as error:
            text = f"the SM clock is still locked at {mhz} MHz ({error}); unlock it with nvidia-smi -rgc, as root"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    may_be_locked = True
    atexit.register(unlock)
    try:
        try:
            gpu.lock_clocks(mhz)
        except gpu.error as error:
            may_be_locked = False  # refused: nothing to undo, and what somebody else locked stays
            remedy = "run as root, or have the machine's owner lock it (nvidia-smi -lgc) and leave --lock-clocks out"
            raise InputError(place, f"the driver does not lock the clock ({error})", remedy) from None
        yield
    finally:
        if may_be_locked:
            unlock()
        atexit.unregister(unlock)  # not reached when a second interrupt comes while unlocking: then it is done at exit
