"""What is there in the catalogues?"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

# The command line needs the kinds to describe itself, and the catalogue only to list one.
if TYPE_CHECKING:
    from harness.catalog import Catalog


class Kind(StrEnum):
    """What can be listed."""

    workloads = "workloads"
    kernels = "kernels"
    devices = "devices"
    protocols = "protocols"
    suites = "suites"


def rows(catalog: Catalog, kind: Kind) -> list[dict[str, Any]]:
    """One for each, with units in the names. Raises `InputError` for a faulty file."""
    match kind:
        case Kind.workloads:
            found = [catalog.workload(name) for name in catalog.workload_folders()]
            return [
                {"name": w.name, "short_name": w.model.short_name, "cases": len(w.model.cases), "title": w.model.title}
                for w in found
            ]
        case Kind.kernels:
            return [
                {"workload": w.name, "name": name, "idea": catalog.kernel(name, w).idea}
                for w in map(catalog.workload, catalog.workload_folders())
                for name in catalog.kernel_paths(w)
            ]
        case Kind.devices:
            return [
                {
                    "name": stem,
                    "device": d.name,
                    "roofline": label,
                    "bf16_tflops": r.bf16_dense_flops / 1e12,
                    "bandwidth_gb_per_s": r.bandwidth_bytes_per_s / 1e9,
                }
                for stem, d in catalog.devices().items()
                for label, r in d.rooflines.items()
            ]
        case Kind.protocols:
            return [
                {"name": p.name, "backend": p.backend, "description": p.description}
                for p in map(catalog.protocol, catalog.protocol_names())
            ]
        case Kind.suites:
            return [
                {
                    "name": s.name,
                    "workloads": ", ".join(s.workloads),
                    "kernels": ", ".join(s.kernels),
                    "description": s.description,
                }
                for s in map(catalog.suite, catalog.suite_names())
            ]
