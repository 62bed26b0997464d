"""Which workloads, kernels and cases does a command line name, and what is taken where it names nothing?"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple

from harness.catalog import Catalog, Kernel, select_cases
from harness.errors import InputError, unknown_name
from harness.spec import Workload

# What is run where nothing is named.
SUITE = "main"


def protocol_of(kind: str) -> str:
    """The protocol of a kind of device, `cuda` or `cpu`."""
    return "queued" if kind == "cuda" else "host"


def scale_of(workload: Workload, kind: str) -> int:
    """What hidden sizes are divided by: a CPU cannot wait for all of a large workload."""
    return workload.model.cpu.scale if kind == "cpu" else 1


class Chosen(NamedTuple):
    """One workload, with those of its kernels and cases that were named."""

    workload: Workload
    kernels: list[Kernel]
    cases: list[str]


def choose(catalog: Catalog, names: Sequence[str], kernels: Sequence[str], patterns: Sequence[str]) -> list[Chosen]:
    """A choice for each workload that is named or belongs to a suite that is.

    No kernels are a suite's, or all of the workload; no patterns are all cases. Raises `InputError` for what is
    not there, and for a pattern that no workload has a case for.
    """
    found = []
    for name, asked in _wanted(catalog, names or [SUITE], kernels):
        workload = catalog.workload(name)
        found.append((workload, _kernels(catalog, workload, asked)))
    every_case = [case for workload, _ in found for case in workload.case_ids()]
    chosen = []
    for workload, own_kernels in found:
        try:
            chosen.append(Chosen(workload, own_kernels, select_cases(workload, patterns)))
        except InputError:
            if len(found) == 1:
                raise
            # With several workloads a pattern may belong to one of them, but each to at least one.
            own = [pattern for pattern in patterns if fnmatch.filter(workload.case_ids(), pattern)]
            if own:
                chosen.append(Chosen(workload, own_kernels, select_cases(workload, own)))
    for pattern in patterns:
        if not fnmatch.filter(every_case, pattern):
            raise unknown_name("case", pattern, every_case)
    return chosen


def _wanted(catalog: Catalog, names: Sequence[str], kernels: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Names of workloads with names of kernels (none for all), a suite as its workloads."""
    wanted: list[tuple[str, Sequence[str]]] = []
    for name in names:
        if name in catalog.suite_names():
            suite = catalog.suite(name)
            wanted += [(workload, kernels or suite.kernels) for workload in suite.workloads]
        else:
            wanted.append((name, kernels))
    return wanted


def _kernels(catalog: Catalog, workload: Workload, asked: Sequence[str]) -> list[Kernel]:
    """Each once, however often and by whatever name it was given. Raises `InputError` where there is none."""
    known = [kernel for kernel in catalog.kernel_paths(workload) if kernel != "reference"]
    resolved = [catalog.kernel(kernel, workload) for kernel in dict.fromkeys(asked or known)]
    found = list({kernel.path.resolve(): kernel for kernel in resolved}.values())
    if not found:
        remedy = f"add a file under kernels/{workload.name}/, or give one with -k"
        raise InputError(workload.name, "has no kernels", remedy)
    return found
