"""A dense case of several tiles of every product, none of them whole, for the tests of the emulators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

TOKENS, H, I = 200, 520, 328  # noqa: E741 -- as in the formulas


def inputs(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(TOKENS, H)] * 2 + [(TOKENS, I)] * 3 + [(I, H)] * 2 + [(H, I)]
    return [torch.randn(*shape, generator=generator).bfloat16() for shape in shapes]


def formula(given: list[torch.Tensor]) -> list[torch.Tensor]:
    output, x, gate, up, activated, gate_weight, up_weight, down_weight = (tensor.double() for tensor in given)
    d, sigmoid = output @ down_weight, torch.sigmoid(gate)
    grad_gate, grad_up = d * up * sigmoid * (1 + gate * (1 - sigmoid)), d * activated
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return [grad_x, grad_gate.T @ x, grad_up.T @ x, output.T @ (activated * up)]


def is_near(found: Sequence[torch.Tensor], given: list[torch.Tensor]) -> bool:
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, formula(given), strict=True)]
    return all(error < 0.005 for error in errors)
