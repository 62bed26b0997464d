"""Is it right? Compares outputs with the reference's, and says in one sentence what is wrong.

Pure functions over tensors and facts; candidate code is never loaded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch

from harness.records import Status
from harness.spec import Tensor, Tolerance

# Elements compared at a time: bounds the float32 copies to about 1 GB for outputs of any size.
CHUNK = 1 << 26


@dataclass(frozen=True)
class Comparison:
    """One output against its reference. Ratios are from 0 to 1, errors in the output's own units."""

    matched_ratio: float
    max_abs_error: float
    norm_rel_error: float
    nonfinite: int
    reference_nonfinite: int
    all_zero: bool


@dataclass(frozen=True)
class Verdict:
    status: Status
    reason: str | None = None


PASSED = Verdict(Status.PASSED)


def compare(output: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """One output against its reference; see `compare_all`."""
    (comparison,) = compare_all([(output, reference, tolerance)])
    return comparison


def compare_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor, Tolerance]]) -> list[Comparison]:
    """Outputs against their references, element by element in float32, norms in float64.

    Both tensors of a pair have the same shape. On CUDA all outputs are read before any figure is waited for.
    """
    kernel = _one_pass_kernel() if all(output.is_cuda for output, _, _ in pairs) else None
    if kernel is None or not all(t.dtype in kernel.DTYPES for output, ref, _ in pairs for t in (output, ref)):
        return [_compare_by_chunks(*pair) for pair in pairs]
    figures = [kernel.figures(output, ref, limit.atol, limit.rtol) for output, ref, limit in pairs]
    counts = [output.numel() for output, _, _ in pairs]
    return [_comparison(count, *found) for count, found in zip(counts, torch.stack(figures).tolist(), strict=True)]


@cache
def _one_pass_kernel() -> ModuleType | None:
    """The GPU's comparison, where Triton works: it needs a C compiler for what launches a kernel."""
    try:
        from harness import judge_kernel

        one = torch.ones(1, device="cuda")
        judge_kernel.figures(one, one, 0.0, 0.0)
    except (ImportError, RuntimeError, OSError):
        return None
    return judge_kernel


def _compare_by_chunks(output: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Comparison:
    out, ref = output.reshape(-1), reference.reshape(-1)
    matched = nonfinite = reference_nonfinite = 0
    max_abs_error, error_squares, reference_squares, output_squares = 0.0, 0.0, 0.0, 0.0
    for start in range(0, out.numel(), CHUNK):
        o = out[start : start + CHUNK].to(torch.float32, copy=True)
        r = ref[start : start + CHUNK].to(torch.float32, copy=True)
        nonfinite += int((~torch.isfinite(o)).sum())
        reference_nonfinite += int((~torch.isfinite(r)).sum())
        output_squares += _squares(o)
        reference_squares += _squares(r)
        o.sub_(r).abs_()
        # NaN compares false, so a non-finite difference never matches.
        matched += int((o <= r.abs_().mul_(tolerance.rtol).add_(tolerance.atol)).sum())
        max_abs_error = max(max_abs_error, float(torch.nan_to_num(o.max(), nan=math.inf, posinf=math.inf)))
        error_squares += _squares(o)
    return _comparison(
        out.numel(),
        matched,
        nonfinite,
        reference_nonfinite,
        max_abs_error,
        error_squares,
        reference_squares,
        output_squares,
    )


def _comparison(
    count: int,
    matched: float,
    nonfinite: float,
    reference_nonfinite: float,
    max_abs_error: float,
    error_squares: float,
    reference_squares: float,
    output_squares: float,
) -> Comparison:
    if reference_squares > 0:
        norm_rel_error = (error_squares / reference_squares) ** 0.5
    else:
        norm_rel_error = 0.0 if error_squares == 0 else float("inf")
    return Comparison(
        matched / count,
        max_abs_error,
        norm_rel_error,
        int(nonfinite),
        int(reference_nonfinite),
        output_squares == 0 and reference_squares > 0,
    )


def _squares(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def verdict_on_outputs(comparisons: Mapping[str, Comparison], tolerances: Mapping[str, Tolerance]) -> Verdict:
    """The first output that fails decides; its sentence names it, the figure and the limit."""
    for name, found in comparisons.items():
        limits = tolerances[name]
        if found.reference_nonfinite:
            reason = f"the reference's {name} has {found.reference_nonfinite} non-finite elements"
            return Verdict(Status.INVALID_REFERENCE, reason)
        if found.nonfinite:
            return _wrong(f"{name} has {found.nonfinite} non-finite elements")
        if found.all_zero:
            return _wrong(f"{name} is all zeros and the reference is not")
        if found.matched_ratio < limits.match_ratio:
            return _wrong(
                f"{name}: {found.matched_ratio:.4%} of the elements are within "
                f"{limits.atol:g} + {limits.rtol:g}*|ref|, {limits.match_ratio:.0%} are needed"
            )
        # Written so that NaN fails.
        if not found.norm_rel_error <= limits.norm_relative_error:
            return _wrong(
                f"{name}: the norm-relative error is {found.norm_rel_error:.3g}, the limit is "
                f"{limits.norm_relative_error:g}"
            )
    return PASSED


def _wrong(reason: str) -> Verdict:
    return Verdict(Status.INCORRECT_NUMERICAL, reason)


def verdict_on_returned(returned: Mapping[str, Any], outputs: Sequence[Tensor], device_type: str) -> Verdict:
    """Whether what `run` returned are tensors of the asked names, number, shapes, dtypes and device.

    `returned` is the worker's description: `names` (null unless a dict came back) and `items`, each with
    type, plain (whether it is a tensor of no subclass), shape, dtype, device.
    """
    expected = [tensor.name for tensor in outputs]
    names, items = returned.get("names"), returned.get("items")
    if not isinstance(items, list):
        kind = returned.get("type")
        return Verdict(Status.INCORRECT_SHAPE, f"run returned {kind}, not the outputs as tuple, list or dict")
    if names is not None and names != expected:
        if missing := [name for name in expected if name not in names]:
            return Verdict(Status.INCORRECT_SHAPE, f"run returned no output named {', '.join(missing)}")
        extra = [str(name) for name in names if name not in expected]
        return Verdict(Status.INCORRECT_SHAPE, f"run returned outputs that were not asked for: {', '.join(extra)}")
    if (count := returned.get("count")) != len(expected) or len(items) != len(expected):
        return Verdict(Status.INCORRECT_SHAPE, f"run returned {count} outputs, {len(expected)} are needed")
    for tensor, item in zip(outputs, items, strict=True):
        if not item["plain"]:
            status = Status.INCORRECT_DTYPE if "shape" not in item else Status.REWARD_HACK
            return Verdict(status, f"{tensor.name} is a {item['type']}, not a plain torch.Tensor")
        if tuple(item["shape"]) != tensor.shape:
            return Verdict(
                Status.INCORRECT_SHAPE, f"{tensor.name} has shape {list(item['shape'])}, not {list(tensor.shape)}"
            )
        if item["dtype"] != tensor.dtype:
            return Verdict(Status.INCORRECT_DTYPE, f"{tensor.name} is {item['dtype']}, not {tensor.dtype}")
        if item["device"] != device_type:
            return Verdict(Status.INCORRECT_DTYPE, f"{tensor.name} is on {item['device']}, not {device_type}")
        if item["layout"] != "strided":
            return Verdict(Status.INCORRECT_DTYPE, f"{tensor.name} has layout {item['layout']}, not strided")
    return PASSED


def verdict_on_conduct(facts: Mapping[str, Any]) -> Verdict:
    """Whether the kernel did what no honest one does; `facts` are those of `Integrity.facts`."""
    if replaced := facts["replaced"]:
        return Verdict(Status.REWARD_HACK, f"the kernel replaced {', '.join(map(str, replaced[:4]))}")
    if modes := facts["modes"]:
        reason = f"the kernel left a {modes[0]} active, which intercepts PyTorch's operations after its call"
        return Verdict(Status.REWARD_HACK, reason)
    if shares := facts["shares"]:
        output, other = shares[0]
        return Verdict(Status.REWARD_HACK, f"{output} shares memory with {other}")
    return PASSED


# A part of an output may differ a little more than the whole, for which the limits are made.
_PART_MISSES, _PART_ERROR = 3.0, 1.5


def part_tolerance(whole: Tolerance) -> Tolerance:
    """The limits for a random part of an output that is right: misses and errors are not spread evenly."""
    return replace(
        whole,
        match_ratio=max(0.0, 1 - _PART_MISSES * (1 - whole.match_ratio)),
        norm_relative_error=_PART_ERROR * whole.norm_relative_error,
    )


def changed_inputs(given: Sequence[torch.Tensor], kept: Sequence[torch.Tensor], inputs: Sequence[Tensor]) -> list[str]:
    """Names of the inputs whose bits are no longer those of the judge's own copy."""
    return [
        tensor.name
        for tensor, now, before in zip(inputs, given, kept, strict=True)
        if not torch.equal(bits(now), bits(before))
    ]


def bits(values: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as whole numbers, so that NaN equals itself and -0 is not 0."""
    return values.reshape(-1).view(torch.int16 if values.element_size() == 2 else torch.int32)


def worst(comparisons: Sequence[Comparison]) -> dict[str, float | None]:
    """The figures of several rounds of one output as one: the least matched, the largest errors.

    An error that is not finite has no figure (None); the verdict says what was wrong.
    """

    def largest(errors: Sequence[float]) -> float | None:
        return max(errors) if all(map(math.isfinite, errors)) else None

    return {
        "matched_ratio": min(c.matched_ratio for c in comparisons),
        "max_abs_error": largest([c.max_abs_error for c in comparisons]),
        "norm_rel_error": largest([c.norm_rel_error for c in comparisons]),
    }
