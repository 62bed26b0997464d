"""The ladder of dense kernels: right for every number of tokens, and compiled for the device that it is made for.

In Triton's interpreter, or in an emulator, where there is no GPU, at hidden sizes that fit no tile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import triton_ladder
from conftest import REPOSITORY
from triton_ladder import (  # noqa: F401 -- fixtures are used by name
    DEVICE,
    ON_GPU,
    FakeClock,
    Walls,
    assert_near,
    compiled_by_nvcc,
    compiled_tables,
    gpu,
    interpreter_that_rounds,
    normal,
    spread,
    thinned,
    walls_around_all,
)

# Neither is a multiple of any tile, and both are of 8, as descriptors need.
H, I = 200, 72  # noqa: E741 -- as in the formulas
FULL_H, FULL_I = 16384, 53248
RUNGS = ("fused_epilogue", "grouped", "warp_specialized", "multicast")
TOKENS = (1, 2, 15, 17, 63, 65, 127, 129, 200, 257)

# Of gates far below zero: their sigmoid is 0.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")


def benchmark() -> ModuleType:
    return triton_ladder.benchmark("dense_crossovers")


def rung(name: str) -> ModuleType:
    return triton_ladder.rung("dense_crossovers", name)


# --- inputs and the right answer ---------------------------------------------------------------------------


def as_the_workload(tokens: int, hidden: int, inner: int) -> list[torch.Tensor]:
    """Every tensor on its own: activated_gate is not silu(gate_output)."""
    shapes = [(tokens, hidden)] * 2 + [(tokens, inner)] * 3 + [(inner, hidden)] * 2 + [(hidden, inner)]
    values = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    return [*values[:5], *(weight / weight.shape[1] ** 0.5 for weight in values[5:])]


def of_any_size(tokens: int, hidden: int, inner: int) -> list[torch.Tensor]:
    """Independent tensors of a large dynamic range; but gates within what a sigmoid in float32 can tell from 0."""
    values = as_the_workload(tokens, hidden, inner)
    sizes = spread([tensor.shape for tensor in values])
    return [*sizes[:2], 8 * values[2], *sizes[3:]]


def saturated(tokens: int, hidden: int, inner: int) -> list[torch.Tensor]:
    """Gates of -200 and 200: the sigmoid is 0 or 1 and the derivative vanishes or is 1."""
    values = as_the_workload(tokens, hidden, inner)
    return [*values[:2], torch.where(values[2] < 0, -200.0, 200.0), *values[3:]]


def mostly_zeros(tokens: int, hidden: int, inner: int) -> list[torch.Tensor]:
    return thinned(as_the_workload(tokens, hidden, inner))


MAKERS = (as_the_workload, of_any_size, saturated, mostly_zeros)


def made(maker: Callable[..., list[torch.Tensor]], tokens: int, hidden: int = H, inner: int = I) -> list[torch.Tensor]:
    """As the kernels take them: tokens as [B, S], two rows of them where they can be halved."""
    values = [tensor.bfloat16() for tensor in maker(tokens, hidden, inner)]
    batch = 1 if tokens % 2 else 2
    return [*(value.view(batch, tokens // batch, -1) for value in values[:5]), *values[5:]]


def right_grad_x(inputs: list[torch.Tensor], absolute: bool = False) -> torch.Tensor:
    """grad_x [T, H] in float64; with `absolute`, the sums of its terms' magnitudes."""
    grad_gate, grad_up = gradients(inputs, absolute)
    gate_weight, up_weight = (magnitude(inputs[i].double(), absolute) for i in (5, 6))
    return grad_gate @ gate_weight + grad_up @ up_weight


def right_weight_gradients(inputs: list[torch.Tensor], absolute: bool = False) -> list[torch.Tensor]:
    """The gradients of the three weights, likewise."""
    grad_gate, grad_up = gradients(inputs, absolute)
    output, x, _, up, activated = (magnitude(tensor.flatten(0, 1).double(), absolute) for tensor in inputs[:5])
    return [grad_gate.T @ x, grad_up.T @ x, output.T @ (activated * up)]


def gradients(inputs: list[torch.Tensor], absolute: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """grad_gate and grad_up [T, I], likewise."""
    gate = inputs[2].flatten(0, 1).double()
    sigmoid = torch.sigmoid(gate)
    slope = sigmoid * (1 + magnitude(gate, absolute) * (1 - sigmoid))
    output, up, activated = (magnitude(inputs[i].flatten(0, 1).double(), absolute) for i in (0, 3, 4))
    d = output @ magnitude(inputs[7].double(), absolute)
    return d * up * slope, d * activated


def magnitude(values: torch.Tensor, absolute: bool) -> torch.Tensor:
    return values.abs() if absolute else values


def assert_right(found: Any, inputs: list[torch.Tensor]) -> None:
    wanted, sizes = ([right_grad_x(inputs, way), *right_weight_gradients(inputs, way)] for way in (False, True))
    assert found[0].shape == inputs[1].shape
    assert_near([found[0].flatten(0, 1), *found[1:]], wanted, sizes)


# --- right for every number of tokens ----------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_is_right_for_every_number_of_tokens(name: str) -> None:
    for number, tokens in enumerate(TOKENS):
        inputs = made(MAKERS[number % len(MAKERS)], tokens)
        kept = [tensor.clone() for tensor in inputs]
        assert_right(rung(name).run(*inputs), inputs)
        assert all(map(torch.equal, inputs, kept)), "an input changed"


CONFIGURATIONS = [
    pytest.param(one.rung, one.config, id=one.name.replace(" ", "_"))
    for one in (benchmark().from_tables() if not ON_GPU else [])
]


@pytest.mark.parametrize(("name", "config"), CONFIGURATIONS)
def test_every_configuration_is_right_beyond_its_range(name: str, config: Any) -> None:
    """Whatever the tables will say: how a product is cut changes no result."""
    for tokens in (7, 150):
        inputs = made(of_any_size, tokens)
        assert_right(rung(name).launch(config, *inputs), inputs)


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("walk", [1, 3])
def test_tiles_are_right_in_any_order(walk: int, tma: bool) -> None:
    """Several bands, several rounds of long tiles, walks over an edge, and pieces that cut a weight in two."""
    grouped = rung("grouped")
    tile, short = grouped.Tile(16, 16, 32, 2), grouped.Tile(16, 32, 512 if walk > 1 else 32, 2)
    first = grouped.First(tile, short, walk, at_once=5, warps=4, tma=tma)
    second = grouped.Second(tile, short, walk, at_once=7, pieces=3, warps=4, tma=tma)
    inputs = made(of_any_size, 300, 56, 40)
    assert 300 / tile.rows > grouped.BAND
    assert_right(grouped.launch(grouped.Config(first, second), *inputs), inputs)


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(("hidden", "inner"), [(256, 96), (24, 8)])
def test_hidden_sizes_may_fit_tiles_or_be_smaller(name: str, hidden: int, inner: int) -> None:
    inputs = made(as_the_workload, 19, hidden, inner)
    assert_right(rung(name).run(*inputs), inputs)


@pytest.mark.parametrize("name", RUNGS)
def test_each_input_counts_on_its_own(name: str) -> None:
    """Nothing is computed from another tensor than the formula's: each one is replaced, with the others kept."""
    inputs = made(as_the_workload, 18, 64, 24)
    for i, tensor in enumerate(inputs):
        other = normal(*tensor.shape, seed=70 + i).bfloat16()
        changed = [*inputs[:i], other, *inputs[i + 1 :]]
        assert_right(rung(name).run(*changed), changed)


@pytest.mark.parametrize("name", RUNGS)
def test_zeros_give_exact_zeros(name: str) -> None:
    inputs = made(as_the_workload, 20)
    inputs[0].zero_()
    assert not any(bool(output.any()) for output in rung(name).run(*inputs))


@pytest.mark.parametrize("name", RUNGS)
def test_results_repeat_bit_for_bit(name: str) -> None:
    inputs = made(as_the_workload, 33)
    assert all(map(torch.equal, rung(name).run(*inputs), rung(name).run(*inputs)))


@pytest.mark.parametrize("tokens", [1, 67, 129])
@pytest.mark.parametrize("name", RUNGS)
def test_nothing_is_read_or_written_outside(name: str, tokens: int, walls: Walls) -> None:
    """NaN that is read spoils a result; NaN that is overwritten is missed; and so is what is not written."""
    inputs = [walls.room(*tensor.shape).copy_(tensor) for tensor in made(as_the_workload, tokens)]
    assert_right(rung(name).run(*inputs), inputs)


# --- which rung, and what if not -----------------------------------------------------------------------------


def test_best_takes_the_library_where_the_device_is_no_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    best = rung("best")
    monkeypatch.setattr(best, "is_hopper", lambda device: False)
    assert best.choose(16, torch.device("cuda")) is best.fused_pointwise
    assert best.choose(16, torch.device("cpu")) is best.portable


def test_best_has_a_rung_for_every_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    best = rung("best")
    monkeypatch.setattr(best, "is_hopper", lambda device: True)
    choose, limits = best.choose, [most for most, _ in best.RUNGS]
    assert limits[-1] is None
    assert all(before < after for before, after in pairwise(limits[:-1]))
    assert choose(1, torch.device("cuda")) is best.warp_specialized
    assert choose(100_000, torch.device("cuda")) is best.RUNGS[-1][1]
    for tokens in (1, 40, 520) if ON_GPU else ():  # the rung itself runs in an emulator here
        inputs = made(as_the_workload, tokens, 64, 24)
        assert_right(best.run(*inputs), inputs)


def test_without_triton_best_is_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    best = rung("best")
    monkeypatch.setattr(best, "RUNGS", ())
    inputs = made(as_the_workload, 12)
    assert best.choose(12, torch.device("cuda")) is best.portable
    assert all(map(torch.equal, best.run(*inputs), rung("eager").run(*inputs)))


@pytest.mark.parametrize("name", RUNGS)
def test_tables_rise_and_have_no_gap(name: str) -> None:
    limits = [most for most, _ in rung(name).CONFIGS]
    assert limits[-1] is None
    assert all(before < after for before, after in pairwise(limits[:-1]))


@pytest.mark.parametrize("name", RUNGS)
def test_the_workspace_is_at_most_a_fifth_larger_than_the_activations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is allocated at full size, without a device."""
    plain, allocated = torch.Tensor.new_empty, []

    def new_empty(like: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        allocated.append(plain(like, *shape, **options))
        return allocated[-1]

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    launched = ("multiply", "first_launch", "second_launch", "add_pieces", "d_and_swiglu_backward", "rest_launch")
    for names in benchmark().crossovers.namespaces(benchmark().kernel(name)):
        for function in names.keys() & set(launched):
            monkeypatch.setitem(names, function, MagicMock())
        if "nvrtc_launch" in names:
            some = MagicMock(multiprocessors=132)
            some.map.return_value = names["Map"]()
            monkeypatch.setitem(names, "device", lambda of, some=some: some)
    for one in [one for one in benchmark().from_tables() if one.rung == name]:
        allocated.clear()
        inputs = benchmark().made_inputs(128, 0, "meta")
        outputs = one.call(inputs, None)
        workspace_bytes = sum(tensor.nbytes for tensor in allocated) - sum(output.nbytes for output in outputs)
        assert 0 < workspace_bytes <= 1.2 * sum(tensor.nbytes for tensor in inputs[:5])


# --- compiled for what it is made for --------------------------------------------------------------------------


def test_every_configuration_compiles_for_hopper_and_spills_nothing(tmp_path: Path) -> None:
    """At full size, in a process without the interpreter: shared memory fits, no register goes to memory."""
    found = compiled_tables("dense_crossovers", tmp_path / "compiled.json")
    large = {"first_launch", "second_launch", "d_and_swiglu_backward", "rest_launch"}
    assert {one["function"] for one in found} == large | {"multiply", "add_pieces"}
    tables = [one for one in benchmark().from_tables() if one.rung not in benchmark().IN_CUDA]
    count = sum(1 if one.rung == "fused_epilogue" else 2 for one in tables)
    assert sum(one["function"] in large for one in found) == count


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_kernel_in_cuda_compiles_for_hopper_and_spills_nothing(tmp_path: Path) -> None:
    source = REPOSITORY / "kernels" / "dense_swiglu_backward" / "_ladder" / "multicast" / "kernel.cu"
    said = compiled_by_nvcc(source, tmp_path / "cubin")
    assert said.count(" 0 bytes spill stores, 0 bytes spill loads") == 2
    assert "serialized" not in said  # what ptxas says of products that it cannot keep on their way


# --- the benchmark -------------------------------------------------------------------------------------------


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    bench = benchmark()
    for name, value in (("DEVICE", "cpu"), ("HIDDEN", 64), ("INNER", 48)):
        monkeypatch.setattr(bench, name, value)
    for name, value in (("few_readings", 1), ("more_readings", 1)):
        monkeypatch.setattr(bench.Bench, name, value)
    return bench


def test_candidates_have_names_of_their_own_and_cover_all_tokens() -> None:
    found = benchmark().candidates()
    assert len({one.name for one in found}) == len(found)
    for tokens in benchmark().TOKENS:
        kinds = {(one.rung, one.part) for one in found if one.covers(tokens)}
        assert ("fused_epilogue", None) in kinds
        assert {("grouped", "first"), ("grouped", "second")} <= kinds or tokens > 1024


@pytest.mark.skipif(ON_GPU, reason="replaces the device")
def test_the_benchmark_times_pairs_and_goes_on_after_a_failure(small_bench: ModuleType, tmp_path: Path) -> None:
    tokens = 70
    some = [one for one in small_bench.candidates() if one.covers(tokens)]
    parts = [one for part in ("first", "second") for one in [one for one in some if one.part == part][:2]]
    whole = next(one for one in some if one.rung == "fused_epilogue")
    assert all(small_bench.tried(one, tokens) < small_bench.crossovers.WORST_ERROR for one in [whole, *parts])
    broken = small_bench.Candidate("grouped broken", "grouped", "no configuration", 1, 100)
    measured = small_bench.Measured("none", "0", "0", 1.0, {}, {})
    small_bench.Bench(FakeClock(), measured, float("inf")).at(tokens, [some[0], whole, *parts, broken])
    assert list(measured.failed) == ["grouped broken"]
    assert any(name.startswith("grouped [") for name in measured.readings_us[tokens])
    measured.rates.append(small_bench.Rate(70, "d", "cublas", 1.0, 1e12, 1e9, [2.0, 1.0], 1.5, 1755.0, None))
    assert "1755 MHz" in measured.rates[0].in_words
    measured.write(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["median_us"]["70"]
    assert found["rates"][0]["readings_ms"] == [2.0, 1.0]
    assert "fused_pointwise" in small_bench.report(measured, tokens)


@pytest.mark.skipif(ON_GPU, reason="replaces the device")
def test_a_candidate_that_is_wrong_is_seen(small_bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it leaves something as it was, or writes where nobody looks."""
    whole = next(one for one in small_bench.candidates() if one.rung == "fused_epilogue")
    grouped = next(one for one in small_bench.candidates() if one.part == "first")
    monkeypatch.setattr(rung("grouped"), "first", lambda *given: None)
    assert small_bench.tried(grouped, 20) == float("inf")
    plain = rung("fused_epilogue").launch
    monkeypatch.setattr(rung("fused_epilogue"), "launch", lambda *given: [2 * output for output in plain(*given)])
    assert small_bench.tried(whole, 20) > 0.5


@pytest.mark.skipif(ON_GPU, reason="replaces the device")
def test_the_librarys_products_are_those_of_the_workload(small_bench: ModuleType) -> None:
    inputs = small_bench.made_inputs(20, 0, "cpu")
    scratch = small_bench.Scratch.like(inputs)
    scratch.fill_both(inputs)
    products = small_bench.products(inputs, scratch)
    results = {name: product.call() for name, product in products.items()}
    grad_x, weights, down = (results[name] for name in ("grad_x", "both weight gradients", "grad_down_weight"))
    assert_right([grad_x[None], *weights.split(48), down], inputs)
    whole = ("d", "grad_x", "both weight gradients", "grad_down_weight")
    assert sum(products[name].flops for name in whole) == 12 * 20 * 64 * 48


# --- at full size ----------------------------------------------------------------------------------------------

FULL = [pytest.param(name, marks=gpu) for name in (*RUNGS, "best")]


def some_of(length: int) -> torch.Tensor:
    """32 places, the first and the last among them; all where there are fewer."""
    if length <= 32:
        return torch.arange(length, device=DEVICE)
    inside = torch.randperm(length - 2, generator=torch.Generator().manual_seed(5))[:30] + 1
    return torch.cat([torch.tensor([0, length - 1]), inside]).to(DEVICE)


def assert_right_in_places(found: Any, inputs: list[torch.Tensor]) -> None:
    """Some tokens of grad_x and some columns of I of the others, in float64: all of it would be too much."""
    tokens, columns = some_of(inputs[1].shape[:-1].numel()), some_of(FULL_I)
    rows = [tensor.flatten(0, 1) for tensor in inputs[:5]]
    of_tokens = [*(row[tokens][None] for row in rows), *inputs[5:]]
    of_columns = [
        *inputs[:2],
        *(row[:, columns][None] for row in rows[2:]),
        *(weight[columns] for weight in inputs[5:7]),
        inputs[7][:, columns],
    ]
    wanted, sizes = ([right_grad_x(of_tokens, way), *right_weight_gradients(of_columns, way)] for way in (False, True))
    places = [found[0].flatten(0, 1)[tokens], found[1][columns], found[2][columns], found[3][:, columns]]
    assert_near(places, wanted, sizes)
    assert all(bool(output.sum(dtype=torch.float32).isfinite()) for output in found)


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("tokens", [1, 128, 130, 333, 700, 1000, 2500, 5001])
def test_a_rung_is_right_at_full_size(name: str, tokens: int) -> None:
    inputs = made(as_the_workload, tokens, FULL_H, FULL_I)
    assert_right_in_places(rung(name).run(*inputs), inputs)


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("tokens", [8192, 20300])
def test_offsets_that_need_more_than_32_bits_are_right(name: str, tokens: int) -> None:
    """Elements of [T, 2I] pass 2^31 from T = 20165 on; their bytes from 10083, and those of the gradients always."""
    inputs = made(as_the_workload, tokens, FULL_H, FULL_I)
    assert_right_in_places(rung(name).run(*inputs), inputs)


@pytest.mark.parametrize("name", FULL)
def test_many_calls_in_a_row_give_the_same_bits(name: str) -> None:
    """A race would show sooner or later: between launches, programs or calls."""
    for tokens in (128, 256, 500):
        inputs = made(as_the_workload, tokens, FULL_H, FULL_I)
        first = rung(name).run(*inputs)
        for _ in range(20):
            assert all(map(torch.equal, first, rung(name).run(*inputs))), tokens
