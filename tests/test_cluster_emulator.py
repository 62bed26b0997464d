"""The stand-in for a device that runs CUDA C++ in clusters finds what the device would stumble over.

Each fault is put into the source of a kernel that is right, and must show as a wrong result or as an error.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import cluster_emulator
import pytest
import triton_ladder
from cluster_emulator import Device, built
from conftest import REPOSITORY
from dense_case import inputs, is_near

FOLDER = REPOSITORY / "kernels" / "dense_swiglu_backward" / "_ladder" / "multicast"

pytestmark = pytest.mark.skipif(
    triton_ladder.ON_GPU or cluster_emulator.COMPILER is None, reason="emulates a GPU with a C++ compiler"
)

# name: (what stands there, what is put in its place)
FAULTS = {
    "a stage is given back to one loading warp only": (
        "arrive_in_both(EMPTY + 8 * stage)", "here->barriers[EMPTY + 8 * stage].update(8, 0)"),
    "a stage is given back as soon as its product is on its way": (
        "        if (step > 0) release(last);\n        last = turn.stage;\n",
        "        release(turn.stage);\n        last = turn.stage;\n"),
    "both programs bring the same half": ("const int mine = 2 * program_in_cluster();", "const int mine = 0;"),
    "a barrier counts one program's warps": ("WARPS_THAT_RELEASE = 16", "WARPS_THAT_RELEASE = 8"),
    "memory is written that a store still reads": ("wait_for_stores<1>(part);", "wait_for_stores<2>(part);"),
    "a store sees what was written without a fence": ("    fence_before_store();\n", ""),
    "both programs compute the upper tile": (
        "const int lower = ROWS * program_in_cluster() + 64 * part,", "const int lower = 64 * part,"),
    "a pair of tiles is left out": ("number = cluster - rest + i", "number = cluster + i"),
    "a result's halves of 8 rows are swapped": ("% 32 / 4 + 8 * half", "% 32 / 4 + 8 * (1 - half)"),
}  # fmt: skip


def is_right(folder: Path) -> bool:
    kernel = triton_ladder.benchmark("dense_crossovers").crossovers.load(folder, "multicast_in_test")
    device = Device(built(folder / "kernel.cu", kernel.SHARED_BYTES), kernel.Map, multiprocessors=4)
    kernel.device = lambda of: device
    given = inputs(1)
    return is_near(kernel.launch(kernel.Config(2, 1, 2), *given), given)


def test_the_kernel_without_a_fault_is_right() -> None:
    assert is_right(FOLDER)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, tmp_path: Path) -> None:
    there, instead = FAULTS[fault]
    for file in FOLDER.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    source = (FOLDER / "kernel.cu").read_text()
    assert there in source
    (tmp_path / "kernel.cu").write_text(source.replace(there, instead))
    # Of the device: what the emulator says. A wrong result is none.
    with contextlib.suppress(cluster_emulator.Emulation):
        assert not is_right(tmp_path)
