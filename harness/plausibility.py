"""Can it be? Holds what a worker claims against what the judge saw by itself.

The worker's process is the candidate's too, so its clock is only as good as the judge's own. Pure functions
over figures; each returns a sentence, or None when all is well.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slack:
    """How far the judge's clock may exceed a claimed time: this much and this share of the judge's figure."""

    ms: float
    share: float


# Seen on an H200 over 420 calls from 1 to 600 µs: the judge's clock less the claimed time stays within 8 µs of
# its median when the call is held.
HELD = Slack(0.02, 0.02)
# Between two processes that take turns on the host, with the call's launches in between.
OPEN: Mapping[str, Slack] = {"cuda": Slack(0.3, 0.3), "cpu": Slack(1.0, 0.5)}
# A span begins with the call's first activity on the GPU, and what the host does before that is in the judge's figure
# alone: on an H200's slow host 0.2 to 0.7 ms for the MoE kernels, and up to 1.2 ms for a dense one.
SPAN = Slack(2.0, 0.3)

# Work that every stream waits for is at most this many times as long as work that only the call's own stream waits
# for, plus this much: each launch waits for an event, which took 1.3 µs on an H200, where a launch takes 1.7.
WIDE_FACTOR, WIDE_MS = 1.9, 0.01
# A time of at most this many times the reading of nothing at all holds no work.
EMPTY_FACTOR = 1.2


def slack_of(backend: str, held: bool, device_type: str) -> Slack:
    """For calls that were timed so; `held` until all of a call was in the queue."""
    if held:
        return HELD
    return SPAN if backend == "cupti" else OPEN[device_type]


def claims_problem(claimed_ms: Sequence[float], judged_ms: Sequence[float], slack: Slack) -> str | None:
    """Whether the claimed times are shorter than the judge's clock allows.

    Looks at the shorter half of the claims, which decide the median, and there at the least difference: the
    judge's reading is late when the machine is busy, but never early, and not late in every call.
    """
    if not claimed_ms:
        return None
    middle = statistics.median(claimed_ms)
    lower = [(judged - claimed, claimed, judged) for claimed, judged in zip(claimed_ms, judged_ms, strict=True)
             if claimed <= middle]  # fmt: skip
    difference, claimed, judged = min(lower)
    if difference <= slack.ms + slack.share * judged:
        return None
    return (
        f"the claimed time is {claimed:.4g} ms where the judge's own clock saw {judged:.4g} ms; in no timed call do "
        "the two come nearer"
    )


def wide_problem(wide_ms: Sequence[float], median_ms: float) -> str | None:
    """Whether work runs ahead of the clock on a stream that the clock does not hold."""
    if not wide_ms or min(wide_ms) <= WIDE_FACTOR * median_ms + WIDE_MS:
        return None
    return (
        f"with all streams held a call takes {min(wide_ms):.4g} ms, and {median_ms:.4g} ms with its own stream held: "
        "work runs ahead of the clock on another stream"
    )


def empty_problem(median_ms: float, empty_ms: float | None) -> str | None:
    """Whether there was any work between the clock's start and end."""
    if empty_ms is None or median_ms > EMPTY_FACTOR * empty_ms:
        return None
    return f"a timed call reads {median_ms:.4g} ms, as when nothing is launched: no work of the kernel was seen"
