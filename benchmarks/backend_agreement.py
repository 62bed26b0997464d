"""Do the timing backends agree with each other and with Nsight Compute on kernels of one launch?

    python benchmarks/backend_agreement.py [--json FILE] [--svg FILE] [--write docs/measuring.md] [--again FILE]

One kernel streams through a buffer, from once through a small one to hundreds of times through a large one, which
takes from a few microseconds to about 100 ms and hardly depends on the SM clock. Each reading is taken with a cold
cache, made cold in the same way for all. Nsight Compute (`ncu`, where it is installed and may be used) measures the
same launches in another process, with clocks as they are. The table goes to stdout; `--write` puts it between the marks
of a document. What `--json` wrote can be shown `--again` on any machine.
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
import triton.language as tl

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path[:0] = [str(HERE), str(REPOSITORY)]  # also where solbench is not installed, and when this is imported

from documents import write_between_marks  # noqa: E402

MARK = "agreement"
# Two backends agree on a time when they differ by no more than the greater of these.
AGREED_SHARE, AGREED_MS = 0.03, 0.001
# What a launch of next to nothing reads with `queued` beyond its own time, as CUPTI tells it, is in every reading.
LESS_FLOOR = "queued less its floor"
BACKENDS = ("cupti", "queued", LESS_FLOOR, "events")
# What the drawing shows; what lies beyond is said in its legend.
SHOWN_RATIOS = (0.7, 1.5)
BLOCK = 2048
NCU_LAUNCHES = 5
NCU_TIME, NCU_CLOCK = "gpu__time_duration.sum", "gpc__cycles_elapsed.avg.per_second"
# Between launches ncu leaves the GPU idle, whose clock falls; a load before each brings it back. About 20 ms.
RAISING_CYCLES = 40_000_000
NCU_LIMIT_S = 40
# Should anything wait for ever, the process ends itself with a traceback, without Python's help.
LIMIT_S = 90
UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3} | {
    "nsecond": 1e-6,
    "usecond": 1e-3,
    "msecond": 1.0,
    "second": 1e3,
}
UNITS_MHZ = {"hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3}


@triton.jit(do_not_specialize=["passes"])
def stream_through(source, target, elements, passes, BLOCK: tl.constexpr):  # noqa: N803 -- a constant of Triton's
    """Read the source and write the target, `passes` times."""
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for _ in range(passes):
        for start in range(first, elements, step):
            offsets = start + tl.arange(0, BLOCK)
            inside = offsets < elements
            tl.store(target + offsets, tl.load(source + offsets, mask=inside) + 1.0, mask=inside)


@dataclass(frozen=True)
class Load:
    """So many passes through a buffer of `mib` MiB into another one."""

    mib: int
    passes: int

    @property
    def readings(self) -> int:
        return 15 if self.passes < 80 else 5

    @property
    def name(self) -> str:
        return f"2 × {self.mib} MiB" + (f", {self.passes} times" if self.passes > 1 else "")

    def call(self, programs: int, device: str = "cuda") -> Callable[[], Any]:
        elements = self.mib * (1 << 20) // 4
        source, target = (torch.zeros(elements, device=device) for _ in range(2))
        return lambda: stream_through[(programs,)](source, target, elements, self.passes, BLOCK=BLOCK)


# On an H200 from 5.6 µs to 97 ms.
LOADS = (Load(8, 1), Load(20, 1), Load(64, 1), Load(256, 1), Load(256, 8), Load(256, 80), Load(256, 700))


def calls() -> list[Callable[[], Any]]:
    """A call for each load, each made once already, so that nothing is compiled or loaded later."""
    programs = 8 * torch.cuda.get_device_properties(0).multi_processor_count
    made = [load.call(programs) for load in LOADS]
    for call in made:
        call()
    torch.cuda.synchronize()
    return made


# --- the backends ---------------------------------------------------------------------------------


class Queued:
    """The backend `queued` without a judge: the gate is opened from inside once the call is in the queue."""

    def __init__(self, flush: Callable[[], Any]) -> None:
        from harness.timing import Held

        descriptor = os.memfd_create("backend-agreement")
        os.ftruncate(descriptor, 1 << 12)
        self._held, self._flush, self._ticket = Held(descriptor), flush, 0
        self.floor_ms: float = self._held.floor_ms()

    def read_ms(self, call: Callable[[], Any]) -> float:
        self._flush()
        self._ticket += 1
        self._held.begin(self._ticket, hold_all_streams=False)
        try:
            call()
            self._held.queue.end()
            self._held.queue.copied()
        finally:
            self._held.queue.open_from_inside()
        return float(self._held.sample().time_ms)


def read_open_ms(timer: Any, flush: Callable[[], Any], call: Callable[[], Any]) -> float:
    """A reading of a backend that times a call that is not held."""
    flush()
    timer.prepare()
    timer.run(call)
    return float(timer.read().time_ms)


def measured() -> tuple[list[dict[str, float]], dict[str, float | None], str | None]:
    """For each load the backends' medians in ms; the floors in ms; and why CUPTI is not among them."""
    from harness import cache, cupti, timing

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    made, flush = calls(), cache.flusher(device, "read", 4)
    queued, events = Queued(flush), timing.make("events", device)
    floors: dict[str, float | None] = {"queued": queued.floor_ms, "events": events.floor_ms()}
    found: list[dict[str, float]] = []
    for load, call in zip(LOADS, made, strict=True):
        held_ms = median(queued.read_ms(call) for _ in range(load.readings))
        open_ms = median(read_open_ms(events, flush, call) for _ in range(load.readings))
        found.append({"queued": held_ms, "events": open_ms})
    # Last, because CUPTI stays in the process once it is there.
    reason = cupti.problem()
    if reason is None:
        try:
            timer = cupti.CuptiTimer()
            floors["cupti"] = nothing_ms = timer.floor_ms()
            for load, call, row in zip(LOADS, made, found, strict=True):
                row["cupti"] = median(read_open_ms(timer, flush, call) for _ in range(load.readings))
                row[LESS_FLOOR] = row["queued"] - (queued.floor_ms - nothing_ms)
        except cupti.CuptiError as error:
            reason = str(error)
    return found, floors, reason


# --- Nsight Compute -------------------------------------------------------------------------------


def for_ncu() -> None:
    """What runs under `ncu`: the same launches, in order."""
    from harness import cache

    programs = 8 * torch.cuda.get_device_properties(0).multi_processor_count
    flush = cache.flusher(torch.device("cuda", 0), "read", 4)
    for load in LOADS:
        call = load.call(programs)
        for _ in range(NCU_LAUNCHES):
            torch.cuda._sleep(RAISING_CYCLES)
            flush()
            call()
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Ncu:
    """What `ncu` tells: for each load the duration in ms, and over all launches the lowest and highest clock."""

    times_ms: Sequence[float]
    clock_mhz: tuple[float, float]


def by_ncu() -> tuple[Ncu | None, str | None]:
    """What `ncu` tells; or None and why."""
    ncu = shutil.which("ncu") or next(map(str, Path("/usr/local").glob("cuda*/bin/ncu")), None)
    if ncu is None:
        return None, "ncu is not installed"
    # The launches before make the cache cold, as for the backends; ncu's own way empties every cache there is.
    command = [ncu, "--clock-control", "none", "--cache-control", "none"]
    command += ["--metrics", f"{NCU_TIME},{NCU_CLOCK}", "--print-units", "base", "--csv"]
    command += ["--kernel-name", "regex:stream_through", sys.executable, str(Path(__file__).resolve()), "--one-kernel"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=NCU_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"ncu took longer than {NCU_LIMIT_S} s"
    try:
        return of_ncu(output), None
    except ValueError as error:
        return None, f"{error} (exit code {process.returncode})"


def of_ncu(output: str) -> Ncu:
    """For each load the median of its launches, from what `ncu --csv` prints. Raises `ValueError`."""
    lines = output.splitlines()
    head = next((i for i, line in enumerate(lines) if '"Metric Value"' in line), None)
    if head is None:
        said = next((line for line in lines if "ERROR" in line), "no table in its output")
        raise ValueError(f"ncu does not measure: {said.strip()}")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[head:]))))
    times_ms = _column(rows, NCU_TIME, UNITS_MS)
    clocks_mhz = _column(rows, NCU_CLOCK, UNITS_MHZ)
    expected = NCU_LAUNCHES * len(LOADS)
    if (len(times_ms), len(clocks_mhz)) != (expected, expected):
        raise ValueError(f"ncu tells {len(times_ms)} times and {len(clocks_mhz)} clocks of {expected} launches")
    by_load = [median(times_ms[i : i + NCU_LAUNCHES]) for i in range(0, expected, NCU_LAUNCHES)]
    return Ncu(by_load, (min(clocks_mhz), max(clocks_mhz)))


def _column(rows: Sequence[Mapping[str, str]], metric: str, units: Mapping[str, float]) -> list[float]:
    """The metric of every launch, in order."""
    return [
        float(row["Metric Value"].replace(",", "")) * units[unit]
        for row in rows
        if row.get("Metric Name") == metric and (unit := (row.get("Metric Unit") or "").lower()) in units
    ]


# --- what it comes to -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """For each load the times in ms by backend, and that of the reference (ncu, or cupti where ncu is missing).

    ncu_clock_mhz: the lowest and highest clock of ncu's launches.
    """

    device: str
    day: str
    torch_version: str
    reference: str
    notes: Sequence[str]
    floors_ms: Mapping[str, float | None]
    loads: Sequence[str]
    reference_ms: Sequence[float]
    backends_ms: Mapping[str, Sequence[float]]
    ncu_clock_mhz: Sequence[float] | None = None

    def within(self, backend: str) -> list[bool]:
        return [
            agrees(ms, reference) for ms, reference in zip(self.backends_ms[backend], self.reference_ms, strict=True)
        ]


def agrees(ms: float, reference_ms: float) -> bool:
    return abs(ms - reference_ms) <= max(AGREED_SHARE * reference_ms, AGREED_MS)


def joined(
    rows: Sequence[Mapping[str, float]],
    floors_ms: Mapping[str, float | None],
    ncu: Ncu | None,
    notes: Sequence[str],
) -> Agreement:
    """Raises `ValueError` when neither ncu nor cupti was there to compare with."""
    if ncu is None and not all("cupti" in row for row in rows):
        raise ValueError("; ".join(notes) or "there is nothing to compare with")
    reference = "ncu" if ncu is not None else "cupti"
    there = [name for name in BACKENDS if name != reference and all(name in row for row in rows)]
    return Agreement(
        torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU",
        date.today().isoformat(),
        torch.__version__,
        reference,
        notes,
        floors_ms,
        [load.name for load in LOADS],
        ncu.times_ms if ncu is not None else [row["cupti"] for row in rows],
        {name: [row[name] for row in rows] for name in there},
        ncu.clock_mhz if ncu is not None else None,
    )


def markdown(found: Agreement) -> str:
    """The table, and for each backend in how many of the sizes it agrees."""
    from harness.text import format_ms, markdown_table

    def cell(ms: float, reference_ms: float) -> str:
        mark = "" if agrees(ms, reference_ms) else " ≠"
        return f"{format_ms(ms)} ({(ms / reference_ms - 1) * 100:+.1f}%){mark}"

    table = [
        [name, format_ms(reference), *(cell(times[i], reference) for times in found.backends_ms.values())]
        for i, (name, reference) in enumerate(zip(found.loads, found.reference_ms, strict=True))
    ]
    counts = [f"{name} in {sum(found.within(name))} of {len(found.loads)}" for name in found.backends_ms]
    floors = [f"{name} {format_ms(ms)}" for name, ms in found.floors_ms.items() if ms is not None]
    clock = ""
    if found.ncu_clock_mhz:
        low, high = (f"{mhz:.0f}" for mhz in found.ncu_clock_mhz)
        clock = f" The clock under ncu was {low} to {high} MHz."
    lines = [
        f"{found.device}, torch {found.torch_version}, {found.day}. Within max({AGREED_SHARE:.0%}, "
        f"{AGREED_MS * 1e3:g} µs) of {found.reference}: {', '.join(counts)} (≠ marks the others). A launch of next to "
        f"nothing reads: {', '.join(floors)}.{clock}",
        markdown_table(["buffers", found.reference, *found.backends_ms], table),
        *(f"Missing: {note}." for note in found.notes),
    ]
    return "\n\n".join(lines) + "\n"


def draw(found: Agreement, path: Path) -> None:
    """Ratio to the reference over its time; the band is what counts as agreement."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, times), look in zip(found.backends_ms.items(), ("o-", "s-", "d--", "^-"), strict=False):
        ratios = [ms / reference for ms, reference in zip(times, found.reference_ms, strict=True)]
        beyond = f" (up to {max(ratios):.1f})" if max(ratios) > SHOWN_RATIOS[1] else ""
        axes.plot(found.reference_ms, ratios, look, label=name + beyond)
    margins = [max(AGREED_SHARE, AGREED_MS / ms) for ms in found.reference_ms]
    low, high = [1 - margin for margin in margins], [1 + margin for margin in margins]
    axes.fill_between(found.reference_ms, low, high, color="black", alpha=0.1, label="agreement")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel=f"{found.reference} (ms)", ylabel=f"ratio to {found.reference}", title=found.device)
    axes.set_ylim(*SHOWN_RATIOS)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)


def agreement(with_ncu: bool) -> Agreement:
    """Raises `SystemExit` when there is nothing to compare with."""
    rows, floors_ms, reason = measured()
    notes = [f"cupti ({reason})"] if reason else []
    ncu, reason = by_ncu() if with_ncu else (None, "left out")
    notes += [f"ncu ({reason})"] if reason else []
    try:
        return joined(rows, floors_ms, ncu, notes)
    except ValueError as error:
        raise SystemExit(f"nothing to compare with: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--svg", type=Path, help="draw them to this file")
    parser.add_argument("--write", type=Path, help="put the table between the marks of this file")
    parser.add_argument("--again", type=Path, metavar="FILE", help="measure nothing: take what --json wrote before")
    parser.add_argument("--no-ncu", action="store_true", help="leave Nsight Compute out")
    parser.add_argument("--one-kernel", action="store_true", help="only launch the kernels, as ncu wants it")
    options = parser.parse_args()
    if options.again:
        found = Agreement(**json.loads(options.again.read_text()))
    elif not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device")
    else:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        if options.one_kernel:
            for_ncu()
            return
        found = agreement(with_ncu=not options.no_ncu)
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    print(markdown(found))
    if options.write:
        write_between_marks(options.write, MARK, markdown(found))
    if options.svg:
        draw(found, options.svg)


if __name__ == "__main__":
    main()
