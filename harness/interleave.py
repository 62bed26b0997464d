"""Measure kernels in turn, in fresh processes, so that drift of the machine falls on all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.records import Record
from harness.runner import Observer, Options, Plan, Runner


def measure(
    plans_of: Sequence[Sequence[Plan]],
    blocks: int,
    options: Options,
    observer: Observer,
    keep: Callable[[Record], None],
    already_held: Callable[[Record], bool] = lambda record: False,
) -> list[list[list[Record]]]:
    """Run every kernel once per block; `plans_of[i]` are the plans of kernel i alone.

    The order turns round from block to block (A B, B A, A B, ...), so that steady drift, which favours
    whichever comes first, cancels over an even number of blocks. `keep` is given each record as it comes. What is
    `already_held` is not measured; it is asked with an empty record of the same identity.
    Returns the records by block and kernel.
    """
    measured: list[list[list[Record]]] = []
    for block in range(blocks):
        records: list[list[Record]] = [[] for _ in plans_of]
        order = range(len(plans_of)) if block % 2 == 0 else reversed(range(len(plans_of)))
        for index in order:
            # A new runner, so that no earlier block is a baseline for this one, and a new process.
            for record in Runner(options, observer).run(plans_of[index], already_held):
                keep(record)
                records[index].append(record)
        measured.append(records)
    return measured
