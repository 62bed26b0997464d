"""The repository's kernels against the references, on the CPU, at reduced sizes and odd token counts."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, module_of

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
    sys.path.insert(0, str(path.parent))  # a folder's files may import each other
    try:
        run: Callable[..., Any] = module_of(path).run
    finally:
        sys.path.remove(str(path.parent))
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


# --- what Triton's compiler takes wrongly --------------------------------------------------------------------------


def two_names_before_a_loop(source: str) -> list[str]:
    """Where a compiled function gives a value a second name, and a loop behind that changes both names.

    Triton 3.6 then takes the second for a value that no loop changes, and says nothing.
    """
    found = []
    for function in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]:
        if not any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
            continue
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                both = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
                both.add(node.value.id)
                behind = [loop for loop in loops if loop.lineno > node.lineno and both <= stored_in(loop)]
                found += [f"{function.name}: {ast.unparse(node)}" for _ in behind[:1]]
    return found


def stored_in(loop: ast.For | ast.While) -> set[str]:
    names = [node for node in ast.walk(loop) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def test_no_value_has_two_names_that_a_loop_changes() -> None:
    sources = sorted(path for path in (REPOSITORY / "kernels").rglob("*.py") if not path.is_symlink())
    assert len(sources) > 20
    assert {str(path): found for path in sources if (found := two_names_before_a_loop(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("last = stage\n    for i in range(n):\n        last = stage\n        stage = stage + 1", True),
        ("last = stage\n    while n:\n        stage, last = after(stage), stage", True),
        ("last = zero()\n    for i in range(n):\n        last = stage\n        stage = stage + 1", False),
        ("end = count\n    for i in range(end):\n        count = count + 1", False),
        ("for i in range(n):\n        last = stage\n        stage = stage + 1", False),
    ],
)
def test_two_names_of_one_value_are_found(body: str, is_found: bool) -> None:
    source = f"@gluon.jit\ndef kernel(stage, count, n):\n    {body}\n"
    assert bool(two_names_before_a_loop(source)) is is_found
    assert not two_names_before_a_loop(source.replace("@gluon.jit", "@cache"))
