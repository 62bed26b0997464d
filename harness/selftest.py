"""Is the referee any good here? Runs the corpora of cheats and of honest look-alikes, and says who got through.

Each kernel is judged in a process that may be lost, beside a copy of the catalogue: what a cheat does to its judge or
to files hurts neither the caller nor the next kernel, and shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from harness import corpus, reaper, sandbox
from harness.catalog import FOLDERS, Catalog
from harness.corpus import CheatModel, Entry
from harness.machine import Target
from harness.records import Record, Status
from harness.runner import Options, Plan, Runner
from harness.spec import ProtocolModel, Workload
from harness.turns import Turn

# One small case for each kind of device, with the divisor of its hidden sizes.
CASES = {"cpu": ("t16", 4), "cuda": ("t128", 1)}
PROTOCOLS = {"cpu": "quick", "cuda": "queued"}
# Judges of one GPU take turns on it, so more than this only wait.
MOST_JUDGES_ON_CUDA = 5
# What a judge may take beside its kernel: starting, inputs, references, ending a process tree.
SLACK_S = 90.0


class Verdict(StrEnum):
    """How a kernel of a corpus fared."""

    CAUGHT = "caught"
    HARMLESS = "harmless"
    MISSED = "missed"
    PASSED = "passed"
    FALSE_ALARM = "false alarm"
    SKIPPED = "skipped"

    @property
    def failed(self) -> bool:
        return self in (Verdict.MISSED, Verdict.FALSE_ALARM)


@dataclass(frozen=True)
class Observation:
    """What was seen of one evaluation.

    status: None when there is no record, because the judge itself failed.
    traces: what was left or changed that should not have been.
    """

    status: Status | None
    reason: str | None = None
    traces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One kernel of a corpus and what became of it. `evaluations`: how often it was run."""

    entry: Entry
    verdict: Verdict
    found: str
    reason: str | None
    evaluations: int

    @property
    def in_short(self) -> str:
        """The verdict, with the reason where that is no good one."""
        return f"{self.verdict}: {self.reason}" if self.verdict.failed else str(self.verdict)

    def as_row(self) -> dict[str, Any]:
        return {
            "name": self.entry.name,
            "kind": "cheat" if isinstance(self.entry.model, CheatModel) else "honest",
            "idea": self.entry.idea,
            "expected": [str(status) for status in self.entry.expected],
            "found": self.found,
            "verdict": str(self.verdict),
            "reason": self.reason,
            "evaluations": self.evaluations,
        }


def finding(entry: Entry, observations: Sequence[Observation]) -> Finding:
    """The verdict on a kernel; of several evaluations the first that went wrong decides."""
    wrong = [seen for seen in observations if seen.status not in entry.expected or seen.traces]
    seen = (wrong or observations)[0]
    found = str(seen.status or "no record")
    if wrong and len(observations) > 1:
        found += f" ({len(wrong)} of {len(observations)})"

    def found_out(verdict: Verdict, reason: str | None) -> Finding:
        return Finding(entry, verdict, found, reason, len(observations))

    if seen.status is Status.SKIPPED:
        return found_out(Verdict.SKIPPED, seen.reason)
    failure = Verdict.MISSED if isinstance(entry.model, CheatModel) else Verdict.FALSE_ALARM
    if seen.traces:
        return found_out(failure, "; ".join(seen.traces))
    if wrong:
        return found_out(failure, seen.reason or f"{' or '.join(entry.expected)} was expected")
    if not isinstance(entry.model, CheatModel):
        return found_out(Verdict.PASSED, None)
    if seen.status is Status.PASSED:
        return found_out(Verdict.HARMLESS, entry.model.harmless_because)
    if entry.model.reason is not None and entry.model.reason not in (seen.reason or ""):
        return found_out(failure, f'"{seen.reason}" does not say "{entry.model.reason}"')
    return found_out(Verdict.CAUGHT, seen.reason)


def summary(findings: Sequence[Finding]) -> str:
    """The counts, such as `80 cheats: 78 caught, 2 missed. 15 honest kernels: 15 passed.`"""
    sentences = []
    for cheats, title in ((True, "cheats"), (False, "honest kernels")):
        verdicts = [f.verdict for f in findings if isinstance(f.entry.model, CheatModel) is cheats]
        if verdicts:
            counts = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
            sentences.append(f"{len(verdicts)} {title if len(verdicts) > 1 else title[:-1]}: {counts}.")
    return " ".join(sentences)


# --- running them all ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What holds for every kernel of the run. It travels to the judges' processes, of which there are `jobs`."""

    target: Target
    protocol: ProtocolModel
    workload: Path
    roots: tuple[Path, ...]
    repeat: int
    threads: int
    jobs: int


def setting(catalog: Catalog, target: Target, jobs: int, repeat: int) -> Setting:
    """Short protocols of the catalogue, without what only makes times comparable. Raises `InputError`."""
    protocol = catalog.protocol(PROTOCOLS[target.kind])
    # Always the same number of calls, because some cheats count them.
    rounds, samples = protocol.correctness, protocol.timing
    changes: dict[str, Any] = {
        "correctness": rounds.model_copy(update={"at_least": rounds.rounds}),
        "timing": samples.model_copy(update={"at_least": samples.samples}),
    }
    if target.kind == "cpu":
        changes["cold_cache"] = False  # on a large CPU, reading through the cache takes longer than all else
    workload = catalog.workload(corpus.WORKLOAD)
    workload.case(*CASES[target.kind])  # is found before anything runs
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    return Setting(
        target,
        protocol.model_copy(update=changes),
        workload.folder,
        tuple(catalog.roots),
        max(repeat, 1),
        threads,
        jobs,
    )


def jobs_by_default(target: Target) -> int:
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_JUDGES_ON_CUDA) if target.kind == "cuda" else cores


def run(entries: Sequence[Entry], chosen: Setting) -> Iterator[Finding]:
    """Evaluate the entries, several at a time, and yield each finding as soon as it is there."""
    fitting = []
    for entry in entries:
        if reason := _unfit(entry, chosen.target):
            yield finding(entry, [Observation(Status.SKIPPED, reason)])
        else:
            fitting.append(entry)
    # The longest come first, so that none of them is waited for in the end.
    waiting = deque(sorted(fitting, key=_is_short))
    judges: list[_Judge] = []
    turns = Path(tempfile.mkdtemp(prefix="solbench-selftest-"), "turns")
    try:
        while waiting or judges:
            while waiting and len(judges) < chosen.jobs:
                judges.append(_Judge(chosen, turns))
            for judge in judges:
                if judge.entry is None and waiting:
                    judge.give(waiting.popleft())
            wait([judge.connection for judge in judges], timeout=1.0)
            for judge in list(judges):
                observations = judge.observations()
                if observations and judge.entry is not None:
                    yield finding(judge.entry, observations)
                    judge.entry = None
                if judge.ended or (judge.entry is None and not waiting):
                    judges.remove(judge)
                    judge.close()
    finally:
        for judge in judges:
            judge.close()
        shutil.rmtree(turns.parent, ignore_errors=True)


def _is_short(entry: Entry) -> bool:
    """Not one that uses up all its time, nor one that is given more of it than usual."""
    usual_s = type(entry.model).model_fields["timeout_s"].default
    return Status.TIMEOUT not in entry.expected and entry.model.timeout_s <= usual_s


def _unfit(entry: Entry, target: Target) -> str | None:
    """Why the kernel shows nothing here."""
    if target.kind not in entry.model.devices:
        return f"runs on {', '.join(entry.model.devices)}, not on {target.kind}"
    needed = entry.model.needs if isinstance(entry.model, CheatModel) else None
    for protection in sandbox.protections() if needed else ():
        if protection.name == needed and not protection.active:
            return f"nothing stops it here: {protection.detail}"
    return None


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What differs between two fingerprints, in words."""
    return [
        f"{'added' if name not in before else 'removed' if name not in after else 'changed'} {name}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def fingerprint(roots: Sequence[Path]) -> dict[str, str]:
    """Path to content of all that the catalogues and the results hold; a link counts as what it leads to."""
    found = {}
    for root in roots:
        for folder in (*FOLDERS, "results"):
            for path in sorted((root / folder).rglob("*")):
                if "__pycache__" not in path.parts:
                    kind = f"link to {os.readlink(path)}" if path.is_symlink() else "folder"
                    plain = path.is_file() and not path.is_symlink()
                    found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else kind
    return found


class _Judge:
    """A process that judges one kernel after the other, and may be lost to one of them."""

    def __init__(self, chosen: Setting, turns: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.entry: Entry | None = None
        self.ended = False
        self._folder = tempfile.mkdtemp(prefix="solbench-selftest-")
        # While it waits for its turn, the others may take as long as it may.
        self._patience = chosen.repeat * chosen.jobs
        self._deadline = float("inf")
        self._process = context.Process(target=_serve, args=(theirs, chosen, self._folder, turns), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, entry: Entry) -> None:
        self.entry = entry
        # Loading and the case have the time limit each.
        self._deadline = time.monotonic() + self._patience * (2 * entry.model.timeout_s + SLACK_S)
        with contextlib.suppress(OSError):  # a judge that is gone is noticed when it is asked
            self.connection.send(entry)

    def observations(self) -> list[Observation]:
        """What came of the entry that it was given; empty while that is not known."""
        try:
            if self.connection.poll():
                observations: list[Observation] = self.connection.recv()
                return observations
        except (EOFError, OSError):
            self.ended = True
            return [Observation(None, "the judge's process ended")]
        if time.monotonic() > self._deadline:
            self.ended = True
            return [Observation(None, "the judge's process did not answer any more")]
        return []

    def close(self) -> None:
        """End the process; it ends what it has started."""
        self.connection.close()  # which an idle one takes for its end
        if self.entry is not None:
            self._process.terminate()
        self._process.join(10)
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)


# --- in a judge's process -----------------------------------------------------------------------


def _serve(connection: Connection, chosen: Setting, place: str, turns: Path) -> None:
    # An interrupt from the keyboard is the parent's to handle; from it, it comes as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # for the workers
    torch.set_num_threads(chosen.threads)
    # On a CPU, times are no more than plausible, and nobody waits for them.
    turn = Turn(turns) if chosen.target.kind == "cuda" else nullcontext()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        try:
            while True:
                entry: Entry = connection.recv()
                times = 1 if isinstance(entry.model, CheatModel) else chosen.repeat
                connection.send(_observed(entry, chosen, place, times, turn))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway, and should do so without a traceback


def _observed(
    entry: Entry, chosen: Setting, place: str, times: int, turn: AbstractContextManager[None]
) -> list[Observation]:
    """Evaluate a kernel so many times beside a copy of the catalogue, and look at what it left.

    All times in one worker, as the cases of a run are; the last one tells what was left.
    """
    with tempfile.TemporaryDirectory(dir=place) as name:
        root, temporary = Path(name, "catalogue"), Path(name, "temporary")
        temporary.mkdir()
        folder = _copied_catalogue(entry, chosen, root)
        before = fingerprint([root])
        tempfile.tempdir = str(temporary)
        try:
            records = _records(entry, folder, Catalog(root).workload(corpus.WORKLOAD), chosen, times, turn)
            seen = [Observation(record.status, record.reason) for record in records]
        except Exception as error:  # whatever a cheat has brought the judge to
            seen = [Observation(None, f"the judge failed: {type(error).__name__}: {error}")]
        finally:
            tempfile.tempdir = None
        traces = [change.replace(f"{root}/", "") for change in changed_files(before, fingerprint([root]))]
        traces += [f"left {path.name} in the temporary folder" for path in temporary.iterdir()]
        if left := reaper.descendants(os.getpid()):
            traces.append(f"left {len(left)} processes")
            reaper.kill_descendants(set())
    return [*seen[:-1], Observation(seen[-1].status, seen[-1].reason, tuple(traces))]


def _records(
    entry: Entry,
    folder: Path,
    workload: Workload,
    chosen: Setting,
    times: int,
    turn: AbstractContextManager[None],
) -> list[Record]:
    case, scale = CASES[chosen.target.kind]
    options = Options(
        target=chosen.target,
        protocol=chosen.protocol,
        seed=chosen.protocol.seed,
        timeout_s=entry.model.timeout_s,
        check_only=False,
        roofline=None,
        environment={},
    )
    plan = Plan(workload, [entry.kernel(folder)], [case] * times, scale)
    return list(Runner(options, _Silent(), turn=turn).run([plan]))


def _copied_catalogue(entry: Entry, chosen: Setting, root: Path) -> Path:
    """Copy what a kernel may be after, and the kernel with its helpers; the folder where it lies."""
    for source in reversed(chosen.roots):
        for folder in ("configs", f"kernels/{corpus.WORKLOAD}"):
            if (source / folder).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source / folder, root / folder, dirs_exist_ok=True, ignore=ignored)
    shutil.copytree(chosen.workload, root / "workloads" / corpus.WORKLOAD, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "results").mkdir()
    (root / "results" / "earlier.jsonl").write_text("{}\n")
    copy = root / "kernels" / entry.folder.name
    copy.mkdir(parents=True)
    for file in (entry.folder / f"{entry.name}.py", *entry.folder.glob("_*.py")):
        shutil.copy(file, copy)
    return copy


class _Silent:
    def begin(self, kernel: str, workload: str, case: str) -> None: ...
    def stage(self, text: str) -> None: ...
    def done(self, record: Record) -> None: ...
