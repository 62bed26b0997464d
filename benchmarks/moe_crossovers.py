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

import faulthandler
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # also where solbench is not installed, and when this is imported

import crossovers  # noqa: E402
from crossovers import REPOSITORY, Choice, Clock, Measured, Tensors, synchronize  # noqa: E402

KERNELS = REPOSITORY / "kernels" / "moe_swiglu_backward"
HIDDEN, INNER = 2048, 768
DEVICE = "cuda"
TOKENS = (1, 4, 16, 24, 48, 96, 128, 256, 512, 800, 1087, 1571, 2447, 3089, 4093, 6144, 8192)
BASELINES = ("fused_pointwise", "joined_products")
# Compiled by NVRTC when they run, and not by --compile; up to so many tokens.
IN_CUDA = {"clusters": 16, "slices": 32}
# With how many of the best launches of each kind pairs are made, and up to how many tokens also so that the second
# begins early.
BEST_PARTS = 2
EARLY_MOST = 2048
INPUT_SETS = 3


@cache
def kernel(name: str) -> ModuleType:
    """A rung's module, or that of a kernel of the catalogue."""
    return crossovers.load(crossovers.folder_of(KERNELS, name), f"moe_{name}")


# --- what is tried ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate(crossovers.Candidate):
    """Its parts are the launches of `grouped`."""

    def call(self, inputs: Tensors, scratch: Scratch, early: bool = False) -> Any:
        """One call; the parts work on `scratch`, which belongs to the inputs."""
        module = kernel(self.rung)
        output, x, gate_weight, up_weight, down_weight, *saved = inputs
        match self.part:
            case "first":
                return module.in_a_row(
                    module.first(
                        self.config, early, output, down_weight, *saved, scratch.both, scratch.grad_down_weight
                    )
                )
            case "second":
                return module.in_a_row(
                    module.second(
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


def epilogue_candidates() -> Iterator[Choice]:
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


def small_candidates() -> Iterator[Choice]:
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


def first_candidates() -> Iterator[Choice]:
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
    yield 17, 64, First(Tile(32, 16, 256, 5, 4), Tile(64, 128, 32, 2), warps=4)
    for down in (Tile(64, 128, 64, 2), None):
        yield 17, 192, First(Tile(64, 16, 128, 5), down, warps=4)
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


def second_candidates() -> Iterator[Choice]:
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
    yield 17, 64, Second(Tile(32, 16, 256, 5, 4), Tile(64, 128, 32, 2), warps=4)
    for down in (None, low):
        yield 17, 192, Second(Tile(64, 16, 128, 5), low, down, warps=4)
        yield 17, 192, Second(Tile(64, 32, 128, 4), low, down, warps=4)
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


def candidate(rung: str, part: str | None, choice: Choice) -> Candidate:
    least, most, config = choice
    return Candidate(crossovers.name_of(rung, part, config), rung, config, least, most, part)


def specialized_candidates() -> Iterator[Choice]:
    Config = kernel("warp_specialized").Config  # noqa: N806 -- a class
    for second in (128, 256):
        for down_first in (False, True):
            yield 513, crossovers.ANY, Config(128, second, down_first)
            yield 2049, crossovers.ANY, Config(256, second, down_first)
    for bands in ((16, 16, 6), (4, 8, 4)):
        yield 4097, crossovers.ANY, Config(128, 128, False, *bands)


def one_launch_candidates() -> Iterator[Choice]:
    Config = kernel("one_launch").Config  # noqa: N806 -- a class
    yield 257, crossovers.ANY, Config()
    yield 257, crossovers.ANY, Config(x=4, weights=4)
    yield 2049, crossovers.ANY, Config(256)
    for bands in ((16, 16, 6), (4, 8, 4)):
        yield 4097, crossovers.ANY, Config(128, *bands)


def from_tables() -> list[Candidate]:
    """What the kernels' own tables hold."""
    rungs = ("small", "grouped", "fused_epilogue", "warp_specialized", "one_launch")
    return [candidate(rung, None, choice) for rung in rungs for choice in crossovers.in_table(kernel(rung).CONFIGS)]


def candidates() -> list[Candidate]:
    """All of them, each once; the baselines come first."""
    found = [Candidate(name, name, None, 1, crossovers.ANY) for name in BASELINES]
    found += [Candidate(name, name, None, 1, most) for name, most in IN_CUDA.items()]
    for rung, part, some in (
        ("small", None, small_candidates()),
        ("fused_epilogue", None, epilogue_candidates()),
        ("grouped", "first", first_candidates()),
        ("grouped", "second", second_candidates()),
        ("warp_specialized", None, specialized_candidates()),
        ("one_launch", None, one_launch_candidates()),
    ):
        found += [candidate(rung, part, choice) for choice in some]
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
        errors = [crossovers.error_of(*pair) for pair in pairs]
        worst = max(worst, *(error if error == error else float("inf") for error in errors))
    return worst


# --- timing ----------------------------------------------------------------------------------------------


class Bench(crossovers.Bench):
    baselines = BASELINES

    def sets(self, tokens: int) -> list[tuple[Tensors, Scratch]]:
        found: list[tuple[Tensors, Scratch]] = []
        for seed in range(INPUT_SETS):
            inputs = made_inputs(tokens, seed, DEVICE)
            scratch = Scratch.like(inputs)
            scratch.both.copy_(right_answers(inputs)[0])
            found.append((inputs, scratch))
        return found

    def pairs(self, tokens: int, ordered: Sequence[crossovers.Candidate]) -> list[crossovers.Candidate]:
        """Both launches, where grad_down_weight is in one of them."""
        config = kernel("grouped").Config
        found: list[crossovers.Candidate] = []
        for late in (False, True):
            firsts = [one for one in ordered if one.part == "first" and (one.config.down is None) == late]
            seconds = [one for one in ordered if one.part == "second" and (one.config.down is not None) == late]
            for first in firsts[:BEST_PARTS]:
                for second in seconds[:BEST_PARTS]:
                    for early in (False, True) if tokens <= EARLY_MOST else (False,):
                        pair = config(first.config, second.config, early)
                        found.append(candidate("grouped", None, (tokens, tokens, pair)))
        return found


def bound_us(tokens: int) -> float:
    flops = 12 * tokens * HIDDEN * INNER
    moved = 2 * (3 * tokens * HIDDEN + 6 * HIDDEN * INNER + 5 * tokens * INNER)
    return crossovers.floor_us(flops, moved)


def report(measured: Measured, tokens: int) -> str:
    return crossovers.report(measured, tokens, bound_us(tokens), BASELINES)


def measure(tokens: Sequence[int], patterns: Sequence[str], seconds: float, path: Path | None) -> None:
    began = time.monotonic()
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    chosen = [one for one in candidates() if crossovers.matches(one, patterns, BASELINES)]
    chosen = [one for one in chosen if any(map(one.covers, tokens))]
    failed = crossovers.left_out(chosen, __file__, began + 0.6 * seconds)
    clock = Clock()
    measured = Measured(
        torch.cuda.get_device_name(0), torch.__version__, triton.__version__, clock.nothing_us, failed, {}
    )
    bench = Bench(clock, measured, began + seconds)
    crossovers.sweep(bench, measured, chosen, tokens, began + seconds, path, report)
    print(f"a call of nothing reads {clock.nothing_us:.2f} µs; {time.monotonic() - began:.0f} s")


def launched(one: Candidate) -> list[tuple[Any, ...]]:
    """What a candidate launches at full size."""
    inputs = made_inputs(crossovers.tokens_to_try(one), 0, "meta")
    with crossovers.recorded(kernel(one.rung)) as launches:
        one.call(inputs, Scratch.like(inputs), early=True)
    return list(launches)


def main() -> None:
    options = crossovers.parser(__doc__ or "", 60.0, TOKENS).parse_args()
    if options.compile:
        some = [one for one in (from_tables() if options.tables else candidates()) if one.rung not in IN_CUDA]
        some = [one for one in some if crossovers.matches(one, options.only, BASELINES)]
        sys.exit(0 if crossovers.compile_all(some, launched, options.json) else 1)
    if not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --compile does not")
    if options.names is not None:
        torch.backends.cuda.matmul.allow_tf32 = False
        by_name = {one.name: one for one in candidates()}
        some = [by_name[name] for name in options.names]
        crossovers.try_some(some, lambda one: tried(one, crossovers.tokens_to_try(one)))
        return
    measure(options.tokens, options.only, options.seconds, options.json)
    sys.stdout.flush()
    os._exit(0)  # a thread that waits for a process must not keep this one


if __name__ == "__main__":
    main()
