"""The figures of a ladder of kernels as docs/kernels.md shows them, from records of `solbench run`.

    python benchmarks/ladder_report.py moe FILE... [-k KERNEL...] [--of best] [--write docs/kernels.md] [--svg FILE]

One table has the latency of every kernel on every case, beside the bound. Another has, of the kernel `--of` (by
default the fastest), how near each case comes to the datasheet's and to the measured peaks, and what it launches where
the records hold CUPTI's detail (`--also cupti`). The newest record of a kernel and case counts; kernels stand in the
order of `-k`, or of the files. `--write` puts the tables between marks of a document, `--svg` draws them.

    python benchmarks/ladder_report.py library benchmarks/found/nvidia_h200/dense_library.json [--write docs/kernels.md]

shows how fast dense_crossovers.py found the library's products.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPOSITORY)]

from documents import write_between_marks  # noqa: E402

from harness import sol, store  # noqa: E402
from harness.catalog import Catalog  # noqa: E402
from harness.errors import InputError  # noqa: E402
from harness.records import Record  # noqa: E402
from harness.spec import Case, Workload  # noqa: E402
from harness.stats import geometric_mean  # noqa: E402
from harness.text import ABSENT, format_ms, format_share, markdown_table  # noqa: E402

DATASHEET, MEASURED = "datasheet", "measured"


@dataclass(frozen=True)
class Ladder:
    """Measured kernels of one workload on one device with one protocol.

    records: by kernel, in the order of the ladder, and case. peaks: the device's, by label.
    """

    workload: Workload
    cases: Sequence[Case]
    records: Mapping[str, Mapping[str, Record]]
    peaks: Mapping[str, sol.Roofline]

    def latency_ms(self, kernel: str, case: str) -> float | None:
        record = self.records[kernel].get(case)
        return record.latency_ms if record else None

    def mean_ms(self, kernel: str) -> float | None:
        """The geometric mean; None unless every case was measured."""
        latencies = [ms for case in self.cases if (ms := self.latency_ms(kernel, case.id)) is not None]
        return geometric_mean(latencies) if len(latencies) == len(self.cases) else None

    @property
    def fastest(self) -> str:
        return min(self.records, key=lambda kernel: self.mean_ms(kernel) or float("inf"))

    def bound_ms(self, case: Case, label: str) -> float | None:
        peak = self.peaks.get(label)
        return sol.bound(case.flops, case.bytes_moved, peak).ms if peak else None


def tokens(case: Case) -> int:
    return case.axes["T"]


def ladder(catalog: Catalog, name: str, files: Sequence[Path], kernels: Sequence[str] | None) -> Ladder:
    """Raises `InputError` for names that are not there, or records that do not belong together."""
    workload = catalog.workload(name)
    found: dict[str, dict[str, Record]] = {}
    for file in files:
        records, _ = store.read(file)
        for record in records:
            if record.workload == workload.name and record.latency_ms is not None:
                found.setdefault(record.kernel, {})[record.case] = record
    place = ", ".join(map(str, files))
    for kernel in kernels or ():
        if kernel not in found:
            raise InputError(place, f"has no latency of {kernel}", "measure it: solbench run")
    records = {kernel: found[kernel] for kernel in kernels or found}
    setups = {(r.device, r.protocol_sha256, r.backend, r.scale) for of_it in records.values() for r in of_it.values()}
    if len(setups) != 1:
        problem = f"holds records of {len(setups)} devices, protocols, backends or scales"
        raise InputError(place, problem, "give files that were measured alike")
    device, _, _, scale = setups.pop()
    described = catalog.device(device)
    peaks = {label: described.roofline(label) for label in (DATASHEET, MEASURED) if label in described.rooflines}
    cases = sorted((workload.case(case, scale) for case in workload.case_ids()), key=tokens)
    return Ladder(workload, cases, records, peaks)


def conditions(found: Ladder) -> str:
    """Under which the figures hold, in a sentence."""
    every = [record for of_it in found.records.values() for record in of_it.values()]

    def seen(*names: str) -> str:
        values: set[Any] = set()
        for record in every:
            value: Any = record.environment
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            values.add(value)
        return " or ".join(sorted(str(value)[:7] if names == ("git_commit",) else str(value) for value in values))

    days = sorted({record.time[:10] for record in every})
    locked = seen("gpu", "locked_sm_clock_mhz")
    clock = f"SM clock up to {seen('gpu', 'sm_clock_max_mhz')} MHz, " + (
        "not locked" if locked == "None" else f"locked at {locked} MHz"
    )
    return (
        f"{every[0].device}, {seen('gpu', 'power_limit_w')} W, {clock}; backend {every[0].backend}, protocol "
        f"{every[0].protocol}; torch {seen('torch')}, triton {seen('triton')}; {' and '.join(days)}, commit "
        f"{seen('git_commit')}."
    )


def latencies(found: Ladder) -> str:
    """Every kernel on every case, and the geometric means."""
    rows = [
        [
            str(tokens(case)),
            case.id,
            format_ms(found.bound_ms(case, DATASHEET)),
            *(format_ms(found.latency_ms(kernel, case.id)) for kernel in found.records),
        ]
        for case in found.cases
    ]
    bounds = [ms for case in found.cases if (ms := found.bound_ms(case, DATASHEET)) is not None]
    mean_bound = geometric_mean(bounds) if len(bounds) == len(found.cases) else None
    means = [format_ms(found.mean_ms(kernel)) for kernel in found.records]
    rows.append(["", "geometric mean", format_ms(mean_bound), *means])
    return markdown_table(["T", "case", "bound", *found.records], rows)


def launches(record: Record) -> str:
    """How many activities of the GPU a call is, where CUPTI saw them."""
    detail = record.timings.get("cupti", {}).get("detail")
    return str(detail["launches"]) if isinstance(detail, dict) and "launches" in detail else ABSENT


def rates(found: Ladder, kernel: str) -> str:
    """How near one kernel comes to the peaks."""
    rows = []
    for case in found.cases:
        record = found.records[kernel].get(case.id)
        if record is None or record.latency_ms is None:
            continue
        ms = record.latency_ms
        shares = [
            ABSENT if (bound_ms := found.bound_ms(case, label)) is None else format_share(bound_ms / ms)
            for label in (DATASHEET, MEASURED)
        ]
        rate = [f"{case.flops / ms / 1e9:.0f}", f"{case.bytes_moved / ms / 1e9:.2f}"]
        rows.append([str(tokens(case)), case.id, format_ms(ms), *shares, *rate, launches(record)])
    headings = ["T", "case", kernel, "roofline", "of measured peaks", "TFLOP/s", "TB/s", "launches"]
    return markdown_table(headings, rows)


def text(found: Ladder, kernel: str) -> str:
    peaks = "; ".join(
        f"{label} peaks {peak.peak_flops / 1e12:.0f} TFLOP/s and {peak.bandwidth / 1e12:.2f} TB/s"
        for label, peak in found.peaks.items()
    )
    return f"{conditions(found)} {peaks[:1].upper()}{peaks[1:]}.\n\n{latencies(found)}\n\n{rates(found, kernel)}\n"


def library(file: Path) -> str:
    """The library's products by number of tokens, from what dense_crossovers.py wrote. Raises `InputError`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rates = found["rates"]
        by_place: dict[tuple[str, int], dict[str, Any]] = {}
        for rate in rates:
            place = rate["product"], rate["tokens"]
            rate["ms"] = median(rate["readings_ms"])
            if place not in by_place or rate["ms"] < by_place[place]["ms"]:
                by_place[place] = rate
        tokens = sorted({rate["tokens"] for rate in rates})
        rows = [
            [product, *(_product(by_place.get((product, count))) for count in tokens)]
            for product in dict.fromkeys(rate["product"] for rate in rates)
        ]
        longest = [max((r for r in rates if r["tokens"] == count), key=lambda r: r["ms"]) for count in tokens]
        clock = [f"{rate['sm_clock_mhz']:.0f} MHz, {rate['power_max_w']:.0f} W" for rate in longest]
        rows.append(["clock and power in a row", *clock])
        kept = f"{found['device']}, torch {found['torch_version']}, clocks not locked."
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(str(file), f"holds no rates ({error!r})", "write it by dense_crossovers.py --json") from error
    return f"{kept}\n\n{markdown_table(['product', *(f'T = {count}' for count in tokens)], rows)}\n"


def _product(rate: Mapping[str, Any] | None) -> str:
    """The faster library's time, how many times the floor that is, and which library it was."""
    if rate is None:
        return ABSENT
    name = {"cublas": "", "cublaslt": " Lt"}[rate["library"]]
    teraflops = rate["flops"] / rate["ms"] / 1e9
    return f"{format_ms(rate['ms'])}, {rate['ms'] / rate['floor_ms']:.2f}x, {teraflops:.0f}{name}"


def draw(found: Ladder, path: Path) -> None:
    """Latency over T with the bound, and beside it how many times the bound that is."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    at = [tokens(case) for case in found.cases]
    for label, look in ((DATASHEET, "k-"), (MEASURED, "k:")):
        if label in found.peaks:
            bounds = [found.bound_ms(case, label) or float("nan") for case in found.cases]
            left.plot(at, bounds, look, linewidth=1, label=f"bound, {label}")
    for kernel, mark in zip(found.records, "osd^vP*X<>", strict=False):
        points = [
            (tokens(case), ms, ms / bound)
            for case in found.cases
            if (ms := found.latency_ms(kernel, case.id)) and (bound := found.bound_ms(case, DATASHEET))
        ]
        left.plot([t for t, _, _ in points], [ms for _, ms, _ in points], f"{mark}-", markersize=4, label=kernel)
        right.plot([t for t, _, _ in points], [times for _, _, times in points], f"{mark}-", markersize=4, label=kernel)
    left.set(xscale="log", yscale="log", xlabel="T", ylabel="latency (ms)", title=found.workload.name)
    right.set(xscale="log", yscale="log", xlabel="T", ylabel="times the bound", title="over the datasheet's bound")
    right.axhline(1, color="black", linewidth=1)
    right.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.2, 1.5, 2, 3, 5, 7)))
    right.yaxis.set_major_formatter("{x:g}")
    right.yaxis.set_minor_formatter(ticker.NullFormatter())
    for axes in (left, right):
        axes.xaxis.set_major_formatter("{x:g}")
    left.legend(fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-k", "--kernel", action="append", help="a kernel of the ladder; may be given again")
    parser.add_argument("--of", help="the kernel of the second table (default: the fastest)")
    parser.add_argument("--write", type=Path, help="put the tables between the marks of this document")
    parser.add_argument("--svg", type=Path, help="draw them to this file")
    options = parser.parse_args(arguments)
    try:
        if options.workload == "library":
            if len(options.files) != 1:
                remedy = "name one that dense_crossovers.py --json wrote"
                raise InputError("library", f"is given {len(options.files)} files", remedy)
            shown = library(options.files[0])
            print(shown)
            if options.write:
                write_between_marks(options.write, "library", shown)
            return
        found = ladder(Catalog(REPOSITORY), options.workload, options.files, options.kernel)
        kernel = options.of or found.fastest
        if kernel not in found.records:
            raise InputError("--of", f"has no kernel {kernel}", f"take one of {', '.join(found.records)}")
    except InputError as error:
        parser.error(str(error))
    print(text(found, kernel))
    if options.write:
        write_between_marks(options.write, f"{found.workload.model.short_name} results", text(found, kernel))
    if options.svg:
        draw(found, options.svg)


if __name__ == "__main__":
    main()
