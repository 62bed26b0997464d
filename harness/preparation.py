"""What does a run need, and is all of it there?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness import choice, gpu_state, machine, rooflines, store
from harness.catalog import Catalog
from harness.errors import InputError
from harness.machine import Target
from harness.records import Record
from harness.sol import Roofline
from harness.spec import ProtocolModel

# What needs PyTorch is imported where it is needed: for a wrong name nobody waits until that is loaded.
if TYPE_CHECKING:
    from rich.console import Console

    from harness.runner import Options, Plan


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line asks for; what is None or empty is left to the catalogue and the device.

    peaks: the label of a roofline.
    lock: an SM clock in MHz, or `public`.
    also: backends beside the protocol's.
    """

    workloads: Sequence[str]
    kernels: Sequence[str]
    cases: Sequence[str]
    device: str
    protocol: str | None
    output: Path | None
    timeout_s: float
    scale: int | None
    root: Path | None
    seed: int | None = None
    peaks: str | None = None
    lock: str | None = None
    also: Sequence[str] = ()
    check_only: bool = False


@dataclass(frozen=True)
class Prepared:
    """What a run needs, checked before anything is measured. `earlier`: what the results file already holds."""

    plans: list[Plan]
    options: Options
    path: Path
    earlier: list[Record]
    console: Console
    locked_mhz: int | None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While it is entered, the GPU's SM clock is locked, if that was asked for. Raises `InputError`."""
        if self.locked_mhz is None:
            yield
            return
        with ExitStack() as until_the_end:
            gpu = gpu_state.of_device(self.options.target.device)
            try:
                until_the_end.enter_context(gpu_state.locked_clocks(gpu, self.locked_mhz))
            except InputError:
                if self.path.stat().st_size == 0:
                    self.path.unlink()  # a run that never began leaves nothing behind
                raise
            self.console.print(f"The SM clock is locked at {self.locked_mhz} MHz until this ends.", markup=False)
            yield


def prepare(asked: Asked, console: Console) -> Prepared:
    """Resolve every name, open the results file and find the peaks. Raises `InputError`.

    A CPU is calibrated here. Warnings go to `console`.
    """
    catalog = Catalog(asked.root)
    chosen = choice.choose(catalog, asked.workloads, asked.kernels, asked.cases)

    from harness.runner import Options
    from harness.starting import WORKERS

    target = machine.target(asked.device)
    protocol = _protocol(catalog, asked, target)
    plans = _plans(chosen, asked.scale, target)
    locked_mhz = _clock_to_lock(asked.lock, target)
    roofline = _roofline_asked(catalog, target, asked.peaks)
    path = asked.output or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    store.prepare(path)
    earlier, bad = store.read(path)
    for line in bad:
        console.print(f"warning: {line}", style="yellow", markup=False)
    roofline = roofline or _roofline(catalog, target, console)
    _warn_of_full_size(plans, target, roofline, console)
    environment = machine.environment(target, catalog.roots[0], locked_mhz)
    seed = protocol.seed if asked.seed is None else asked.seed
    options = Options(target, protocol, seed, asked.timeout_s, asked.check_only, roofline, environment, WORKERS)
    return Prepared(plans, options, path, earlier, console, locked_mhz)


def _protocol(catalog: Catalog, asked: Asked, target: Target) -> ProtocolModel:
    """Raises `InputError` for one that is not there, or that this device cannot be timed by."""
    protocol = catalog.protocol(asked.protocol or choice.protocol_of(target.kind))
    protocol = protocol.timing_also(asked.also)
    _check_backends(protocol, target)
    return protocol


def _check_backends(protocol: ProtocolModel, target: Target) -> None:
    """Raises `InputError` for a backend that does not work on the device, or lacks its package."""
    backends = {protocol.backend, *protocol.also}
    if target.kind == "cpu" and backends != {"host"}:
        remedy = "take -p host, or a GPU with -d cuda"
        how = "CUPTI" if "cupti" in backends else "CUDA events"
        raise InputError("--protocol", f'"{protocol.name}" times with {how} and the device is the CPU', remedy)
    if "cupti" in backends:
        from harness import cupti

        if problem := cupti.problem():
            remedy = "put that right, or take another protocol, such as -p queued"
            raise InputError("--protocol", f'"{protocol.name}" times with CUPTI: {problem}', remedy)


def _plans(chosen: Sequence[choice.Chosen], scale: int | None, target: Target) -> list[Plan]:
    """Raises `InputError` for a scale that does not divide a workload's sizes, before anything runs."""
    from harness.runner import Plan

    plans = []
    for workload, kernels, cases in chosen:
        divisor = choice.scale_of(workload, target.kind) if scale is None else scale
        plans.append(Plan(workload, kernels, cases, divisor))
    for plan in plans:
        plan.workload.case(plan.cases[0], plan.scale)
    return plans


def _clock_to_lock(lock: str | None, target: Target) -> int | None:
    """In MHz; None where none is to be locked. Raises `InputError` for what is no clock of the device."""
    if lock is None:
        return None
    if target.kind == "cpu":
        raise InputError(f"--lock-clocks {lock}", "the device is the CPU", "leave it out, or take a GPU with -d cuda")
    return gpu_state.clock_asked(lock, target.name)


def _roofline_asked(catalog: Catalog, target: Target, peaks: str | None) -> Roofline | None:
    """None where no label is given. Raises `InputError` for peaks that nobody knows."""
    # A CPU is calibrated at the start of every run, whether or not its label is given.
    if peaks is None or (target.kind == "cpu" and peaks == "calibrated"):
        return None
    return rooflines.of_device(catalog, target.name, peaks)


def _roofline(catalog: Catalog, target: Target, console: Console) -> Roofline | None:
    """A CPU's as it is measured now, a GPU's as the catalogue has it; None where it has none."""
    if target.kind == "cpu":
        from harness.calibrate import calibrate_cpu

        console.print("Calibrating this machine: bf16 matrix rate and bandwidth …", markup=False)
        roofline = calibrate_cpu()
        console.print(
            f"{roofline.device}: {roofline.peak_flops / 1e12:.3f} TFLOP/s bf16, {roofline.bandwidth / 1e9:.1f} GB/s "
            "(measured now)",
            markup=False,
        )
        return roofline
    try:
        return catalog.device(target.name).roofline()
    except InputError:
        remedy = "for bounds and scores measure them (solbench calibrate), or add a file under configs/devices/"
        console.print(f"warning: no peak rates are known for {target.name}; {remedy}", style="yellow", markup=False)
        return None


def _warn_of_full_size(plans: Sequence[Plan], target: Target, roofline: Roofline | None, console: Console) -> None:
    """On a CPU: that sizes are divided, or what it means that they are not."""
    from harness.evaluation import estimated_bytes

    for plan in plans:
        if target.kind != "cpu" or plan.scale >= plan.workload.model.cpu.scale:
            if plan.scale > 1:
                text = f"{plan.workload.name} runs with hidden sizes divided by {plan.scale} (--scale 1 for full size)"
                console.print(text, markup=False)
            continue
        largest = max((plan.workload.case(c, plan.scale) for c in plan.cases), key=lambda c: c.flops)
        seconds = largest.flops / roofline.peak_flops if roofline else float("nan")
        console.print(
            f"warning: {plan.workload.name} at scale {plan.scale} on a CPU: case {largest.id} takes over "
            f"{estimated_bytes(largest) / 2**30:.0f} GiB of memory and at least {seconds:.0f} s for each call; "
            "cases that do not fit are skipped",
            style="yellow",
            markup=False,
        )
