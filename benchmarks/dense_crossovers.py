"""How fast are the library's products of the dense workload, and which rung of its ladder, cut how, is the fastest?

    python benchmarks/dense_crossovers.py [--seconds 200] [--json FILE] [--tokens 128 512] [--only 'grouped*']
    python benchmarks/dense_crossovers.py --compile [--tables] [--json FILE]

On a CUDA device with 120 GB. First each product by cuBLAS and by cuBLASLt: single calls with a cold cache as the
backend `queued` times them, then calls in a row while NVML tells clock and power. Then the candidates below, all at
full size: tried in other processes, and those that are right are timed; the two large launches of `grouped` one by one
first, and then the best pairs together. What it finds belongs into CONFIGS of the kernels and RUNGS of `best`. The JSON
file is written again after every number of tokens, so nothing is lost when time runs out. For --only, the library's
products have the name "library".

With `--compile`, on any machine: compiles for sm_90 what would be launched (only what the kernels' own tables
hold with `--tables`), and tells shared memory, registers and what is spilled. Ends with 1 when something does not fit.
"""

from __future__ import annotations

import faulthandler
import fnmatch
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
import triton

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # also where solbench is not installed, and when this is imported

import crossovers  # noqa: E402
from crossovers import ANY, REPOSITORY, Choice, Clock, Tensors, synchronize  # noqa: E402

from harness import gpu_state  # noqa: E402

KERNELS = REPOSITORY / "kernels" / "dense_swiglu_backward"
HIDDEN, INNER = 16384, 53248
DEVICE = "cuda"
TOKENS = (128, 256, 512, 1024, 2048, 4096, 4 * 1571, 8192)
BASELINES = ("fused_pointwise",)
# Compiled by NVRTC when they run, and not by --compile.
IN_CUDA = ("multicast",)
LIBRARIES = ("cublas", "cublaslt")
INPUT_SETS = 2
READINGS = 5
# Long enough for the power to settle and for NVML to see it.
BURST_S = 0.15
BEST_PARTS = 2
SAMPLED = 64  # tokens, and columns of I, that are held against the formula
TRIAL_PROCESSES = 6  # each holds up to 17 GB


@cache
def kernel(name: str) -> ModuleType:
    """A rung's module, or that of a kernel of the catalogue."""
    return crossovers.load(crossovers.folder_of(KERNELS, name), f"dense_{name}")


# --- inputs, and what is right ------------------------------------------------------------------------


def filled(*shape: int, seed: int, device: str, scale: float = 1.0) -> torch.Tensor:
    values = torch.empty(*shape, dtype=torch.bfloat16, device=device)
    if device != "meta":
        values.normal_(0, scale, generator=torch.Generator(device=device).manual_seed(seed))
    return values


@cache
def weights(hidden: int, inner: int, seed: int, device: str) -> list[torch.Tensor]:
    """The same for every number of tokens."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return [filled(*shape, seed=10 * seed + i, device=device, scale=shape[1] ** -0.5) for i, shape in enumerate(shapes)]


def made_inputs(tokens: int, seed: int, device: str) -> list[torch.Tensor]:
    """As the workload makes them, activated_gate on its own."""
    widths = (HIDDEN, HIDDEN, INNER, INNER, INNER)
    rows = [filled(1, tokens, width, seed=10 * seed + 3 + i, device=device) for i, width in enumerate(widths)]
    return [*rows, *weights(HIDDEN, INNER, seed, device)]


def gradients(d: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activated: torch.Tensor) -> torch.Tensor:
    """[grad_gate, grad_up] [T, 2J] of d and saved tensors [T, J], in float32."""
    d, gate, up, activated = d.float(), gate.float(), up.float(), activated.float()
    sigmoid = torch.sigmoid(gate)
    return torch.cat([d * up * sigmoid * (1 + gate * (1 - sigmoid)), d * activated], dim=1)


@dataclass(frozen=True)
class Scratch:
    """What the launches of `grouped` read and write between them; `both` is [grad_gate, grad_up]."""

    intermediate: torch.Tensor
    both: torch.Tensor
    grad_x: torch.Tensor
    grad_weights: torch.Tensor
    grad_down_weight: torch.Tensor

    @staticmethod
    def like(inputs: Tensors) -> Scratch:
        """Empty but for `intermediate`."""
        x, up, activated, down_weight = inputs[1][0], inputs[3][0], inputs[4][0], inputs[7]
        tokens, inner = up.shape
        return Scratch(
            activated * up,
            x.new_empty(tokens, 2 * inner),
            torch.empty_like(x),
            x.new_empty(2 * inner, x.shape[1]),
            torch.empty_like(down_weight),
        )

    def fill_both(self, inputs: Tensors) -> None:
        """By the library; some tokens at a time, because of what float32 takes."""
        output, gate, up, activated = (inputs[i][0] for i in (0, 2, 3, 4))
        for rows in range(0, len(output), 1024):
            some = slice(rows, rows + 1024)
            self.both[some] = gradients(output[some] @ inputs[7], gate[some], up[some], activated[some])


@dataclass(frozen=True)
class Sample:
    """Some tokens and some columns of I, with what is right there, in float32; `both` by token and by column."""

    tokens: torch.Tensor
    columns: torch.Tensor
    both_of_tokens: torch.Tensor
    both_of_columns: torch.Tensor
    grad_x: torch.Tensor
    grad_weights: torch.Tensor
    grad_down_weight: torch.Tensor

    @staticmethod
    def of(inputs: Tensors) -> Sample:
        output, x, gate, up, activated = (tensor[0] for tensor in inputs[:5])
        gate_weight, up_weight, down_weight = inputs[5:]
        place = torch.Generator().manual_seed(1)
        tokens, columns = (
            torch.randperm(length, generator=place)[:SAMPLED].sort().values.to(x.device) for length in up.shape
        )
        by_token = gradients(output[tokens] @ down_weight, *(saved[tokens] for saved in (gate, up, activated)))
        some = [saved[:, columns].float() for saved in (gate, up, activated)]
        by_column = gradients(output.float() @ down_weight[:, columns].float(), *some)
        grad_gate, grad_up = by_token.bfloat16().chunk(2, dim=1)
        return Sample(
            tokens,
            columns,
            by_token,
            by_column,
            (grad_gate @ gate_weight).float() + (grad_up @ up_weight).float(),
            by_column.T @ x.float(),
            output.float().T @ (some[1] * some[2]),
        )

    def errors(self, scratch: Scratch, part: str | None) -> list[float]:
        """Norm-relative errors of what a part, or a whole call, is to write; infinite where anything is no number."""
        rows = torch.cat([self.columns, self.columns + scratch.grad_down_weight.shape[1]])
        first = [
            (scratch.both, scratch.both[self.tokens], self.both_of_tokens),
            (scratch.both, scratch.both[:, rows], self.both_of_columns),
            (scratch.grad_down_weight, scratch.grad_down_weight[:, self.columns], self.grad_down_weight),
        ]
        second = [
            (scratch.grad_x, scratch.grad_x[self.tokens], self.grad_x),
            (scratch.grad_weights, scratch.grad_weights[rows], self.grad_weights),
        ]
        checked = {"first": first, "second": second, None: [*first[2:], *second]}[part]
        return [
            crossovers.error_of(found, wanted) if bool(whole.sum(dtype=torch.float32).isfinite()) else float("inf")
            for whole, found, wanted in checked
        ]


def tried(candidate: Candidate, tokens: int) -> float:
    """The greatest norm-relative error of a candidate; compiles what a later call of it needs."""
    inputs = made_inputs(tokens, 1, DEVICE)
    scratch = Scratch.like(inputs)
    for tensor in (scratch.both, scratch.grad_x, scratch.grad_weights, scratch.grad_down_weight):
        tensor.fill_(float("nan"))
    if candidate.part is None:
        # Given back, so that a call finds it in what it allocates.
        intermediate, both = scratch.intermediate, scratch.both
        del scratch
        grad_x, grad_gate_weight, grad_up_weight, grad_down_weight = candidate.call(inputs, None)
        grad_weights = torch.cat([grad_gate_weight, grad_up_weight])
        scratch = Scratch(intermediate, both, grad_x[0], grad_weights, grad_down_weight)
    else:
        if candidate.part == "second":
            scratch.fill_both(inputs)
        candidate.call(inputs, scratch)
    synchronize()
    # NaN is worse than any number.
    return max(error if error == error else float("inf") for error in Sample.of(inputs).errors(scratch, candidate.part))


# --- the library's products -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """One product by the library, with the least that it must compute and move."""

    call: Callable[[], Any]
    flops: float
    moved_bytes: float

    @property
    def floor_ms(self) -> float:
        return 1e-3 * crossovers.floor_us(self.flops, self.moved_bytes)


def products(inputs: Tensors, scratch: Scratch) -> dict[str, Product]:
    output, x = inputs[0][0], inputs[1][0]
    gate_weight, up_weight, down_weight = inputs[5:]
    both, intermediate, grad_x = scratch.both, scratch.intermediate, scratch.grad_x
    tokens, (hidden, inner) = len(x), down_weight.shape
    by_gate, by_up = both[:, :inner], both[:, inner:]
    flops = 2.0 * tokens * hidden * inner
    th, ti, hi = 2.0 * tokens * hidden, 2.0 * tokens * inner, 2.0 * hidden * inner  # bytes
    return {
        "d": Product(lambda: output @ down_weight, flops, th + hi + ti),
        "grad_down_weight": Product(lambda: output.T @ intermediate, flops, th + ti + hi),
        "grad_x": Product(
            lambda: torch.mm(by_gate, gate_weight).addmm_(by_up, up_weight), 2 * flops, 2 * ti + 2 * hi + th
        ),
        "grad_x, gate half": Product(lambda: torch.mm(by_gate, gate_weight), flops, ti + hi + th),
        "grad_x, up half added": Product(lambda: grad_x.addmm_(by_up, up_weight), flops, ti + hi + 2 * th),
        "both weight gradients": Product(lambda: both.T @ x, 2 * flops, 2 * ti + th + 2 * hi),
    }


@dataclass(frozen=True)
class Rate:
    """How fast one product is: single calls with a cold cache, and in a row, with what NVML saw meanwhile."""

    tokens: int
    product: str
    library: str
    floor_ms: float
    flops: float
    moved_bytes: float
    readings_ms: list[float]
    in_a_row_ms: float
    sm_clock_mhz: float | None
    power_max_w: float | None

    @property
    def in_words(self) -> str:
        ms = median(self.readings_ms)
        rate = f"{self.flops / ms / 1e9:4.0f} TFLOP/s {self.moved_bytes / ms / 1e9:5.2f} TB/s"
        clock = "" if self.sm_clock_mhz is None else f", {self.sm_clock_mhz:.0f} MHz"
        power = "" if self.power_max_w is None else f", {self.power_max_w:.0f} W"
        row = f"in a row {self.in_a_row_ms:7.3f} ms{clock}{power}"
        return f"  {ms:7.3f} ms {rate} {ms / self.floor_ms:5.2f}x floor  {row}  {self.product} ({self.library})"


def in_a_row_ms(call: Callable[[], Any], once_ms: float) -> float:
    """The time of one of the calls that fill BURST_S."""
    count = max(2, round(1e3 * BURST_S / once_ms))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count


def rate(clock: Clock, gpu: gpu_state.Gpu, tokens: int, name: str, library: str, product: Product) -> Rate | None:
    """None for a product that cannot be held."""
    product.call()
    synchronize()
    readings_us = [clock.read_us(product.call) for _ in range(READINGS)]
    readings_ms = [1e-3 * reading for reading in readings_us if reading is not None]
    if not readings_ms:
        return None
    with gpu_state.Monitor(gpu, interval_s=0.02) as monitor:
        row_ms = in_a_row_ms(product.call, median(readings_ms))
    seen = monitor.summary()
    return Rate(
        tokens, name, library, product.floor_ms, product.flops, product.moved_bytes, readings_ms, row_ms,
        seen.sm_clock_mhz.median if seen.sm_clock_mhz else None, seen.power_max_w,
    )  # fmt: skip


def rates(clock: Clock, tokens: int) -> Iterator[Rate]:
    """Of every product by every library at one number of tokens."""
    inputs = made_inputs(tokens, 0, DEVICE)
    scratch = Scratch.like(inputs)
    scratch.fill_both(inputs)
    scratch.grad_x.zero_()  # one product adds to it
    gpu = gpu_state.of_device(torch.device(DEVICE))
    before = torch.backends.cuda.preferred_blas_library()
    try:
        for name, product in products(inputs, scratch).items():
            for library in LIBRARIES:
                torch.backends.cuda.preferred_blas_library(library)
                found = rate(clock, gpu, tokens, name, library, product)
                if found is not None:
                    yield found
    finally:
        torch.backends.cuda.preferred_blas_library(before)


# --- what is tried ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate(crossovers.Candidate):
    """Its parts are the large launches of `grouped`."""

    def call(self, inputs: Tensors, scratch: Scratch | None, early: bool = False) -> Any:
        module = kernel(self.rung)
        if self.part is None:
            return module.run(*inputs) if self.config is None else module.launch(self.config, *inputs)
        assert scratch is not None
        output, x, gate, up, activated = (tensor[0] for tensor in inputs[:5])
        gate_weight, up_weight, down_weight = inputs[5:]
        if self.part == "first":
            saved = (gate, up, activated, down_weight, scratch.intermediate)
            return module.first(self.config, output, *saved, scratch.both, scratch.grad_down_weight)
        results = (scratch.grad_x, scratch.grad_weights)
        return module.second(self.config, x, gate_weight, up_weight, scratch.both, *results)


def epilogue_candidates() -> Iterator[Choice]:
    module = kernel("fused_epilogue")
    Tile, Config = module.Tile, module.Config  # noqa: N806 -- classes
    wide, square = Tile(128, 256, 64, 4), Tile(128, 128, 64, 4)
    yield 1, 64, Config(Tile(64, 128, 128, 3), warps=4)
    yield 1, 128, Config(Tile(64, 256, 64, 4))
    yield 65, ANY, Config(square)
    yield 65, ANY, Config(Tile(128, 256, 64, 3))
    yield 257, ANY, Config(Tile(256, 128, 64, 4))
    yield 1025, ANY, Config(Tile(256, 128, 64, 4), band=8)
    yield from ((1025, ANY, Config(wide, band=band)) for band in (8, 32))


def short_choices() -> Iterator[tuple[int, int, Any, int]]:
    """Tiles that write gradients, and over how many of them a program goes."""
    Tile = kernel("grouped").Tile  # noqa: N806 -- a class
    wide, square = Tile(128, 256, 64, 4), Tile(128, 128, 64, 3)
    yield 1, 128, Tile(128, 256, 128, 2), 16
    yield 65, 128, Tile(128, 256, 128, 2), 4
    yield 65, 128, Tile(64, 256, 128, 2), 16
    yield 65, 128, Tile(128, 256, 64, 3), 1
    yield 129, 256, Tile(64, 256, 256, 2), 16
    yield 129, 256, Tile(128, 128, 256, 2), 8
    yield 129, 1024, wide, 1
    yield 129, 1024, square, 1


def long_choices(least: int) -> list[Any]:
    """Tiles of d and of grad_x, for numbers of tokens from `least` on."""
    Tile = kernel("grouped").Tile  # noqa: N806 -- a class
    if least < 65:
        return [Tile(64, 256, 64, 4)]
    return [Tile(128, 256, 64, 4)]


def first_candidates() -> Iterator[Choice]:
    module = kernel("grouped")
    First, Tile = module.First, module.Tile  # noqa: N806 -- classes
    for least, most, short, walk in short_choices():
        for long in long_choices(least):
            for at_once in (0, 66) if least < 257 else (0,):
                yield least, most, First(long, short, walk, at_once)
    square = Tile(128, 128, 64, 3)
    # Small enough for two programs to a multiprocessor.
    yield 65, 128, First(square, Tile(64, 128, 128, 2), 16)
    yield 65, 1024, First(square, square)
    yield 65, 128, First(Tile(128, 256, 64, 4), Tile(128, 256, 128, 2), 16, 44)


def second_candidates() -> Iterator[Choice]:
    module = kernel("grouped")
    Second, Tile = module.Second, module.Tile  # noqa: N806 -- classes
    for least, most, short, walk in short_choices():
        for long in long_choices(least):
            for at_once in (0, 66):
                yield least, most, Second(long, short, walk, at_once, pieces=2 if most <= 128 else 1)
    square = Tile(128, 128, 64, 3)
    yield 65, 128, Second(square, Tile(64, 128, 128, 2), 16)
    yield 65, 1024, Second(square, square)
    yield 65, 128, Second(Tile(128, 256, 64, 4), Tile(128, 256, 128, 2), 16, 44, pieces=2)
    yield 129, 256, Second(Tile(128, 256, 64, 4), Tile(64, 256, 256, 2), 16, 66, pieces=2)


def candidate(rung: str, part: str | None, choice: Choice) -> Candidate:
    least, most, config = choice
    return Candidate(crossovers.name_of(rung, part, config), rung, config, least, most, part)


def specialized_candidates() -> Iterator[Choice]:
    module = kernel("warp_specialized")
    yield from ((1, ANY, module.Config(*bands)) for bands in ((8, 8, 16), (16, 16, 16), (8, 8, 8), (4, 8, 32)))


def multicast_candidates() -> Iterator[Choice]:
    module = kernel("multicast")
    yield from ((129, ANY, module.Config(*bands)) for bands in ((4, 4, 8), (8, 8, 8), (4, 4, 4), (2, 4, 16)))


def from_tables() -> list[Candidate]:
    """What the kernels' own tables hold."""
    rungs = ("grouped", "fused_epilogue", "warp_specialized", *IN_CUDA)
    return [candidate(rung, None, choice) for rung in rungs for choice in crossovers.in_table(kernel(rung).CONFIGS)]


def candidates() -> list[Candidate]:
    """All of them, each once; the baselines come first."""
    found = [Candidate(name, name, None, 1, ANY) for name in BASELINES]
    for rung, part, some in (
        ("fused_epilogue", None, epilogue_candidates()),
        ("grouped", "first", first_candidates()),
        ("grouped", "second", second_candidates()),
        ("warp_specialized", None, specialized_candidates()),
        ("multicast", None, multicast_candidates()),
    ):
        found += [candidate(rung, part, choice) for choice in some]
    return list({one.name: one for one in [*found, *from_tables()]}.values())


# --- timing ----------------------------------------------------------------------------------------------


@dataclass
class Measured(crossovers.Measured):
    rates: list[Rate] = field(default_factory=list)


class Bench(crossovers.Bench):
    baselines = BASELINES
    few_readings, more_readings, best = 3, 7, 4

    def sets(self, tokens: int) -> list[tuple[Tensors, Scratch]]:
        torch.cuda.empty_cache()  # of blocks in the sizes of other numbers of tokens
        found: list[tuple[Tensors, Scratch]] = []
        for seed in range(INPUT_SETS):
            inputs = made_inputs(tokens, seed, DEVICE)
            scratch = Scratch.like(inputs)
            scratch.fill_both(inputs)
            found.append((inputs, scratch))
        return found

    def pairs(self, tokens: int, ordered: Sequence[crossovers.Candidate]) -> list[crossovers.Candidate]:
        firsts = [one for one in ordered if one.part == "first"][:BEST_PARTS]
        seconds = [one for one in ordered if one.part == "second"][:BEST_PARTS]
        config = kernel("grouped").Config
        both = (config(first.config, second.config) for first in firsts for second in seconds)
        return [candidate("grouped", None, (tokens, tokens, pair)) for pair in both]


def bound_us(tokens: int) -> float:
    flops = 12 * tokens * HIDDEN * INNER
    moved = 2 * (3 * tokens * HIDDEN + 6 * HIDDEN * INNER + 3 * tokens * INNER)
    return crossovers.floor_us(flops, moved)


def report(measured: crossovers.Measured, tokens: int) -> str:
    return crossovers.report(measured, tokens, bound_us(tokens), BASELINES)


def measure_library(
    clock: Clock, measured: Measured, tokens: Sequence[int], deadline: float, path: Path | None
) -> None:
    for count in tokens:
        print(f"the library, T = {count}", flush=True)
        for found in rates(clock, count):
            measured.rates.append(found)
            print(found.in_words, flush=True)
            if time.monotonic() > deadline:
                break
        measured.write(path)
        torch.cuda.empty_cache()
        if time.monotonic() > deadline:
            print("out of time for the library's products")
            return


def measure(tokens: Sequence[int], patterns: Sequence[str], seconds: float, path: Path | None) -> None:
    began = time.monotonic()
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    clock = Clock()
    names = (torch.cuda.get_device_name(0), torch.__version__, triton.__version__)
    measured = Measured(*names, clock.nothing_us, {}, {})
    if any(fnmatch.fnmatch("library", pattern) for pattern in patterns):
        measure_library(clock, measured, tokens, began + 0.3 * seconds, path)
    weights.cache_clear()
    torch.cuda.empty_cache()  # the memory is for those who try
    chosen = [one for one in candidates() if crossovers.matches(one, patterns, BASELINES)]
    chosen = [one for one in chosen if any(map(one.covers, tokens))]
    measured.failed |= crossovers.left_out(chosen, __file__, began + 0.75 * seconds)
    bench = Bench(clock, measured, began + seconds)
    crossovers.sweep(bench, measured, chosen, tokens, began + seconds, path, report)
    print(f"a call of nothing reads {clock.nothing_us:.2f} µs; {time.monotonic() - began:.0f} s")


def launched(one: Candidate) -> list[tuple[Any, ...]]:
    """What a candidate launches at full size."""
    inputs = made_inputs(crossovers.tokens_to_try(one), 0, "meta")
    with crossovers.recorded(kernel(one.rung)) as launches:
        one.call(inputs, Scratch.like(inputs))
    return list(launches)


def main() -> None:
    options = crossovers.parser(__doc__ or "", 200.0, TOKENS).parse_args()
    if options.compile:
        some = [one for one in (from_tables() if options.tables else candidates()) if one.rung not in IN_CUDA]
        some = [one for one in some if crossovers.matches(one, options.only, BASELINES)]
        sys.exit(0 if crossovers.compile_all(some, launched, options.json) else 1)
    if not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --compile does not")
    if options.names is not None:
        by_name = {one.name: one for one in candidates()}
        some = [by_name[name] for name in options.names]
        crossovers.try_some(some, lambda one: tried(one, crossovers.tokens_to_try(one)))
        return
    crossovers.PROCESSES = TRIAL_PROCESSES
    measure(options.tokens, options.only, options.seconds, options.json)
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a process must not keep this one


if __name__ == "__main__":
    main()
