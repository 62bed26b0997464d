"""The repository's kernels against the references, on the CPU, at reduced sizes and odd token counts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.catalog import Catalog
from harness.inputs import fill, load_reference
from harness.judge import PASSED, compare, verdict_on_outputs
from harness.spec import CaseModel, Workload

CATALOG = Catalog()
# Divides the hidden sizes; H and I stay different and I stays no power of two. MoE's absolute limit belongs to
# outputs as small as full size makes them, so its sizes shrink less.
SCALE = {"moe": 2, "dense": 128}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def loaded(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"kernel_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # a folder's files may import each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    run: Callable[..., Any] = module.run
    return run


def with_tokens(workload: Workload, axes: dict[str, int]) -> Workload:
    """The workload with one more case, of the given axes, called `own`."""
    like = workload.model.cases[0]
    own = CaseModel.model_validate({"id": "own", "axes": axes, "tolerance": like.tolerance})
    model = workload.model.model_copy(update={"cases": [*workload.model.cases, own]})
    return replace(workload, model=model)


TOKENS = {
    "moe": [{"num_tokens": t} for t in (1, 2, 7, 17, 127, 128, 129)],
    "dense": [{"batch_size": b, "seq_len": s} for b, s in ((1, 1), (1, 17), (3, 5), (2, 64), (1, 129))],
}
# torch.compile on the CPU is slow to start, and what it makes is torch's: it runs in the full-size suite.
KERNELS = [
    (name, kernel, axes)
    for name in ("moe", "dense")
    for kernel in CATALOG.kernel_paths(CATALOG.workload(name))
    if kernel not in ("reference", "compiled")
    and DEVICE in CATALOG.kernel(kernel, CATALOG.workload(name)).model.devices  # others: test_{moe,dense}_kernels.py
    for axes in TOKENS[name]
]


@pytest.mark.parametrize(("name", "kernel", "axes"), KERNELS)
def test_a_kernel_agrees_with_the_reference(name: str, kernel: str, axes: dict[str, int]) -> None:
    workload = with_tokens(CATALOG.workload(name), axes)
    case = workload.case("own", SCALE[name])
    reference = load_reference(workload.reference_path)
    given = [torch.empty(t.shape, dtype=torch.bfloat16, device=DEVICE) for t in case.inputs]
    fill(workload, case, reference, seed=7, tensors=given)
    kept = [tensor.clone() for tensor in given]
    outputs = loaded(CATALOG.kernel(kernel, workload).entry)(*given)
    expected = reference.run(*kept)
    assert all(torch.equal(now, before) for now, before in zip(given, kept, strict=True)), "an input changed"
    assert [tuple(o.shape) for o in outputs] == [t.shape for t in case.outputs]
    comparisons = {
        t.name: compare(found, wanted, case.tolerances[t.name])
        for t, found, wanted in zip(case.outputs, outputs, expected, strict=True)
    }
    assert verdict_on_outputs(comparisons, case.tolerances) is PASSED, comparisons


@pytest.mark.parametrize(("name", "kernel"), sorted({(name, kernel) for name, kernel, _ in KERNELS}))
def test_every_saved_tensor_is_read(name: str, kernel: str) -> None:
    """An input that is changed on its own changes the result as it does the reference's."""
    workload = with_tokens(CATALOG.workload(name), TOKENS[name][1])
    case = workload.case("own", SCALE[name])
    reference = load_reference(workload.reference_path)
    given = [torch.empty(t.shape, dtype=torch.bfloat16, device=DEVICE) for t in case.inputs]
    fill(workload, case, reference, seed=7, tensors=given)
    run = loaded(CATALOG.kernel(kernel, workload).entry)
    for tensor, values in zip(case.inputs, given, strict=True):
        before = values.clone()
        values.normal_(generator=torch.Generator(device=DEVICE).manual_seed(11)).mul_(float(before.std()))
        for output, found, wanted in zip(case.outputs, run(*given), reference.run(*given), strict=True):
            limit = case.tolerances[output.name].norm_relative_error
            assert compare(found, wanted, case.tolerances[output.name]).norm_rel_error < limit, (
                tensor.name,
                output.name,
            )
        values.copy_(before)


def test_every_kernel_says_its_idea_and_its_terms() -> None:
    for name in ("moe", "dense"):
        workload = CATALOG.workload(name)
        for kernel_name in CATALOG.kernel_paths(workload):
            assert len(CATALOG.kernel(kernel_name, workload).idea) > 30, kernel_name
