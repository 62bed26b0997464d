"""Run kernels over cases, one at a time, and hand on each record as soon as it is there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Protocol

import torch

from harness import cache, evaluation, gpu_state, inputs, machine, sol, starting
from harness.catalog import Kernel
from harness.evaluation import Evaluation, Outcome
from harness.machine import Target
from harness.records import Record, Status
from harness.session import WorkerFailure
from harness.sol import Roofline
from harness.spec import Case, ProtocolModel, Workload
from harness.starting import Started

# After so many timeouts in a row a kernel's remaining cases are skipped instead of waited for.
TIMEOUTS_IN_A_ROW = 2


@dataclass(frozen=True)
class Plan:
    """One workload's share of a run."""

    workload: Workload
    kernels: Sequence[Kernel]
    cases: Sequence[str]
    scale: int


@dataclass(frozen=True)
class Options:
    """What holds for the whole run. Of `workers` processes the quickest to launch runs a kernel: see `starting`."""

    target: Target
    protocol: ProtocolModel
    seed: int
    timeout_s: float
    check_only: bool
    roofline: Roofline | None
    environment: Mapping[str, Any]
    workers: int = 1


class Observer(Protocol):
    """Told what happens while it happens."""

    def begin(self, kernel: str, workload: str, case: str) -> None: ...
    def stage(self, text: str) -> None: ...
    def done(self, record: Record) -> None: ...


class Runner:
    """`earlier` are records from before that may be resumed from or serve as baselines.

    `turn` is entered while the device is needed, for runners in several processes that share one.
    """

    def __init__(
        self,
        options: Options,
        observer: Observer,
        earlier: Sequence[Record] = (),
        turn: AbstractContextManager[None] | None = None,
    ) -> None:
        self.options, self.observer = options, observer
        self._turn = turn or nullcontext()
        self.run_id = uuid.uuid4().hex
        self._known: list[Record] = list(earlier)
        chosen = options.protocol
        self._make_cold: Callable[[], object] = lambda: None
        if chosen.cold_cache:
            self._make_cold = cache.flusher(options.target.device, chosen.flush, chosen.flush_multiple)
        self._gpu = gpu_state.of_device(options.target.device) if options.target.kind == "cuda" else None

    def run(self, plans: Sequence[Plan], skip: Callable[[Record], bool] = lambda _: False) -> Iterator[Record]:
        """Yield one record per kernel and case. `skip` sees an empty record first and may pass it over."""
        torch.set_float32_matmul_precision("highest")  # references in float32 mean float32, not tf32
        for plan in plans:
            reference = inputs.load_reference(plan.workload.reference_path)
            baseline_first = sorted(plan.kernels, key=lambda k: k.name != plan.workload.model.baseline_kernel)
            for kernel in baseline_first:
                cases = [plan.workload.case(case, plan.scale) for case in plan.cases]
                cases = [c for c in cases if not skip(self._record(plan.workload, kernel, c, Outcome()))]
                for record in self._kernel(plan.workload, kernel, cases, reference):
                    self._known.append(record)
                    self.observer.done(record)
                    yield record

    def _kernel(
        self, workload: Workload, kernel: Kernel, cases: Sequence[Case], reference: ModuleType
    ) -> Iterator[Record]:
        started: Started | None = None
        timeouts = 0
        giving_up: Outcome | None = self._unfit(kernel)
        try:
            for case in cases:
                self.observer.begin(kernel.name, workload.name, case.id)
                outcome = giving_up or self._no_room(case)
                if outcome is None:
                    try:
                        started = started or self._start(kernel)
                    except WorkerFailure as failure:
                        # What fails on loading fails for every case alike.
                        giving_up = outcome = Outcome(failure.status, failure.reason, failure.log_tail)
                    else:
                        started.line.session.allow(self.options.timeout_s)
                        with self._turn:
                            outcome = self._evaluate(workload, case, reference, started)
                        if outcome.status is not Status.PASSED:
                            started.line.session.close()
                            started = None
                    timeouts = timeouts + 1 if outcome.status is Status.TIMEOUT else 0
                    if timeouts == TIMEOUTS_IN_A_ROW:
                        reason = f"skipped after {timeouts} timeouts in a row"
                        giving_up = Outcome(Status.SKIPPED, reason)
                yield self._record(workload, kernel, case, outcome)
        finally:
            if started is not None:
                started.line.session.close()

    def _evaluate(self, workload: Workload, case: Case, reference: ModuleType, started: Started) -> Outcome:
        chosen = self.options
        try:
            return Evaluation(
                workload,
                case,
                reference,
                chosen.target.device,
                chosen.protocol,
                chosen.seed,
                self.observer.stage,
                self._gpu,
            ).run(started, chosen.check_only)
        except torch.OutOfMemoryError:
            return Outcome(Status.SKIPPED, "the judge's inputs and reference do not fit into the GPU's memory")

    def _start(self, kernel: Kernel) -> Started:
        """Start a worker and load the kernel. Raises `WorkerFailure`; the worker is gone then."""
        self.observer.stage("starting")
        chosen = self.options
        return starting.start(
            kernel, chosen.target, chosen.protocol, chosen.workers, chosen.timeout_s, self._make_cold, self._turn
        )

    def _unfit(self, kernel: Kernel) -> Outcome | None:
        kind = self.options.target.kind
        if kind not in kernel.model.devices:
            return Outcome(Status.SKIPPED, f"runs on {', '.join(kernel.model.devices)}, not on {kind}")
        if kind == "cpu" and kernel.model.needs_cpp_compiler_on_cpu and not machine.has_cpp_compiler():
            return Outcome(Status.SKIPPED, "needs a C++ compiler on the CPU, and none was found (install g++)")
        return None

    def _no_room(self, case: Case) -> Outcome | None:
        needed = evaluation.estimated_bytes(case)
        if self.options.target.kind == "cuda":
            available = torch.cuda.mem_get_info(self.options.target.device)[0]
        else:
            available = machine.available_memory_bytes()
        if needed <= available:
            return None
        gib = 1 << 30
        reason = f"needs over {needed / gib:.0f} GiB to judge, {available / gib:.0f} GiB are free"
        return Outcome(Status.SKIPPED, reason)

    def _record(self, workload: Workload, kernel: Kernel, case: Case, outcome: Outcome) -> Record:
        chosen = self.options
        return Record(
            run_id=self.run_id,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            workload=workload.name,
            workload_sha256=workload.sha256,
            case=case.id,
            axes=case.axes,
            scale=case.scale,
            kernel=kernel.name,
            kernel_sha256=kernel.sha256,
            author=kernel.model.author,
            source=kernel.model.source or _relative(kernel),
            license=kernel.model.license,
            device=chosen.target.name,
            environment=chosen.environment,
            protocol=chosen.protocol.name,
            protocol_sha256=chosen.protocol.sha256,
            seed=chosen.seed,
            status=outcome.status,
            reason=outcome.reason,
            latency_ms=outcome.latency_ms,
            backend=chosen.protocol.backend if outcome.latency_ms is not None else None,
            timings=outcome.timings,
            correctness=outcome.correctness,
            sol=self._sol(workload, kernel, case, outcome),
            memory=outcome.memory,
            referee=outcome.referee,
            remarks=tuple(outcome.remarks),
            log_tail=outcome.log_tail,
        )

    def _sol(self, workload: Workload, kernel: Kernel, case: Case, outcome: Outcome) -> dict[str, Any]:
        roofline = self.options.roofline
        bound = sol.bound(case.flops, case.bytes_moved, roofline) if roofline else None
        baseline_ms, baseline_source = self._baseline(workload, kernel, case, outcome)
        grade = None
        if outcome.latency_ms is not None:
            grade = sol.grade(outcome.latency_ms, bound.ms if bound else None, baseline_ms)
        clock_mhz = _sm_clock_mhz(outcome.timings.get(self.options.protocol.backend))
        at_clock = (
            sol.bound_at_clock(case.flops, case.bytes_moved, roofline, clock_mhz) if roofline and clock_mhz else None
        )
        return {
            "flops": case.flops,
            "bytes_moved": case.bytes_moved,
            "bound_ms": bound.ms if bound else None,
            "bound_at_clock_ms": at_clock.ms if at_clock else None,
            "limit": bound.limit if bound else None,
            "peak": vars(roofline) if roofline else None,
            "published_bound_ms": case.published_bound_ms,
            "published_device": workload.model.published.device if workload.model.published else None,
            "baseline_ms": baseline_ms,
            "baseline_source": baseline_source,
            "score": grade.score if grade else None,
            "roofline": grade.roofline if grade else None,
            "reason": grade.reason if grade else None,
        }

    def _baseline(
        self, workload: Workload, kernel: Kernel, case: Case, outcome: Outcome
    ) -> tuple[float | None, str | None]:
        """The published baseline on the published device; elsewhere the baseline kernel measured there."""
        published = workload.model.published
        if published and published.device == self.options.target.name and case.published_baseline_ms is not None:
            return case.published_baseline_ms, f"published for {published.device} by {published.source}"
        name = workload.model.baseline_kernel
        if kernel.name == name and outcome.latency_ms is not None:
            return outcome.latency_ms, f"{name}, measured in run {self.run_id[:12]}"
        for record in reversed(self._known):
            same = (
                record.workload_sha256 == workload.sha256
                and (record.case, record.scale) == (case.id, case.scale)
                and record.device == self.options.target.name
                and record.protocol_sha256 == self.options.protocol.sha256
            )
            if same and record.kernel == name and record.latency_ms is not None:
                return record.latency_ms, f"{name}, measured in run {record.run_id[:12]}"
        return None, None


def _sm_clock_mhz(timing: Mapping[str, Any] | None) -> float | None:
    """The median SM clock that was seen while the samples were taken."""
    seen = ((timing or {}).get("gpu") or {}).get("sm_clock_mhz")
    return float(seen["median"]) if seen else None


def _relative(kernel: Kernel) -> str:
    """The path as a reader of the record can use it: inside the checkout, or just the name."""
    path = kernel.path.resolve()
    for parent in path.parents:
        if parent.name in ("kernels", "workloads"):
            return os.path.relpath(path, parent.parent)
    return path.name
