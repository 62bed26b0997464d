"""One kernel on one case: correctness rounds, then timed calls, and what was found.

The judge's side. It makes the inputs, holds the reference's outputs and decides; the worker, reached
through a `Session`, only runs the kernel on shared memory and reports facts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch

from harness import arena, inputs, judge
from harness.arena import Content, Layout
from harness.calls import HELD_BACKEND, Call, Caller
from harness.channel import Message
from harness.gpu_state import Gpu, Monitor
from harness.judge import Comparison, Verdict
from harness.records import Status
from harness.sampling import SECRET, Sampler, Stage, Taken, implausible
from harness.session import WorkerFailure
from harness.slices import Part, Slicer
from harness.spec import Case, ProtocolModel, Tensor, Workload
from harness.starting import Started

# Samples that the judge's clock contradicts are taken again: so many times in all, after a pause that grows. On an H200
# with four judges at work, the clock was late in all of a kernel's calls once in 18 kernels.
TRIES, PAUSE_S = 5, 0.1


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
    referee: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)

    def fail(self, verdict: Verdict) -> None:
        self.status, self.reason = verdict.status, verdict.reason
        self.latency_ms = None


class _Rejected(Exception):
    """A call whose result cannot be accepted."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


@dataclass(frozen=True)
class _Seen:
    """What was read of a timed call's outputs at once: the drawn parts, or figures of the whole."""

    parts: Sequence[Part]
    taken: Mapping[str, torch.Tensor]
    sums: torch.Tensor | None
    whole: Verdict | None


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
        gpu: Gpu | None,
    ) -> None:
        self.workload, self.case, self.reference = workload, case, reference
        self.device, self.protocol, self.seed, self.stage = device, protocol, seed, stage
        self.monitor = Monitor(gpu) if gpu else None
        self.slicer = Slicer(workload, case, device)
        # Drawn anew each time, so that no kernel can prepare for the content of its timed calls; the record
        # keeps it, so that they can be repeated.
        self.salt = secrets.token_hex(8)
        self.content: Content
        self.caller: Caller[Any]
        self.contiguous = True
        self.kept_outputs: set[str] = set()
        self.wide_ms: list[float] = []
        self.timed_calls = 0
        self.whole_calls: list[int] = []

    def run(self, started: Started, check_only: bool) -> Outcome:
        """Rounds, warm-up and samples. Failures of the kernel are in the outcome; none is raised.

        A session whose kernel failed is closed: its process is not trusted with another case.
        """
        outcome, finished, session = Outcome(), False, started.line.session
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        layout = Layout.of(self.case.inputs, self.case.outputs)
        memory, description, descriptors = arena.create(layout, self.device)
        self.arena = memory
        try:
            self.content = Content(layout, self.case.inputs, self.device)
            self.caller = Caller(started.line, memory, self.content, self.device, self.protocol.backend)
            opening = {
                "op": "open",
                "arena": description,
                "inputs": [_stated(t) for t in self.case.inputs],
                "outputs": [_stated(t) for t in self.case.outputs],
            }
            session.ask(opening, descriptors)
            with torch.no_grad():
                self._rounds(outcome)
                if outcome.status is Status.PASSED and not check_only:
                    self._samples(outcome, started)
            closed = session.ask({"op": "close"})
            self._remark(outcome, closed["threads"])
            outcome.memory = {"arena_bytes": layout.nbytes, "worker_peak_bytes": closed["peak_bytes"]}
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
            for name in ("content", "caller"):  # its memory; where there was too little of it they are not there
                self.__dict__.pop(name, None)
            memory.close()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return outcome

    def _remark(self, outcome: Outcome, threads: Sequence[str]) -> None:
        if not self.contiguous:
            outcome.remarks.append("an output is not contiguous; it is judged by its values")
        if self.kept_outputs:
            names = ", ".join(sorted(self.kept_outputs))
            outcome.remarks.append(f"{names} lies in the memory of an earlier call's outputs: a caller must copy it")
        if threads:
            shown = ", ".join(str(name) for name in threads[:3])
            outcome.remarks.append(f"{len(threads)} threads of the kernel run on after its calls ({shown})")

    # Rounds -------------------------------------------------------------------------------

    def _rounds(self, outcome: Outcome) -> None:
        asked = self.protocol.correctness
        found: dict[str, list[Comparison]] = {tensor.name: [] for tensor in self.case.outputs}
        started, done, verdict = time.monotonic(), 0, judge.PASSED
        while done < asked.rounds and verdict is judge.PASSED:
            if done >= asked.at_least and time.monotonic() - started > asked.budget_s:
                break
            self.stage(f"round {done + 1} of {asked.rounds}")
            self._new_content("round", done, salt="")
            compare = partial(self._compare_now, self._expected(), found)
            # What earlier rounds returned is still held, so that an output in the same memory shows.
            call, verdict = self._call(compare, keep_outputs=True, all_streams=True)
            if call.held:
                self.wide_ms.append(call.time_ms)
            del compare
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
        else:
            outcome.correctness["determinism"] = {"same_bits_twice": self._same_bits_twice()}

    def _same_bits_twice(self) -> bool:
        """Whether the last round's content, once more, gives the last round's bits.

        Other bits must be right as well. Raises `_Rejected`.
        """
        first = self._copied_outputs()
        _, second = self._call(self._copied_outputs)
        same = all(torch.equal(judge.bits(now), judge.bits(before)) for now, before in zip(second, first, strict=True))
        del first
        if not same and (verdict := self._compare(self._expected(), second)) is not judge.PASSED:
            raise _Rejected(Verdict(verdict.status, f"the last round once more: {verdict.reason}"))
        return same

    def _copied_outputs(self) -> list[torch.Tensor]:
        return [output.clone() for output in self.arena.outputs(self.case.outputs)]

    def _new_content(self, purpose: str, index: int, salt: str) -> None:
        seed = inputs.derived_seed(self.seed, self.workload.name, self.case.id, purpose, index, salt)
        inputs.fill(self.workload, self.case, self.reference, seed, self.content.tensors)

    def _expected(self) -> list[torch.Tensor]:
        results = self._referred(self.content.tensors)
        problem = _reference_problem(results, self.case.outputs)
        if problem:
            raise _Rejected(Verdict(Status.INVALID_REFERENCE, problem))
        return list(results)

    def _referred(self, given: Sequence[torch.Tensor]) -> Any:
        try:
            return self.reference.run(*given)
        except torch.OutOfMemoryError:
            raise
        except (Exception, SystemExit) as error:  # whatever the file does wrong is no fault of the kernel
            reason = f"the reference fails ({type(error).__name__}: {error})"
            raise _Rejected(Verdict(Status.INVALID_REFERENCE, reason)) from error

    def _compare_now(
        self, expected: list[torch.Tensor], found: Mapping[str, list[Comparison]] | None = None
    ) -> Verdict:
        """The verdict on what the arena's outputs hold at this moment."""
        return self._compare(expected, self.arena.outputs(self.case.outputs), found)

    def _compare(
        self,
        expected: list[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        found: Mapping[str, list[Comparison]] | None = None,
    ) -> Verdict:
        """The verdict on whole outputs; the comparisons are added to `found`."""
        names = [tensor.name for tensor in self.case.outputs]
        limits = [self.case.tolerances[name] for name in names]
        comparisons = dict(
            zip(names, judge.compare_all(list(zip(outputs, expected, limits, strict=True))), strict=True)
        )
        if found is not None:
            for name, comparison in comparisons.items():
                found[name].append(comparison)
        return judge.verdict_on_outputs(comparisons, self.case.tolerances)

    # Calls --------------------------------------------------------------------------------

    def _call(
        self, inspect: Callable[[], Any], keep_outputs: bool = False, all_streams: bool = False
    ) -> tuple[Call, Any]:
        """One call on the current content at new addresses; refuses a bad result or a changed input."""
        number = self.caller.made
        call, seen = self.caller.call(inspect, keep_outputs=keep_outputs, all_streams=all_streams)
        returned = call.facts["returned"]
        for verdict in (
            judge.verdict_on_returned(returned, self.case.outputs, self.device.type),
            judge.verdict_on_conduct(call.facts),
        ):
            if verdict is not judge.PASSED:
                raise _Rejected(verdict)
        self.contiguous = self.contiguous and all(item["contiguous"] for item in returned["items"])
        self.kept_outputs |= set(call.facts["kept"])
        if not self.content.is_unchanged(self.arena, number):
            given = self.arena.inputs(self.case.inputs, number)
            changed = judge.changed_inputs(given, self.content.tensors, self.case.inputs)
            raise _Rejected(Verdict(Status.REWARD_HACK, f"the kernel wrote to its input {', '.join(changed)}"))
        return call, seen

    def _timed_call(self, whole: bool) -> Call:
        """A checked call that counts as timed, on new content as often as the protocol says. Raises `_Rejected`."""
        if self.timed_calls % self.protocol.fresh_content_every == 0:
            self._new_content("sample", self.timed_calls, self.salt)
        self.timed_calls += 1
        call = self._checked_call(f"timed call {self.timed_calls}", whole)
        if whole or not self.slicer.is_possible:
            self.whole_calls.append(self.timed_calls)
        return call

    def _checked_call(self, title: str, whole: bool) -> Call:
        """A call whose outputs are checked: as a whole, or a random part of them. Raises `_Rejected`."""
        whole = whole or not self.slicer.is_possible
        expected = self._expected() if whole else None
        parts = [] if whole else self.slicer.draw(SECRET)

        def look() -> _Seen:
            if expected is not None:
                return _Seen([], {}, None, self._compare_now(expected))
            outputs = self.arena.outputs(self.case.outputs)
            # Not finite as soon as one element is not, and read at memory speed.
            sums = torch.stack([output.sum(dtype=torch.float32) for output in outputs])
            return _Seen(parts, self.slicer.taken(parts, outputs), sums, None)

        call, seen = self._call(look)
        verdict = seen.whole or self._verdict_on_part(seen)
        if verdict is not judge.PASSED:
            raise _Rejected(Verdict(verdict.status, f"{title}: {verdict.reason}"))
        return call

    def _verdict_on_part(self, seen: _Seen) -> Verdict:
        expected = self.slicer.expected(seen.parts, self._referred, self.content.tensors)
        limits = {name: judge.part_tolerance(self.case.tolerances[name]) for name in seen.taken}
        pairs = [(seen.taken[name], expected[name], limits[name]) for name in seen.taken]
        verdict = judge.verdict_on_outputs(dict(zip(seen.taken, judge.compare_all(pairs), strict=True)), limits)
        if verdict is judge.PASSED and seen.sums is not None and not bool(torch.isfinite(seen.sums).all()):
            # Somewhere outside of the part, or finite numbers whose sum is not: the whole tells.
            return self._compare_now(self._expected())
        return verdict

    # Samples ------------------------------------------------------------------------------

    def _samples(self, outcome: Outcome, started: Started) -> None:
        asked = self.protocol.timing
        for index in range(asked.warmup):
            self.stage(f"warm-up {index + 1} of {asked.warmup}")
            self._new_content("warm-up", index, self.salt)
            self._checked_call(f"warm-up {index + 1}", whole=False)
        for backend in (self.protocol.backend, *self.protocol.also):
            self.caller.backend = backend
            sampler = Sampler(asked, self._timed_call, self.caller, self.monitor, self.stage)
            taken, doubts, problem = self._believed(sampler, started)
            if doubts:
                times = "at first" if doubts == 1 else f"{doubts} times"
                outcome.remarks.append(f"{backend}: measured again, because the judge's clock disagreed {times}")
            if problem is not None:
                raise _Rejected(problem)
            outcome.timings[backend] = taken.as_json(asked.warmup, started.floors_ms.get(backend))
            if backend == HELD_BACKEND and started.passed_over_ms:
                outcome.timings[backend]["floors_passed_over_ms"] = list(started.passed_over_ms)
            outcome.remarks += taken.remarks(backend)
        outcome.latency_ms = outcome.timings[self.protocol.backend]["median_ms"]
        outcome.referee = {
            "salt": self.salt,
            "timed_calls": self.timed_calls,
            "whole_calls": self.whole_calls,
            "parts_of_the_others": self.slicer.is_possible,
            "calls_with_all_streams_held": len(self.wide_ms),
        }

    def _believed(self, sampler: Sampler, started: Started) -> tuple[Taken, int, Verdict | None]:
        """Samples, how often they were doubted, and the last doubt where none were believed.

        A GPU or a machine that others use can delay the judge's clock, though hardly every time in all of the calls
        that count. What is believed stands on its own: the samples before are gone.
        """
        output_bytes = sum(tensor.nbytes for tensor in self.case.outputs)
        doubts = 0
        while True:
            taken = sampler.take()
            problem = implausible(
                taken, self.caller.backend, self.device.type, self.wide_ms, started.empty_ms, output_bytes
            )
            doubts += problem is not None
            if problem is None or doubts == TRIES:
                return taken, doubts, problem
            time.sleep(doubts * PAUSE_S)  # others may have done by then


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
