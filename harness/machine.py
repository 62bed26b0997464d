"""What this machine is: its device, and the environment that a record keeps."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import __version__, gpu_state
from harness.errors import InputError, unknown_name

# Imported where it is needed, because some of this is asked where PyTorch is not installed.
if TYPE_CHECKING:
    import torch

COMMIT_VARIABLE = "SOLBENCH_COMMIT"


@dataclass(frozen=True)
class Target:
    """The device that a run uses. `name` is what the driver or the processor calls itself."""

    device: torch.device
    name: str

    @property
    def kind(self) -> str:
        return self.device.type


def target(asked: str) -> Target:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that is there. Raises `InputError` where it is not."""
    import torch

    kind, _, index = asked.partition(":")
    if kind not in ("auto", "cpu", "cuda"):
        raise unknown_name("device", asked, ["auto", "cpu", "cuda", "cuda:0"], "--device")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        if index:
            raise InputError("--device", f'"{asked}" numbers a CPU', "give cpu")
        return Target(torch.device("cpu"), cpu_name())
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else "; this PyTorch is a CPU build"
        raise InputError("--device", f'"{asked}" asks for a GPU and none is usable here{built}', "give -d cpu")
    if index and not index.isdigit():
        raise InputError("--device", f'"{asked}" has no device number', "give cuda:0")
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError("--device", f'"{asked}" is not there', f"this machine has {count}: cuda:0 to cuda:{count - 1}")
    return Target(torch.device("cuda", number), torch.cuda.get_device_name(number))


def cpu_name() -> str:
    """The processor's name and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name} ({len(os.sched_getaffinity(0))} cores)"


def environment(chosen: Target, root: Path, locked_sm_clock_mhz: int | None = None) -> dict[str, Any]:
    """Versions, host, commit and the GPU's limits: what a reader needs to judge or repeat a figure.

    Clocks in MHz, power in W, memory in bytes. Absent is None.
    """
    import torch

    return {
        "solbench": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version("triton"),
        "cuda": torch.version.cuda,
        "platform": platform.platform(terse=True),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "git_commit": _git_commit(root),
        "gpu": {**gpu(chosen.device), "locked_sm_clock_mhz": locked_sm_clock_mhz} if chosen.kind == "cuda" else None,
    }


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(root: Path) -> str | None:
    """The commit of the checkout at `root`, with `-dirty` when tracked files differ from it.

    A copy without its history can be told its commit in the variable SOLBENCH_COMMIT.
    """
    if told := os.environ.get(COMMIT_VARIABLE):
        return told
    if not (root / ".git").exists():
        return None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit}-dirty" if commit and changed else commit


def gpu(device: torch.device) -> dict[str, Any]:
    """A CUDA device's sizes, limits and state now, by the names of `environment.gpu` in docs/records.md."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "memory_bytes": properties.total_memory,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "uuid": str(properties.uuid),
        **gpu_now(gpu_state.of_device(device), str(properties.uuid)),
    }


def gpu_now(seen: gpu_state.Gpu, uuid: str | None = None) -> dict[str, Any]:
    """Limits and state of a GPU through NVML, or where that cannot be used what `nvidia-smi` tells."""
    found, now = asdict(seen.facts()), seen.sample()
    processes = found.pop("processes")
    facts = {
        "driver": found.pop("driver"),
        "sm_clock_mhz": now.sm_clock_mhz,
        "memory_clock_mhz": now.memory_clock_mhz,
        "power_w": now.power_w,
        "temperature_c": now.temperature_c,
        "throttle": None if now.throttle is None else list(now.throttle),
        "p_state": now.p_state,
        **found,
        "other_processes": None if processes is None else len(processes),
        "reason": seen.problem,
    }
    return facts if seen.problem is None or uuid is None else facts | _through_smi(uuid)


_SMI_QUERY = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "memory_clock_max_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}


def _through_smi(uuid: str) -> dict[str, Any]:
    query = ",".join(_SMI_QUERY.values())
    identity = f"GPU-{uuid.removeprefix('GPU-')}"
    line = _output(["nvidia-smi", f"--id={identity}", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    values = [value.strip() for value in line.splitlines()[0].split(",")] if line else []
    facts: dict[str, Any] = {}
    for name, text in zip(_SMI_QUERY, [*values, *[""] * len(_SMI_QUERY)], strict=False):
        try:
            facts[name] = text or None if name == "driver" else float(text)
        except ValueError:
            facts[name] = None
    return facts


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def available_memory_bytes() -> int:
    """Memory that can still be taken: what the kernel says, or less where a control group limits it."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
        if limit.isdigit():
            available = min(available, int(limit) - int(used))
    except OSError:
        pass
    return available


def has_cpp_compiler() -> bool:
    """Whether torch.compile finds what it needs on the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
