"""Enough timed calls of one kernel on one case, and whether what they say can be believed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from harness import plausibility, stats
from harness.calls import Call, Caller
from harness.gpu_state import Monitor
from harness.judge import Verdict
from harness.plausibility import Slack
from harness.records import Status
from harness.spec import SamplesModel
from harness.stopping import StoppingRule

SECRET = random.SystemRandom()
# Of the timed calls, so many are compared with the reference as a whole, and others with this probability.
WHOLE_CALLS = 2
WHOLE_SHARE = 0.02
# A call that does not get into the queue in time is made again; so many times as there are samples, at most.
ATTEMPTS_FACTOR = 3
# With more than this share of calls at a throttled clock, a case is measured again, once.
THROTTLED_SHARE = 0.2
# What copying the outputs may take before the call's claimed time is doubted: some launches or messages, and bytes at a
# part of the memory's speed, a smaller one where outputs are strided.
COPY_SLACK_MS = 0.015
COPY_BYTES_PER_MS: Mapping[str, float] = {"cuda": 1e9, "cpu": 4e6}
STRIDED_SLOWDOWN = 5.0

Stage = Callable[[str], None]


@dataclass(frozen=True)
class Taken:
    """Timed calls that count, in order, and what went on meanwhile.

    attempts: calls made, with those that could not be held. throttled: for each call, what slowed the GPU's
    clock harmfully (None where that cannot be known). state: the GPU's clocks, power and heat.
    """

    calls: Sequence[Call]
    attempts: int
    ended_by: str
    throttled: Sequence[frozenset[str] | None]
    state: dict[str, Any] | None
    measured_again: bool = False

    @property
    def samples_ms(self) -> list[float]:
        return [call.time_ms for call in self.calls]

    @property
    def median_ms(self) -> float:
        return stats.median(self.samples_ms)

    @property
    def throttled_share(self) -> float:
        return sum(bool(reasons) for reasons in self.throttled) / len(self.throttled)

    def as_json(self, warmup_calls: int, floor_ms: float | None) -> dict[str, Any]:
        """What the record keeps."""
        samples_ms, calls = self.samples_ms, self.calls
        interval = stats.median_interval(samples_ms)
        judged = [call.judged for call in calls if call.judged]
        middle = min(calls, key=lambda call: abs(call.time_ms - self.median_ms))
        return {
            "samples_ms": samples_ms,
            "held": [call.held for call in calls] if calls[0].held is not None else None,
            "throttled": [index for index, reasons in enumerate(self.throttled) if reasons],
            "median_ms": self.median_ms,
            "mean_ms": sum(samples_ms) / len(samples_ms),
            "ci95_ms": list(interval) if interval else None,
            "relative_iqr": stats.relative_iqr(samples_ms),
            "judge_median_ms": stats.median([passage.ended_ms for passage in judged]) if judged else None,
            "judge_copied_median_ms": stats.median([passage.copied_ms for passage in judged]) if judged else None,
            "warmup_calls": warmup_calls,
            "iterations": len(samples_ms),
            "ended_by": self.ended_by,
            "floor_ms": floor_ms,
            "gpu": self.state,
            "detail": middle.facts["detail"],
        }

    def remarks(self, backend: str) -> list[str]:
        """What a reader of the figures should know."""
        count, found = len(self.calls), []
        if all(call.held is False for call in self.calls):
            found.append(
                "the kernel waits for the device inside its call, so it cannot be held, and its times hold launch "
                "gaps; events says the same, cupti what the device did"
            )
        elif lost := self.attempts - count:
            found.append(f"{backend}: {lost} calls were not in the queue in time and do not count")
        if others := sum(call.other_streams for call in self.calls):
            found.append(
                f"{backend}: in {others} of {count} timed calls other streams outlasted the call's own; the time "
                "covers them"
            )
        sets = {call.facts["detail"]["names_sha256"] for call in self.calls if call.facts["detail"]}
        if len(sets) > 1:
            found.append(f"{backend}: the GPU's activities differ in name from call to call ({len(sets)} sets)")
        if slowed := Counter(reason for reasons in self.throttled for reason in reasons or ()):
            names = ", ".join(f"{reason} in {times}" for reason, times in slowed.most_common())
            again = ", also when measured again" if self.measured_again else ""
            found.append(f"{backend}: the GPU's clock was held back in some of {count} timed calls ({names}){again}")
        return found


class Sampler:
    """Takes the samples of one backend. `timed_call` makes a call, checked as a whole or in part."""

    def __init__(
        self,
        asked: SamplesModel,
        timed_call: Callable[[bool], Call],
        caller: Caller[Any],
        monitor: Monitor | None,
        stage: Stage,
    ) -> None:
        self._asked, self._timed_call, self._caller = asked, timed_call, caller
        self._monitor, self._stage = monitor, stage

    def take(self) -> Taken:
        """Samples until the rule is content; once more when the GPU was throttled too often."""
        taken = self._take()
        if taken.throttled_share > THROTTLED_SHARE:
            return replace(self._take(), measured_again=True)
        return taken

    def _take(self) -> Taken:
        # Drawn here and now, so that no kernel can know where to be right.
        whole = set(SECRET.sample(range(self._asked.at_least), min(WHOLE_CALLS, self._asked.at_least)))
        rule, calls, spans = self._new_rule(), list[Call](), list[tuple[float, float]]()
        attempts, holding = 0, self._caller.holds
        with self._monitor or nullcontext():
            while rule.ended_by is None:
                self._stage(f"{self._caller.backend}: sample {len(calls) + 1} of {self._asked.samples}")
                before, attempts = time.monotonic(), attempts + 1
                call = self._timed_call(len(calls) in whole or SECRET.random() < WHOLE_SHARE)
                after = time.monotonic()
                if holding and not call.held:
                    # Its time holds launch gaps, so it is no sample.
                    if not self._caller.holds or attempts > ATTEMPTS_FACTOR * self._asked.samples:
                        rule, calls, spans, holding = self._new_rule(), [], [], False
                    continue
                calls.append(call)
                spans.append((before, after))
                rule.add(call.time_ms, after - before)
        monitor = self._monitor
        throttled = [monitor.during(*span) if monitor else None for span in spans]
        state = monitor.summary().as_json() if monitor else None
        return Taken(calls, attempts, rule.ended_by, throttled, state)

    def _new_rule(self) -> StoppingRule:
        asked = self._asked
        return StoppingRule(asked.at_least, asked.samples, asked.budget_s, asked.half_width)


def implausible(
    taken: Taken,
    backend: str,
    device_type: str,
    wide_ms: Sequence[float],
    empty_ms: float | None,
    output_bytes: int,
) -> Verdict | None:
    """Why the samples of a backend cannot be believed, if so."""
    samples_ms, held = taken.samples_ms, bool(taken.calls[0].held)
    if bad := [t for t in samples_ms if not 0 < t < float("inf")]:
        return Verdict(Status.RUNTIME_ERROR, f"a call was timed at {bad[0]} ms, which is no time")
    seen = [(call.time_ms, call.judged) for call in taken.calls if call.judged is not None]
    claimed = [time_ms for time_ms, _ in seen]
    slack = plausibility.slack_of(backend, held, device_type)
    problem = plausibility.claims_problem(claimed, [judged.ended_ms for _, judged in seen], slack)
    if problem is None:
        # The end of the call is marked by the worker; that of the copy of its outputs cannot be early.
        strided = any(not item["contiguous"] for call in taken.calls for item in call.facts["returned"]["items"])
        copying_ms = output_bytes / COPY_BYTES_PER_MS[device_type] * (STRIDED_SLOWDOWN if strided else 1)
        copied = [judged.copied_ms for _, judged in seen]
        problem = plausibility.claims_problem(
            claimed, copied, Slack(slack.ms + COPY_SLACK_MS + copying_ms, slack.share)
        )
    if problem is None and held:
        problem = plausibility.wide_problem(wide_ms, taken.median_ms)
        problem = problem or plausibility.empty_problem(taken.median_ms, empty_ms)
    return Verdict(Status.REWARD_HACK, problem) if problem else None
