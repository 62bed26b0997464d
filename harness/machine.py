"""What this machine is: its device, its environment, and for the CPU its measured peak rates."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from harness import __version__
from harness.errors import InputError, unknown_name
from harness.sol import Roofline

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


def environment(chosen: Target, root: Path) -> dict[str, Any]:
    """Versions, host, commit and the GPU's limits: what a reader needs to judge or repeat a figure.

    Clocks in MHz, power in W, memory in bytes. Absent is None.
    """
    return {
        "solbench": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "platform": platform.platform(terse=True),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "git_commit": _git_commit(root),
        "gpu": _gpu(chosen.device.index or 0) if chosen.kind == "cuda" else None,
    }


def _version(package: str) -> str | None:
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


_GPU_QUERY = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "memory_clock_max_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {
        "memory_bytes": properties.total_memory,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }
    query = ",".join(_GPU_QUERY.values())
    line = _output(["nvidia-smi", f"--id={properties.uuid}", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    line = line or _output(["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    values = [value.strip() for value in line.splitlines()[0].split(",")] if line else []
    for position, name in enumerate(_GPU_QUERY):
        text = values[position] if position < len(values) else ""
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


# Square sizes large enough to be compute-bound, and near the shapes of the workloads.
_MATRIX_SIZES = (1024, 2048, 3072)
_COPY_BYTES = 512 << 20


def calibrate_cpu() -> Roofline:
    """Measure this machine's bfloat16 matrix rate and copy bandwidth, in about three seconds.

    The best of several repetitions and sizes is taken: a bound must not be beaten by a good moment. The
    copy counts bytes read plus bytes written, of memory well over the last-level cache.
    """
    flops = 0.0
    for size in _MATRIX_SIZES:
        a, b = (torch.randn(size, size).to(torch.bfloat16) for _ in range(2))
        for right in (b, b.T):
            seconds = _best_s(lambda a=a, right=right: a @ right, 0.3)  # type: ignore[misc]
            flops = max(flops, 2 * size**3 / seconds)
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    destination = torch.ones_like(source)
    bandwidth = 2 * _COPY_BYTES / _best_s(lambda: destination.copy_(source), 0.8)
    shapes = ", ".join(str(size) for size in _MATRIX_SIZES)
    return Roofline(
        device=cpu_name(),
        label="calibrated",
        peak_flops=flops,
        bandwidth=bandwidth,
        overhead_s=0.0,
        source=(
            f"measured at the start of the run with {torch.get_num_threads()} threads: best bf16 square product "
            f"of {shapes} through PyTorch; best copy of {_COPY_BYTES >> 20} MiB, bytes read and written"
        ),
    )


def _best_s(call: Callable[[], object], budget_s: float) -> float:
    call()
    best, deadline = float("inf"), time.perf_counter() + budget_s
    while time.perf_counter() < deadline or best == float("inf"):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
