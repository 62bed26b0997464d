"""The `solbench` command. Each command is a few lines over `harness`; heavy imports wait until needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from harness import __version__
from harness.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.catalog import Catalog
    from harness.records import Record
    from harness.runner import Plan
    from harness.sol import Roofline

EXIT_KERNEL_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run GPU kernels against their references: are they right, how fast, and how fast could they be?",
)


def main() -> None:
    """Entry point: `InputError` becomes one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"solbench: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away; nobody is left to tell
        sys.exit(0)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"solbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# --- options that several commands share ----------------------------------------------------------

WorkloadsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[WORKLOAD]...", help="Name, short name (moe, dense), path, or suite.")
]
KernelOption = Annotated[list[str] | None, typer.Option("-k", "--kernel", help="Name, or path to a file or folder.")]
CaseOption = Annotated[list[str] | None, typer.Option("-c", "--case", help="Case id, or a glob of ids.")]
DeviceOption = Annotated[str, typer.Option("-d", "--device", help="auto, cpu, cuda or cuda:N.")]
ProtocolOption = Annotated[
    str | None, typer.Option("-p", "--protocol", help="Name or path. Default: queued on CUDA, host on the CPU.")
]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Results file (JSON Lines) to add to. Default: runs/TIME.jsonl.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Base seed. Default: the protocol's.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds that a kernel may take for one case, compiling included.")
]
ScaleOption = Annotated[
    int | None, typer.Option("--scale", min=1, help="Divide hidden sizes by N. Default: 1, or the workload's on a CPU.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Skip what the output file already holds.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON Lines on stdout.")]
RootOption = Annotated[Path | None, typer.Option("--root", help="Folder with workloads/, kernels/, configs/.")]


@app.command()
def run(
    workloads: WorkloadsArgument = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    protocol: ProtocolOption = None,
    output: OutputOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = 300.0,
    scale: ScaleOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Check and time kernels. Without arguments: the main suite, with what this machine has."""
    _run(workloads, kernel, case, device, protocol, output, seed, timeout, scale, resume, as_json, root, False)


@app.command()
def check(
    workloads: WorkloadsArgument = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    protocol: ProtocolOption = None,
    output: OutputOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = 300.0,
    scale: ScaleOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """As run, correctness only."""
    _run(workloads, kernel, case, device, protocol, output, seed, timeout, scale, resume, as_json, root, True)


def _run(
    workloads: list[str] | None,
    kernels: list[str] | None,
    cases: list[str] | None,
    device: str,
    protocol_name: str | None,
    output: Path | None,
    seed: int | None,
    timeout_s: float,
    scale: int | None,
    resume: bool,
    as_json: bool,
    root: Path | None,
    check_only: bool,
) -> NoReturn:
    from harness import store
    from harness.catalog import Catalog

    catalog = Catalog(root)
    if resume and output is None:
        raise InputError("--resume", "needs the file to go on with", "add -o FILE")
    chosen = _choose(catalog, workloads or [], kernels or [], cases or [])

    from harness import machine
    from harness.runner import Options, Plan, Runner

    target = machine.target(device)
    protocol = catalog.protocol(protocol_name or ("queued" if target.kind == "cuda" else "host"))
    if target.kind == "cpu" and protocol.backend != "host":
        remedy = "take -p host, or a GPU with -d cuda"
        raise InputError("--protocol", f'"{protocol.name}" times with CUDA events and the device is the CPU', remedy)
    plans = [
        Plan(w, k, c, scale if scale is not None else (w.model.cpu.scale if target.kind == "cpu" else 1))
        for w, k, c in chosen
    ]
    for plan in plans:
        plan.workload.case(plan.cases[0], plan.scale)  # a scale that does not divide is found before anything runs
    path = output or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    store.prepare(path)
    console = _console()
    earlier, bad = store.read(path)
    for line in bad:
        console.print(f"warning: {line}", style="yellow", markup=False)

    roofline = _roofline(catalog, target, console)
    _warn_of_full_size(plans, target, roofline, console)
    options = Options(
        target,
        protocol,
        protocol.seed if seed is None else seed,
        timeout_s,
        check_only,
        roofline,
        machine.environment(target, catalog.roots[0]),
    )
    total = sum(len(plan.kernels) * len(plan.cases) for plan in plans)
    held = {
        record.identity: record
        for record in earlier
        if record.status.failed or record.latency_ms is not None or (check_only and record.correctness is not None)
    }
    shown: list[Record] = []

    def already_held(record: Record) -> bool:
        if not resume or record.identity not in held:
            return False
        shown.append(held[record.identity])
        progress.skipped()
        return True

    code = 0
    with _Progress(console, total) as progress:
        runner = Runner(options, progress, earlier)
        try:
            for record in runner.run(plans, already_held):
                try:
                    store.append(path, record)
                except OSError as error:
                    raise InputError(
                        str(path),
                        f"a record could not be written ({error.strerror})",
                        "what was written before is whole; free space and go on with --resume",
                    ) from None
                shown.append(record)
                if as_json:
                    print(record.to_line(), flush=True)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
    from harness import report

    console.print(*report.terminal(shown), sep="\n", markup=False)
    console.print(f"\n{len(shown)} of {total} records, in {path}", markup=False)
    if code == EXIT_INTERRUPTED:
        again = f"-o {path} --resume"
        console.print(f"Interrupted; what was measured is kept. Go on with the same command and {again}", markup=False)
    elif any(record.status.failed for record in shown):
        code = EXIT_KERNEL_FAILED
    raise typer.Exit(code)


def _choose(catalog: Catalog, names: list[str], kernels: list[str], patterns: list[str]) -> list[tuple[Any, Any, Any]]:
    """(workload, kernels, case ids) for each workload asked for. Raises `InputError`."""
    from harness.catalog import select_cases
    from harness.errors import unknown_name

    if not names:
        names = ["main"]
    wanted: list[tuple[str, list[str]]] = []
    for name in names:
        if name in catalog.suite_names():
            suite = catalog.suite(name)
            wanted += [(workload, kernels or suite.kernels) for workload in suite.workloads]
        else:
            wanted.append((name, kernels))
    chosen = []
    for name, asked in wanted:
        workload = catalog.workload(name)
        known = [kernel for kernel in catalog.kernel_paths(workload) if kernel != "reference"]
        found = [catalog.kernel(kernel, workload) for kernel in asked or known]
        if not found:
            remedy = f"add a file under kernels/{workload.name}/, or give one with -k"
            raise InputError(workload.name, "has no kernels", remedy)
        chosen.append((workload, found, patterns))
    every_case = [case for workload, _, _ in chosen for case in workload.case_ids()]
    selected = []
    for workload, found, _ in chosen:
        try:
            selected.append((workload, found, select_cases(workload, patterns)))
        except InputError:
            if len(chosen) == 1:
                raise
            # With several workloads a pattern may belong to one of them, but each to at least one.
            own = [p for p in patterns if _matches(workload.case_ids(), p)]
            if own:
                selected.append((workload, found, select_cases(workload, own)))
    for pattern in patterns:
        if not _matches(every_case, pattern):
            raise unknown_name("case", pattern, every_case)
    return selected


def _matches(ids: Sequence[str], pattern: str) -> bool:
    import fnmatch

    return bool(fnmatch.filter(ids, pattern))


def _roofline(catalog: Catalog, target: Any, console: Console) -> Roofline | None:
    from harness import machine

    if target.kind == "cpu":
        console.print("Calibrating this machine: bf16 matrix rate and copy bandwidth …", markup=False)
        roofline = machine.calibrate_cpu()
        console.print(
            f"{roofline.device}: {roofline.peak_flops / 1e12:.3f} TFLOP/s bf16, {roofline.bandwidth / 1e9:.1f} GB/s "
            "(measured now)",
            markup=False,
        )
        return roofline
    try:
        return catalog.device(target.name).roofline()
    except InputError:
        remedy = "add a file under configs/devices/ for bounds and scores"
        console.print(f"warning: no peak rates are known for {target.name}; {remedy}", style="yellow", markup=False)
        return None


def _warn_of_full_size(plans: list[Plan], target: Any, roofline: Roofline | None, console: Console) -> None:
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


def _console() -> Console:
    from rich.console import Console

    # Without a terminal (CI logs) tables keep the width that they are made for.
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 80)


class _Progress:
    """What runs now, how many of how many, and how long it will take; on stderr."""

    def __init__(self, console: Console, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console, self._total, self._count = console, total, 0
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not self._live,
            # The estimate looks back over many cases, because their lengths differ.
            speed_estimate_period=3600,
        )
        self._task = self._bar.add_task("", total=total)
        self._label = ""

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, kernel: str, workload: str, case: str) -> None:
        self._label = f"{workload.partition('_')[0]} {kernel} {case}"
        self._bar.update(self._task, description=self._label)

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=f"{self._label} {text}"[:44])

    def skipped(self) -> None:
        self._count += 1
        self._bar.advance(self._task)

    def done(self, record: Record) -> None:
        from harness.report import format_ms

        self.skipped()
        if not self._live:
            found = format_ms(record.latency_ms) if record.latency_ms is not None else record.reason or ""
            self._console.print(
                f"[{self._count}/{self._total}] {self._label}: {record.status.value} {found}", markup=False
            )


# --- looking at what there is ---------------------------------------------------------------------


class Kind(StrEnum):
    """What `solbench list` lists."""

    workloads = "workloads"
    kernels = "kernels"
    devices = "devices"
    protocols = "protocols"
    suites = "suites"


@app.command(name="list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """List workloads, kernels, devices, protocols or suites."""
    from harness.catalog import Catalog

    _print_rows(_listing(Catalog(root), kind), as_json)


def _listing(catalog: Catalog, kind: Kind) -> list[dict[str, Any]]:
    match kind:
        case Kind.workloads:
            found = [catalog.workload(name) for name in catalog.workload_folders()]
            return [
                {"name": w.name, "short_name": w.model.short_name, "cases": len(w.model.cases), "title": w.model.title}
                for w in found
            ]
        case Kind.kernels:
            return [
                {"workload": w.name, "name": name, "idea": catalog.kernel(name, w).idea}
                for w in map(catalog.workload, catalog.workload_folders())
                for name in catalog.kernel_paths(w)
            ]
        case Kind.devices:
            return [
                {
                    "name": stem,
                    "device": d.name,
                    "roofline": label,
                    "bf16_tflops": r.bf16_dense_flops / 1e12,
                    "bandwidth_gb_per_s": r.bandwidth_bytes_per_s / 1e9,
                }
                for stem, d in catalog.devices().items()
                for label, r in d.rooflines.items()
            ]
        case Kind.protocols:
            return [
                {"name": p.name, "backend": p.backend, "description": p.description}
                for p in map(catalog.protocol, catalog.protocol_names())
            ]
        case Kind.suites:
            return [
                {
                    "name": s.name,
                    "workloads": ", ".join(s.workloads),
                    "kernels": ", ".join(s.kernels),
                    "description": s.description,
                }
                for s in map(catalog.suite, catalog.suite_names())
            ]


@app.command()
def sol(
    workload: Annotated[str, typer.Argument(help="Name, short name or path.")],
    device: Annotated[str, typer.Option("-d", "--device", help="A device of the catalogue.")] = "nvidia_b200",
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Bound of every case on a device, computed beside published."""
    from harness import sol as bounds
    from harness.catalog import Catalog
    from harness.report import format_ms
    from harness.stats import geometric_mean

    catalog = Catalog(root)
    chosen, model = catalog.workload(workload), catalog.device(device)
    published = chosen.model.published
    roofline = model.roofline()
    rows: list[dict[str, Any]] = []
    for case in map(chosen.case, chosen.case_ids()):
        bound = bounds.bound(case.flops, case.bytes_moved, roofline)
        same_device = published is not None and published.device == model.name
        rows.append(
            {
                "case": case.id,
                "flops": case.flops,
                "bytes_moved": case.bytes_moved,
                "limit": bound.limit,
                "bound_ms": bound.ms,
                "published_bound_ms": case.published_bound_ms if same_device else None,
            }
        )
    if as_json:
        _print_rows(rows, True)
        return
    shown = [
        {
            "case": r["case"],
            "GFLOP": f"{r['flops'] / 1e9:.4g}",
            "MB": f"{r['bytes_moved'] / 1e6:.4g}",
            "limit": r["limit"],
            "bound": format_ms(r["bound_ms"]),
            "published": format_ms(r["published_bound_ms"]),
        }
        for r in rows
    ]
    _print_rows(shown, False)
    mean = geometric_mean([row["bound_ms"] for row in rows])
    console = _console()
    console.print(f"geometric mean {format_ms(mean)}, from the {roofline.label} peaks of {model.name}:", markup=False)
    console.print(roofline.source, markup=False)
    for case in map(chosen.case, chosen.case_ids()):
        if case.published_note and published and published.device == model.name:
            console.print(f"{case.id}: {case.published_note}", markup=False)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows as JSON Lines, or as a table as wide as the terminal."""
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], (int, float)) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(f"{v:g}" if isinstance(v, float) else str(v)) for v in row.values()))
    Console(highlight=False, width=None if sys.stdout.isatty() else 100).print(table)


class Format(StrEnum):
    """What `solbench report` writes."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Results files.")],
    form: Annotated[Format, typer.Option("-f", "--format", help="How to write it.")] = Format.table,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to; default stdout.")] = None,
) -> None:
    """Show results files: per case and kernel, and what each kernel's suite comes to."""
    from harness import store
    from harness.report import markdown, terminal

    records: list[Record] = []
    for file in files:
        found, bad = store.read(file)
        records += found
        for line in bad:
            print(f"warning: {line}", file=sys.stderr)
    records = store.newest(records)
    if not records:
        raise InputError(", ".join(map(str, files)), "holds no records", "give a results file of solbench run")
    match form:
        case Format.table:
            from rich.console import Console

            width = None if output is None and sys.stdout.isatty() else 80
            console = Console(highlight=False, width=width)
            with console.capture() as capture:
                console.print(*terminal(records), sep="\n", markup=False)
            text = capture.get()
        case Format.markdown:
            text = markdown(records)
        case Format.csv | Format.json:
            from harness.frame import frame

            rows = frame(records)
            as_lines = form is Format.json
            text = rows.to_json(orient="records", lines=True) if as_lines else rows.to_csv(index=False)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {output}", f"cannot be written ({error.strerror})", "choose another path") from None


if __name__ == "__main__":
    main()
