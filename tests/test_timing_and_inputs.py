"""The parts of measuring that show on any machine."""

from __future__ import annotations

import os
import time

import pytest
import torch

from harness import arena, hold, timing
from harness.arena import SHIFT_BYTES, SHIFTS, Layout
from harness.spec import Tensor

CPU = torch.device("cpu")
INPUTS = (Tensor("a", (3, 5), "bfloat16"), Tensor("b", (7,), "float32"))
OUTPUTS = (Tensor("y", (2, 2), "bfloat16"),)


def test_the_host_timer_times_the_call_and_nothing_else() -> None:
    timer = timing.make("host", CPU)
    assert timer.run(lambda: time.sleep(0.05) or 3) == 3
    sample = timer.read()
    assert sample.time_ms >= 50
    assert sample.held is None


@pytest.mark.parametrize("backend", ["queued", "events"])
def test_a_backend_for_gpus_is_refused_on_the_cpu(backend: str) -> None:
    with pytest.raises(ValueError, match="does not work on cpu"):
        timing.make(backend, CPU)


def test_an_arena_is_one_memory_seen_from_two_sides() -> None:
    layout = Layout.of(INPUTS, OUTPUTS)
    ours, description, descriptors = arena.create(layout, CPU)
    theirs = arena.attach(description, (os.dup(descriptors[0]),), layout)
    for call in (0, 1, SHIFTS - 1, SHIFTS):
        for place in ours.inputs(INPUTS, call):
            place.fill_(call % 7 + 1)
        assert all(bool((seen == call % 7 + 1).all()) for seen in theirs.inputs(INPUTS, call))
    ours.poison_outputs()
    assert bool(theirs.outputs(OUTPUTS)[0].isnan().all())
    theirs.close()
    ours.close()


@pytest.mark.parametrize("rows", [1, 2, 3, 6284, 8192, 100_003])
def test_an_arena_is_whole_large_pages(rows: int) -> None:
    """Anything less is mapped with small pages on a GPU, and the kernel is timed with those."""
    layout = Layout.of((Tensor("a", (rows, 768), "bfloat16"),), (Tensor("y", (rows, 2048), "bfloat16"),))
    assert layout.nbytes % (2 << 20) == 0
    assert 0 <= layout.nbytes - (layout.output_offsets[-1] + rows * 4096) < 2 << 20


def test_every_call_finds_its_inputs_elsewhere_and_aligned() -> None:
    layout = Layout.of(INPUTS, OUTPUTS)
    memory, _, _ = arena.create(layout, CPU)
    addresses = [[t.data_ptr() for t in memory.inputs(INPUTS, call)] for call in range(100)]
    assert len({tuple(a) for a in addresses}) == 100
    first = addresses[0][0]
    assert all((pointer - first) % SHIFT_BYTES == 0 for call in addresses for pointer in call)
    last_input_end = max(t.data_ptr() + t.nbytes for t in memory.inputs(INPUTS, SHIFTS - 1))
    assert last_input_end <= memory.outputs(OUTPUTS)[0].data_ptr()
    memory.close()


def test_the_gpu_lets_go_of_a_page_before_its_address_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(hold.driver, "call", lambda name, *arguments: calls.append(name))
    for close in (True, False):
        descriptor = os.memfd_create("page")
        os.ftruncate(descriptor, hold._PAGE)
        page = hold._Page(descriptor)
        page.on_device()
        if close:
            page.close()
        del page
        os.close(descriptor)
        assert calls == ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuMemHostUnregister"], close
        calls.clear()
