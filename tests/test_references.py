"""The references against the gradients that autograd finds for the same block in float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from harness.catalog import Catalog
from harness.inputs import derived_seed, fill, load_reference
from harness.spec import Case, Workload

# How far bfloat16 steps may be from exact arithmetic; an error in a formula is of the order of 1.
ROUNDING = 0.02


def prepared(name: str, case_id: str, scale: int) -> tuple[Workload, Case, ModuleType, dict[str, torch.Tensor]]:
    workload = Catalog().workload(name)
    case = workload.case(case_id, scale)
    reference = load_reference(workload.reference_path)
    tensors = [torch.empty(t.shape, dtype=torch.bfloat16) for t in case.inputs]
    fill(workload, case, reference, derived_seed(1, name, case_id), tensors)
    return workload, case, reference, {t.name: v for t, v in zip(case.inputs, tensors, strict=True)}


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


class SiluGradient(torch.autograd.Function):
    """An activation whose value is given, and whose derivative is that of silu at `gate`."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate)
        return value.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.enable_grad():
            (gate,) = ctx.saved_tensors
            gate = gate.detach().requires_grad_()
            torch.nn.functional.silu(gate).backward(grad)
        assert gate.grad is not None
        return gate.grad, None


@pytest.mark.parametrize("case_id", ["t1", "t16", "t128"])
def test_moe_reference_is_the_gradient_of_the_forward_pass(case_id: str) -> None:
    _, case, reference, given = prepared("moe", case_id, scale=8)
    exact = {name: value.double().requires_grad_() for name, value in given.items()}
    gate = exact["x"] @ exact["gate_weight"].T
    hidden = torch.nn.functional.silu(gate) * (exact["x"] @ exact["up_weight"].T)
    (hidden @ exact["down_weight"].T).backward(exact["grad_output"].detach())
    results = reference.run(*given.values())
    for tensor, found in zip(case.outputs, results, strict=True):
        wanted = exact[tensor.name.removeprefix("grad_")].grad
        assert wanted is not None
        # The saved tensors are rounded to bfloat16, so this is close and not exact.
        assert relative_error(found, wanted) < ROUNDING, tensor.name


@pytest.mark.parametrize("case_id", ["b1-s128", "b2-s256"])
def test_dense_reference_is_the_gradient_at_the_given_activations(case_id: str) -> None:
    _, case, reference, given = prepared("dense", case_id, scale=128)
    exact = {name: value.double() for name, value in given.items()}
    weights = {n: exact[n].requires_grad_() for n in ("x", "gate_weight", "up_weight", "down_weight")}

    def at(value: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """The given value, with the product's gradient."""
        return value + product - product.detach()

    gate = at(exact["gate_output"], weights["x"] @ weights["gate_weight"].T)
    up = at(exact["up_output"], weights["x"] @ weights["up_weight"].T)
    activated = SiluGradient.apply(gate, exact["activated_gate"])
    (activated * up @ weights["down_weight"].T).backward(exact["grad_output"])
    results = reference.run(*given.values())
    for tensor, found in zip(case.outputs, results, strict=True):
        wanted = weights[tensor.name.removeprefix("grad_")].grad
        assert wanted is not None
        assert relative_error(found, wanted) < ROUNDING, tensor.name


def test_dense_activations_are_no_function_of_the_gate() -> None:
    _, _, _, given = prepared("dense", "b1-s128", scale=128)
    recomputed = torch.nn.functional.silu(given["gate_output"].float())
    assert relative_error(given["activated_gate"], recomputed.double()) > 0.5


def test_moe_saved_tensors_are_those_of_the_forward_pass() -> None:
    _, _, _, given = prepared("moe", "t128", scale=8)
    gate = given["x"].double() @ given["gate_weight"].double().T
    assert relative_error(given["gate"], gate) < ROUNDING
    assert torch.equal(given["gate_silu"], given["gate"] * given["gate_sigmoid"])
    assert torch.equal(given["intermediate"], given["gate_silu"] * given["up"])


@pytest.mark.parametrize(("name", "case_id", "scale"), [("moe", "t512", 1), ("dense", "b1-s256", 64)])
def test_inputs_have_the_stated_spread(name: str, case_id: str, scale: int) -> None:
    workload, case, _, given = prepared(name, case_id, scale)
    for tensor_name, model in workload.model.inputs.items():
        if model.normal is not None:
            spread = {"1": 1.0, "1/sqrt(H)": case.axes["H"] ** -0.5, "1/sqrt(I)": case.axes["I"] ** -0.5}[model.normal]
            values = given[tensor_name].double()
            assert float(values.std()) == pytest.approx(spread, rel=0.02), tensor_name
            assert abs(float(values.mean())) < 0.02 * spread, tensor_name


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    workload, case, reference, first = prepared("moe", "t16", scale=8)
    again = [torch.empty_like(value) for value in first.values()]
    fill(workload, case, reference, derived_seed(1, "moe", "t16"), again)
    assert all(torch.equal(a, b) for a, b in zip(first.values(), again, strict=True))
    fill(workload, case, reference, derived_seed(2, "moe", "t16"), again)
    assert not any(torch.equal(a, b) for a, b in zip(first.values(), again, strict=True))
