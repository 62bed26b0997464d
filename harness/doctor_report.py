"""What does an examination of this machine look like to a reader?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.doctor import Ability, Examination, Run
from harness.text import ABSENT, format_bytes, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

Rows = list[tuple[str, str]]


def terminal(found: Examination) -> list[RenderableType]:
    """Sections as wide as the terminal; from 80 columns on, only long texts wrap."""
    from rich.text import Text

    parts: list[RenderableType] = [_section("machine", _machine(found.machine))]
    parts += [_section(_title(gpu), _gpu(gpu)) for gpu in found.gpus]
    for title, abilities in (
        ("timing backends", found.backends),
        ("protections of the worker", found.protections),
        ("optional packages", found.packages),
    ):
        parts.append(_section(title, [(a.name, a.detail) for a in abilities], abilities))
    if found.run is not None:
        parts.append(_section("solbench run", _run(found.run)))
    parts += _problems(found)
    verdict = "solbench run is possible here." if found.possible else "solbench run is not possible here."
    parts.append(Text(f"\n{verdict}", style="green" if found.possible else "red"))
    return parts


def _section(title: str, rows: Rows, abilities: Sequence[Ability] | None = None) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1), title_justify="left")
    table.title = Text(f"\n{title}", style="bold not italic")
    table.add_column(width=26 if abilities is None else 18)
    if abilities is not None:
        table.add_column(width=3)
    table.add_column(ratio=1, overflow="fold")
    for index, (name, text) in enumerate(rows):
        cells = [Text(f"  {one_line(name)}"), Text(one_line(text))]
        if abilities is not None:
            there = abilities[index].there
            cells.insert(1, Text("yes" if there else "no", style="green" if there else "yellow"))
        table.add_row(*cells)
    return table


def _problems(found: Examination) -> Iterable[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if not found.problems:
        return
    yield Text("\nproblems", style="bold")
    for problem in sorted(found.problems, key=lambda problem: not problem.stops):
        text = f"{one_line(problem.text)}; {one_line(problem.remedy)}"
        yield Padding(Text(text, style="red" if problem.stops else "yellow"), (0, 0, 0, 2))


def _machine(facts: Mapping[str, Any]) -> Rows:
    memory = format_bytes(facts["host_memory_bytes"])
    load = "" if facts["load"] is None else f", load {facts['load']:.1f}"
    if facts["torch"] is None:
        cuda = ABSENT
    elif facts["cuda"] is None:
        cuda = "none: this PyTorch is a CPU build"
    else:
        cuda = f"{facts['cuda']}{'' if facts['cuda_usable'] else ', but no GPU is usable'}"
    rows = [
        ("solbench", facts["solbench"]),
        ("system", facts["platform"]),
        ("Python", facts["python"]),
        ("PyTorch", facts["torch"] or "not installed"),
        ("Triton", facts["triton"] or "not installed"),
        ("CUDA", cuda),
        ("processor", f"{facts['cpu']}{load}"),
        ("memory", f"{memory}, {format_bytes(facts['available_memory_bytes'])} free"),
    ]
    if facts["cuda_visible_devices"] is not None:
        rows.append(("CUDA_VISIBLE_DEVICES", facts["cuda_visible_devices"] or "empty: no GPU is shown"))
    return rows


def _title(gpu: Mapping[str, Any]) -> str:
    return f"{gpu['device'] or 'GPU, not usable by PyTorch'}: {gpu['name'] or 'unknown'}"


def _gpu(gpu: Mapping[str, Any]) -> Rows:
    rows = [("memory", _with_free(gpu["memory_bytes"], gpu["free_memory_bytes"]))]
    if gpu.get("sm_count") is not None:
        rows.append(("SMs, L2", f"{gpu['sm_count']}, {format_bytes(gpu['l2_bytes'])}"))
        rows.append(("compute capability", gpu["compute_capability"]))
    throttle = gpu["throttle"]
    held_back = ABSENT if throttle is None else ", ".join(throttle) or "nothing"
    processes = gpu["processes"]
    others = ABSENT if processes is None else str(len(processes)) if processes else "none"
    return [
        *rows,
        ("driver", gpu["driver"] or ABSENT),
        ("SM clock", _of_at_most(gpu["sm_clock_mhz"], gpu["sm_clock_max_mhz"], "MHz")),
        ("memory clock", _of_at_most(gpu["memory_clock_mhz"], gpu["memory_clock_max_mhz"], "MHz")),
        ("power", _of_at_most(gpu["power_w"], gpu["power_limit_w"], "W")),
        ("temperature", _figure(gpu["temperature_c"], "°C")),
        ("clocks held back by", held_back),
        ("performance state", gpu["p_state"] or ABSENT),
        ("persistence, MIG, ECC", ", ".join(_flag(gpu[f"{name}_mode"]) for name in ("persistence", "mig", "ecc"))),
        ("compute mode", (gpu["compute_mode"] or ABSENT).replace("_", " ")),
        ("other processes", others),
    ]


def _with_free(total: int | None, free: int | None) -> str:
    if total is None:
        return ABSENT
    return format_bytes(total) + ("" if free is None else f", {format_bytes(free)} free")


def _figure(value: float | None, unit: str) -> str:
    return ABSENT if value is None else f"{value:.0f} {unit}"


def _of_at_most(now: float | None, limit: float | None, unit: str) -> str:
    most = "" if limit is None else f" of at most {limit:.0f} {unit}"
    return f"{_figure(now, unit)}{most}"


def _flag(value: bool | None) -> str:
    return ABSENT if value is None else "on" if value else "off"


def _run(run: Run) -> Rows:
    if run.device == "cpu":
        peaks = "measured at the start of the run"
    elif run.peaks is None:
        peaks = "none are known: no bounds and no scores"
    else:
        peaks = run.peaks.file
    rows = [("device", f"{run.device}: {run.name}"), ("peaks", peaks)]
    for label, rates in (run.peaks.rooflines if run.peaks else {}).items():
        shown = f"{rates.bf16_tflops:.4g} TFLOP/s, {rates.bandwidth_gb_per_s:.4g} GB/s"
        rows.append((f"  --roofline {label}", shown + (", the default" if label == run.default_peaks else "")))
    rows += [("protocol", run.protocol), ("suite", f"{run.suite}, about {run.records} records")]
    for part in run.parts:
        size = f", hidden sizes divided by {part.scale}" if part.scale > 1 else ""
        rows.append((f"  {part.workload}", f"{part.cases} cases of {', '.join(part.kernels)}{size}"))
    return [*rows, *(("would be skipped", text) for text in run.skipped)]
