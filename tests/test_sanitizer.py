"""The kernels under NVIDIA's compute-sanitizer: no access outside of an allocation, no race in shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import REPOSITORY
from triton_ladder import gpu

pytestmark = [
    *gpu,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer"),
]

# A rung on inputs of its tests, at hidden sizes that fit no tile, twice for each number of tokens: the second call of
# some kernels takes another way to the device. Every tensor is an allocation of its own.
RUN = """\
import importlib, sys
sys.path.insert(0, "tests")
tests = importlib.import_module(sys.argv[1])
kernel = tests.rung(sys.argv[2])
for tokens in map(int, sys.argv[3:]):
    inputs = tests.made(tests.as_the_workload, tokens)
    for _ in range(2):
        found = kernel.run(*inputs)
    tests.assert_right(found, inputs)
print("was right")
"""
# By rung, numbers of tokens that take every configuration that is cheap to compile.
CASES = {
    ("test_moe_kernels", "clusters"): (1, 16),
    ("test_moe_kernels", "grouped"): (1, 17, 129, 500),
    ("test_moe_kernels", "warp_specialized"): (1, 129, 3000),
    ("test_moe_kernels", "one_launch"): (129, 3000),
    ("test_dense_kernels", "warp_specialized"): (1, 129),
    ("test_dense_kernels", "multicast"): (1, 257),
}
REFUSES = "Device not supported"  # what the tool says where the driver lets it do nothing


def sanitized(tool: str, case: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", RUN, *case]
    return subprocess.run(
        [*command, *map(str, CASES[case])],
        cwd=REPOSITORY,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


# Of Gluon kernels racecheck reports how Triton hands work to the warps of `warp_specialize`: nothing can be told.
GLUON = ("warp_specialized", "one_launch")
RACES = [case for case in CASES if case[1] not in GLUON]


@pytest.mark.parametrize(
    ("tool", "cases"), [("memcheck", list(CASES)), ("racecheck", RACES)], ids=["memcheck", "racecheck"]
)
def test_the_sanitizer_finds_nothing(tool: str, cases: list[tuple[str, str]]) -> None:
    with ThreadPoolExecutor(len(cases)) as pool:
        found = dict(zip(cases, pool.map(lambda case: sanitized(tool, case), cases), strict=True))
    if any(REFUSES in done.stdout for done in found.values()):
        pytest.skip(f"compute-sanitizer: {REFUSES}")
    for case, done in found.items():
        assert done.returncode == 0, f"{case}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        assert "was right" in done.stdout
