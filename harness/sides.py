"""Which records does a comparison of results files set against each other?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness import store
from harness.compare import (
    Criteria,
    Place,
    SuiteComparison,
    by_workload_and_kernel,
    compare_files,
    compare_suite,
    ranking,
)
from harness.errors import InputError, unknown_name


def of_two_files(
    sides: Sequence[str], patterns: Sequence[str], criteria: Criteria
) -> tuple[list[SuiteComparison], list[str]]:
    """The comparisons, and sentences about kernels without a partner. Raises `InputError`, `NotComparable`."""
    if len(sides) > 2:
        raise InputError("compare", "takes two results files", "for several kernels of one file add --file FILE")
    for side in sides:
        if not Path(side).is_file():
            remedy = "give a results file; for kernels add --file FILE (measured before) or -w WORKLOAD (measure now)"
            raise InputError(f'"{side}"', "is no file", remedy)
    a, b = (store.read_whole(Path(side), patterns) for side in sides)
    return compare_files(a, b, criteria)


def of_one_file(
    file: Path, kernels: Sequence[str], patterns: Sequence[str], criteria: Criteria
) -> list[SuiteComparison]:
    """Two kernels, on each workload that both have. Raises `InputError`, `NotComparable`."""
    by_kernel = by_workload_and_kernel(store.read_whole(file, patterns))
    _check_kernels(file, kernels, by_kernel)
    a, b = kernels
    both = [w for w, kernel in by_kernel if kernel == a and (w, b) in by_kernel]
    return [compare_suite(by_kernel[w, a], by_kernel[w, b], criteria) for w in both]


def rankings(
    file: Path, kernels: Sequence[str], patterns: Sequence[str], criteria: Criteria
) -> Iterator[tuple[str, list[Place], list[str]]]:
    """For each workload that several of the kernels have: its name, their places, and the cases left out.

    Raises `InputError`, also at the end where there is no such workload, and `NotComparable`.
    """
    by_kernel = by_workload_and_kernel(store.read_whole(file, patterns))
    _check_kernels(file, kernels, by_kernel)
    ranked = False
    for workload in dict.fromkeys(w for w, _ in by_kernel):
        sides = {kernel: by_kernel[workload, kernel] for kernel in kernels if (workload, kernel) in by_kernel}
        if len(sides) < 2:
            continue
        ranked = True
        places, left_out = ranking(sides, criteria)
        yield workload, places, left_out
    if not ranked:
        raise InputError(", ".join(kernels), "have no workload in common", "name kernels of one workload")


def _check_kernels(file: Path, kernels: Iterable[str], known: Iterable[tuple[str, str]]) -> None:
    names = {kernel for _, kernel in known}
    for kernel in kernels:
        if kernel not in names:
            raise unknown_name("kernel", kernel, names, str(file))
