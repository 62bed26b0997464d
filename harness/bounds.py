"""Which bound has each case on a device, and which was published for it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import sol, stats
from harness.sol import Roofline
from harness.spec import Case, DeviceModel, Workload
from harness.text import format_ms

# A published bound has four decimals, and its last one is not always rounded as the formula's.
_PUBLISHED_STEP_MS = 1.5e-4


@dataclass(frozen=True)
class CaseBound:
    """The bound of one case, and the published one where it is for the same device."""

    case: Case
    bound: sol.Bound
    published_bound_ms: float | None

    @property
    def flops_per_byte(self) -> float:
        return self.case.flops / self.case.bytes_moved

    @property
    def difference(self) -> str:
        """A mark for a published bound that the formula does not give to its last decimal."""
        published_ms = self.published_bound_ms
        if published_ms is None or abs(round(self.bound.ms, 4) - published_ms) < _PUBLISHED_STEP_MS:
            return ""
        return f"differs by {(published_ms / self.bound.ms - 1) * 100:+.0f}%"

    @property
    def note(self) -> str | None:
        """What is to be said of the published bound."""
        return self.case.published_note if self.published_bound_ms is not None else None

    def row(self) -> dict[str, Any]:
        """For programs, with units in the names; absent is None."""
        return {
            "case": self.case.id,
            "flops": self.case.flops,
            "bytes_moved": self.case.bytes_moved,
            "flops_per_byte": self.flops_per_byte,
            "limit": self.bound.limit,
            "bound_ms": self.bound.ms,
            "published_bound_ms": self.published_bound_ms,
        }

    def texts(self) -> dict[str, str]:
        """For people, by heading."""
        return {
            "case": self.case.id,
            "GFLOP": _amount(self.case.flops / 1e9),
            "MB": _amount(self.case.bytes_moved / 1e6),
            "FLOP/B": f"{self.flops_per_byte:.1f}",
            "limit": self.bound.limit,
            "bound": format_ms(self.bound.ms),
            "published": format_ms(self.published_bound_ms),
            "": self.difference,
        }


def _amount(value: float) -> str:
    """Four significant digits, never with an exponent."""
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"


def of_cases(workload: Workload, device: DeviceModel, roofline: Roofline) -> Sequence[CaseBound]:
    """Every case at full size, in the workload's order; `roofline` is one of the device's pairs of peaks."""
    published = workload.model.published
    same_device = published is not None and published.device == device.name
    return [
        CaseBound(
            case,
            sol.bound(case.flops, case.bytes_moved, roofline),
            case.published_bound_ms if same_device else None,
        )
        for case in map(workload.case, workload.case_ids())
    ]


def notes(cases: Sequence[CaseBound], device: DeviceModel, roofline: Roofline) -> list[str]:
    """What is to be said below the cases: their mean, where the peaks come from, and what is special."""
    mean = stats.geometric_mean([case.bound.ms for case in cases])
    lines = [
        f"geometric mean {format_ms(mean)}, from the {roofline.label} peaks of {device.name}:",
        roofline.source,
    ]
    if others := [label for label in device.rooflines if label != roofline.label]:
        lines.append(f"other peaks of this device: --roofline {' or '.join(others)}")
    return lines + [f"{case.case.id}: {case.note}" for case in cases if case.note]
