"""A random part of a question: some indices of some axes, drawn after the call that answers it began.

The workload file says which axes can be cut (`slices:`); the reference is the same function on smaller inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.spec import Case, Tensor, Workload

Indices = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Part:
    """Indices of each cut axis, on the device, and the outputs that they are drawn for."""

    indices: Indices
    outputs: tuple[str, ...]


class Slicer:
    """Draws parts of one case and cuts tensors to them."""

    def __init__(self, workload: Workload, case: Case, device: torch.device) -> None:
        model = workload.model
        self._rules, self._case, self._device = model.slices, case, device
        self._axes_of = {name: tensor.shape for name, tensor in model.inputs.items()}
        self._axes_of |= {name: tensor.shape for name, tensor in model.outputs.items()}

    @property
    def is_possible(self) -> bool:
        return bool(self._rules)

    def draw(self, secret: random.Random) -> list[Part]:
        """One part for each rule; together they cover every output."""
        counts = [
            (axis, self._case.axes[axis], min(take, self._case.axes[axis]))
            for rule in self._rules
            for axis, take in rule.take.items()
        ]
        drawn = [sorted(secret.sample(range(size), take)) for _, size, take in counts]
        # One copy to the device for all of them.
        flat = torch.tensor([index for indices in drawn for index in indices]).to(self._device)
        pieces = iter(torch.split(flat, [len(indices) for indices in drawn]))
        return [Part({axis: next(pieces) for axis in rule.take}, tuple(rule.outputs)) for rule in self._rules]

    def cut(self, part: Part, tensors: Sequence[Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`values` of the named tensors at the part's indices; those without its axes as they are."""
        return [self._cut(part, tensor.name, value) for tensor, value in zip(tensors, values, strict=True)]

    def _cut(self, part: Part, name: str, value: torch.Tensor) -> torch.Tensor:
        for position, size in enumerate(self._axes_of[name]):
            if size in part.indices:
                value = value.index_select(position, part.indices[size])
        return value

    def expected(
        self,
        parts: Sequence[Part],
        reference: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """The reference's answer to each part, by output."""
        found: dict[str, torch.Tensor] = {}
        names = [tensor.name for tensor in self._case.outputs]
        for part in parts:
            results = reference(self.cut(part, self._case.inputs, inputs))
            found.update({name: results[names.index(name)] for name in part.outputs})
        return found

    def taken(self, parts: Sequence[Part], outputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs' elements in the parts, copied."""
        by_name = dict(zip((tensor.name for tensor in self._case.outputs), outputs, strict=True))
        return {name: self._cut(part, name, by_name[name]) for part in parts for name in part.outputs}
