"""In which process does a kernel run? Workers are started, one of them is chosen, and it loads the kernel.

What a launch costs differs from process to process: on an H200 a launch of next to nothing reads 2.8 to 3.0 µs in two
of three and 3.04 to 3.23 µs in the others, all through their lives, and a kernel of seven launches is 0.4 to 1.3 µs
slower in those. It shows before any kernel is loaded. So where calls are held, several workers start, and the one with
the least floor gets the kernel; the others end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from harness import machine
from harness.calls import HELD_BACKEND, Line
from harness.catalog import Kernel
from harness.channel import Message
from harness.hold import Gate
from harness.machine import Target
from harness.session import Session
from harness.spec import ProtocolModel

# 2 of 10 processes were slow to launch on one card and 11 of 30 on another: of three, all are once in 20 to 125 times.
WORKERS = 3
# A worker's private host memory may grow to this share of what is available.
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Started:
    """A worker that has started: the line to it, and what its timers read, in ms.

    floors_ms: for a launch that does next to nothing, by backend. empty_ms: for nothing at all, held.
    passed_over_ms: the floors of workers that were started too and not chosen.
    """

    line: Line
    floors_ms: Mapping[str, float | None]
    empty_ms: float | None
    passed_over_ms: Sequence[float] = ()


@dataclass(frozen=True)
class _Ready:
    """A worker whose timers are set up."""

    session: Session
    gate: Gate | None
    said: Message

    @property
    def floor_ms(self) -> float:
        floor_ms: float = self.said["floors_ms"][HELD_BACKEND]
        return floor_ms


def start(
    kernel: Kernel,
    target: Target,
    protocol: ProtocolModel,
    workers: int,
    timeout_s: float,
    make_cold: Callable[[], object],
    turn: AbstractContextManager[None],
) -> Started:
    """A worker that has loaded the kernel. Of `workers` where calls are held, else the only one.

    `turn` is entered while anything is measured. Raises `WorkerFailure`; no worker is left then.
    """
    backends = [protocol.backend, *protocol.also]
    holds = HELD_BACKEND in backends
    with ExitStack() as until_chosen:
        sessions = [until_chosen.enter_context(Session()) for _ in range(workers if holds else 1)]
        for session in sessions:
            session.allow(timeout_s)
            session.tell({"op": "prepare", "device": str(target.device)})  # all at once, because it takes seconds
        for session in sessions:
            session.hear()
        with turn:
            # One by one, because they measure.
            ready = [_ready(session, target, backends, holds) for session in sessions]
            chosen = min(ready, key=lambda one: one.floor_ms) if holds else ready[0]
            for one in ready:
                if one is not chosen:
                    one.session.close()
            line = Line(chosen.session, chosen.gate, target.device, backends, make_cold)
        chosen.session.ask(
            {
                "op": "load",
                "entry": str(kernel.entry.resolve()),
                "folder": str(kernel.path.resolve()) if kernel.path.is_dir() else None,
                "destination_passing_style": kernel.model.destination_passing_style,
            }
        )
        until_chosen.pop_all()
    passed_over_ms = [one.floor_ms for one in ready if one is not chosen]
    return Started(line, chosen.said["floors_ms"], chosen.said["empty_ms"], passed_over_ms)


def _ready(session: Session, target: Target, backends: Sequence[str], holds: bool) -> _Ready:
    gate = Gate(target.device) if holds else None
    if gate:
        session.on_close(gate.close)
    said = session.ask(
        {
            "op": "start",
            "backends": list(backends),
            "memory_limit_bytes": int(MEMORY_SHARE * machine.available_memory_bytes()),
        },
        (gate.descriptor,) if gate else (),
    )
    if gate:
        gate.handed_over()
    return _Ready(session, gate, said)
