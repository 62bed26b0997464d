"""The `solbench` command. Each command is a few lines over `harness`; heavy imports wait until needed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
    from harness.compare import Criteria, SuiteComparison
    from harness.figures import Figures
    from harness.machine import Target
    from harness.records import Record
    from harness.runner import Options, Plan
    from harness.selftest import Finding
    from harness.sol import Roofline
    from harness.spec import ProtocolModel

EXIT_KERNEL_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_COMPARABLE = 5
EXIT_INTERRUPTED = 130
# Where only results are read, these may have been left out of the installation.
_OPTIONAL_HERE = ("torch", "triton", "pandas", "msgspec", "jinja2", "scipy")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run GPU kernels against their references: are they right, how fast, and how fast could they be?",
)


def main() -> None:
    """Entry point: `InputError` becomes one sentence and exit code 2."""
    # A cancelled CI job ends as an interrupt does: what was measured is kept, and no process or folder is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    # A closed standard output (`>&-`) is nobody's.
    sys.stdout = _Output(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115 -- open for as long as the process
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told
    except InputError as error:
        print(f"solbench: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OPTIONAL_HERE:
            raise
        print(f"solbench: this command needs {package}, which is not installed; pip install {package}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


class _Output:
    """Standard output that a reader may leave, and that takes any text.

    A reader that goes away (`| head`) changes neither what is measured nor the exit code; a full disk is told
    in a sentence.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._try(lambda: self._stream.write(text)))

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            # Whatever is still to be written goes nowhere, so that it fails no second time.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                return 0
            problem = f"cannot be written ({error.strerror})"
            raise InputError("standard output", problem, "free space, or use -o") from None


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
RooflineOption = Annotated[
    str | None, typer.Option("--roofline", help="Which of the device's pairs of peaks, such as datasheet or measured.")
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="BACKEND", help="Time each case with this backend too: cupti, events."),
]
LockOption = Annotated[
    str | None,
    typer.Option("--lock-clocks", metavar="MHZ|public", help="Lock the GPU's SM clock meanwhile (as a rule: as root)."),
]


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
    peaks: RooflineOption = None,
    lock: LockOption = None,
    also: AlsoOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Check and time kernels. Without arguments: the main suite, with what this machine has."""
    _run(
        workloads,
        kernel,
        case,
        device,
        protocol,
        output,
        seed,
        timeout,
        scale,
        resume,
        as_json,
        root,
        peaks,
        lock,
        also=also or [],
    )


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
    lock: LockOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """As run, correctness only."""
    _run(
        workloads, kernel, case, device, protocol, output, seed, timeout, scale, resume, as_json, root, None, lock, True
    )


@dataclass(frozen=True)
class _Setup:
    """What a run needs, checked before anything is measured."""

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
        from harness import gpu_state

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


def _set_up(
    workloads: list[str] | None,
    kernels: list[str] | None,
    cases: list[str] | None,
    device: str,
    protocol_name: str | None,
    output: Path | None,
    seed: int | None,
    timeout_s: float,
    scale: int | None,
    root: Path | None,
    check_only: bool = False,
    peaks: str | None = None,
    lock: str | None = None,
    also: Sequence[str] = (),
) -> _Setup:
    """Resolve every name and open the results file. Raises `InputError`."""
    from harness import store
    from harness.catalog import Catalog

    catalog = Catalog(root)
    chosen = _choose(catalog, workloads or [], kernels or [], cases or [])

    from harness import machine
    from harness.runner import Options, Plan

    target = machine.target(device)
    protocol = catalog.protocol(protocol_name or ("queued" if target.kind == "cuda" else "host"))
    protocol = protocol.timing_also(also)
    _check_backends(protocol, target)
    plans = [
        Plan(w, k, c, scale if scale is not None else (w.model.cpu.scale if target.kind == "cpu" else 1))
        for w, k, c in chosen
    ]
    for plan in plans:
        plan.workload.case(plan.cases[0], plan.scale)  # a scale that does not divide is found before anything runs
    locked_mhz = _clock_to_lock(lock, target)
    roofline = _roofline_asked(catalog, target, peaks)
    path = output or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    store.prepare(path)
    console = _console()
    earlier, bad = store.read(path)
    for line in bad:
        console.print(f"warning: {line}", style="yellow", markup=False)
    roofline = roofline or _roofline(catalog, target, console)
    _warn_of_full_size(plans, target, roofline, console)
    environment = machine.environment(target, catalog.roots[0], locked_mhz)
    used_seed = protocol.seed if seed is None else seed
    options = Options(target, protocol, used_seed, timeout_s, check_only, roofline, environment)
    return _Setup(plans, options, path, earlier, console, locked_mhz)


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


def _keep(path: Path, record: Record) -> None:
    """Append a record, or stop with what was written before."""
    from harness import store

    try:
        store.append(path, record)
    except OSError as error:
        problem = f"a record could not be written ({error.strerror})"
        remedy = "what was written before is whole; free space and go on with --resume"
        raise InputError(str(path), problem, remedy) from None


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
    peaks: str | None,
    lock: str | None,
    check_only: bool = False,
    also: Sequence[str] = (),
) -> NoReturn:
    _check_resumable(resume, output)
    setup = _set_up(
        workloads,
        kernels,
        cases,
        device,
        protocol_name,
        output,
        seed,
        timeout_s,
        scale,
        root,
        check_only,
        peaks,
        lock,
        also,
    )
    from harness.records import Status
    from harness.runner import Runner

    console, total = setup.console, sum(len(plan.kernels) * len(plan.cases) for plan in setup.plans)
    held = {record.identity: record for record in setup.earlier if _answers(record, check_only)}
    shown: list[Record] = []

    def already_held(record: Record) -> bool:
        if not resume or record.identity not in held:
            return False
        shown.append(held[record.identity])
        progress.skipped()
        return True

    interrupted = False
    stopped: InputError | None = None
    with setup.locked(), _Progress(console, total) as progress:
        try:
            for record in Runner(setup.options, progress, setup.earlier).run(setup.plans, already_held):
                _keep(setup.path, record)
                shown.append(record)
                if as_json:
                    print(record.to_line(), flush=True)
        except KeyboardInterrupt:
            interrupted = True
        except InputError as error:
            stopped = error  # a full disk, say: what was measured before is shown first
    _print_records(shown, console)
    console.print(f"\n{len(shown)} of {total} records, in {setup.path}", markup=False)
    if stopped is not None:
        raise stopped
    if interrupted:
        again = f"-o {setup.path} --resume"
        console.print(f"Interrupted; what was measured is kept. Go on with the same command and {again}", markup=False)
        raise typer.Exit(EXIT_INTERRUPTED)
    if not any(record.status is Status.PASSED for record in shown):
        console.print("No case passed.", style="red")
        raise typer.Exit(EXIT_KERNEL_FAILED)
    raise typer.Exit(EXIT_KERNEL_FAILED if any(record.status.failed for record in shown) else 0)


def _check_resumable(resume: bool, output: Path | None) -> None:
    if resume and output is None:
        raise InputError("--resume", "needs the file to go on with", "add -o FILE")


def _answers(record: Record, check_only: bool) -> bool:
    """Whether an earlier record makes measuring again needless."""
    measured = record.latency_ms is not None or (check_only and record.correctness is not None)
    return measured or record.status.failed


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
        resolved = [catalog.kernel(kernel, workload) for kernel in dict.fromkeys(asked or known)]
        found = list({kernel.path.resolve(): kernel for kernel in resolved}.values())
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


def _clock_to_lock(lock: str | None, target: Any) -> int | None:
    from harness.gpu_state import clock_asked

    if lock is None:
        return None
    if target.kind == "cpu":
        raise InputError(f"--lock-clocks {lock}", "the device is the CPU", "leave it out, or take a GPU with -d cuda")
    return clock_asked(lock, target.name)


def _roofline_asked(catalog: Catalog, target: Any, peaks: str | None) -> Roofline | None:
    from harness import rooflines

    # A CPU is calibrated at the start of every run, whether or not its label is given.
    if peaks is None or (target.kind == "cpu" and peaks == "calibrated"):
        return None
    return rooflines.of_device(catalog, target.name, peaks)


def _roofline(catalog: Catalog, target: Any, console: Console) -> Roofline | None:
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


def _print_records(records: Sequence[Record], console: Console) -> None:
    from harness.figures import Reader
    from harness.terminal import terminal

    text = terminal(map(Reader().of_record, records), console.width, _has_colours(console))
    print(text, end="", file=console.file)


def _has_colours(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _console(to_stdout: bool = False) -> Console:
    from rich.console import Console

    # Without a terminal (CI logs) tables keep the width that they are made for.
    live = (sys.stdout if to_stdout else sys.stderr).isatty()
    return Console(stderr=not to_stdout, highlight=False, width=None if live else 80)


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
        from harness.text import format_ms

        found = format_ms(record.latency_ms) if record.latency_ms is not None else record.reason or ""
        self.ended(self._label, f"{record.status.value} {found}")

    def ended(self, label: str, text: str) -> None:
        """One of them is done; where nobody sees the bar, a line says what came of it."""
        self.skipped()
        if not self._live:
            self._console.print(f"[{self._count}/{self._total}] {label}: {text}", markup=False)


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
def doctor(
    device: DeviceOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on stdout.")] = False,
    root: RootOption = None,
) -> None:
    """What is here, what would a run do, and what stands in its way? Exit code 1 when no run is possible."""
    from harness.doctor import examine
    from harness.doctor_report import terminal

    found = examine(device, root)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print_parts(terminal(found))
    raise typer.Exit(0 if found.possible else EXIT_KERNEL_FAILED)


@app.command()
def selftest(
    kernel: Annotated[list[str] | None, typer.Option("-k", "--kernel", help="Only the one of this name.")] = None,
    device: DeviceOption = "auto",
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="So many at a time. Default: by the cores.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Run each honest kernel so many times.")] = 1,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Are known cheats caught here, and do honest kernels that look like cheats pass? Exit code 1 if not."""
    from harness import corpus
    from harness.catalog import Catalog

    catalog = Catalog(root)
    entries = corpus.chosen(corpus.load(catalog.roots), kernel or [])

    from harness import machine
    from harness import selftest as referee

    target, console = machine.target(device), _console()
    at_a_time = jobs or referee.jobs_by_default(target)
    setting = referee.setting(catalog, target, at_a_time, repeat)
    before = referee.fingerprint(catalog.roots)
    findings: list[Finding] = []
    try:
        with _Progress(console, len(entries)) as progress:
            for found in referee.run(entries, setting, at_a_time):
                findings.append(found)
                progress.ended(found.entry.name, str(found.verdict))
                if as_json:
                    print(json.dumps(found.as_row()), flush=True)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    changes = referee.changed_files(before, referee.fingerprint(catalog.roots))
    _print_findings(sorted(findings, key=lambda found: entries.index(found.entry)), console)
    for change in changes:
        console.print(f"while it ran, somebody {change}", style="red", markup=False)
    console.print(referee.summary(findings), markup=False)
    failed = bool(changes) or any(found.verdict.failed for found in findings)
    raise typer.Exit(EXIT_KERNEL_FAILED if failed else 0)


def _print_findings(findings: Sequence[Finding], console: Console) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what it does", "expected", "found", "verdict", "reason"):
        table.add_column(heading, no_wrap=heading in ("name", "verdict"))
    for found in findings:
        style = "red" if found.verdict.failed else "yellow" if found.verdict == "skipped" else ""
        expected = " or ".join(found.entry.expected)
        cells = (found.entry.name, found.entry.idea, expected, found.found, str(found.verdict), found.reason or "")
        table.add_row(*map(Text, cells), style=style)
    # Six columns of text need more room than other tables, where there is no terminal to say how much there is.
    Console(stderr=True, highlight=False, width=None if console.is_terminal else 180).print(table)


@app.command()
def sol(
    workload: Annotated[str, typer.Argument(help="Name, short name or path.")],
    device: Annotated[str, typer.Option("-d", "--device", help="A device of the catalogue.")] = "nvidia_b200",
    peaks: RooflineOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Bound of every case on a device, computed beside published."""
    from harness import bounds
    from harness.catalog import Catalog
    from harness.stats import geometric_mean
    from harness.text import format_ms

    catalog = Catalog(root)
    chosen, model = catalog.workload(workload), catalog.device(device)
    roofline = model.roofline(peaks)
    found = bounds.of_cases(chosen, model, roofline)
    if as_json:
        _print_rows([case.row() for case in found], True)
        return
    _print_rows([case.texts() for case in found], False)
    mean = geometric_mean([case.bound.ms for case in found])
    console = _console()
    console.print(f"geometric mean {format_ms(mean)}, from the {roofline.label} peaks of {model.name}:", markup=False)
    console.print(roofline.source, markup=False)
    if others := [label for label in model.rooflines if label != roofline.label]:
        console.print(f"other peaks of this device: --roofline {' or '.join(others)}", markup=False)
    for case in found:
        if case.note:
            console.print(f"{case.case.id}: {case.note}", markup=False)


@app.command()
def calibrate(
    device: DeviceOption = "auto",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write. Default: configs/measured/DEVICE.yaml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on stdout.")] = False,
    root: RootOption = None,
) -> None:
    """Measure the matrix rate and bandwidth that this device keeps up: its roofline "measured"."""
    from harness import measured
    from harness.catalog import Catalog

    catalog = Catalog(root)

    from harness import machine
    from harness.calibrate import calibrate as measure

    target = machine.target(device)
    path = output or catalog.measured_path(target.name)
    measured.prepare(path)
    console = _console()
    with console.status("") as status:
        found = measure(target, tell=lambda what: status.update(f"measuring: {what}"))
    measured.write(path, found)
    if as_json:
        print(json.dumps(found.model_dump(mode="json", by_alias=True)))
    else:
        _print_rows(measured.rows(found), False)
    peaks = found.roofline
    console.print(
        f"{found.device}: {peaks.bf16_dense_flops / 1e12:.4g} TFLOP/s, {peaks.bandwidth_bytes_per_s / 1e9:.4g} GB/s, "
        f"in {path}; use it with --roofline {measured.LABEL}",
        markup=False,
    )
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


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


@app.command()
def leaderboard(
    workload: Annotated[str, typer.Argument(help="Name, short name or path.")],
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Your results files.")] = None,
    show_history: Annotated[bool, typer.Option("--history", help="How the record of each board moved.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout.")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Published records of a workload, and yours among those that were measured alike."""
    from harness import leaderboard as ranked
    from harness import leaderboard_report as shown
    from harness import published
    from harness.catalog import Catalog

    catalog = Catalog(root)
    _only_one_of(as_json, as_markdown, as_csv)
    chosen = catalog.workload(workload)
    records = [record for file in files or [] for record in _read_all(file, None)]
    boards, left_out = ranked.boards_of(chosen, published.load(catalog.roots, chosen.name), records)
    if not boards:
        problem = "; ".join(left_out) or "nothing is published for it"
        raise InputError(chosen.name, f"has no leaderboard ({problem})", "give results of a full solbench run")
    notes = [*filter(None, [ranked.why_apart(boards)]), shown.TRUST_LEGEND, *(f"left out: {t}" for t in left_out)]
    if as_json or as_csv:
        rows = shown.as_rows(boards, chosen.name)
        print("\n".join(map(json.dumps, rows)) if as_json else shown.as_csv(rows), end="\n" if as_json else "")
    elif as_markdown:
        print(shown.markdown(boards, notes), end="")
    else:
        for board in boards:
            print(f"\n{shown.title(board)}")
            narrow = [{h: shown.cells(board, row)[h] for h in shown.NARROW} for row in board.rows]
            _print_rows(shown.history_rows(board) if show_history else narrow, False)
            for row in board.rows:
                if row.recipe and not show_history:
                    print(f"{row.implementation}: {row.recipe}; license {row.license or 'unknown'}; {row.source}")
        print("\n".join(notes))


class Format(StrEnum):
    """What `solbench report` writes."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    html = "html"


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Results files.")],
    form: Annotated[Format, typer.Option("-f", "--format", help="How to write it.")] = Format.table,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to; default stdout.")] = None,
    peaks: RooflineOption = None,
    root: RootOption = None,
) -> None:
    """Show results files: per case and kernel, and what each kernel's suite comes to.

    Bounds are those that the records hold, or with --roofline those of other peaks of their device.
    """
    import gc

    from harness import figures, store

    gc.disable()  # the command ends soon and makes no cycles; looking for some would take a tenth of its time
    found, bad = figures.read(files)
    for line in bad:
        print(f"warning: {line}", file=sys.stderr)
    records = figures.with_baselines(store.newest(found))
    if not records:
        raise InputError(", ".join(map(str, files)), "holds no records", "give a results file of solbench run")
    if peaks is not None:
        from harness import rooflines
        from harness.catalog import Catalog

        records = rooflines.against(records, peaks, Catalog(root))
    parts = _report_parts(records, form, to_terminal=output is None and sys.stdout.isatty())
    if output is None:
        sys.stdout.writelines(parts)
        return
    try:
        with output.open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        raise InputError(f"--output {output}", f"cannot be written ({error.strerror})", "choose another path") from None


def _report_parts(records: list[Figures], form: Format, to_terminal: bool) -> Iterable[str]:
    """The report in pieces, because as one text a large one would take hundreds of megabytes."""
    match form:
        case Format.table:
            from harness.terminal import terminal

            console = _console(to_stdout=True)
            return [terminal(records, console.width if to_terminal else 80, to_terminal and _has_colours(console))]
        case Format.markdown:
            from harness.report import markdown

            return [markdown(records)]
        case Format.html:
            from harness.html import html

            return html(records)
        case Format.csv:
            from harness.frame import csv_lines

            return csv_lines(records)
        case Format.json:
            from harness.frame import json_lines

            return json_lines(records)


@app.command()
def site(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder: new, empty, or an earlier site.")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Results files. Default: those of the catalogue.")
    ] = None,
    root: RootOption = None,
) -> None:
    """Write the records of every workload as pages that need no network and no server."""
    from harness import site as pages_of
    from harness.catalog import Catalog

    catalog = Catalog(root)
    chosen = files or pages_of.results_files(catalog)
    if not chosen:
        print("warning: there are no results files under results/; only published records are shown", file=sys.stderr)
    pages, problems = pages_of.pages(catalog, chosen)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    pages_of.write(output, pages)
    print(f"{len(pages)} pages, beginning with {output / 'index.html'}", file=sys.stderr)


# --- comparing and gating -------------------------------------------------------------------------


@app.command()
def compare(
    sides: Annotated[list[str], typer.Argument(metavar="A B [MORE]...", help="Two results files, or kernels.")],
    file: Annotated[Path | None, typer.Option("-f", "--file", help="The kernels' records are in this file.")] = None,
    workload: Annotated[list[str] | None, typer.Option("-w", "--workload", help="Measure the kernels now.")] = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    protocol: ProtocolOption = None,
    output: OutputOption = None,
    timeout: TimeoutOption = 300.0,
    scale: ScaleOption = None,
    blocks: Annotated[int, typer.Option("--blocks", min=2, help="Measuring now: turns of each kernel.")] = 6,
    confidence: Annotated[float, typer.Option("--confidence", help="Of intervals and verdicts.")] = 0.95,
    least_effect: Annotated[
        float, typer.Option("--min-effect", min=0, help="Smaller changes are noise; 0.01 is 1%.")
    ] = 0.01,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it, to a .png, .svg or .pdf file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout.")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Is B slower or faster than A? Two files, kernels of one file, or kernels measured in turn now.

    Small differences are found best by measuring in turn: compare A B -w WORKLOAD.
    """
    from harness.compare import Criteria, NotComparable

    _only_one_of(as_json, as_markdown)
    if not workload:
        for option, given in (("--protocol", protocol), ("--output", output), ("--scale", scale)):
            if given is not None:
                raise InputError(option, "only means something when kernels are measured", "add -w WORKLOAD")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot {plot}", "cannot be written", "give a .png, .svg or .pdf path")
    if not 0.5 < confidence < 1:
        raise InputError("--confidence", f"{confidence:g} is no confidence", "give one between 0.5 and 1, such as 0.95")
    if len(sides) < 2:
        raise InputError("compare", f'"{sides[0]}" has nothing to be compared with', "name two files or kernels")
    criteria = Criteria(confidence, least_effect)
    alone: list[str] = []
    failed = False
    try:
        if workload:
            if len(sides) > 2:
                raise InputError("compare", "measures two kernels in turn", "name two, or run all and give --file")
            setup = _set_up(workload, sides, case, device, protocol, output, None, timeout, scale, root)
            suites, failed = _measured_in_turn(setup, sides, blocks, criteria)
        elif file is not None:
            if len(sides) > 2:
                _show_ranking(file, sides, case, criteria, as_markdown, as_json)
                return
            records = _read_all(file, case)
            suites = _of_one_file(file, records, sides, criteria)
        else:
            suites, alone = _of_two_files(sides, case, criteria)
    except NotComparable as error:
        print("solbench: not comparable: " + "; ".join(error.reasons), file=sys.stderr)
        print("Measure both sides on one device with the same protocol, workload and scale.", file=sys.stderr)
        raise typer.Exit(EXIT_NOT_COMPARABLE) from None
    if not suites:
        raise InputError(" and ".join(sides), "have no kernel in common", "; ".join(alone) or "give other files")
    if plot is not None:
        from harness.compare_report import plot as draw

        draw(suites, criteria, plot)
    _show_comparison(suites, alone, criteria, as_markdown, as_json)
    raise typer.Exit(EXIT_KERNEL_FAILED if failed else 0)


def _measured_in_turn(
    setup: _Setup, sides: list[str], blocks: int, criteria: Criteria
) -> tuple[list[SuiteComparison], bool]:
    """The comparison, and whether a kernel failed; each failure is named once."""
    from dataclasses import replace

    from harness import interleave
    from harness.compare import compare_interleaved

    # A kernel may be compared with itself, and is resolved once.
    position = {side: index for index, side in enumerate(dict.fromkeys(sides))}
    plans_of = [
        [replace(plan, kernels=[plan.kernels[min(position[side], len(plan.kernels) - 1)]]) for plan in setup.plans]
        for side in sides
    ]
    total = blocks * sum(len(plan.cases) for plans in plans_of for plan in plans)
    with _Progress(setup.console, total) as progress:
        measured = interleave.measure(
            plans_of, blocks, setup.options, progress, lambda record: _keep(setup.path, record)
        )
    setup.console.print(f"{total} records of {blocks} turns, in {setup.path}", markup=False)
    records = [record for block in measured for side in block for record in side]
    reasons = {f"{r.kernel} {r.case}: {r.status}: {r.reason}" for r in records if r.status.failed}
    for reason in sorted(reasons):
        setup.console.print(reason, style="red", markup=False)
    return compare_interleaved([(block[0], block[1]) for block in measured], criteria), bool(reasons)


def _read_all(path: Path, patterns: list[str] | None) -> list[Record]:
    """The records of a file, of the cases asked for. Raises `InputError` for damaged lines or none left."""
    from fnmatch import fnmatchcase

    from harness import store

    records, bad = store.read(path)
    if bad:
        raise InputError(f"{bad[0].path}:{bad[0].number}", bad[0].problem, "remove the line, or measure again")
    kept = [r for r in records if not patterns or any(fnmatchcase(r.case, p) for p in patterns)]
    if not kept:
        raise InputError(str(path), "holds no records" if not records else "holds none of the cases", "give others")
    return kept


def _of_two_files(
    sides: list[str], patterns: list[str] | None, criteria: Criteria
) -> tuple[list[SuiteComparison], list[str]]:
    from harness.compare import compare_files

    if len(sides) > 2:
        raise InputError("compare", "takes two results files", "for several kernels of one file add --file FILE")
    for side in sides:
        if not Path(side).is_file():
            remedy = "give a results file; for kernels add --file FILE (measured before) or -w WORKLOAD (measure now)"
            raise InputError(f'"{side}"', "is no file", remedy)
    a, b = (_read_all(Path(side), patterns) for side in sides)
    return compare_files(a, b, criteria)


def _of_one_file(file: Path, records: list[Record], sides: list[str], criteria: Criteria) -> list[SuiteComparison]:
    from harness.compare import by_workload_and_kernel, compare_suite
    from harness.errors import unknown_name

    by_kernel = by_workload_and_kernel(records)
    for side in sides:
        if side not in {kernel for _, kernel in by_kernel}:
            raise unknown_name("kernel", side, {kernel for _, kernel in by_kernel}, str(file))
    a, b = sides
    both = [w for w, kernel in by_kernel if kernel == a and (w, b) in by_kernel]
    return [compare_suite(by_kernel[w, a], by_kernel[w, b], criteria) for w in both]


def _show_ranking(
    file: Path, kernels: list[str], patterns: list[str] | None, criteria: Criteria, as_markdown: bool, as_json: bool
) -> None:
    from harness.compare import by_workload_and_kernel, ranking
    from harness.compare_report import RANKING_HEADINGS, ranking_rows
    from harness.errors import unknown_name
    from harness.text import escaped, markdown_table

    by_kernel = by_workload_and_kernel(_read_all(file, patterns))
    for kernel in kernels:
        if kernel not in {k for _, k in by_kernel}:
            raise unknown_name("kernel", kernel, {k for _, k in by_kernel}, str(file))
    ranked = False
    for workload in dict.fromkeys(w for w, _ in by_kernel):
        sides = {kernel: by_kernel[workload, kernel] for kernel in kernels if (workload, kernel) in by_kernel}
        if len(sides) < 2:
            continue
        ranked = True
        places, left_out = ranking(sides, criteria)
        rows = [dict(zip(RANKING_HEADINGS, row, strict=True)) for row in ranking_rows(places, criteria)]
        if as_markdown:
            print(f"### {escaped(workload)}\n\n{markdown_table(RANKING_HEADINGS, [tuple(r.values()) for r in rows])}\n")
        elif as_json:
            for place in places:
                ratio = place.to_first.ratio if place.to_first else 1.0
                print(
                    json.dumps(
                        {
                            "workload": workload,
                            "rank": place.rank,
                            "kernel": place.kernel,
                            "mean_ms": place.mean_ms,
                            "to_first": ratio,
                        }
                    )
                )
        else:
            print(workload)
            _print_rows(rows, False)
            print("Kernels of one rank (=) cannot be told apart at this confidence.")
            if left_out:
                print(f"Left out, because not every kernel has them: {', '.join(left_out)}")
    if not ranked:
        raise InputError(", ".join(kernels), "have no workload in common", "name kernels of one workload")


def _show_comparison(
    suites: list[SuiteComparison], alone: list[str], criteria: Criteria, as_markdown: bool, as_json: bool
) -> None:
    from harness import compare_report

    if as_json:
        for suite in suites:
            print(json.dumps(compare_report.as_json(suite, criteria)))
    elif as_markdown:
        print(compare_report.markdown(suites, alone, criteria), end="")
    else:
        _print_parts(compare_report.terminal(suites, alone, criteria))


def _print_parts(parts: Sequence[Any]) -> None:
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 80).print(*parts, sep="\n", markup=False)


@app.command()
def noise(
    workload: Annotated[str, typer.Argument(help="Name, short name or path.")],
    kernel: Annotated[
        str | None, typer.Option("-k", "--kernel", help="Name, or path. Default: the workload's baseline kernel.")
    ] = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    protocol: ProtocolOption = None,
    processes: Annotated[int, typer.Option("--processes", min=2, help="Measure so many times, each in its own.")] = 10,
    output: OutputOption = None,
    timeout: TimeoutOption = 300.0,
    scale: ScaleOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Count the processes that the output file holds.")] = False,
    lock: LockOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """How much do times of one kernel differ from process to process, when nothing has changed?

    With the results file, solbench gate --noise FILE calls nothing a regression that is smaller.
    """
    _check_resumable(resume, output)
    from harness import noise as found
    from harness.catalog import Catalog, gate_policy
    from harness.compare import Criteria

    policy = gate_policy(root or Path.cwd(), None)
    criteria = Criteria(policy.confidence, policy.minimum_effect)
    kernels = [kernel or Catalog(root).workload(workload).model.baseline_kernel]
    setup = _set_up([workload], kernels, case, device, protocol, output, None, timeout, scale, root, lock=lock)

    from harness import interleave

    console = setup.console
    records: list[Record] = []
    held = [record for record in setup.earlier if resume and record.latency_ms is not None]

    def keep(record: Record) -> None:
        _keep(setup.path, record)
        records.append(record)

    def already_held(record: Record) -> bool:
        same = next((earlier for earlier in held if earlier.identity == record.identity), None)
        if same is None:
            return False
        held.remove(same)  # one process of this run for each that is there
        records.append(same)
        progress.skipped()
        return True

    interrupted = False
    total = processes * sum(len(plan.cases) for plan in setup.plans)
    with setup.locked(), _Progress(console, total) as progress:
        try:
            interleave.measure([setup.plans], processes, setup.options, progress, keep, already_held)
        except KeyboardInterrupt:
            interrupted = True
    console.print(f"{len(records)} of {total} records, in {setup.path}", markup=False)
    reasons = sorted({f"{r.kernel} {r.case}: {r.status}: {r.reason}" for r in records if r.status.failed})
    for reason in reasons:
        console.print(reason, style="red", markup=False)
    cases = found.summarise(records, criteria)
    if as_json:
        for one in cases:
            print(json.dumps(one.as_json()))
    elif cases:
        print(f"{cases[0].workload} {cases[0].kernel}")
        _print_rows([dict(zip(found.HEADINGS, one.row(), strict=True)) for one in cases], False)
        print("\n".join([*found.limits(records), found.legend(criteria)]))
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_KERNEL_FAILED if reasons or not cases else 0)


@app.command()
def gate(
    current: Annotated[Path, typer.Argument(metavar="CURRENT.jsonl", help="Results of the change.")],
    baseline: Annotated[str, typer.Option("--baseline", help="A results file, or the name of a baseline.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="Default: configs/gate.yaml.")] = None,
    noise_file: Annotated[
        Path | None, typer.Option("--noise", help="Results of solbench noise: what is smaller is no regression.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations and write the step summary.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout.")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """May this change land? Exit code 0 pass, 1 failed, 3 regression or missing, 4 undecided, 5 not comparable."""
    from harness import baselines, gate_report
    from harness.catalog import gate_policy
    from harness.gate import decide
    from harness.noise import least_effects

    _only_one_of(as_json, as_markdown)
    rules = gate_policy(root or Path.cwd(), policy)
    records = _read_all(current, None)
    if Path(baseline).is_file():
        before = _read_all(Path(baseline), None)
    else:
        place = root or Path.cwd()
        before = baselines.records(baselines.find(place, baseline, records[0].device, any_device=True))
    noise = least_effects(_read_all(noise_file, None), records, f"--noise {noise_file}") if noise_file else None
    decision = decide(records, before, rules, noise=noise)
    if junit is not None:
        _write(junit, gate_report.junit(decision), "--junit")
    if github and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        _write(Path(summary), gate_report.markdown(decision), "GITHUB_STEP_SUMMARY", add=True)
    if as_json:
        print(json.dumps(gate_report.as_json(decision)))
    elif as_markdown:
        print(gate_report.markdown(decision), end="")
    else:
        print(decision.verdict)
        if github:
            print("\n".join(gate_report.github_annotations(decision)))
        _print_parts(gate_report.terminal(decision))
        print(decision.next_step)
    raise typer.Exit(int(decision.code))


def _only_one_of(as_json: bool, as_markdown: bool, as_csv: bool = False) -> None:
    if as_json + as_markdown + as_csv > 1:
        raise InputError("--json, --markdown, --csv", "are given together", "keep one")


def _write(path: Path, text: str, option: str, add: bool = False) -> None:
    try:
        with path.open("a" if add else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{option} {path}", f"cannot be written ({error.strerror})", "choose another path") from None


baseline_app = typer.Typer(no_args_is_help=True, help="Named baselines of each device, for solbench gate.")
app.add_typer(baseline_app, name="baseline")
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@baseline_app.command("set")
def baseline_set(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl")],
    note: Annotated[str | None, typer.Option("--note", help="Why it was set.")] = None,
    yes: YesOption = False,
    root: RootOption = None,
) -> None:
    """Keep a results file as a baseline of its device. Replacing one shows the difference first."""
    from harness import baselines

    place = root or Path.cwd()
    device, records = baselines.prepare(_read_all(file, None), name)
    old = [b for b in baselines.listed(place) if (b.provenance.name, b.provenance.device) == (name, device)]
    if old:
        try:
            _show_replacement(baselines.records(old[0]), records)
        except InputError as error:
            print(f"The old baseline cannot be shown: {error}")
        _confirm(f"Replace the baseline {name} of {device}?", yes)
    saved = baselines.save(place, name, file.name, records, note)
    print(f"baseline {name} of {device}: {saved.provenance.records} records in {saved.path}")


def _show_replacement(old: list[Record], new: list[Record]) -> None:
    from harness.compare import Criteria, NotComparable, compare_files

    criteria = Criteria()
    try:
        suites, alone = compare_files(old, new, criteria)
    except NotComparable as error:
        print("The old and the new one do not compare: " + "; ".join(error.reasons))
        return
    print("A is the old baseline, B the new one.")
    _show_comparison(suites, alone, criteria, False, False)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("--yes", "is missing, and nobody is there to ask", f"add it to answer: {question}")
    typer.confirm(question, abort=True)


@baseline_app.command("show")
def baseline_show(
    name: NameArgument,
    device: Annotated[str | None, typer.Option("-d", "--device", help="Where several devices have one.")] = None,
    root: RootOption = None,
) -> None:
    """Where a baseline came from, and its records as a report."""
    from dataclasses import asdict

    from harness import baselines

    found = baselines.find(root or Path.cwd(), name, device)
    for key, value in asdict(found.provenance).items():
        print(f"{key}: {'none' if value is None else value}")
    _print_records(baselines.records(found), _console(to_stdout=True))


@baseline_app.command("list")
def baseline_list(as_json: JsonOption = False, root: RootOption = None) -> None:
    """The baselines of every device."""
    from harness import baselines

    rows = [
        {
            "name": p.name,
            "device": p.device,
            "records": p.records,
            "measured": p.measured_to[:10],
            "set": p.set_at[:10],
            "note": p.note or "",
        }
        for p in (b.provenance for b in baselines.listed(root or Path.cwd()))
    ]
    if rows or as_json:
        _print_rows(rows, as_json)
    else:
        print("No baselines yet: solbench baseline set NAME FILE.jsonl")


@baseline_app.command("prune")
def baseline_prune(
    older_than_days: Annotated[float, typer.Option("--older-than", min=0, help="Days since it was measured.")],
    yes: YesOption = False,
    root: RootOption = None,
) -> None:
    """Remove baselines that were measured long ago."""
    from harness import baselines

    old = baselines.older_than(root or Path.cwd(), older_than_days)
    if not old:
        print("No baseline is that old.")
        return
    for found in old:
        p = found.provenance
        print(f"{p.name} of {p.device}, measured {p.measured_to[:10]}")
    _confirm(f"Remove these {len(old)}?", yes)
    for found in old:
        baselines.remove(found)
    print(f"removed {len(old)}")


if __name__ == "__main__":
    main()
