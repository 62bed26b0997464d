"""How is one call made? The judge delivers the inputs, lets the worker run, and looks at its own clock.

Held (`queued` on CUDA): everything is queued behind a gate before the inputs are there; see `harness.hold`.

Open (every other backend): the worker's processes are stopped while the judge writes the inputs and makes the
cache cold, and they go on when its clock starts. The first call of a case is made open in any case, because
what it compiles, tunes and loads waits for the device, and so are the calls of a kernel that waits for the
device each time and cannot be held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from harness.arena import Arena, Content
from harness.channel import Message
from harness.hold import Gate, Passage
from harness.records import Status
from harness.session import Session, WorkerFailure

T = TypeVar("T")

# The backend whose calls are held.
HELD_BACKEND = "queued"

# How long a call may take to get into the queue: as long as nothing is known of the kernel, and then.
FIRST_PATIENCE_S = 1.0
LATER_PATIENCE_S = 0.1
# But at least so many times as long as the slowest that got there.
PATIENCE_FACTOR = 20.0
# After so many calls in a row that could not be held, the rest of the case is not.
UNHELD_IN_A_ROW = 3
_REHEARSALS = 9
# How long to watch the gate before asking whether the worker is still there.
_WATCH_S = 1.0


@dataclass(frozen=True)
class Call:
    """One call: what the worker claims and what the judge saw. Times in ms.

    judged: the judge's own readings of the call, less what a call of nothing reads; None when it has none,
    because the call could not be held.
    """

    time_ms: float
    held: bool | None
    other_streams: bool
    judged: Passage | None
    facts: Message


class Line:
    """To one worker: its session, its gate where calls are held, and what the judge's clock reads for nothing."""

    def __init__(
        self,
        session: Session,
        gate: Gate | None,
        device: torch.device,
        backends: Sequence[str],
        make_cold: Callable[[], object],
    ) -> None:
        """The worker has started and has not loaded any candidate; `backends` are those that it times with."""
        self.session, self.gate, self._make_cold = session, gate, make_cold
        self._some = torch.zeros(1 << 20, device=device)
        self._device = device
        self.nothing_held = self._rehearse(self.held, HELD_BACKEND) if gate else None
        self.nothing_open = {backend: self._rehearse(self.open, backend) for backend in backends}

    def _rehearse(self, way: Callable[..., tuple[Message, Passage | None]], backend: str) -> Passage:
        request = {"op": "rehearse", "hold_all_streams": False, "backend": backend}
        seen = [way(request, self._deliver_nothing, lambda: None)[1] for _ in range(_REHEARSALS)]
        # The least of them: a busy machine makes a reading late and never early.
        return Passage(
            min(passage.ended_ms for passage in seen if passage), min(passage.copied_ms for passage in seen if passage)
        )

    def _deliver_nothing(self) -> None:
        # Something for the judge's side of the GPU to do, as delivering inputs is: it changes hands afterwards.
        self._some.add_(1)

    def held(
        self,
        request: Message,
        deliver: Callable[[], None],
        inspect: Callable[[], None],
        patience_s: float = FIRST_PATIENCE_S,
    ) -> tuple[Message, Passage | None]:
        """The worker's facts and the judge's readings; None when the call did not get into the queue in time.

        Such a call is let through after `patience_s`.
        """
        assert self.gate is not None
        ticket = self.gate.next_ticket()
        try:
            self.session.tell({**request, "ticket": ticket})
            queued = self.session.hear(patience_s)
            deliver()
            self._make_cold()
            opened_ns = self.gate.open()
            if queued is None:
                _expect("queued", self.session.hear())
            else:
                _expect("queued", queued)
            while (passage := self.gate.passage(opened_ns, _WATCH_S)) is None:
                self.session.spend(_WATCH_S)
                # Whatever the worker says now is out of turn; that it died is noticed here too.
                if (reply := self.session.hear(0.001)) is not None:
                    _expect("nothing", reply)
            inspect()
            facts = self.session.hear()
            assert facts is not None
            return facts, passage if queued else None
        finally:
            self.gate.open_at_once()

    def open(
        self, request: Message, deliver: Callable[[], None], inspect: Callable[[], None]
    ) -> tuple[Message, Passage | None]:
        """The worker's facts and the judge's readings of a call whose inputs are there before it begins."""
        self.session.tell({**request, "ticket": None})
        _expect("ready", self.session.hear())
        with self.session.stopped():
            deliver()
            self._make_cold()
            synchronize(self._device)
            started_ns = time.perf_counter_ns()
        self.session.go_on()
        _expect("ended", self.session.hear())
        ended_ns = time.perf_counter_ns()
        _expect("copied", self.session.hear())
        copied_ns = time.perf_counter_ns()
        inspect()
        facts = self.session.hear()
        assert facts is not None
        return facts, Passage((ended_ns - started_ns) / 1e6, (copied_ns - started_ns) / 1e6)


def _expect(state: str, reply: Message | None) -> None:
    if reply is None or reply.get("state") != state:
        reason = f"the worker answers out of turn (it should say {state}): the kernel meddles with the harness"
        raise WorkerFailure(Status.REWARD_HACK, reason)


class Caller(Generic[T]):
    """Makes the calls of one case."""

    def __init__(self, line: Line, arena: Arena, content: Content, device: torch.device, backend: str) -> None:
        self._line, self._arena, self._content, self._device = line, arena, content, device
        self.backend = backend
        self.made = 0
        self._unheld_in_a_row = 0
        self._slowest_queueing_s = 0.0

    @property
    def holds(self) -> bool:
        """Whether the next call will be held back until all of it is in the queue."""
        if self._line.gate is None or self.backend != HELD_BACKEND:
            return False
        return self.made > 0 and self._unheld_in_a_row < UNHELD_IN_A_ROW

    def call(
        self, inspect: Callable[[], T], *, keep_outputs: bool = False, all_streams: bool = False
    ) -> tuple[Call, T]:
        """One call on the current content, at addresses that no call before had.

        `inspect` is called as soon as the outputs are there. Raises `WorkerFailure`.
        """
        self._arena.poison_outputs()
        synchronize(self._device)  # the device must be idle when the worker times
        number, holds = self.made, self.holds
        self.made += 1
        request = {
            "op": "call",
            "call": number,
            "backend": self.backend,
            "keep_outputs": keep_outputs,
            "hold_all_streams": all_streams,
        }
        seen: list[T] = []

        def deliver() -> None:
            self._content.deliver(self._arena, number)

        def look() -> None:
            seen.append(inspect())

        if holds:
            started = time.monotonic()
            queueing_s = 0.0

            def deliver_late() -> None:
                nonlocal queueing_s
                queueing_s = time.monotonic() - started
                deliver()

            facts, seen_at = self._line.held(request, deliver_late, look, self._patience_s())
            nothing = self._line.nothing_held
            if seen_at is None:
                self._unheld_in_a_row += 1
                facts["held"] = False
            else:
                self._unheld_in_a_row = 0
                self._slowest_queueing_s = max(self._slowest_queueing_s, queueing_s)
        else:
            facts, seen_at = self._line.open(request, deliver, look)
            nothing = self._line.nothing_open[self.backend]
        judged = seen_at and nothing and seen_at.less(nothing)
        call = Call(float(facts["time_ms"]), facts["held"], bool(facts["other_streams"]), judged, facts)
        return call, seen[0]

    def _patience_s(self) -> float:
        if self._slowest_queueing_s == 0.0 and self._unheld_in_a_row == 0:
            return FIRST_PATIENCE_S
        return max(LATER_PATIENCE_S, PATIENCE_FACTOR * self._slowest_queueing_s)


def synchronize(device: torch.device) -> None:
    """Wait until the judge's own work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
