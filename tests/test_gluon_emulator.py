"""The stand-in for the device that runs Gluon kernels finds what the device would stumble over.

Each fault is put into the source of a kernel that is right, and must show as a wrong result or as an error.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import gluon_emulator
import pytest
import torch
from conftest import REPOSITORY
from dense_case import inputs, is_near
from gluon_emulator import Emulation

LADDER = REPOSITORY / "kernels" / "dense_swiglu_backward" / "warp_specialized"

# name: (file, what stands there, what is put in its place)
FAULTS = {
    "a stage is given back as soon as its product is on its way": (
        "warp_roles", "mbarrier.arrive(empty.index(last), pred=step > 0)", "mbarrier.arrive(empty.index(stage))"),
    "the last product is not waited for": (
        "warp_roles", "    sums = warpgroup_mma_wait(0, deps=[sums])\n    mbarrier", "    mbarrier"),
    "memory is written that a store still reads": ("warp_roles", "tma.store_wait(1)\n", "tma.store_wait(2)\n"),
    "a store sees what was written without a fence": ("warp_roles", "    fence_async_shared()\n    tma", "    tma"),
    "a barrier counts one warpgroup": ("warp_roles", "count=2", "count=1"),
    "a phase never turns": ("warp_roles", "gl.where(last, phase ^ 1, phase)", "phase"),
    "numbers of tiles are read in the wrong phase": (
        "warp_roles", "return tile, slot ^ 1, phase ^ slot", "return tile, slot ^ 1, phase"),
    "sums begin with what is in the registers": ("warp_roles", "use_acc=step > 0", "use_acc=True"),
    "loads do not wait": ("warp_roles", "    mbarrier.wait(empty.index(stage), phase)\n", ""),
    "products do not wait": ("warp_roles", "        mbarrier.wait(full.index(stage), phase)\n", ""),
    "the loading warp waits for a free stage in the wrong phase": (
        "kernel", "gl.to_tensor(0), gl.to_tensor(1)", "gl.to_tensor(0), gl.to_tensor(0)"),
    "fewer bytes are expected than come": ("kernel", "phase, 3 * CHUNK_BYTES", "phase, 2 * CHUNK_BYTES"),
    "two stores in a row use the same memory": ("kernel", "stage, phase, PART, i % 2", "stage, phase, PART, 0"),
    "a stage is never given back": ("kernel", "    mbarrier.arrive(empty.index(stage))\n", ""),
    "a counter is not set back": ("kernel", "gl.store(other, 0)", "pass"),
    "a program ends early": ("kernel", "    tma.store_wait(0)\n", ""),
    "a warpgroup takes the other one's rows": ("warp_roles", "2 * stage + PART", "2 * stage + 1 - PART"),
    "a tile is computed twice": ("warp_roles", "inside % height", "0 * height"),
}  # fmt: skip


ONE_LAUNCH = REPOSITORY / "kernels" / "moe_swiglu_backward" / "_ladder" / "one_launch"
FAULTS_BETWEEN_PROGRAMS = {
    "a tile is counted in before it is written": ("between_proxies(True)", "between_proxies(False)"),
    "a tile of grad_x does not wait": ("wait_for(state + BY_ROW + row // _ROWS, 2 * across)", "pass"),
    "a weight gradient does not wait": ("wait_for(state + WRITTEN, 2 * d_tiles)", "pass"),
    "one warpgroup's half of the rows is enough": ("row // _ROWS, 2 * across", "row // _ROWS, across"),
    "half of d is enough": ("WRITTEN, 2 * d_tiles", "WRITTEN, d_tiles"),
    "a tile is counted in for another row": ("BY_ROW + row, 1", "BY_ROW + row + 1, 1"),
    "counters are not set back": ("gl.store(state + i, 0)", "pass"),
    "counters are set back too early": ("gl.num_programs(0) - 1:", "gl.num_programs(0) - 2:"),
    "the last rows' counters are not set back": ("range(BY_ROW + down)", "range(BY_ROW + down - 1)"),
    "tiles of d come last": ("tile = gl.program_id(0)\n", "tile = 50 - gl.program_id(0)\n"),
}


def is_right(folder: Path) -> bool:
    """In two calls, one after the other."""
    kernel = gluon_emulator.load(folder / "kernel.py")
    return all(is_near(kernel.launch(kernel.Config(2, 1, 2), *given), given) for given in (inputs(1), inputs(2)))


def test_the_kernel_without_a_fault_is_right() -> None:
    assert is_right(LADDER)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gluon_emulator, "WAIT_S", 2.0)
    file, there, instead = FAULTS[fault]
    with_fault(LADDER, file, there, instead, tmp_path)
    # What was not waited for is no tensor yet.
    with contextlib.suppress(Emulation, AttributeError):
        assert not is_right(tmp_path)


def with_fault(folder: Path, file: str, there: str, instead: str, place: Path) -> None:
    """A copy of a kernel's files in which one says something else."""
    assert there in (folder / f"{file}.py").read_text()
    for path in folder.glob("*.py"):
        source = path.read_text()
        (place / path.name).write_text(source.replace(there, instead) if path.stem == file else source)


def is_right_in_one_launch(folder: Path) -> bool:
    """In three calls, one after the other, of a kernel for the MoE workload, whose formula is the same."""
    # So many programs that some begin with a tile that has to wait.
    kernel = gluon_emulator.load(folder / "kernel.py", multiprocessors=40)
    for seed in (1, 2, 3):
        given = inputs(seed)
        output, x, gate, up, silu, gate_weight, up_weight, down_weight = given
        saved = (gate, torch.sigmoid(gate), silu, up, silu * up)
        found = kernel.launch(
            kernel.Config(d=2, x=1, weights=2), output, x, gate_weight, up_weight, down_weight, *saved
        )
        if not is_near(found, given):
            return False
    return not any(bool(state.any()) for state in kernel._states.values())


def test_one_launch_without_a_fault_is_right() -> None:
    assert is_right_in_one_launch(ONE_LAUNCH)


@pytest.mark.parametrize("fault", FAULTS_BETWEEN_PROGRAMS)
def test_a_fault_between_programs_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gluon_emulator, "WAIT_S", 2.0)
    with_fault(ONE_LAUNCH, "kernel", *FAULTS_BETWEEN_PROGRAMS[fault], tmp_path)
    with contextlib.suppress(Emulation, AttributeError):
        assert not is_right_in_one_launch(tmp_path)
