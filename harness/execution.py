"""How is what was prepared measured, and what is left when that stops early?

Every record goes to the results file as it comes, so that whatever stops a run costs the case it is at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from harness import interleave, store
from harness.errors import InputError
from harness.preparation import Prepared
from harness.progress import Progress
from harness.records import Record
from harness.runner import Plan, Runner


@dataclass(frozen=True)
class Done:
    """What came of a run.

    records: those measured now, and those that the file held already.
    total: how many were asked for.
    stopped: why it went on no further, where that was an error.
    """

    records: list[Record]
    total: int
    interrupted: bool = False
    stopped: InputError | None = None


def once(prepared: Prepared, resume: bool, tell: Callable[[Record], None]) -> Done:
    """Every kernel on every case. `tell` is given each record, in order, once it is in the file.

    With `resume`, what the file answers already is not measured again. Raises `InputError` where the clock cannot
    be locked; one that comes later is in what is given back, for what was measured before it is to be shown.
    """
    check_only = prepared.options.check_only
    held = {record.identity: record for record in prepared.earlier if resume and _answers(record, check_only)}
    records: list[Record] = []
    interrupted = False
    stopped: InputError | None = None
    total = sum(len(plan.kernels) * len(plan.cases) for plan in prepared.plans)
    with prepared.locked(), Progress(prepared.console, total) as progress:

        def already_held(record: Record) -> bool:
            if record.identity not in held:
                return False
            records.append(held[record.identity])
            tell(held[record.identity])
            progress.skipped()
            return True

        try:
            for record in Runner(prepared.options, progress, prepared.earlier).run(prepared.plans, already_held):
                store.keep(prepared.path, record)
                records.append(record)
                tell(record)
        except KeyboardInterrupt:
            interrupted = True
        except InputError as error:
            stopped = error  # a full disk, say
    return Done(records, total, interrupted, stopped)


def _answers(record: Record, check_only: bool) -> bool:
    """Whether an earlier record makes measuring again needless."""
    measured = record.latency_ms is not None or (check_only and record.correctness is not None)
    return measured or record.status.failed


def repeatedly(prepared: Prepared, processes: int, resume: bool) -> Done:
    """Every case so many times, each time in a process of its own.

    With `resume`, times that the file holds count. Raises `InputError` where the clock cannot be locked, or a
    record cannot be written.
    """
    held = [record for record in prepared.earlier if resume and record.latency_ms is not None]
    records: list[Record] = []
    interrupted = False
    total = processes * _cases(prepared.plans)
    with prepared.locked(), Progress(prepared.console, total) as progress:

        def keep(record: Record) -> None:
            store.keep(prepared.path, record)
            records.append(record)

        def already_held(record: Record) -> bool:
            same = next((earlier for earlier in held if earlier.identity == record.identity), None)
            if same is None:
                return False
            held.remove(same)  # one process of this run for each that is there
            records.append(same)
            progress.skipped()
            return True

        try:
            interleave.measure([prepared.plans], processes, prepared.options, progress, keep, already_held)
        except KeyboardInterrupt:
            interrupted = True
    return Done(records, total, interrupted)


def in_turn(prepared: Prepared, kernels: Sequence[str], blocks: int) -> list[list[list[Record]]]:
    """The records by block and kernel, the kernels taking turns; they are named as they were when prepared.

    Raises `InputError` where the clock cannot be locked, or a record cannot be written.
    """
    # A kernel may be compared with itself, and is resolved once.
    position = {kernel: index for index, kernel in enumerate(dict.fromkeys(kernels))}
    plans_of = [
        [replace(plan, kernels=[plan.kernels[min(position[kernel], len(plan.kernels) - 1)]]) for plan in prepared.plans]
        for kernel in kernels
    ]
    total = blocks * sum(map(_cases, plans_of))
    with prepared.locked(), Progress(prepared.console, total) as progress:
        return interleave.measure(
            plans_of, blocks, prepared.options, progress, lambda record: store.keep(prepared.path, record)
        )


def _cases(plans: Iterable[Plan]) -> int:
    return sum(len(plan.cases) for plan in plans)


def failures(records: Iterable[Record]) -> list[str]:
    """What failed and why, each once however often it was measured."""
    return sorted({f"{r.kernel} {r.case}: {r.status}: {r.reason}" for r in records if r.status.failed})
