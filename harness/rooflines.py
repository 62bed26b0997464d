"""Which peak rates do figures stand against? Those of their record, or any other pair of the device's."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from harness import sol
from harness.catalog import Catalog
from harness.errors import InputError
from harness.figures import Figures, Peak
from harness.sol import Roofline


def of_device(catalog: Catalog, device: str, label: str, place: str = "--roofline") -> Roofline:
    """The pair of that label of a device, by the driver's name. Raises `InputError`, with how to come by one."""
    try:
        return catalog.device(device).roofline(label)
    except InputError as error:
        remedy = "measure them: solbench calibrate"
        if error.place.startswith("roofline of"):
            remedy = f"{error.remedy} (solbench calibrate makes measured)"
        raise InputError(f"{place} {label}", f"no such peaks are known of {device}", remedy) from None


def against(records: Iterable[Figures], label: str, catalog: Catalog) -> list[Figures]:
    """The figures with bound, roofline share and score over the peaks of that label.

    The bound comes from the record's own work (FLOP and bytes). A record that was measured against peaks of
    that label which the catalogue does not have keeps them. Raises `InputError` where there are neither.
    """
    found: dict[str, Roofline | InputError] = {}
    moved = []
    for record in records:
        if record.device not in found:
            try:
                found[record.device] = of_device(catalog, record.device, label)
            except InputError as error:
                found[record.device] = error
        peaks = found[record.device]
        if isinstance(peaks, Roofline):
            moved.append(_moved(record, peaks))
        elif record.peak is not None and record.peak.label == label:
            moved.append(record)
        else:
            raise peaks
    return moved


def _moved(record: Figures, roofline: Roofline) -> Figures:
    if record.flops is None or record.bytes_moved is None:
        return record  # it never came to a bound
    bound = sol.bound(record.flops, record.bytes_moved, roofline)
    grade = None
    if record.latency_ms is not None:
        grade = sol.grade(record.latency_ms, bound.ms, record.baseline_ms)
    return msgspec.structs.replace(
        record,
        bound_ms=bound.ms,
        limit=bound.limit,
        peak=Peak(roofline.device, roofline.label, roofline.peak_flops, roofline.bandwidth),
        roofline=grade.roofline if grade else None,
        sol_score=grade.score if grade else None,
        sol_reason=grade.reason if grade else None,
    )
