"""One kernel on one case: correctness rounds, then timed calls, and what was found.

The judge's side. It makes the inputs, holds the reference's outputs and decides; the worker, reached
through a `Session`, only runs the kernel on shared memory and reports facts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from harness import arena, inputs, judge, stats
from harness.arena import Layout
from harness.channel import Message
from harness.judge import Comparison, Verdict
from harness.records import Status
from harness.session import Session, WorkerFailure
from harness.spec import Case, ProtocolModel, Tensor, Workload

# Share of samples that ran ahead of the host above which the table's reader should be told.
UNHELD_SHARE = 0.1
# Of the timed calls, this share is compared with the reference, as long as that takes no more than this share
# of the time.
CHECKED_SHARE = 0.75
CHECKING_SHARE = 0.25
_SECRET = random.SystemRandom()

Stage = Callable[[str], None]


@dataclass
class Outcome:
    """What one case came to, before bound and score are added."""

    status: Status = Status.PASSED
    reason: str | None = None
    log_tail: str | None = None
    latency_ms: float | None = None
    timings: dict[str, dict[str, Any]] = field(default_factory=dict)
    correctness: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)

    def fail(self, verdict: Verdict) -> None:
        self.status, self.reason = verdict.status, verdict.reason
        self.latency_ms = None


class _Rejected(Exception):
    """A call whose result cannot be accepted."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def estimated_bytes(case: Case) -> int:
    """Memory that judging one case takes at least: two copies of the inputs, three of the outputs."""
    return 2 * sum(t.nbytes for t in case.inputs) + 3 * sum(t.nbytes for t in case.outputs)


class Evaluation:
    """Holds the judge's memory of one case while a session runs a kernel on it."""

    def __init__(
        self,
        workload: Workload,
        case: Case,
        reference: ModuleType,
        device: torch.device,
        protocol: ProtocolModel,
        seed: int,
        stage: Stage,
    ) -> None:
        self.workload, self.case, self.reference = workload, case, reference
        self.device, self.protocol, self.seed, self.stage = device, protocol, seed, stage
        self.calls = 0
        self.kept: list[torch.Tensor] = []
        self.contiguous = True

    def run(self, session: Session, floor_ms: float | None, check_only: bool) -> Outcome:
        """Rounds, warm-up and samples. Failures of the kernel are in the outcome; none is raised.

        A session whose kernel failed is closed: its process is not trusted with another case.
        """
        outcome, finished = Outcome(), False
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        layout = Layout.of(self.case.inputs, self.case.outputs)
        memory, description, descriptors = arena.create(layout, self.device)
        self.arena = memory
        try:
            self.kept = [
                torch.empty(t.shape, dtype=arena.torch_dtype(t.dtype), device=self.device) for t in self.case.inputs
            ]
            opening = {
                "op": "open",
                "arena": description,
                "inputs": [_stated(t) for t in self.case.inputs],
                "outputs": [_stated(t) for t in self.case.outputs],
            }
            session.ask(opening, descriptors)
            with torch.no_grad():
                self._rounds(session, outcome)
                if outcome.status is Status.PASSED and not check_only:
                    self._samples(session, outcome, floor_ms)
            if not self.contiguous:
                outcome.remarks.append("an output is not contiguous; it is judged by its values")
            worker_peak = session.ask({"op": "close"})["peak_bytes"]
            outcome.memory = {"arena_bytes": layout.nbytes, "worker_peak_bytes": worker_peak}
            if self.device.type == "cuda":
                outcome.memory["judge_peak_bytes"] = torch.cuda.max_memory_reserved(self.device)
            finished = outcome.status is Status.PASSED
        except _Rejected as rejected:
            outcome.fail(rejected.verdict)
        except WorkerFailure as failure:
            outcome.fail(Verdict(failure.status, failure.reason))
            outcome.log_tail = failure.log_tail
        finally:
            if not finished:
                session.close()  # before the memory that it has mapped goes
            self.kept = []
            memory.close()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return outcome

    # Rounds -------------------------------------------------------------------------------

    def _rounds(self, session: Session, outcome: Outcome) -> None:
        asked = self.protocol.correctness
        found: dict[str, list[Comparison]] = {tensor.name: [] for tensor in self.case.outputs}
        started, done, verdict = time.monotonic(), 0, judge.PASSED
        while done < asked.rounds and verdict is judge.PASSED:
            if done >= asked.at_least and time.monotonic() - started > asked.budget_s:
                break
            self.stage(f"round {done + 1} of {asked.rounds}")
            self._new_content("round", done)
            expected = self._expected()
            self._call(session)
            verdict = self._compare(expected, found)
            del expected
            done += 1
        ended_by = "rounds" if done == asked.rounds else "time budget"
        outcome.correctness = {
            "rounds": done,
            "rounds_asked": asked.rounds,
            "ended_by": ended_by if verdict is judge.PASSED else "failure",
            "outputs": {name: judge.worst(comparisons) for name, comparisons in found.items()},
        }
        if verdict is not judge.PASSED:
            outcome.fail(Verdict(verdict.status, f"round {done}: {verdict.reason}"))

    def _new_content(self, purpose: str, index: int) -> None:
        seed = inputs.derived_seed(self.seed, self.workload.name, self.case.id, purpose, index)
        inputs.fill(self.workload, self.case, self.reference, seed, self.kept)

    def _expected(self) -> list[torch.Tensor]:
        try:
            results = self.reference.run(*self.kept)
        except torch.OutOfMemoryError:
            raise
        except (Exception, SystemExit) as error:  # whatever the file does wrong is no fault of the kernel
            reason = f"the reference fails ({type(error).__name__}: {error})"
            raise _Rejected(Verdict(Status.INVALID_REFERENCE, reason)) from error
        problem = _reference_problem(results, self.case.outputs)
        if problem:
            raise _Rejected(Verdict(Status.INVALID_REFERENCE, problem))
        return list(results)

    def _compare(self, expected: list[torch.Tensor], found: Mapping[str, list[Comparison]]) -> Verdict:
        comparisons = {
            tensor.name: judge.compare(output, reference, self.case.tolerances[tensor.name])
            for tensor, output, reference in zip(
                self.case.outputs, self.arena.outputs(self.case.outputs), expected, strict=True
            )
        }
        for name, comparison in comparisons.items():
            found[name].append(comparison)
        return judge.verdict_on_outputs(comparisons, self.case.tolerances)

    # Calls --------------------------------------------------------------------------------

    def _call(self, session: Session) -> Message:
        """One call on the kept content at new addresses; refuses a bad result or a changed input."""
        given = self.arena.inputs(self.case.inputs, self.calls)
        for place, values in zip(given, self.kept, strict=True):
            place.copy_(values)
        self.arena.poison_outputs()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the device must be idle when the worker times
        reply = session.ask({"op": "call", "call": self.calls})
        self.calls += 1
        returned = reply["returned"]
        verdict = judge.verdict_on_returned(returned, self.case.outputs, self.device.type)
        if verdict is not judge.PASSED:
            raise _Rejected(verdict)
        self.contiguous = self.contiguous and all(item["contiguous"] for item in returned["items"])
        if changed := judge.changed_inputs(given, self.kept, self.case.inputs):
            raise _Rejected(Verdict(Status.REWARD_HACK, f"the kernel wrote to its input {', '.join(changed)}"))
        return reply

    def _check_timed(self, number: int) -> None:
        """Compare the outputs of the timed call that was just made. Raises `_Rejected`."""
        verdict = self._compare(self._expected(), {tensor.name: [] for tensor in self.case.outputs})
        if verdict is not judge.PASSED:
            raise _Rejected(Verdict(verdict.status, f"timed call {number}: {verdict.reason}"))

    # Samples ------------------------------------------------------------------------------

    def _samples(self, session: Session, outcome: Outcome, floor_ms: float | None) -> None:
        asked = self.protocol.timing
        self._new_content("warm-up", 0)
        for index in range(asked.warmup):
            self.stage(f"warm-up {index + 1} of {asked.warmup}")
            self._call(session)
        samples_ms: list[float] = []
        held: list[bool | None] = []
        checked: list[int] = []
        started, checking_s = time.monotonic(), 0.0
        while len(samples_ms) < asked.samples:
            elapsed_s = time.monotonic() - started
            if len(samples_ms) >= asked.at_least and elapsed_s - checking_s > asked.budget_s:
                break
            self.stage(f"sample {len(samples_ms) + 1} of {asked.samples}")
            if len(samples_ms) % self.protocol.fresh_content_every == 0:
                self._new_content("sample", len(samples_ms))
            reply = self._call(session)
            samples_ms.append(float(reply["time_ms"]))
            held.append(reply["held"])
            # Which calls are checked is drawn here, so that no kernel can know where to be right.
            if checking_s < CHECKING_SHARE * elapsed_s and _SECRET.random() < CHECKED_SHARE:
                before = time.monotonic()
                self._check_timed(len(samples_ms))
                checked.append(len(samples_ms))
                checking_s += time.monotonic() - before
        if checked[-1:] != [len(samples_ms)]:
            self._check_timed(len(samples_ms))
            checked.append(len(samples_ms))
        if bad := [t for t in samples_ms if not 0 < t < float("inf")]:
            raise _Rejected(Verdict(Status.RUNTIME_ERROR, f"a call was timed at {bad[0]} ms, which is no time"))
        outcome.latency_ms = stats.median(samples_ms)
        interval = stats.median_interval(samples_ms)
        outcome.timings[self.protocol.backend] = {
            "samples_ms": samples_ms,
            "held": held if held[0] is not None else None,
            "median_ms": outcome.latency_ms,
            "mean_ms": sum(samples_ms) / len(samples_ms),
            "ci95_ms": list(interval) if interval else None,
            "relative_iqr": stats.relative_iqr(samples_ms),
            "warmup_calls": asked.warmup,
            "iterations": len(samples_ms),
            "ended_by": "samples" if len(samples_ms) == asked.samples else "time budget",
            "checked_calls": checked,
            "floor_ms": floor_ms,
        }
        if (unheld := held.count(False)) > UNHELD_SHARE * len(held):
            outcome.remarks.append(
                f"in {unheld} of {len(held)} timed calls the device ran ahead of the host, so their times "
                f"hold launch gaps (does the kernel wait for the device?)"
            )


def _stated(tensor: Tensor) -> Message:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _reference_problem(results: object, outputs: tuple[Tensor, ...]) -> str | None:
    if not isinstance(results, (tuple, list)) or len(results) != len(outputs):
        return f"the reference does not return {len(outputs)} outputs as a tuple"
    for tensor, result in zip(outputs, results, strict=True):
        if not isinstance(result, torch.Tensor):
            return f"the reference's {tensor.name} is a {type(result).__name__}, not a tensor"
        if (tuple(result.shape), result.dtype) != (tensor.shape, arena.torch_dtype(tensor.dtype)):
            found = f"{result.dtype} {list(result.shape)}"
            return f"the reference's {tensor.name} is {found}, not {tensor.dtype} {list(tensor.shape)}"
    return None
