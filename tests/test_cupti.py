"""The backend cupti: what activities come to, with made-up records; and what a GPU's own records say."""

from __future__ import annotations

import ctypes
import enum
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import REPOSITORY

from harness import cupti, driver
from harness.catalog import Catalog
from harness.cupti import NAMES_SHOWN, NO_ACTIVITY, Activity, CuptiError, CuptiTimer, summarise
from harness.sample import Sample

LAST_NS = 2**64 - 1


def kernel(name: str, start_ns: int, end_ns: int, **fields: Any) -> Activity:
    return Activity(name, "kernel", start_ns, end_ns, **fields)


# name: (activities, span, time with anything running, launches, all in ns)
SPANS: dict[str, tuple[list[Activity], int, int, int]] = {
    "one activity": ([kernel("a", 1_000, 6_000)], 5_000, 5_000, 1),
    "a gap between two": ([kernel("a", 1_000, 2_000), kernel("b", 5_000, 6_000)], 5_000, 2_000, 2),
    "one after the other": ([kernel("a", 1_000, 2_000), kernel("b", 2_000, 6_000)], 5_000, 5_000, 2),
    "streams that overlap": ([kernel("a", 1_000, 5_000), kernel("b", 3_000, 6_000)], 5_000, 5_000, 2),
    "one within the other": ([kernel("a", 1_000, 9_000), kernel("b", 2_000, 3_000)], 8_000, 8_000, 2),
    "in another order": ([kernel("b", 7_000, 9_000), kernel("a", 1_000, 3_000)], 8_000, 4_000, 2),
    "a copy and a memory set": (
        [Activity("memcpy DTOD", "memcpy", 1_000, 2_000), Activity("memset", "memset", 3_000, 4_000)], 3_000, 2_000, 2),
    "nodes of a graph": ([kernel("a", 10 * i, 10 * i + 5, in_graph=True) for i in range(1, 301)], 2_995, 1_500, 300),
    "the clock goes over": ([kernel("a", LAST_NS - 999, 1_000), kernel("b", 3_000, 4_000)], 5_000, 3_000, 2),
    "it goes over between two": ([kernel("b", 99, 999), kernel("a", LAST_NS - 900, LAST_NS - 800)], 1_900, 1_000, 2),
    "one of no length": ([kernel("a", 1_000, 1_000)], 0, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPANS)
def test_the_span_reaches_from_the_first_start_to_the_last_end(kind: str) -> None:
    activities, span_ns, busy_ns, launches = SPANS[kind]
    span_ms, detail = summarise(activities)
    assert span_ms == pytest.approx(span_ns / 1e6)
    assert detail["device_ms"] == pytest.approx(busy_ns / 1e6)
    assert detail["gap_ms"] == pytest.approx((span_ns - busy_ns) / 1e6)
    assert detail["launches"] == launches
    assert detail["graph_nodes"] == sum(a.in_graph for a in activities)
    assert sum(row["count"] for row in detail["activities"]) == launches


def test_a_call_without_gpu_activity_is_an_error() -> None:
    with pytest.raises(CuptiError, match=NO_ACTIVITY):
        summarise([])


# Times that no activity has: (start, end).
UNSOUND = {"neither": (0, 0), "no end": (5, 0), "no start": (0, 5), "backwards": (9, 5), "for ever": (5, 10**16)}


@pytest.mark.parametrize("kind", UNSOUND)
def test_an_activity_without_sound_times_is_an_error(kind: str) -> None:
    with pytest.raises(CuptiError, match="no sound times of b"):
        summarise([kernel("a", 1, 2), kernel("b", *UNSOUND[kind])])


def test_activities_are_summed_by_name_with_the_longest_first() -> None:
    _, detail = summarise([kernel("a", 100, 200), kernel("b", 300, 700), kernel("a", 800, 900)])
    assert [(row["name"], row["kind"], row["count"]) for row in detail["activities"]] == [
        ("b", "kernel", 1), ("a", "kernel", 2)]  # fmt: skip
    assert [row["ms"] for row in detail["activities"]] == [4e-4, 2e-4]


def test_many_names_end_with_the_others_and_every_name_counts_in_the_hash() -> None:
    many = [kernel(f"k{i:02}", 1000 * i, 1000 * i + 900 - i) for i in range(1, NAMES_SHOWN + 4)]
    _, detail = summarise(many)
    *shown, others = detail["activities"]
    assert [row["name"] for row in shown] == [a.name for a in many[:NAMES_SHOWN]]
    assert (others["name"], others["count"]) == ("others", 3)
    again = summarise(many[::-1])[1]
    assert again["names_sha256"] == detail["names_sha256"]
    assert summarise([*many[:-1], kernel("other", 1, 2)])[1]["names_sha256"] != detail["names_sha256"]


NAMES = {
    "triton_poi_fused_0": "triton_poi_fused_0",
    "_Z4copyILi4EEvPKfPfi": "copy<4>",
    "_ZN2at6native13reduce_kernelILi512EEEviPFvvE": "at::native::reduce_kernel<512>",
    "_Znot_a_name": "_Znot_a_name",
    "": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_that_people_write(name: str) -> None:
    assert cupti._Names().short(name) == NAMES[name]


def test_long_names_are_cut_and_stay_different() -> None:
    first, second = (cupti._Names().short("k" * 300 + end) for end in "ab")
    assert first != second
    assert len(first) <= cupti.NAME_LENGTH


# --- the timer, with a package that is made up -----------------------------------------------------


class Kind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17


class Copy(enum.IntEnum):
    UNKNOWN = 0
    DTOD = 8


class FakeError(Exception):
    pass


class FakeCupti:
    """Records what is launched while its kind is enabled, and hands it over when it is flushed."""

    ActivityKind, ActivityMemcpyKind, cuptiError = Kind, Copy, FakeError  # noqa: N815 -- the package's own names

    def __init__(self) -> None:
        self.now_ns, self.dropped, self.refused = 10**9, 0, set[str]()
        self.enabled: set[int] = set()
        self.pending: list[Any] = []
        self.buffers: list[tuple[int, int]] = []

    def _maybe_refuse(self, what: str) -> None:
        if what in self.refused:
            raise FakeError(f"{what} refused")

    def activity_register_callbacks(self, requested: Callable[[], Any], completed: Callable[[Any], None]) -> None:
        self._maybe_refuse("register")
        self.requested, self.completed = requested, completed

    def activity_enable(self, kind: int) -> None:
        self._maybe_refuse("enable")
        self.enabled.add(int(kind))

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(int(kind))

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        self._maybe_refuse("flush")
        self.buffers.append(self.requested())
        self.completed(self.pending[:2])
        self.completed(self.pending[2:])
        self.pending = []

    def activity_get_num_dropped_records(self, context: int, stream: int, dropped: int) -> None:
        assert context == stream == 0
        self._maybe_refuse("dropped")
        ctypes.c_size_t.from_address(dropped).value = self.dropped

    def get_timestamp(self) -> int:
        return self.now_ns

    def launch(self, name: str = "k", ns: int = 1_000, kind: Kind = Kind.CONCURRENT_KERNEL, **fields: Any) -> None:
        start, self.now_ns = self.now_ns + 500, self.now_ns + 500 + ns + 500
        if int(kind) in self.enabled:
            values = {"name": name, "copy_kind": 8, "graph_id": 0, "start": start, "end": start + ns, "kind": int(kind)}
            self.pending.append(SimpleNamespace(**values | fields))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> tuple[CuptiTimer, FakeCupti]:
    """A timer over the package that is made up, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(driver, "forget_persisting_l2", lambda: None)
    fake = FakeCupti()
    monkeypatch.setattr(cupti, "sleep", lambda _: fake.launch("idle", 100, Kind.OVERHEAD))
    timer = CuptiTimer(fake)
    timer.least_call = lambda: fake.launch("own", 700)
    return timer, fake


Made = tuple[CuptiTimer, FakeCupti]


def measured(timer: CuptiTimer, call: Callable[[], Any]) -> Sample:
    timer.run(call)
    return timer.read()


def test_only_what_the_call_launches_is_in_its_sample(made_up: Made) -> None:
    timer, fake = made_up

    def call() -> str:
        fake.launch("_Z4copyILi4EEvPKfPfi", 3_000)
        fake.launch(kind=Kind.MEMCPY)
        fake.launch(kind=Kind.MEMSET, graph_id=7)
        fake.launch(kind=Kind.OVERHEAD)
        return "result"

    for _ in range(2):
        timer.prepare()
        assert timer.run(call) == "result"
        assert fake.enabled == set()
        fake.launch("copies the outputs")
        sample = timer.read()
        assert sample.time_ms == pytest.approx(7e-3)
        assert sample.detail is not None
        assert sample.detail["device_ms"] == pytest.approx(5e-3)
        assert sample.detail["gap_ms"] == pytest.approx(2e-3)
        assert sample.detail["graph_nodes"] == 1
        assert [row["name"] for row in sample.detail["activities"]] == ["copy<4>", "memcpy DTOD", "memset"]
    assert set(fake.buffers) == {(cupti.BUFFER_BYTES, 0)}


def test_records_that_come_late_do_not_count_for_the_next_call(made_up: Made) -> None:
    timer, fake = made_up
    timer.prepare()
    measured(timer, lambda: fake.launch())
    fake.pending.append(SimpleNamespace(name="late", copy_kind=0, graph_id=0, start=5, end=6, kind=10))
    timer.prepare()
    assert measured(timer, lambda: fake.launch("k", 2_000)).time_ms == pytest.approx(2e-3)


def test_the_floor_is_the_span_of_the_timers_own_launch(made_up: Made) -> None:
    assert made_up[0].floor_ms() == pytest.approx(7e-4)


def nothing(timer: CuptiTimer, fake: FakeCupti) -> None:
    measured(timer, lambda: None)


def a_dropped_record(timer: CuptiTimer, fake: FakeCupti) -> None:
    fake.dropped = 3
    measured(timer, fake.launch)


def no_times(timer: CuptiTimer, fake: FakeCupti) -> None:
    measured(timer, lambda: fake.launch("lost", start=0, end=0))


def another_clock(timer: CuptiTimer, fake: FakeCupti) -> None:
    fake.pending[0].start = fake.pending[0].end = fake.now_ns + 1
    measured(timer, fake.launch)


def no_records_at_all(timer: CuptiTimer, fake: FakeCupti) -> None:
    fake.pending.clear()
    measured(timer, lambda: None)


def an_unknown_record(timer: CuptiTimer, fake: FakeCupti) -> None:
    fake.pending.append(SimpleNamespace(kind=10))
    measured(timer, fake.launch)


def a_refused_flush(timer: CuptiTimer, fake: FakeCupti) -> None:
    fake.refused.add("flush")
    measured(timer, fake.launch)


FAULTS = {
    nothing: "^no GPU activity in the timed call$",
    a_dropped_record: "dropped 3 records",
    no_times: "no sound times of lost",
    another_clock: "its clock cannot be used",
    no_records_at_all: "its clock cannot be used",
    an_unknown_record: "cannot be read",
    a_refused_flush: "does not hand over its records",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_cannot_be_timed_is_an_error_and_the_next_call_is_timed(fault: Callable[..., None], made_up: Made) -> None:
    timer, fake = made_up
    timer.prepare()
    with pytest.raises(CuptiError, match=FAULTS[fault]):
        fault(timer, fake)
    assert fake.enabled == set()
    fake.dropped, fake.refused = 0, set()
    timer.prepare()
    assert measured(timer, fake.launch).time_ms == pytest.approx(1e-3)


def test_a_call_that_raises_leaves_nothing_recording(made_up: Made) -> None:
    timer, fake = made_up
    timer.prepare()
    with pytest.raises(ZeroDivisionError):
        measured(timer, lambda: 1 // 0)
    assert fake.enabled == set()
    fake.refused.add("dropped")  # cannot tell
    timer.prepare()
    assert measured(timer, fake.launch).time_ms == pytest.approx(1e-3)


def test_what_cupti_refuses_is_said(made_up: Made) -> None:
    timer, fake = made_up
    fake.refused.add("enable")
    with pytest.raises(CuptiError, match="does not record"):
        timer.prepare()
    fake.refused.add("register")
    with pytest.raises(CuptiError, match="does not start"):
        CuptiTimer(fake)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.delitem(sys.modules, "cupti.cupti", raising=False)
    assert cupti.problem() == cupti.MISSING
    with pytest.raises(CuptiError, match="solbench\\[cupti\\]"):
        CuptiTimer()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupti.cupti", SimpleNamespace())
    assert cupti.problem() == "CUPTI needs a CUDA device, and PyTorch sees none"


def test_the_public_protocol_is_as_published() -> None:
    protocol = Catalog(REPOSITORY).protocol("sol-execbench-v1.1")
    assert (protocol.backend, protocol.seed, protocol.also) == ("cupti", 200, [])
    assert protocol.correctness.rounds == protocol.correctness.at_least == 10
    timing = protocol.timing
    assert (timing.warmup, timing.samples, timing.at_least, timing.half_width) == (10, 50, 50, None)
    assert (protocol.cold_cache, protocol.flush, protocol.flush_multiple) == (True, "zero", 2)


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_gpu() -> CuptiTimer:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if reason := cupti.problem():
        pytest.skip(reason)
    return CuptiTimer()


def timed(timer: CuptiTimer, call: Callable[[], Any]) -> tuple[float, dict[str, Any]]:
    """The second of two calls, because the first one loads what it launches."""
    for _ in range(2):
        timer.prepare()
        sample = measured(timer, call)
    assert sample.detail is not None
    return sample.time_ms, sample.detail


@pytest.mark.gpu
def test_a_gpu_records_kernels_copies_and_memory_sets(on_gpu: CuptiTimer) -> None:
    big, other = (torch.ones(64 << 20, device="cuda") for _ in range(2))
    span_ms, detail = timed(on_gpu, lambda: torch.mul(big, 2, out=other))
    assert (detail["launches"], detail["gap_ms"]) == (1, 0)
    assert 0.05 < span_ms == detail["device_ms"] < 2  # 512 MiB moved
    assert detail["activities"][0]["kind"] == "kernel"
    _, detail = timed(on_gpu, lambda: (other.copy_(big), big.mul_(1)))
    assert {row["kind"] for row in detail["activities"]} == {"memcpy", "kernel"}
    floor_ms = on_gpu.floor_ms()
    assert 0 < floor_ms < 0.02


@pytest.mark.gpu
def test_a_gpu_records_every_stream_and_every_node_of_a_graph(on_gpu: CuptiTimer) -> None:
    x, side = torch.ones(16 << 20, device="cuda"), torch.cuda.Stream()

    def on_two_streams() -> None:
        x.mul_(1)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)  # about a millisecond

    span_ms, detail = timed(on_gpu, on_two_streams)
    assert detail["launches"] == 2
    assert span_ms > 0.5
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            x.mul_(1)
    span_ms, detail = timed(on_gpu, graph.replay)
    assert (detail["launches"], detail["graph_nodes"]) == (5, 5)
    assert detail["gap_ms"] < span_ms / 2


@pytest.mark.gpu
def test_a_gpu_loses_no_record_of_thousands(on_gpu: CuptiTimer) -> None:
    x = torch.ones(1, device="cuda")
    _, detail = timed(on_gpu, lambda: [x.mul_(1) for _ in range(20_000)])
    assert detail["launches"] == 20_000
    on_gpu.prepare()
    with pytest.raises(CuptiError, match=NO_ACTIVITY):
        measured(on_gpu, lambda: None)
