"""Which rung of the MoE ladder, cut how, is the fastest for how many tokens?

    python benchmarks/moe_crossovers.py [--seconds 60] [--json FILE] [--tokens 16 128] [--only 'small*' 'grouped*']
    python benchmarks/moe_crossovers.py --compile [--tables] [--json FILE]

On a CUDA device: compiles every candidate below in other processes, where each is also held against the formula, so
that one that does not compile, is wrong, crashes or hangs is left out and the others go on. Then times them as the
backend `queued` does, with a cold cache and inputs at other addresses each time. The two launches of `grouped` are
timed one by one first, and then the best pairs together. What it finds belongs into CONFIGS of the kernels and
RUNGS of `best`. The JSON file is written again after every number of tokens, so nothing is lost when time runs out.

With `--compile`, on any machine: compiles for sm_90 what would be launched (only what the kernels' own tables
hold with `--tables`), and tells shared memory, registers and what is spilled. Ends with 1 when something does not fit.
"""

from __future__ import annotations

import argparse
import faulthandler
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
from functools import cache, partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # also where solbench is not installed
KERNELS = REPOSITORY / "kernels" / "moe_swiglu_backward"
# Rungs that have not been measured yet are kept out of the catalogue here.
LADDER = KERNELS / "_ladder"
HIDDEN, INNER = 2048, 768
DEVICE = "cuda"
TOKENS = (1, 4, 16, 24, 48, 96, 128, 256, 512, 800, 1087, 1571, 2447, 3089, 4093, 6144, 8192)
BASELINES = ("fused_pointwise", "joined_products")
# Seen by every process that tries candidates: norm-relative errors above this are wrong.
WORST_ERROR = 0.01
SHARED_LIMIT_BYTES = 227 * 1024
# With how many of the best launches of each kind pairs are made, and up to how many tokens also so that the second
# begins early.
BEST_PARTS = 2
EARLY_MOST = 2048
FEW_READINGS, MORE_READINGS = 7, 21
INPUT_SETS = 3
# Wait so long for a process that tries candidates to say something; a compiler needs a few seconds.
SILENCE_S = 40.0
PROCESSES = 12
# A held call that is not in the queue by now waits for the device: let it through.
PATIENCE_S = 1.0

Tensors = Sequence[torch.Tensor]
# By name of a candidate: its call for each set of inputs.
Calls = dict[str, list[Callable[[], Any]]]


@cache
def kernel(name: str) -> ModuleType:
    """A rung's module; what lies in its folder can be imported by it."""
    place = LADDER / name if (LADDER / name).is_dir() else KERNELS / name
    folder = str(place)
    spec = importlib.util.spec_from_file_location(f"moe_{name}", place / "kernel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


# --- what is tried ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One rung, cut in one way, for some numbers of tokens. `part`: which launch of `grouped` this is, if not all."""

    name: str
    rung: str
    config: Any
    least: int
    most: int
    part: str | None = None

    def call(self, inputs: Tensors, scratch: Scratch, early: bool = False) -> Any:
        """One call; the parts work on `scratch`, which belongs to the inputs."""
        module = kernel(self.rung)
        output, x, gate_weight, up_weight, down_weight, *saved = inputs
        match self.part:
            case "first":
                return module.first(
                    self.config, early, output, down_weight, *saved, scratch.both, scratch.grad_down_weight
                )
            case "second":
                return module.second(
                    self.config,
                    early,
                    output,
                    x,
                    gate_weight,
                    up_weight,
                    saved[-1],
                    scratch.both,
                    scratch.grad_x,
                    scratch.grad_weights,
                    scratch.grad_down_weight,
                )
            case _:
                return module.run(*inputs) if self.config is None else module.launch(self.config, *inputs)


@dataclass(frozen=True)
class Scratch:
    """What the two launches of `grouped` write; `both` is [grad_gate, grad_up]."""

    both: torch.Tensor
    grad_x: torch.Tensor
    grad_weights: torch.Tensor
    grad_down_weight: torch.Tensor

    @staticmethod
    def like(inputs: Tensors) -> Scratch:
        x, gate_weight, down_weight = inputs[1], inputs[2], inputs[4]
        tokens, inner = len(x), len(gate_weight)
        return Scratch(
            x.new_empty(tokens, 2 * inner),
            torch.empty_like(x),
            x.new_empty(2 * inner, x.shape[1]),
            torch.empty_like(down_weight),
        )


def epilogue_candidates() -> Iterator[tuple[int, int, Any]]:
    module = kernel("fused_epilogue")
    Tile, Config = module.Tile, module.Config  # noqa: N806 -- classes
    for least, most, tiles, warps, tma in (
        (1, 16, [Tile(16, 16, 512, 4, 8), Tile(16, 16, 256, 5, 8), Tile(16, 16, 1024, 3, 8)], (8,), False),
        (9, 64, [Tile(32, 16, 256, 5, 8), Tile(32, 16, 512, 3, 8)], (8,), False),
        (33, 256, [Tile(64, 16, 128, 6), Tile(64, 16, 256, 3), Tile(64, 32, 128, 5)], (4,), False),
        (129, 1024, [Tile(64, 64, 128, 4), Tile(64, 64, 64, 5), Tile(64, 128, 64, 4)], (4,), False),
        (257, 2048, [Tile(64, 64, 128, 4), Tile(64, 128, 64, 4), Tile(128, 64, 64, 4)], (4, 8), True),
        (513, 1 << 30, [Tile(128, 128, 64, 3), Tile(128, 128, 64, 4)], (8,), True),
        (1025, 1 << 30, [Tile(128, 256, 64, 3), Tile(128, 256, 64, 4)], (8,), True),
        (1025, 1 << 30, [Tile(128, 128, 64, 3)], (8,), False),
    ):
        for tile in tiles:
            for count in warps:
                yield least, most, Config(tile, count, tma)


def small_candidates() -> Iterator[tuple[int, int, Any]]:
    module = kernel("small")
    Tile, Config = module.Tile, module.Config  # noqa: N806 -- classes
    d, x = Tile(16, 16, 512, 4, 8), Tile(16, 16, 256, 5, 8)
    yield from ((1, 16, Config(d, x, shares, width)) for shares in (1, 2, 4) for width in (128, 256))
    yield 1, 16, Config(d, Tile(16, 32, 256, 5, 8))
    yield 1, 16, Config(Tile(16, 16, 256, 5, 8), Tile(16, 16, 256, 4, 8))
    yield 1, 16, Config(Tile(16, 16, 1024, 3, 8), Tile(16, 16, 256, 7, 8))
    yield 1, 16, Config(Tile(16, 32, 256, 5, 8), x, 4)
    yield 1, 16, Config(Tile(16, 16, 256, 5, 4), Tile(16, 16, 256, 5, 4), width=128, warps=4)
    d, x = Tile(32, 16, 256, 5, 8), Tile(32, 16, 256, 5, 8)
    yield from ((17, 32, Config(d, x, shares)) for shares in (1, 2, 4))
    yield 17, 32, Config(Tile(32, 32, 256, 4, 8), Tile(32, 32, 256, 4, 8), 4)
    d, x = Tile(64, 16, 128, 4), Tile(64, 16, 128, 4)
    yield from ((33, 64, Config(d, x, shares, 128, warps=4)) for shares in (1, 2, 4))
    yield 33, 64, Config(Tile(64, 32, 128, 4), Tile(64, 32, 128, 4), 4, 128, warps=4)
    yield 65, 128, Config(Tile(128, 16, 128, 3), Tile(128, 16, 128, 3), 2, 64)
    yield 65, 128, Config(Tile(128, 32, 128, 3), Tile(128, 16, 128, 3), 4, 64)


def first_candidates() -> Iterator[tuple[int, int, Any]]:
    module = kernel("grouped")
    Tile, First = module.Tile, module.First  # noqa: N806 -- classes
    wide, square = Tile(128, 256, 64, 4), Tile(128, 128, 64, 3)
    for down in (Tile(64, 256, 16, 2), None):
        yield 1, 16, First(Tile(16, 16, 512, 4, 8), down)
        yield 1, 16, First(Tile(16, 16, 256, 5, 8), down)
    yield 1, 16, First(Tile(16, 16, 512, 4, 8), Tile(128, 128, 16, 2))
    yield 1, 16, First(Tile(16, 16, 256, 5, 4), Tile(64, 128, 16, 2), warps=4)
    yield 1, 16, First(Tile(16, 16, 1024, 3, 8), Tile(64, 256, 16, 2))
    yield 9, 48, First(Tile(32, 16, 256, 5, 8), Tile(64, 256, 32, 2))
    yield 9, 48, First(Tile(32, 16, 256, 5, 8), None)
    yield 17, 128, First(Tile(32, 32, 256, 4, 8), Tile(64, 256, 32, 3))
    for down in (Tile(64, 128, 64, 2), None):
        yield 33, 192, First(Tile(64, 16, 128, 5), down, warps=4)
        yield 33, 192, First(Tile(64, 16, 256, 3), down, warps=4)
    yield 65, 320, First(Tile(64, 32, 128, 4), Tile(64, 128, 64, 3), warps=4)
    yield 65, 320, First(Tile(128, 16, 128, 3), Tile(128, 128, 64, 3))
    yield 129, 768, First(Tile(64, 32, 128, 4), square, warps=4)
    yield 129, 768, First(Tile(64, 64, 128, 3), square, warps=4)
    yield 129, 1024, First(Tile(64, 64, 64, 5), Tile(64, 128, 64, 4), warps=4)
    yield 257, 1536, First(Tile(64, 64, 128, 3), square, tma=True)
    for tile in (Tile(64, 128, 64, 3), Tile(128, 64, 64, 3), square):
        for sums_first in (False, True):
            yield 513, 3328, First(tile, square, sums_first=sums_first, tma=True)
    yield 513, 3328, First(Tile(64, 128, 64, 3), Tile(128, 64, 64, 3), warps=4, tma=True)
    yield 513, 3328, First(square, square)
    for sums_first in (False, True):
        yield 1537, 1 << 30, First(wide, Tile(128, 128, 64, 4), sums_first=sums_first, tma=True)
        yield 2049, 1 << 30, First(wide, wide, sums_first=sums_first, tma=True)
        yield 2049, 1 << 30, First(square, square, sums_first=sums_first, tma=True)
    yield 1537, 1 << 30, First(wide, None, tma=True)
    yield 1537, 1 << 30, First(Tile(128, 256, 64, 3), None, tma=True)
    yield 1537, 1 << 30, First(square, None, tma=True)


def second_candidates() -> Iterator[tuple[int, int, Any]]:
    module = kernel("grouped")
    Tile, Second = module.Tile, module.Second  # noqa: N806 -- classes
    wide, square = Tile(128, 256, 64, 4), Tile(128, 128, 64, 3)
    low = Tile(64, 256, 16, 2)
    for down in (None, low):
        yield 1, 16, Second(Tile(16, 16, 256, 5, 8), low, down)
        yield 1, 16, Second(Tile(16, 16, 256, 5, 8), low, down, sums_first=True)
    yield 1, 16, Second(Tile(16, 16, 256, 7, 8), low)
    yield 1, 16, Second(Tile(16, 32, 256, 5, 8), low)
    yield 1, 16, Second(Tile(16, 16, 256, 5, 8), Tile(128, 128, 16, 2))
    yield 1, 16, Second(Tile(16, 16, 256, 5, 4), Tile(64, 128, 16, 2), warps=4)
    low = Tile(64, 256, 32, 2)
    for down in (None, low):
        yield 9, 48, Second(Tile(32, 16, 256, 5, 8), low, down)
    yield 17, 128, Second(Tile(32, 32, 256, 4, 8), Tile(64, 256, 32, 3))
    low = Tile(64, 128, 64, 2)
    for down in (None, low):
        yield 33, 192, Second(Tile(64, 16, 128, 5), low, down, warps=4)
        yield 33, 192, Second(Tile(64, 32, 128, 4), low, down, warps=4)
    yield 65, 320, Second(Tile(64, 32, 128, 4), square, warps=4)
    yield 65, 320, Second(Tile(64, 32, 128, 4), Tile(64, 256, 64, 3))
    yield 65, 320, Second(Tile(128, 32, 64, 5), square)
    yield 129, 768, Second(Tile(64, 64, 128, 3), square, warps=4)
    yield 129, 768, Second(Tile(64, 64, 64, 5), Tile(64, 128, 64, 3), warps=4)
    for tile in (Tile(64, 128, 64, 3), square):
        yield 257, 1536, Second(tile, square)
        for sums_first in (False, True):
            yield 257, 3328, Second(tile, square, sums_first=sums_first, tma=True)
    yield 257, 3328, Second(Tile(128, 64, 64, 3), square, tma=True)
    for sums_first in (False, True):
        yield 769, 1 << 30, Second(wide, wide, sums_first=sums_first, tma=True)
        yield 1025, 1 << 30, Second(wide, Tile(128, 128, 64, 4), sums_first=sums_first, tma=True)
        yield 1537, 1 << 30, Second(wide, wide, wide, sums_first=sums_first, tma=True)
        yield 2049, 1 << 30, Second(square, square, square, sums_first=sums_first, tma=True)
    yield 1025, 1 << 30, Second(Tile(128, 256, 64, 3), Tile(128, 256, 64, 3), sums_first=True, tma=True)
    yield 1025, 1 << 30, Second(Tile(256, 128, 64, 3), Tile(256, 128, 64, 3), sums_first=True, tma=True)


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


def from_tables() -> list[Candidate]:
    """What the kernels' own tables hold."""
    found = []
    for rung in ("small", "grouped", "fused_epilogue"):
        least = 1
        for most, config in kernel(rung).CONFIGS:
            found.append(Candidate(f"{rung} {described(config)}", rung, config, least, most or 1 << 30))
            least = (most or 0) + 1
    return found


def candidates() -> list[Candidate]:
    """All of them, each once; the baselines come first."""
    found = [Candidate(name, name, None, 1, 1 << 30) for name in BASELINES]
    for rung, part, some in (
        ("small", None, small_candidates()),
        ("fused_epilogue", None, epilogue_candidates()),
        ("grouped", "first", first_candidates()),
        ("grouped", "second", second_candidates()),
    ):
        for least, most, config in some:
            name = f"{rung} {part or ''}{' ' if part else ''}{described(config)}"
            found.append(Candidate(name, rung, config, least, most, part))
    return list({one.name: one for one in [*found, *from_tables()]}.values())


# --- inputs, and what is right ------------------------------------------------------------------------


def made_inputs(tokens: int, seed: int, device: str) -> list[torch.Tensor]:
    """As the workload makes them: the saved tensors come from the forward pass."""
    if device == "meta":
        shapes = [(tokens, HIDDEN)] * 2 + [(INNER, HIDDEN)] * 2 + [(HIDDEN, INNER)] + [(tokens, INNER)] * 5
        return [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(rows: int, columns: int, over: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, device=device)
        scaled: torch.Tensor = (values / over**0.5).bfloat16()
        return scaled

    output, x = normal(tokens, HIDDEN, HIDDEN), normal(tokens, HIDDEN, HIDDEN)
    gate_weight, up_weight = normal(INNER, HIDDEN, HIDDEN), normal(INNER, HIDDEN, HIDDEN)
    down_weight = normal(HIDDEN, INNER, INNER)
    gate, up = x @ gate_weight.T, x @ up_weight.T
    sigmoid = torch.sigmoid(gate.float()).bfloat16()
    silu = gate * sigmoid
    return [output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, silu * up]


def right_answers(inputs: Tensors) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """[grad_gate, grad_up] and the four gradients, in float32."""
    output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, intermediate = (t.float() for t in inputs)
    d = output @ down_weight
    both = torch.cat([d * up * sigmoid * (1 + gate * (1 - sigmoid)), d * silu], dim=1)
    grad_gate_weight, grad_up_weight = (both.T @ x).split(len(gate_weight))
    grad_x = both @ torch.cat([gate_weight, up_weight])
    return both, [grad_x, grad_gate_weight, grad_up_weight, output.T @ intermediate]


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def tried(candidate: Candidate, tokens: int) -> float:
    """The greatest norm-relative error of a candidate; compiles what a later call of it needs."""
    inputs = made_inputs(tokens, 1, DEVICE)
    both, wanted = right_answers(inputs)
    worst = 0.0
    for early in (False, True) if candidate.part and candidate.least <= EARLY_MOST else (False,):
        scratch = Scratch.like(inputs)
        for tensor in (scratch.both, scratch.grad_x, scratch.grad_weights, scratch.grad_down_weight):
            tensor.fill_(float("nan"))
        if candidate.part == "second":
            scratch.both.copy_(both)
        results = candidate.call(inputs, scratch, early)
        synchronize()
        pairs: list[tuple[torch.Tensor, torch.Tensor]]
        if candidate.part is None:
            pairs = list(zip(results, wanted, strict=True))
        else:
            weights = torch.cat(wanted[1:3])
            pairs = [(scratch.both, both)]
            pairs += [(scratch.grad_x, wanted[0]), (scratch.grad_weights, weights)] * (candidate.part == "second")
            pairs += [(scratch.grad_down_weight, wanted[3])] * (candidate.config.down is not None)
        # NaN, from what was not written, is worse than any number.
        errors = [error_of(*pair) for pair in pairs]
        worst = max(worst, *(error if error == error else float("inf") for error in errors))
    return worst


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def tokens_to_try(candidate: Candidate) -> int:
    """Some number of tokens of its range that fits no tile."""
    return max(candidate.least, min(candidate.most, candidate.least + 1234) - 1)


# --- trying them in other processes -----------------------------------------------------------------------


def try_some(names: Sequence[str]) -> None:
    """What a process that tries candidates does: says which one it begins, and how it went."""
    by_name = {one.name: one for one in candidates()}
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in names:
        print(f"begin\t{name}", flush=True)
        try:
            error = tried(by_name[name], tokens_to_try(by_name[name]))
            outcome = "ok" if error <= WORST_ERROR else f"wrong by {error:.3g}"
        except Exception as fault:  # whatever a candidate does wrong is its own fault
            outcome = f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"
        print(f"end\t{name}\t{outcome}", flush=True)
        if "CUDA error" in outcome or "illegal" in outcome:
            return  # nothing works in this process any more


def own_process(names: Sequence[str]) -> list[str]:
    """The command that tries candidates."""
    return [sys.executable, str(Path(__file__).resolve()), "--try", json.dumps(names)]


class Trial:
    """Tries candidates in other processes, each of which may crash or hang without harm to the others."""

    def __init__(
        self, names: Sequence[str], deadline: float, command: Callable[[Sequence[str]], list[str]] = own_process
    ) -> None:
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


# --- timing ----------------------------------------------------------------------------------------------


class Clock:
    """`queued` without a judge: the gate is opened from inside once the call is in the queue."""

    def __init__(self) -> None:
        from harness import cache as caches
        from harness.timing import Held

        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        descriptor = os.memfd_create("moe-crossovers")
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
    """Times the candidates for one number of tokens after the other."""

    def __init__(self, clock: Clock, measured: Measured, deadline: float) -> None:
        self._clock, self._measured, self._deadline = clock, measured, deadline

    def at(self, tokens: int, some: Sequence[Candidate]) -> None:
        """Few readings of all, more of the best, and pairs of the best launches of `grouped`."""
        sets = [made_inputs(tokens, seed, DEVICE) for seed in range(INPUT_SETS)]
        scratch = [Scratch.like(inputs) for inputs in sets]
        for inputs, one in zip(sets, scratch, strict=True):
            one.both.copy_(right_answers(inputs)[0])

        def calls_of(these: Sequence[Candidate]) -> Calls:
            return {one.name: [partial(one.call, *pair) for pair in zip(sets, scratch, strict=True)] for one in these}

        calls = calls_of(some)
        self._read(tokens, calls, FEW_READINGS)
        pairs = calls_of(self._pairs(tokens, some))
        self._read(tokens, pairs, FEW_READINGS)
        whole = [one.name for one in some if one.part is None]
        names = [name for name in self._measured.median_us(tokens) if name in whole or name in pairs]
        best = dict.fromkeys([*names[:6], *(name for name in names if name in BASELINES)])
        self._read(tokens, {name: (calls | pairs)[name] for name in best}, MORE_READINGS)

    def _pairs(self, tokens: int, some: Sequence[Candidate]) -> list[Candidate]:
        ranks = list(self._measured.median_us(tokens))
        by_name = {one.name: one for one in some if one.part and one.name in ranks}
        ordered = [by_name[name] for name in ranks if name in by_name]
        config = kernel("grouped").Config
        found = []
        for late in (False, True):
            firsts = [one for one in ordered if one.part == "first" and (one.config.down is None) == late]
            seconds = [one for one in ordered if one.part == "second" and (one.config.down is not None) == late]
            for first in firsts[:BEST_PARTS]:
                for second in seconds[:BEST_PARTS]:
                    for early in (False, True) if tokens <= EARLY_MOST else (False,):
                        pair = config(first.config, second.config, early)
                        found.append(Candidate(f"grouped {described(pair)}", "grouped", pair, tokens, tokens))
        return found

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
                self._measured.failed[name] = f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"
                del alive[name]
        for number in range(readings):
            for name, ways in list(alive.items()):
                if time.monotonic() > self._deadline:
                    return
                reading_us = self._clock.read_us(ways[number % len(ways)])
                if reading_us is None:
                    self._measured.failed[name] = "waits for the device in its call"
                    del alive[name]
                else:
                    kept.setdefault(name, []).append(reading_us)


def bound_us(tokens: int) -> float:
    """At the datasheet's 989.4 TFLOP/s and 4.8 TB/s."""
    flops = 12 * tokens * HIDDEN * INNER
    moved = 2 * (3 * tokens * HIDDEN + 6 * HIDDEN * INNER + 5 * tokens * INNER)
    return max(flops / 989.4e12, moved / 4.8e12) * 1e6


def report(measured: Measured, tokens: int) -> str:
    """The fastest of each rung, with how it compares with the baselines; then the fastest launches of `grouped`."""
    found = measured.median_us(tokens)
    lines = [f"T = {tokens}, bound {bound_us(tokens):.1f} µs"]
    seen: set[str] = set()
    for name, time_us in found.items():
        words = name.split(" ")
        kind = " ".join(words[:2]) if words[0] == "grouped" and words[1] in ("first", "second") else words[0]
        if kind not in seen:
            seen.add(kind)
            beside = [f"{found[base] / time_us:5.2f}x {base}" for base in BASELINES if base in found]
            lines.append(f"  {time_us:8.2f} µs  {'  '.join(beside)}  {name}")
    return "\n".join(lines)


def measure(tokens: Sequence[int], patterns: Sequence[str], seconds: float, path: Path | None) -> None:
    began = time.monotonic()
    deadline = began + seconds
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    chosen = [one for one in candidates() if matches(one, patterns)]
    chosen = [one for one in chosen if any(one.least <= t <= one.most for t in tokens)]
    outcomes = Trial([one.name for one in chosen], began + 0.6 * seconds).outcomes
    failed = {one.name: outcomes.get(one.name, "not tried in time") for one in chosen}
    failed = {name: outcome for name, outcome in failed.items() if outcome != "ok"}
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} compiled and right, {time.monotonic() - began:.0f} s", flush=True
    )
    for name, outcome in failed.items():
        print(f"  left out: {name}: {outcome}", flush=True)
    clock = Clock()
    measured = Measured(
        torch.cuda.get_device_name(0), torch.__version__, triton.__version__, clock.nothing_us, failed, {}
    )
    bench = Bench(clock, measured, deadline)
    for count in tokens:
        if time.monotonic() > deadline:
            print(f"out of time before T = {count}")
            break
        some = [one for one in chosen if one.name not in failed and one.least <= count <= one.most]
        bench.at(count, some)
        measured.write(path)
        print(report(measured, count), flush=True)
    print(f"a call of nothing reads {clock.nothing_us:.2f} µs; {time.monotonic() - began:.0f} s")


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


@contextmanager
def recorded(module: ModuleType) -> Iterator[list[tuple[Any, dict[str, Any], dict[str, Any]]]]:
    """Launches of a module's own kernels are noted and not made."""
    launches: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    kept = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, triton.runtime.JITFunction) and value.__module__ == module.__name__
    }
    try:
        for name, value in kept.items():
            setattr(module, name, Recorder(value, launches))
        yield launches
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


TYPES = {torch.bfloat16: "bf16", torch.int32: "i32"}


def compiled(candidate: Candidate) -> list[Compiled]:
    """Compile for sm_90 what a candidate launches at full size."""
    inputs = made_inputs(tokens_to_try(candidate), 0, "meta")
    scratch = Scratch.like(inputs)
    with recorded(kernel(candidate.rung)) as launches:
        candidate.call(inputs, scratch, early=True)
    return [compiled_launch(candidate.name, *launch) for launch in launches]


def compiled_launch(name: str, function: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Compiled:
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
            signature[parameter.name] = f"tensordesc<bf16{list(value.block_shape)}>"
    source = ASTSource(function, signature, constants, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack_bytes = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0])
    warps = int(options.get("num_warps", 4))
    return Compiled(name, function.__name__, warps, int(built.metadata.shared), registers, stack_bytes // 4)


def compile_all(some: Sequence[Candidate], path: Path | None) -> bool:
    """Whether all of it compiles and fits; says what each launch needs."""
    found: list[Compiled] = []
    failed: dict[str, str] = {}
    for candidate in some:
        try:
            launches = compiled(candidate)
        except Exception as fault:  # whatever a candidate does wrong is its own fault
            failed[candidate.name] = f"{type(fault).__name__}: {' '.join(str(fault).split())[-300:]}"
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


def matches(candidate: Candidate, patterns: Sequence[str]) -> bool:
    return candidate.rung in BASELINES or any(fnmatch.fnmatch(candidate.name, pattern) for pattern in patterns)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="stop measuring after so long (default 60)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens to measure")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="names of candidates, with wildcards"
    )
    parser.add_argument("--compile", action="store_true", help="only compile for sm_90; needs no GPU")
    parser.add_argument("--tables", action="store_true", help="with --compile: only what the kernels' tables hold")
    parser.add_argument("--try", dest="names", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        some = from_tables() if options.tables else candidates()
        some = [one for one in some if matches(one, options.only)]
        sys.exit(0 if compile_all(some, options.json) else 1)
    if not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --compile does not")
    if options.names is not None:
        try_some(options.names)
        return
    measure(options.tokens, options.only, options.seconds, options.json)
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a process must not keep this one


if __name__ == "__main__":
    main()
