"""The stand-ins for a device that runs CUDA C++ in clusters find what the device would stumble over.

Each fault is put into the source of a kernel that is right, and must show as a wrong result or as an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
from pathlib import Path

import cluster_emulator
import pytest
import triton_ladder
from cluster_emulator import Device, built
from conftest import REPOSITORY
from dense_case import inputs, is_near

MULTICAST = REPOSITORY / "kernels" / "dense_swiglu_backward" / "_ladder" / "multicast"
MOE = REPOSITORY / "kernels" / "moe_swiglu_backward"
CLUSTERS, SLICES = MOE / "clusters", MOE / "_ladder" / "slices"

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
FAULTS_OF_CLUSTERS = {
    "operands are read before they came": ("wait_for_copies<0>();", "wait_for_copies<1>();"),
    "another program may not have begun": ("    cluster_wait();  // until every program has begun", "    // "),
    "sums stay with the program that made them": ("put_there(owner,", "put_there(rank,"),
    "a warp's sum is left out": ("w = 1; w < WARPS;", "w = 1; w < WARPS - 1;"),
    "a program's sum of d is left out": ("program < PROGRAMS; program++) d", "program < PROGRAMS - 1; program++) d"),
    "a program's sum of grad_x is left out": (
        "program < PROGRAMS; program++) sum", "program < PROGRAMS - 1; program++) sum"),
    "eight rows lie in the same banks": ("return 2 * columns + 16;", "return 2 * columns;"),
    "both halves take one weight": ("half ? a.up_weight : a.gate_weight", "a.gate_weight"),
    "half of a tile is not written": ("X_ROWS / 32, X,", "X_ROWS / 64, X,"),
    "shared memory ends before": ("TOKENS * pitch(DOWN_ROWS);", "TOKENS * pitch(4 * DOWN_ROWS);"),
}  # fmt: skip
FAULTS_OF_SLICES = {
    "operands are read before they came": ("wait_for_copies<2>();", "wait_for_copies<3>();"),
    "another program may not have begun": ("    cluster_wait();  // until every program has begun", "    // "),
    "a part of d stays with the program that made it": ("send(program, RECEIVED", "send(rank, RECEIVED"),
    "parts of d lie on each other": ("RECEIVED + 4 * (rank * D_SUMS + at)", "RECEIVED + 4 * at"),
    "d is summed before all parts came": ("    wait_for_all_sent(ARRIVED);\n", ""),
    "fewer bytes are expected than come": ("expect(ARRIVED, 4 *", "expect(ARRIVED, 2 *"),
    "a warp's part is left out": ("part = 1; part < D_PARTS;", "part = 1; part < D_PARTS - 1;"),
    "a program is counted in before its part is written": (
        "    program_barrier();\n    u64* meeting", "    u64* meeting"),
    "all clusters but one are waited for": ("arrivals(now) == clusters;", "arrivals(now) >= clusters - 1;"),
    "the last one leaves what others left": ("return own | left;", "return own;"),
    "a meeting ends otherwise than it began": ("HELD - clusters * ARRIVAL - left", "HELD - clusters * ARRIVAL"),
    "a cluster's part is left out": ("part < a.clusters; part++)", "part < a.clusters - 1; part++)"),
    "neighbours make the same tile": ("cluster % 2 * DOWN_ROWS", "0 * DOWN_ROWS"),
    "half of a weight gradient is not written": ("COLUMNS / 16, X,", "COLUMNS / 32, X,"),
    "eight rows lie in the same banks": ("return 2 * columns + 16;", "return 2 * columns;"),
}  # fmt: skip


def is_right(folder: Path) -> bool:
    crossovers = triton_ladder.benchmark("dense_crossovers").crossovers
    kernel = crossovers.load(folder, f"{folder.name}_in_test")
    device = Device(built(folder / "kernel.cu", kernel.SHARED_BYTES), kernel.nvrtc_launch.Map, multiprocessors=4)
    kernel.device = lambda of: device
    if folder.name == "multicast":
        given = inputs(1)
        return is_near(kernel.launch(kernel.Config(2, 1, 2), *given), given)
    moe = triton_ladder.benchmark("moe_crossovers")
    # Of other content each time, so that what an earlier call left in memory is wrong. The meetings of `slices` are
    # held between all clusters first, and then where a cluster begins when the one before has ended.
    for number in range(3 if folder.name == "slices" else 1):
        if number:
            ctypes.c_int.in_dll(device.library, "clusters_at_a_time").value = 1
        given = moe.made_inputs(5, number, "cpu")
        wanted = moe.right_answers(given)[1]
        if not all(crossovers.error_of(*pair) < 0.01 for pair in zip(kernel.launch(*given), wanted, strict=True)):
            return False
    return True


@pytest.mark.parametrize("folder", [MULTICAST, CLUSTERS, SLICES], ids=lambda folder: folder.name)
def test_the_kernel_without_a_fault_is_right(folder: Path) -> None:
    assert is_right(folder)


@pytest.mark.parametrize(
    ("folder", "there", "instead"),
    [
        pytest.param(folder, *fault, id=f"{folder.name}: {name}")
        for folder, faults in (
            (MULTICAST, FAULTS),
            (CLUSTERS, FAULTS_OF_CLUSTERS),
            (SLICES, FAULTS_OF_SLICES),
        )
        for name, fault in faults.items()
    ],
)
def test_a_fault_shows(folder: Path, there: str, instead: str, tmp_path: Path) -> None:
    copied = tmp_path / folder.name
    shutil.copytree(folder, copied)
    source = (folder / "kernel.cu").read_text()
    assert there in source
    (copied / "kernel.cu").write_text(source.replace(there, instead))
    # Of the device: what the emulator says. A wrong result is none.
    with contextlib.suppress(cluster_emulator.Emulation):
        assert not is_right(copied)
