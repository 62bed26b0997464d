"""What the benchmarks share that find out which kernel, cut how, is the fastest for how many tokens.

Candidates are tried in other processes first, where one that does not compile, is wrong, crashes or hangs harms no
other. What is left is timed as the backend `queued` does it. On a machine without a GPU, what would be launched is
compiled for sm_90.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import FunctionType, ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

REPOSITORY = Path(__file__).resolve().parent.parent
# The datasheet's, of an H200.
PEAK_FLOPS, PEAK_BYTES_PER_S = 989.4e12, 4.8e12
# Norm-relative errors above this are wrong.
WORST_ERROR = 0.01
SHARED_LIMIT_BYTES = 227 * 1024
ANY = 1 << 30  # as the greatest number of tokens: no limit
# Wait so long for a process that tries candidates to say something; a compiler needs a few seconds.
SILENCE_S = 40.0
PROCESSES = 12
# A held call that is not in the queue by now waits for the device: let it through.
PATIENCE_S = 1.0

Tensors = Sequence[torch.Tensor]
# By name of a candidate: its call for each set of inputs.
Calls = dict[str, list[Callable[[], Any]]]


def folder_of(kernels: Path, name: str) -> Path:
    """Of a kernel of the catalogue, or of a rung that is the fastest nowhere, and so no part of it."""
    ladder = kernels / "_ladder" / name
    return ladder if (ladder / "kernel.py").is_file() else kernels / name


def load(folder: Path, name: str) -> ModuleType:
    """The module of a kernel's folder. What it imports from there is its own, since others' have the same names."""
    spec = importlib.util.spec_from_file_location(name, folder / "kernel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    beside = {path.stem for path in folder.glob("*.py")}
    kept = {other: sys.modules.pop(other) for other in beside & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for other in beside & sys.modules.keys():
            del sys.modules[other]
        sys.modules.update(kept)
    return module


# --- what is tried ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One rung, cut in one way, for some numbers of tokens. `part`: which launch of the rung this is, if not all."""

    name: str
    rung: str
    config: Any
    least: int
    most: int
    part: str | None = None

    def call(self, inputs: Tensors, scratch: Any, early: bool = False) -> Any:
        """One call; the parts work on `scratch`, which belongs to the inputs."""
        raise NotImplementedError

    def covers(self, tokens: int) -> bool:
        return self.least <= tokens <= self.most


def name_of(rung: str, part: str | None, config: Any) -> str:
    """Of a candidate."""
    return " ".join(word for word in (rung, part, described(config)) if word)


def described(config: Any) -> str:
    """A configuration in few characters: tiles as rows x columns x depth, stages and split; flags by name."""
    words = []
    for field, value in config._asdict().items():
        if hasattr(value, "rows"):
            split = f"/{value.split}" if value.split > 1 else ""
            words.append(f"{field} {value.rows}x{value.columns}x{value.depth}{split}:{value.stages}")
        elif hasattr(value, "_asdict"):
            words.append(f"[{described(value)}]")
        elif value is True:
            words.append(field)
        elif value and value is not True:
            words.append(f"{field} {value}")
    return " ".join(words)


# Least and greatest number of tokens, and the configuration for them.
Choice = tuple[int, int, Any]


def in_table(table: Sequence[tuple[int | None, Any]]) -> Iterator[Choice]:
    """What a kernel's own table holds."""
    least = 1
    for most, config in table:
        yield least, most or ANY, config
        least = (most or 0) + 1


def tokens_to_try(candidate: Candidate) -> int:
    """Some number of tokens of its range that fits no tile."""
    return max(candidate.least, min(candidate.most, candidate.least + 1234) - 1)


def matches(candidate: Candidate, patterns: Sequence[str], always: Sequence[str]) -> bool:
    """Whether its name has one of the patterns, or its rung is one of those that are always there."""
    return candidate.rung in always or any(fnmatch.fnmatch(candidate.name, pattern) for pattern in patterns)


def floor_us(flops: float, moved_bytes: float) -> float:
    """The least time that work takes at the datasheet's peaks."""
    return 1e6 * max(flops / PEAK_FLOPS, moved_bytes / PEAK_BYTES_PER_S)


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm-relative."""
    return float((found.float() - wanted).norm() / wanted.norm())


# --- trying them in other processes -----------------------------------------------------------------------


def try_some(some: Sequence[Candidate], error_of: Callable[[Any], float]) -> None:
    """What a process that tries candidates does: says which one it begins, and how it went."""
    for one in some:
        print(f"begin\t{one.name}", flush=True)
        try:
            error = error_of(one)
            outcome = "ok" if error <= WORST_ERROR else f"wrong by {error:.3g}"
        except Exception as fault:  # whatever a candidate does wrong is its own fault
            outcome = in_words(fault)
        print(f"end\t{one.name}\t{outcome}", flush=True)
        if "CUDA error" in outcome or "illegal" in outcome:
            return  # nothing works in this process any more


def in_words(fault: Exception) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[-300:]}"


class Trial:
    """Tries candidates in other processes, each of which may crash or hang without harm to the others."""

    def __init__(self, names: Sequence[str], deadline: float, command: Callable[[Sequence[str]], list[str]]) -> None:
        """command: what starts a process that tries the candidates of these names."""
        self.outcomes: dict[str, str] = {}
        self._command = command
        self._waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        count = min(PROCESSES, os.cpu_count() or 1, len(names))
        for i in range(count):
            self._waiting.put(list(names[i::count]))
        self._deadline = deadline
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline + 5 - time.monotonic()))

    def _work(self) -> None:
        while True:
            try:
                names = self._waiting.get_nowait()
            except queue.Empty:
                return
            left = self._run(names)
            if left and time.monotonic() < self._deadline:
                self._waiting.put(left)

    def _run(self, names: list[str]) -> list[str]:
        """One process; the names that it did not come to."""
        process = subprocess.Popen(self._command(names), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        begun, reason = None, "the process died"
        while True:
            try:
                line = lines.get(timeout=max(0.1, min(SILENCE_S, self._deadline - time.monotonic())))
            except queue.Empty:
                reason = "no answer in time"
                break
            if line is None:
                break
            what, name, *rest = line.rstrip("\n").split("\t")
            if what == "begin":
                begun = name
            elif what == "end":
                self.outcomes[name] = rest[0]
                begun = None
        process.kill()
        process.wait()
        if begun is None and not any(name in self.outcomes for name in names):
            begun = names[0]  # whatever keeps the process from beginning must not be tried for ever
        if begun is not None:
            self.outcomes[begun] = reason
        return [name for name in names if name not in self.outcomes]


def left_out(chosen: Sequence[Candidate], script: str, deadline: float) -> dict[str, str]:
    """Tries them by `script --try`. Names of those that must not be timed, with the reason; says so as well."""
    began = time.monotonic()

    def command(names: Sequence[str]) -> list[str]:
        return [sys.executable, str(Path(script).resolve()), "--try", json.dumps(names)]

    outcomes = Trial([one.name for one in chosen], deadline, command).outcomes
    found = {one.name: outcomes.get(one.name, "not tried in time") for one in chosen}
    failed = {name: outcome for name, outcome in found.items() if outcome != "ok"}
    right = len(chosen) - len(failed)
    print(f"{right} of {len(chosen)} compiled and right, {time.monotonic() - began:.0f} s", flush=True)
    for name, outcome in failed.items():
        print(f"  left out: {name}: {outcome}", flush=True)
    return failed


# --- timing ----------------------------------------------------------------------------------------------


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Clock:
    """`queued` without a judge: the gate is opened from inside once the call is in the queue."""

    def __init__(self) -> None:
        from harness import cache as caches
        from harness.timing import Held

        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        descriptor = os.memfd_create("crossovers")
        os.ftruncate(descriptor, 1 << 12)
        self._held, self._ticket = Held(descriptor), 0
        self._flush = caches.flusher(device, "read", 4)
        self.nothing_us = 1e3 * float(self._held.empty_ms)

    def read_us(self, call: Callable[[], Any]) -> float | None:
        """None for a call that waited for the device, and so could not be held."""
        self._flush()
        self._ticket += 1
        self._held.begin(self._ticket, hold_all_streams=False)
        rescue = threading.Timer(PATIENCE_S, self._held.queue.open_from_inside)
        rescue.daemon = True
        rescue.start()
        began = time.monotonic()
        try:
            result = call()
            self._held.queue.end()
            self._held.queue.copied()
        finally:
            rescue.cancel()
            self._held.queue.open_from_inside()
        held = time.monotonic() - began < PATIENCE_S
        time_ms = self._held.sample().time_ms
        del result
        return 1e3 * float(time_ms) if held else None


@dataclass
class Measured:
    """Times in µs: for each number of tokens by candidate, raw; and what could not be measured, with the reason."""

    device: str
    torch_version: str
    triton_version: str
    nothing_us: float
    failed: dict[str, str]
    readings_us: dict[int, dict[str, list[float]]]

    def median_us(self, tokens: int) -> dict[str, float]:
        """By candidate, the fastest first."""
        found = {name: median(values) for name, values in self.readings_us[tokens].items() if values}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def write(self, path: Path | None) -> None:
        if path:
            medians = {tokens: self.median_us(tokens) for tokens in self.readings_us}
            path.write_text(json.dumps(asdict(self) | {"median_us": medians}, indent=1) + "\n")


class Bench:
    """Times the candidates for one number of tokens after the other; `sets` and `pairs` say with what."""

    baselines: Sequence[str] = ()
    few_readings = 7
    more_readings = 21
    best = 6

    def __init__(self, clock: Any, measured: Measured, deadline: float) -> None:
        self._clock, self._measured, self._deadline = clock, measured, deadline

    def sets(self, tokens: int) -> list[tuple[Tensors, Any]]:
        """Inputs, each with the scratch that parts of a kernel work on."""
        raise NotImplementedError

    def pairs(self, tokens: int, ordered: Sequence[Candidate]) -> list[Candidate]:
        """Whole kernels from parts, which come in the order of their times."""
        raise NotImplementedError

    def at(self, tokens: int, some: Sequence[Candidate]) -> None:
        """Few readings of all, more of the best, and pairs of the best parts."""
        sets = self.sets(tokens)

        def calls_of(these: Sequence[Candidate]) -> Calls:
            return {one.name: [partial(one.call, *pair) for pair in sets] for one in these}

        calls = calls_of(some)
        self._read(tokens, calls, self.few_readings)
        by_name = {one.name: one for one in some if one.part}
        ordered = [by_name[name] for name in self._measured.median_us(tokens) if name in by_name]
        pairs = calls_of(self.pairs(tokens, ordered))
        self._read(tokens, pairs, self.few_readings)
        whole = [one.name for one in some if one.part is None]
        names = [name for name in self._measured.median_us(tokens) if name in whole or name in pairs]
        best = dict.fromkeys([*names[: self.best], *(name for name in names if name in self.baselines)])
        self._read(tokens, {name: (calls | pairs)[name] for name in best}, self.more_readings)

    def _read(self, tokens: int, calls: Calls, readings: int) -> None:
        # In turn, so that what the clock does meanwhile falls on all of them alike.
        kept = self._measured.readings_us.setdefault(tokens, {})
        alive = dict(calls)
        for name, ways in calls.items():
            if time.monotonic() > self._deadline:
                return
            try:
                for way in ways:
                    way()  # compiles, loads and takes memory, none of which can be held
                synchronize()
            except Exception as fault:  # whatever a candidate does wrong is its own fault
                self._measured.failed[name] = in_words(fault)
                del alive[name]
        missed: set[str] = set()
        for number in range(readings):
            for name, ways in list(alive.items()):
                if time.monotonic() > self._deadline:
                    return
                reading_us = self._clock.read_us(ways[number % len(ways)])
                if reading_us is not None:
                    kept.setdefault(name, []).append(reading_us)
                elif name in missed:  # once may be an allocation of memory
                    self._measured.failed[name] = "waits for the device in its call"
                    del alive[name]
                else:
                    missed.add(name)


def report(measured: Measured, tokens: int, bound_us: float, baselines: Sequence[str]) -> str:
    """The fastest of each rung, with how it compares with the baselines; then the fastest of each part."""
    found = measured.median_us(tokens)
    lines = [f"T = {tokens}, bound {bound_us:.1f} µs"]
    seen: set[str] = set()
    for name, time_us in found.items():
        words = name.split(" ")
        kind = " ".join(words[:2]) if len(words) > 1 and words[1] in ("first", "second") else words[0]
        if kind not in seen:
            seen.add(kind)
            beside = [f"{found[base] / time_us:5.2f}x {base}" for base in baselines if base in found]
            lines.append(f"  {time_us:8.2f} µs  {'  '.join(beside)}  {name}")
    return "\n".join(lines)


def sweep(
    bench: Bench, measured: Measured, chosen: Sequence[Candidate], tokens: Sequence[int], deadline: float,
    path: Path | None, report_at: Callable[[Measured, int], str],
) -> None:  # fmt: skip
    """All numbers of tokens; the file is written again after each, so nothing is lost when time runs out."""
    for count in tokens:
        if time.monotonic() > deadline:
            print(f"out of time before T = {count}")
            break
        bench.at(count, [one for one in chosen if one.name not in measured.failed and one.covers(count)])
        measured.write(path)
        print(report_at(measured, count), flush=True)


# --- compiling without a device -------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """What one launch of a candidate needs. spilled: words per thread that went from registers to memory."""

    candidate: str
    function: str
    warps: int
    shared_bytes: int
    registers: int
    spilled: int

    @property
    def fits(self) -> bool:
        return self.shared_bytes <= SHARED_LIMIT_BYTES and self.spilled == 0


class Recorder:
    """Stands in for a kernel: notes the arguments of its launches."""

    def __init__(self, function: Any, launches: list[tuple[Any, dict[str, Any], dict[str, Any]]]) -> None:
        self._function, self._launches = function, launches

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            names = [parameter.name for parameter in self._function.params]
            arguments = dict(zip(names, given, strict=False))
            arguments |= {name: value for name, value in named.items() if name in names}
            options = {name: value for name, value in named.items() if name not in names}
            self._launches.append((self._function, arguments, options))

        return launch


def namespaces(module: ModuleType) -> list[dict[str, Any]]:
    """Where a kernel's launches look for what they launch: its module, and those of functions beside it."""
    folder = Path(module.__file__ or "").parent
    functions = [value for value in vars(module).values() if isinstance(value, FunctionType)]
    beside = [value.__globals__ for value in functions if Path(value.__code__.co_filename).parent == folder]
    return list({id(names): names for names in [vars(module), *beside]}.values())


@contextmanager
def recorded(module: ModuleType) -> Iterator[list[tuple[Any, dict[str, Any], dict[str, Any]]]]:
    """Launches of a kernel are noted and not made."""
    launches: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    kept = [
        (names, name, value)
        for names in namespaces(module)
        for name, value in names.items()
        if isinstance(value, triton.runtime.JITFunction)
    ]
    try:
        for names, name, value in kept:
            names[name] = Recorder(value, launches)
        yield launches
    finally:
        for names, name, value in kept:
            names[name] = value


TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}


def compiled_for_hopper(function: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """What Triton makes of a launch with these arguments for sm_90, on any machine."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, parameter in enumerate(function.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPES[value.dtype]}"
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[parameter.name] = "i32"
        else:
            layout = f",{value.layout!r}" if function.is_gluon() else ""
            signature[parameter.name] = f"tensordesc<bf16{list(value.block_shape)}{layout}>"
    source = (GluonASTSource if function.is_gluon() else ASTSource)(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def compiled_launch(name: str, function: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Compiled:
    built = compiled_for_hopper(function, arguments, options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack_bytes = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0])
    return Compiled(
        name, function.__name__, int(built.metadata.num_warps), int(built.metadata.shared), registers, stack_bytes // 4
    )


def compile_all(some: Sequence[Candidate], launched: Callable[[Any], list[tuple[Any, ...]]], path: Path | None) -> bool:
    """Whether all that they launch compiles for sm_90 and fits; says what each launch needs."""
    found: list[Compiled] = []
    failed: dict[str, str] = {}
    for candidate in some:
        try:
            launches = [compiled_launch(candidate.name, *launch) for launch in launched(candidate)]
        except Exception as fault:  # whatever a candidate does wrong is its own fault
            failed[candidate.name] = in_words(fault)
            print(f"FAILS {candidate.name}: {failed[candidate.name]}", flush=True)
            continue
        found += launches
        for one in launches:
            mark = "     " if one.fits else "UNFIT"
            shared = f"{one.shared_bytes / 1024:6.1f} KB shared"
            needs = f"{shared}, {one.registers:3} registers, {one.spilled:3} spilled, {one.warps} warps"
            print(f"{mark} {needs}: {one.function} of {one.candidate}", flush=True)
    if path:
        path.write_text(json.dumps({"failed": failed, "compiled": [asdict(one) for one in found]}, indent=1) + "\n")
    return not failed and all(one.fits for one in found)


def parser(description: str, seconds: float, tokens: Sequence[int]) -> argparse.ArgumentParser:
    """The command line that these benchmarks have in common."""
    found = argparse.ArgumentParser(description=description.partition("\n")[0])
    found.add_argument("--seconds", type=float, default=seconds, help=f"stop measuring after so long ({seconds:.0f})")
    found.add_argument("--json", type=Path, help="write the figures to this file")
    found.add_argument("--tokens", type=int, nargs="+", default=tokens, help="numbers of tokens to measure")
    found.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="names of candidates, with wildcards"
    )
    found.add_argument("--compile", action="store_true", help="only compile for sm_90; needs no GPU")
    found.add_argument("--tables", action="store_true", help="with --compile: only what the kernels' tables hold")
    found.add_argument("--try", dest="names", type=json.loads, help=argparse.SUPPRESS)
    return found
