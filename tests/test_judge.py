"""What counts as right: element by element, by norm, and by what was returned."""

from __future__ import annotations

import math

import pytest
import torch

from harness.judge import (
    PASSED,
    Comparison,
    changed_inputs,
    compare,
    part_tolerance,
    verdict_on_conduct,
    verdict_on_outputs,
    verdict_on_returned,
    worst,
)
from harness.records import Status
from harness.spec import Tensor, Tolerance

LIMITS = Tolerance(atol=1e-5, rtol=0.05, match_ratio=0.99, norm_relative_error=0.01)
GENERATOR = torch.Generator().manual_seed(3)
REFERENCE = torch.randn(64, 100, generator=GENERATOR).to(torch.bfloat16)


def spoiled(count: int, value: float) -> torch.Tensor:
    output = REFERENCE.clone()
    output.view(-1)[:count] = value
    return output


# name: (output, status, part of the reason)
OUTPUTS = {
    "the same": (REFERENCE.clone(), Status.PASSED, None),
    "one NaN": (spoiled(1, math.nan), Status.INCORRECT_NUMERICAL, "y has 1 non-finite"),
    "one infinity": (spoiled(1, math.inf), Status.INCORRECT_NUMERICAL, "y has 1 non-finite"),
    "zeros": (torch.zeros_like(REFERENCE), Status.INCORRECT_NUMERICAL, "all zeros"),
    "another tensor": (REFERENCE.flip(0), Status.INCORRECT_NUMERICAL, "of the elements"),
    "one in fifty wrong": (spoiled(128, 30.0), Status.INCORRECT_NUMERICAL, "98."),
    "few elements far off": (spoiled(20, 1000.0), Status.INCORRECT_NUMERICAL, "norm-relative"),
    "two percent too large": (REFERENCE * 1.02, Status.INCORRECT_NUMERICAL, "norm-relative"),
    "8-bit floats": (REFERENCE.to(torch.float8_e4m3fn).to(torch.bfloat16), Status.INCORRECT_NUMERICAL, "95."),
    "a rounding away": (REFERENCE * (1 + 2**-8), Status.PASSED, None),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_is_judged_by_its_values(kind: str) -> None:
    output, status, part = OUTPUTS[kind]
    verdict = verdict_on_outputs({"y": compare(output, REFERENCE, LIMITS)}, {"y": LIMITS})
    assert verdict.status is status
    assert part is None or (verdict.reason is not None and part in verdict.reason)


def test_zeros_fail_where_most_elements_are_under_the_absolute_limit() -> None:
    # At T = 1 most weight gradients are under atol, so the element check alone passes zeros.
    reference = (REFERENCE.float() * 3e-6).to(torch.bfloat16)
    almost = torch.full_like(reference, 1e-9)
    comparison = compare(almost, reference, LIMITS)
    assert comparison.matched_ratio > 0.99
    assert verdict_on_outputs({"y": comparison}, {"y": LIMITS}).status is Status.INCORRECT_NUMERICAL


def test_eight_bit_floats_fail_where_the_absolute_limit_lets_them_through() -> None:
    reference = (REFERENCE.float() * 1e-5).to(torch.bfloat16)
    eight_bit = (REFERENCE.to(torch.float8_e4m3fn).float() * 1e-5).to(torch.bfloat16)
    comparison = compare(eight_bit, reference, LIMITS)
    assert comparison.matched_ratio == 1.0
    assert verdict_on_outputs({"y": comparison}, {"y": LIMITS}).status is Status.INCORRECT_NUMERICAL


@pytest.mark.parametrize("both", [False, True])
def test_a_reference_that_is_not_finite_is_no_reference(both: bool) -> None:
    bad = spoiled(1, math.nan)
    verdict = verdict_on_outputs({"y": compare(bad if both else REFERENCE, bad, LIMITS)}, {"y": LIMITS})
    assert verdict.status is Status.INVALID_REFERENCE


def test_an_all_zero_reference_asks_for_zeros() -> None:
    zeros = torch.zeros_like(REFERENCE)
    assert compare(zeros, zeros, LIMITS).norm_rel_error == 0
    assert compare(torch.full_like(zeros, 1e-6), zeros, LIMITS).norm_rel_error == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_comparing_changes_neither_side(dtype: torch.dtype) -> None:
    output, reference = torch.arange(10).to(dtype), torch.arange(1, 11).to(dtype)
    kept = output.clone(), reference.clone()
    compare(output, reference, LIMITS)
    assert torch.equal(output, kept[0])
    assert torch.equal(reference, kept[1])


def test_a_large_output_is_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare(spoiled(128, 30.0), REFERENCE, LIMITS)
    monkeypatch.setattr("harness.judge.CHUNK", 1000)
    chunked = compare(spoiled(128, 30.0), REFERENCE, LIMITS)
    assert chunked.matched_ratio == whole.matched_ratio
    assert chunked.norm_rel_error == pytest.approx(whole.norm_rel_error)


def test_rounds_are_summed_up_by_the_worst_figures() -> None:
    rounds = [Comparison(1.0, 0.1, 0.001, 0, 0, False), Comparison(0.995, 0.3, 0.0005, 0, 0, False)]
    assert worst(rounds) == {"matched_ratio": 0.995, "max_abs_error": 0.3, "norm_rel_error": 0.001}
    broken = Comparison(0.5, math.inf, math.nan, 3, 0, False)
    assert worst([*rounds, broken]) == {"matched_ratio": 0.5, "max_abs_error": None, "norm_rel_error": None}


GOOD = {
    "type": "torch.Tensor",
    "plain": True,
    "shape": [2, 3],
    "dtype": "bfloat16",
    "device": "cpu",
    "layout": "strided",
}
NO_TENSOR = {"type": "builtins.float", "plain": False}
ASKED = (Tensor("p", (2, 3), "bfloat16"), Tensor("q", (2, 3), "bfloat16"))

# name: (names, items, status, part of the reason)
RETURNED = {
    "both": (None, [GOOD, GOOD], Status.PASSED, None),
    "both by name": (["p", "q"], [GOOD, GOOD], Status.PASSED, None),
    "too few": (None, [GOOD], Status.INCORRECT_SHAPE, "1 outputs, 2 are needed"),
    "too many": (None, [GOOD] * 3, Status.INCORRECT_SHAPE, "3 outputs"),
    "a name missing": (["p"], [GOOD], Status.INCORRECT_SHAPE, "no output named q"),
    "a name too many": (["p", "q", "r"], [GOOD] * 3, Status.INCORRECT_SHAPE, "not asked for: r"),
    "nothing": (None, None, Status.INCORRECT_SHAPE, "not the outputs"),
    "another shape": (None, [GOOD, {**GOOD, "shape": [3, 2]}], Status.INCORRECT_SHAPE, "q has shape [3, 2]"),
    "another dtype": (None, [{**GOOD, "dtype": "float32"}, GOOD], Status.INCORRECT_DTYPE, "p is float32"),
    "another device": (None, [{**GOOD, "device": "meta"}, GOOD], Status.INCORRECT_DTYPE, "p is on meta"),
    "sparse": (None, [{**GOOD, "layout": "sparse_coo"}, GOOD], Status.INCORRECT_DTYPE, "sparse_coo"),
    "no tensor": (None, [NO_TENSOR, GOOD], Status.INCORRECT_DTYPE, "p is a builtins.float"),
    "a disguised subclass": (None, [{**GOOD, "plain": False}, GOOD], Status.REWARD_HACK, "not a plain"),
    "a subclass": (None, [{**GOOD, "type": "x.Lazy", "plain": False}, GOOD], Status.REWARD_HACK, "p is a x.Lazy"),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_what_is_returned_must_be_the_outputs_as_plain_tensors(kind: str) -> None:
    names, items, status, part = RETURNED[kind]
    returned = {"type": "thing", "names": names, "items": items, "count": len(items or ())}
    verdict = verdict_on_returned(returned, ASKED, "cpu")
    assert verdict.status is status
    assert (verdict is PASSED) == (part is None)
    assert part is None or (verdict.reason is not None and part in verdict.reason)


DECENT: dict[str, list[object]] = {"replaced": [], "modes": [], "shares": [], "kept": []}

# name: (facts, part of the reason)
CONDUCT = {
    "nothing": ({}, None),
    "a static buffer": ({"kept": ["p"]}, None),
    "another clock": ({"replaced": ["time.perf_counter"]}, "replaced time.perf_counter"),
    "a mode": ({"modes": ["Lazy"]}, "left a Lazy active"),
    "an input's memory": ({"shares": [["p", "x"]]}, "p shares memory with x"),
}


@pytest.mark.parametrize("kind", CONDUCT)
def test_conduct_that_no_honest_kernel_shows_is_refused(kind: str) -> None:
    facts, part = CONDUCT[kind]
    verdict = verdict_on_conduct({**DECENT, **facts})
    assert verdict.status is (Status.PASSED if part is None else Status.REWARD_HACK)
    assert part is None or part in (verdict.reason or "")


def test_a_part_may_differ_a_little_more_than_the_whole() -> None:
    part = part_tolerance(Tolerance(1e-5, 0.05, 0.99, 0.01))
    assert (part.match_ratio, part.norm_relative_error) == (pytest.approx(0.97), pytest.approx(0.015))
    assert part_tolerance(Tolerance(0, 0, 0.5, 0.01)).match_ratio == 0


def test_a_changed_input_is_named_by_its_bits() -> None:
    inputs = [Tensor("a", (2,), "float32"), Tensor("b", (2,), "float32")]
    kept = [torch.tensor([0.0, math.nan]), torch.tensor([1.0, 2.0])]
    assert changed_inputs([t.clone() for t in kept], kept, inputs) == []
    assert changed_inputs([torch.tensor([-0.0, math.nan]), kept[1]], kept, inputs) == ["a"]
