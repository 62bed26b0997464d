"""The `solbench` command. Each command is a few lines over `harness`; heavy imports wait until needed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from harness import __version__, forms, listing
from harness.errors import InputError
from harness.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from harness.compare import Criteria, Place, SuiteComparison
    from harness.preparation import Asked
    from harness.records import Record
    from harness.selftest import Finding

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
    sys.stdout = Output(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115 -- open for as long as the process
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
    from harness.preparation import Asked

    asked = Asked(
        workloads=workloads or [],
        kernels=kernel or [],
        cases=case or [],
        device=device,
        protocol=protocol,
        output=output,
        timeout_s=timeout,
        scale=scale,
        root=root,
        seed=seed,
        peaks=peaks,
        lock=lock,
        also=also or [],
    )
    _run(asked, resume, as_json)


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
    from harness.preparation import Asked

    asked = Asked(
        workloads=workloads or [],
        kernels=kernel or [],
        cases=case or [],
        device=device,
        protocol=protocol,
        output=output,
        timeout_s=timeout,
        scale=scale,
        root=root,
        seed=seed,
        lock=lock,
        check_only=True,
    )
    _run(asked, resume, as_json)


def _run(asked: Asked, resume: bool, as_json: bool) -> NoReturn:
    _check_resumable(resume, asked.output)
    from harness.preparation import prepare

    console = _console()
    prepared = prepare(asked, console)

    from harness import execution
    from harness.records import Status

    def tell(record: Record) -> None:
        if as_json:
            print(record.to_line(), flush=True)

    done = execution.once(prepared, resume, tell)
    _print_records(done.records, console)
    console.print(f"\n{len(done.records)} of {done.total} records, in {prepared.path}", markup=False)
    if done.stopped is not None:
        raise done.stopped
    if done.interrupted:
        again = f"-o {prepared.path} --resume"
        console.print(f"Interrupted; what was measured is kept. Go on with the same command and {again}", markup=False)
        raise typer.Exit(EXIT_INTERRUPTED)
    if not any(record.status is Status.PASSED for record in done.records):
        console.print("No case passed.", style="red")
        raise typer.Exit(EXIT_KERNEL_FAILED)
    raise typer.Exit(EXIT_KERNEL_FAILED if any(record.status.failed for record in done.records) else 0)


def _check_resumable(resume: bool, output: Path | None) -> None:
    if resume and output is None:
        raise InputError("--resume", "needs the file to go on with", "add -o FILE")


def _print_records(records: Sequence[Record], console: Console) -> None:
    from harness.figures import Reader
    from harness.terminal import terminal

    text = terminal(map(Reader().of_record, records), console.width, _has_colours(console))
    print(text, end="", file=console.file)


def _has_colours(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _console(to_stdout: bool = False, width: int = 80) -> Console:
    """Without a terminal (CI logs) tables get the `width` that they are made for."""
    from rich.console import Console

    live = (sys.stdout if to_stdout else sys.stderr).isatty()
    return Console(stderr=not to_stdout, highlight=False, width=None if live else width)


# --- looking at what there is ---------------------------------------------------------------------


@app.command(name="list")
def list_(
    kind: Annotated[listing.Kind, typer.Argument(help="What to list.")],
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """List workloads, kernels, devices, protocols or suites."""
    from harness.catalog import Catalog

    _print_rows(listing.rows(Catalog(root), kind), as_json)


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

    from harness import machine, selftest_report
    from harness import selftest as referee
    from harness.progress import Progress

    target, console = machine.target(device), _console()
    at_a_time = jobs or referee.jobs_by_default(target)
    setting = referee.setting(catalog, target, at_a_time, repeat)
    before = referee.fingerprint(catalog.roots)
    findings: list[Finding] = []
    interrupted = False
    try:
        with Progress(console, len(entries)) as progress:
            for found in referee.run(entries, setting):
                findings.append(found)
                progress.ended(found.entry.name, found.in_short)
                if as_json:
                    print(json.dumps(found.as_row()), flush=True)
    except KeyboardInterrupt:
        interrupted = True
    changes = referee.changed_files(before, referee.fingerprint(catalog.roots))
    in_order = sorted(findings, key=lambda found: entries.index(found.entry))
    for change in changes:
        console.print(f"while it ran, somebody {change}", style="red", markup=False)
    if in_order:
        selftest_report.show(in_order, console)
        console.print(referee.summary(findings), markup=False)
    if interrupted:
        console.print(f"Interrupted after {len(findings)} of {len(entries)}.")
        raise typer.Exit(EXIT_INTERRUPTED)
    failed = bool(changes) or any(found.verdict.failed for found in findings)
    raise typer.Exit(EXIT_KERNEL_FAILED if failed else 0)


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

    catalog = Catalog(root)
    chosen, model = catalog.workload(workload), catalog.device(device)
    roofline = model.roofline(peaks)
    found = bounds.of_cases(chosen, model, roofline)
    if as_json:
        _print_rows([case.row() for case in found], True)
        return
    _print_rows([case.texts() for case in found], False)
    console = _console()
    for line in bounds.notes(found, model, roofline):
        console.print(line, markup=False)


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
    console.print(measured.summary(found, path), markup=False)
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows as JSON Lines, or as a table as wide as the terminal."""
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    from harness.rows import table

    _console(to_stdout=True, width=100).print(table(rows))


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
    from harness import published, store
    from harness.catalog import Catalog

    catalog = Catalog(root)
    _only_one_of(as_json, as_markdown, as_csv)
    chosen = catalog.workload(workload)
    records = [record for file in files or [] for record in store.read_whole(file)]
    boards, left_out = ranked.boards_of(chosen, published.load(catalog.roots, chosen.name), records)
    if not boards:
        problem = "; ".join(left_out) or "nothing is published for it"
        raise InputError(chosen.name, f"has no leaderboard ({problem})", "give results of a full solbench run")
    notes = shown.notes(boards, left_out)
    if as_json or as_csv:
        rows = shown.as_rows(boards, chosen.name)
        print("\n".join(map(json.dumps, rows)) if as_json else shown.as_csv(rows), end="\n" if as_json else "")
    elif as_markdown:
        print(shown.markdown(boards, notes), end="")
    else:
        for board in boards:
            print(f"\n{shown.title(board)}")
            if show_history:
                _print_rows(shown.history_rows(board), False)
                continue
            _print_rows(shown.narrow_rows(board), False)
            for recipe in shown.recipe_lines(board):
                print(recipe)
        print("\n".join(notes))


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Results files.")],
    form: Annotated[forms.Format, typer.Option("-f", "--format", help="How to write it.")] = forms.Format.table,
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
    width, colours = 80, False
    if output is None and sys.stdout.isatty():
        console = _console(to_stdout=True)
        width, colours = console.width, _has_colours(console)
    parts = forms.parts(records, form, width, colours)
    if output is None:
        sys.stdout.writelines(parts)
    else:
        _write(output, parts, "--output")


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
    lock: LockOption = None,
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
    from harness import sides as chosen
    from harness.compare import Criteria, NotComparable

    _only_one_of(as_json, as_markdown)
    if not workload:
        of_measuring = (("--protocol", protocol), ("--output", output), ("--scale", scale), ("--lock-clocks", lock))
        for option, given in of_measuring:
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
            from harness.preparation import Asked

            asked = Asked(
                workloads=workload,
                kernels=sides,
                cases=case or [],
                device=device,
                protocol=protocol,
                output=output,
                timeout_s=timeout,
                scale=scale,
                root=root,
                lock=lock,
            )
            suites, failed = _measured_in_turn(asked, blocks, criteria)
        elif file is not None:
            if len(sides) > 2:
                for ranking in chosen.rankings(file, sides, case or [], criteria):
                    _show_ranking(*ranking, criteria, as_markdown, as_json)
                return
            suites = chosen.of_one_file(file, sides, case or [], criteria)
        else:
            suites, alone = chosen.of_two_files(sides, case or [], criteria)
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


def _measured_in_turn(asked: Asked, blocks: int, criteria: Criteria) -> tuple[list[SuiteComparison], bool]:
    """The comparison, and whether a kernel failed; each failure is named once."""
    from harness.compare import compare_interleaved
    from harness.preparation import prepare

    console = _console()
    prepared = prepare(asked, console)

    from harness import execution

    try:
        measured = execution.in_turn(prepared, asked.kernels, blocks)
    except KeyboardInterrupt:
        console.print(f"Interrupted; what was measured is in {prepared.path}", markup=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    records = [record for block in measured for side in block for record in side]
    console.print(f"{len(records)} records of {blocks} turns, in {prepared.path}", markup=False)
    failures = execution.failures(records)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    return compare_interleaved([(a, b) for a, b in measured], criteria), bool(failures)


def _show_ranking(
    workload: str, places: list[Place], left_out: list[str], criteria: Criteria, as_markdown: bool, as_json: bool
) -> None:
    from harness import compare_report

    if as_markdown:
        print(compare_report.ranking_markdown(workload, places, criteria), end="")
    elif as_json:
        for row in compare_report.ranking_as_json(workload, places):
            print(json.dumps(row))
    else:
        print(workload)
        headings, rows = compare_report.RANKING_HEADINGS, compare_report.ranking_rows(places, criteria)
        _print_rows([dict(zip(headings, row, strict=True)) for row in rows], False)
        print("\n".join(compare_report.ranking_notes(left_out)))


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
    _console(to_stdout=True).print(*parts, sep="\n", markup=False)


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
    from harness.preparation import Asked, prepare

    policy = gate_policy(root or Path.cwd(), None)
    criteria = Criteria(policy.confidence, policy.minimum_effect)
    kernels = [kernel or Catalog(root).workload(workload).model.baseline_kernel]
    asked = Asked(
        workloads=[workload],
        kernels=kernels,
        cases=case or [],
        device=device,
        protocol=protocol,
        output=output,
        timeout_s=timeout,
        scale=scale,
        root=root,
        lock=lock,
    )
    console = _console()
    prepared = prepare(asked, console)

    from harness import execution

    done = execution.repeatedly(prepared, processes, resume)
    console.print(f"{len(done.records)} of {done.total} records, in {prepared.path}", markup=False)
    failures = execution.failures(done.records)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    cases = found.summarise(done.records, criteria)
    if as_json:
        for one in cases:
            print(json.dumps(one.as_json()))
    elif cases:
        print(f"{cases[0].workload} {cases[0].kernel}")
        _print_rows([dict(zip(found.HEADINGS, one.row(), strict=True)) for one in cases], False)
        print("\n".join([*found.limits(done.records), found.legend(criteria)]))
    if done.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_KERNEL_FAILED if failures or not cases else 0)


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
    from harness import baselines, gate_report, store
    from harness.catalog import gate_policy
    from harness.gate import decide
    from harness.noise import least_effects

    _only_one_of(as_json, as_markdown)
    rules = gate_policy(root or Path.cwd(), policy)
    records = store.read_whole(current)
    if Path(baseline).is_file():
        before = store.read_whole(Path(baseline))
    else:
        place = root or Path.cwd()
        before = baselines.records(baselines.find(place, baseline, records[0].device, any_device=True))
    noise = least_effects(store.read_whole(noise_file), records, f"--noise {noise_file}") if noise_file else None
    decision = decide(records, before, rules, noise=noise)
    if junit is not None:
        _write(junit, [gate_report.junit(decision)], "--junit")
    if github and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        _write(Path(summary), [gate_report.markdown(decision)], "GITHUB_STEP_SUMMARY", add=True)
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


def _write(path: Path, parts: Iterable[str], option: str, add: bool = False) -> None:
    try:
        with path.open("a" if add else "w", encoding="utf-8") as file:
            file.writelines(parts)
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
    from harness import baselines, store

    place = root or Path.cwd()
    device, records = baselines.prepare(store.read_whole(file), name)
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

    rows = baselines.rows(baselines.listed(root or Path.cwd()))
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
