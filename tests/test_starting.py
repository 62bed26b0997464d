"""Which of several workers gets the kernel, and that the others are gone."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HONEST

from harness import starting
from harness.catalog import Catalog, Kernel
from harness.channel import Message
from harness.machine import Target
from harness.records import Status
from harness.session import WorkerFailure
from harness.starting import Started


class FakeGate:
    descriptor = 0

    def __init__(self, device: torch.device) -> None: ...

    def handed_over(self) -> None: ...

    def close(self) -> None: ...


class FakeSession:
    """Answers as a worker with a given floor would; a worker without one fails where it says."""

    def __init__(self, answer: float | str) -> None:
        self.answer, self.asked = answer, list[str]()
        self.is_open = True

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False

    def allow(self, seconds: float) -> None: ...

    def on_close(self, action: Any) -> None: ...

    def tell(self, message: Message) -> None:
        self.asked.append(message["op"])

    def hear(self) -> Message:
        return self.ask({"op": "prepare"})

    def ask(self, message: Message, descriptors: tuple[int, ...] = ()) -> Message:
        if message["op"] != "prepare":
            self.asked.append(message["op"])
        if message["op"] == self.answer:
            raise WorkerFailure(Status.COMPILE_ERROR, f"it fails at {self.answer}")
        return {"floors_ms": {"queued": self.answer, "host": None}, "empty_ms": 0.001}


@pytest.fixture
def kernel(toy_root: Path) -> Kernel:
    (toy_root / "honest.py").write_text(HONEST)
    catalog = Catalog(toy_root)
    return catalog.kernel(str(toy_root / "honest.py"), catalog.workload("toy"))


class Harness:
    """Starts fake workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, toy_root: Path, kernel: Kernel, answers: list[Any]) -> None:
        self.sessions = [FakeSession(answer) for answer in answers]
        self.kernel, self.root, waiting = kernel, toy_root, iter(self.sessions)
        monkeypatch.setattr(starting, "Session", lambda: next(waiting))
        monkeypatch.setattr(starting, "Gate", FakeGate)
        monkeypatch.setattr(starting, "Line", lambda session, *_: session)

    def start(self, protocol: str) -> Started:
        target = Target(torch.device("cpu"), "test device")
        chosen = Catalog(self.root).protocol(protocol)
        return starting.start(self.kernel, target, chosen, len(self.sessions), 10.0, lambda: None, nullcontext())


FLOORS = {
    "first": [2.8, 3.2, 2.9],
    "middle": [3.2, 2.8, 3.1],
    "last": [3.2, 3.1, 2.9],
    "alone": [3.0],
    "even": [3.0, 3.0],
}


@pytest.mark.parametrize("name", FLOORS)
def test_the_worker_with_the_least_floor_gets_the_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch, toy_root: Path, kernel: Kernel
) -> None:
    floors = FLOORS[name]
    harness = Harness(monkeypatch, toy_root, kernel, floors)
    started = harness.start("queued")
    best = floors.index(min(floors))
    assert [session.is_open for session in harness.sessions] == [i == best for i in range(len(floors))]
    assert ["load" in session.asked for session in harness.sessions] == [i == best for i in range(len(floors))]
    assert started.floors_ms["queued"] == min(floors)
    assert list(started.passed_over_ms) == [floor for i, floor in enumerate(floors) if i != best]


def test_all_are_told_to_prepare_before_any_measures(
    monkeypatch: pytest.MonkeyPatch, toy_root: Path, kernel: Kernel
) -> None:
    harness = Harness(monkeypatch, toy_root, kernel, [3.0, 2.9])
    harness.start("queued")
    assert [session.asked[:2] for session in harness.sessions] == [["prepare", "start"]] * 2


def test_where_calls_are_not_held_there_is_one_worker(
    monkeypatch: pytest.MonkeyPatch, toy_root: Path, kernel: Kernel
) -> None:
    harness = Harness(monkeypatch, toy_root, kernel, [3.0, 2.9, 2.8])
    started = harness.start("host")
    assert ["load" in session.asked for session in harness.sessions] == [True, False, False]
    assert started.passed_over_ms == []


FAILING = {"one cannot prepare": [3.0, "prepare"], "one cannot start": [3.0, "start"], "the kernel": ["load"]}


@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_leaves_no_worker(kind: str, monkeypatch: pytest.MonkeyPatch, toy_root: Path, kernel: Kernel) -> None:
    harness = Harness(monkeypatch, toy_root, kernel, FAILING[kind])
    with pytest.raises(WorkerFailure, match="it fails at"):
        harness.start("queued")
    assert not any(session.is_open for session in harness.sessions)
