"""What is here, what would `solbench run` do with it, and what stands in the way?

Says as much as can be said, also where PyTorch, NVML or a GPU is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import __version__, choice, gpu_state, machine, sandbox
from harness.catalog import Catalog
from harness.errors import InputError, unknown_name
from harness.gpu_state import HARMFUL, Gpu
from harness.measured import LABEL
from harness.spec import DeviceModel
from harness.text import format_bytes

LOW_DISK_BYTES = 1 << 30
# Load (processes that want to run) over cores from which times on the CPU are another machine's.
BUSY = 0.5
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


@dataclass(frozen=True)
class Ability:
    """Something that is there or not; `detail` says what it is for, or why it is not and how to get it."""

    name: str
    there: bool
    detail: str


@dataclass(frozen=True)
class Problem:
    """What is not as it should be, and what to do about it. `stops`: no run is possible."""

    text: str
    remedy: str
    stops: bool = False


@dataclass(frozen=True)
class Part:
    """One workload's share of a run."""

    workload: str
    kernels: Sequence[str]
    cases: int
    scale: int

    @property
    def records(self) -> int:
        return self.cases * len(self.kernels)


@dataclass(frozen=True)
class Rates:
    """One pair of peaks."""

    bf16_tflops: float
    bandwidth_gb_per_s: float


@dataclass(frozen=True)
class Peaks:
    """The device file that matches, and its pairs of peaks by label."""

    file: str
    default: str
    rooflines: Mapping[str, Rates]


@dataclass(frozen=True)
class Run:
    """What `solbench run` would do. `skipped`: what would be left out, and why."""

    device: str
    name: str
    protocol: str
    suite: str
    parts: Sequence[Part]
    peaks: Peaks | None
    skipped: Sequence[str]

    @property
    def default_peaks(self) -> str | None:
        """The label that is used without --roofline; a CPU is measured at the start of every run."""
        return None if self.peaks is None or self.device == "cpu" else self.peaks.default

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)


@dataclass(frozen=True)
class Examination:
    """Everything that was found. `machine` and `gpus` by the names of a record's environment."""

    machine: Mapping[str, Any]
    gpus: Sequence[Mapping[str, Any]]
    backends: Sequence[Ability]
    protections: Sequence[Ability]
    packages: Sequence[Ability]
    run: Run | None
    problems: Sequence[Problem]

    @property
    def possible(self) -> bool:
        """Whether `solbench run` can run here."""
        return self.run is not None and not any(problem.stops for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """For programs: sizes in bytes, clocks in MHz, power in W, absent is None."""
        values = asdict(self)
        if self.run is not None:
            values["run"]["records"] = self.run.records
        return {**values, "possible": self.possible}


def examine(asked: str, root: Path | None = None) -> Examination:
    """Look at this machine and at what a run on the device `asked` would be.

    Raises `InputError` for a device that is no device's name, and for a faulty catalogue.
    """
    catalog = Catalog(root)
    if not _DEVICE.fullmatch(asked):
        raise unknown_name("device", asked, ["auto", "cpu", "cuda", "cuda:0"], "--device")
    torch, torch_problem = _torch()
    problems = [] if torch_problem is None else [torch_problem]
    if platform.system() != "Linux":
        problems.append(Problem(f"this is {platform.system()}", "run on Linux: workers need its process control", True))
    gpus = _gpus(torch)
    target = None
    if torch is not None:
        try:
            target = machine.target(asked)
        except InputError as error:
            problems.append(Problem(error.problem, error.remedy, stops=True))
    run = None
    if target is not None:
        run = _run(catalog, target)
        problems += _of_device(torch, target, gpus)
        if run.peaks is None and target.kind == "cuda":
            remedy = "measure them with solbench calibrate, or add a file under configs/devices/"
            problems.append(Problem(f"no peak rates are known for {target.name}, so there are no bounds", remedy))
    problems += _unused_gpu(torch, asked)
    problems += _disk()
    return Examination(
        machine=_machine(torch),
        gpus=gpus,
        backends=_backends(torch),
        protections=_protections(),
        packages=_packages(),
        run=run,
        problems=problems,
    )


def _torch() -> tuple[Any, Problem | None]:
    """The module, or why there is none."""
    try:
        return importlib.import_module("torch"), None
    except ModuleNotFoundError:
        remedy = "pip install torch (its Get started page has the line for your CUDA)"
        return None, Problem("PyTorch is not installed", remedy, stops=True)
    except (ImportError, OSError) as error:  # libraries of another CUDA, say
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, Problem(f"PyTorch does not load ({first})", "install it again", stops=True)


def _machine(torch: Any) -> dict[str, Any]:
    usable = torch is not None and torch.cuda.is_available()
    return {
        "solbench": __version__,
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "cuda": None if torch is None else torch.version.cuda,
        "cuda_usable": usable,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "triton": machine.version("triton"),
        "cpu": machine.cpu_name(),
        "load": _load(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available_memory_bytes": machine.available_memory_bytes(),
    }


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


# GPUs -------------------------------------------------------------------------------------------


def _gpus(torch: Any) -> list[dict[str, Any]]:
    """Those that PyTorch can use, by its numbers; where it can use none, those that NVML shows."""
    if torch is not None and torch.cuda.is_available():
        return [_of_torch(torch, torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    found, _ = gpu_state.all_gpus()
    return [
        {
            "device": None,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            **machine.gpu_now(gpu),
            "free_memory_bytes": gpu.free_memory_bytes,
            "processes": _processes(gpu),
        }
        for gpu in found
    ]


def _of_torch(torch: Any, device: Any) -> dict[str, Any]:
    gpu = gpu_state.of_device(device)
    found = {"device": str(device), "name": torch.cuda.get_device_name(device), **machine.gpu(device)}
    return {**found, "free_memory_bytes": gpu.free_memory_bytes, "processes": _processes(gpu)}


def _processes(gpu: Gpu) -> list[dict[str, Any]] | None:
    found = gpu.facts().processes
    return None if found is None else [asdict(process) for process in found]


def _unused_gpu(torch: Any, asked: str) -> Iterator[Problem]:
    """A GPU that is there and that PyTorch cannot use."""
    if torch is None or torch.cuda.is_available() or asked == "cpu":
        return
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    found, _ = gpu_state.all_gpus()
    if not found and not Path("/dev/nvidia0").exists():
        return
    name = found[0].name if found and found[0].name else "an NVIDIA GPU"
    if torch.version.cuda is None:
        text, remedy = "this PyTorch is a CPU build", "install PyTorch's CUDA build"
    else:
        text = f"this PyTorch, made for CUDA {torch.version.cuda}, cannot use it"
        remedy = "update the driver, or install a PyTorch for an older CUDA"
    yield Problem(f"{name} is here, and {text}", remedy)


def _of_device(torch: Any, target: machine.Target, gpus: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    if target.kind == "cpu":
        load, cores = _load(), len(os.sched_getaffinity(0))
        if load is not None and load > BUSY * cores:
            yield Problem(f"the processor is busy (load {load:.1f} on {cores} cores)", "wait, or expect longer times")
        return
    gpu = next(gpu for gpu in gpus if gpu["device"] == str(target.device))
    yield from _of_build(torch, gpu)
    yield from _of_driver()
    yield from of_state(gpu)


def _of_build(torch: Any, gpu: Mapping[str, Any]) -> Iterator[Problem]:
    major, minor = (int(part) for part in gpu["compute_capability"].split("."))
    codes = [re.fullmatch(r"(sm|compute)_([0-9]+)([0-9])[a-z]?", code) for code in torch.cuda.get_arch_list()]
    # Machine code runs on its own generation from its minor version on, PTX on everything later.
    fits = [(int(m[2]), int(m[3])) <= (major, minor) and (m[1] == "compute" or int(m[2]) == major) for m in codes if m]
    if fits and not any(fits):
        text = f"this PyTorch has no code for compute capability {major}.{minor}"
        yield Problem(text, "install a PyTorch build that has", stops=True)
    if machine.version("triton") is None:
        yield Problem("Triton is not installed, so Triton kernels and torch.compile fail", "pip install triton")


def _of_driver() -> Iterator[Problem]:
    from harness import driver  # which needs PyTorch

    if not driver.sees_all_streams():
        text = "this driver cannot time all streams together, so queued and events miss what kernels do on others"
        yield Problem(text, "update it to that of CUDA 12.5 or later")


def of_state(gpu: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with a GPU's modes and its state now."""
    if gpu["compute_mode"] == "prohibited":
        yield Problem("the GPU's compute mode forbids its use", "as root: nvidia-smi -c DEFAULT", stops=True)
    elif gpu["compute_mode"] in ("exclusive_process", "exclusive_thread"):
        text = "the GPU's compute mode lets only one process in, and a run takes two (judge and worker)"
        yield Problem(text, "as root: nvidia-smi -c DEFAULT", stops=True)
    if processes := gpu["processes"]:
        shown = ", ".join(
            f"{p['name'] or 'process'} {p['pid']}"
            + (f" with {format_bytes(p['used_memory_bytes'])}" if p["used_memory_bytes"] else "")
            for p in processes[:3]
        )
        more = f" and {len(processes) - 3} more" if len(processes) > 3 else ""
        yield Problem(f"others use the GPU: {shown}{more}", "wait for them, or take another one with -d cuda:N")
    if harmful := HARMFUL.intersection(gpu["throttle"] or ()):
        text = f"the GPU is slowed down now ({', '.join(sorted(harmful))})"
        yield Problem(text, "let it cool, and look at its cooling and power supply")
    if gpu["mig_mode"]:
        remedy = "compare with what solbench calibrate measures: --roofline measured"
        yield Problem("MIG is on: a slice does not reach the peaks of the whole GPU", remedy)
    if gpu["persistence_mode"] is False:
        text = "persistence mode is off: the driver may start anew for every process, with clocks at rest"
        yield Problem(text, "as root: nvidia-smi -pm 1")
    if gpu["reason"] is not None:
        yield Problem(f"clocks and throttling are not watched: {gpu['reason']}", "pip install 'solbench[gpu]'")


# What a run would do ----------------------------------------------------------------------------


def _run(catalog: Catalog, target: machine.Target) -> Run:
    suite = catalog.suite(choice.SUITE)
    parts, skipped = [], list[str]()
    for workload in map(catalog.workload, suite.workloads):
        scale = choice.scale_of(workload, target.kind)
        kernels = [catalog.kernel(name, workload) for name in suite.kernels]
        parts.append(Part(workload.name, [kernel.name for kernel in kernels], len(workload.model.cases), scale))
        for kernel in kernels:
            if target.kind not in kernel.model.devices:
                skipped.append(f"{workload.name} {kernel.name}: it runs on {', '.join(kernel.model.devices)}")
            elif target.kind == "cpu" and kernel.model.needs_cpp_compiler_on_cpu and not machine.has_cpp_compiler():
                skipped.append(f"{workload.name} {kernel.name}: needs a C++ compiler")
        room = _room(target)
        from harness.evaluation import estimated_bytes

        needed = {case: estimated_bytes(workload.case(case, scale)) for case in workload.case_ids()}
        if large := [case for case, nbytes in needed.items() if room is not None and nbytes > room]:
            need = f"{format_bytes(max(needed.values()))} are needed, {format_bytes(room or 0)} free"
            skipped.append(f"{workload.name} {', '.join(large)}: up to {need}")
    protocol = catalog.protocol(choice.protocol_of(target.kind))
    device = str(target.device)
    return Run(device, target.name, protocol.name, suite.name, parts, _peaks(catalog, target.name), skipped)


def _room(target: machine.Target) -> int | None:
    """Free memory of the device; None where it does not say."""
    if target.kind == "cpu":
        return machine.available_memory_bytes()
    free_bytes = gpu_state.of_device(target.device).free_memory_bytes
    if free_bytes is not None:
        return free_bytes
    import torch

    try:
        return int(torch.cuda.mem_get_info(target.device)[0])
    except RuntimeError:  # its compute mode lets this process not in
        return None


def _peaks(catalog: Catalog, name: str) -> Peaks | None:
    for stem, device in catalog.devices().items():
        if device.answers_to(name):
            folder = "measured" if set(device.rooflines) == {LABEL} else "devices"
            return Peaks(f"configs/{folder}/{stem}.yaml", device.default_roofline, _rates(device))
    return None


def _rates(device: DeviceModel) -> dict[str, Rates]:
    return {
        label: Rates(peak.bf16_dense_flops / 1e12, peak.bandwidth_bytes_per_s / 1e9)
        for label, peak in device.rooflines.items()
    }


def _disk() -> Iterator[Problem]:
    runs = Path("runs")
    existing = runs if runs.is_dir() else Path()
    if not os.access(existing, os.W_OK):
        yield Problem("results cannot be written here (runs/)", "go to another folder, or give -o FILE", stops=True)
    for folder, what in ((existing, "results (runs/)"), (Path(tempfile.gettempdir()), "workers' temporary folders")):
        free = shutil.disk_usage(folder).free
        if free < LOW_DISK_BYTES:
            yield Problem(f"{format_bytes(free)} are left on the disk for {what}", "free some space")


# What is there ----------------------------------------------------------------------------------


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _backends(torch: Any) -> list[Ability]:
    usable = torch is not None and torch.cuda.is_available()
    no_gpu = "needs a CUDA device"
    if usable and not _installed("cupti"):
        cupti = Ability("cupti", False, "needs cupti-python: pip install 'solbench[cupti]'")
    else:
        cupti = Ability("cupti", usable, "span of the GPU's activity, gaps included" if usable else no_gpu)
    return [
        Ability("queued", usable, "device time, without the host's launch gaps" if usable else no_gpu),
        cupti,
        Ability("events", usable, "CUDA events, launch gaps included" if usable else no_gpu),
        Ability("host", torch is not None, "the host's clock" if torch is not None else "needs PyTorch"),
    ]


def _protections() -> list[Ability]:
    return [Ability(p.name, p.active, p.detail) for p in sandbox.protections()]


def _packages() -> list[Ability]:
    """Optional ones. Each may be had without the others."""
    wanted = (
        ("nvidia-ml-py", "pynvml", "clocks, power and throttling of the GPU while it is measured", "solbench[gpu]"),
        ("cupti-python", "cupti", "the timing backend cupti", "solbench[cupti]"),
        ("matplotlib", "matplotlib", "compare --plot", "solbench[plot]"),
    )
    found = [
        Ability(package, _installed(module), use if _installed(module) else f"for {use}: pip install '{extra}'")
        for package, module, use, extra in wanted
    ]
    compiler = machine.has_cpp_compiler()
    use = "torch.compile on the CPU"
    return [*found, Ability("C++ compiler", compiler, use if compiler else f"for {use}: install g++ or clang++")]
