"""What the tests of both ladders share: an interpreter that rounds, walls around tensors, and what counts as right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cluster_emulator
import gluon_emulator
import numpy as np
import pytest
import torch
import triton.language as tl
from conftest import REPOSITORY, module_of
from triton.runtime import JITFunction, interpreter

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Rounding to bfloat16 changes a value by at most 2^-8 of it. Up to three roundings follow each other: of d (where the
# library makes it), of grad_gate or grad_up, and of the result. Sums in another order add far less.
ROUNDING = 3.1 * 2.0**-8
NAN = float("nan")
OUTPUTS = ("grad_x", "grad_gate_weight", "grad_up_weight", "grad_down_weight")

gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")]


@cache
def benchmark(name: str) -> ModuleType:
    """The benchmark of that name as a module."""
    return module_of(REPOSITORY / "benchmarks" / f"{name}.py")


@cache
def rung(script: str, name: str) -> ModuleType:
    """A rung as a benchmark finds it. Where there is no GPU, Triton interprets it, or it runs in an emulator."""
    module: ModuleType = benchmark(script).kernel(name)
    file = Path(module.__file__ or "")
    if ON_GPU:
        return module
    if (file.parent / "kernel.cu").exists() and hasattr(module, "SHARED_BYTES"):
        if not cluster_emulator.COMPILER:
            pytest.skip("needs a C++ compiler")
        library = cluster_emulator.built(file.parent / "kernel.cu", module.SHARED_BYTES)
        device = cluster_emulator.Device(library, module.nvrtc_launch.Map)
        module.device = lambda of: device  # type: ignore[attr-defined]
    elif any(value.is_gluon() for value in vars(module).values() if isinstance(value, JITFunction)):
        return gluon_emulator.load(file)
    return module


@pytest.fixture(autouse=True)
def interpreter_that_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts float32 off to bfloat16 where a GPU rounds it to the nearest."""
    plain = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
            return rounded.view(torch.int16).numpy().view(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return np.ascontiguousarray(values).astype(np.uint32) << 16
        return plain(values, source, target, mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE)


def spread(shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Independent tensors whose rows and columns differ by factors of up to 2^24."""
    sizes = torch.Generator(device=DEVICE).manual_seed(6)

    def factors(length: int) -> torch.Tensor:
        return torch.exp2(torch.randint(-6, 7, (length,), generator=sizes, device=DEVICE).float())

    return [
        normal(*shape, seed=seed) * factors(shape[0])[:, None] * factors(shape[1])[None, :]
        for seed, shape in enumerate(shapes)
    ]


def thinned(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Whole rows and columns of zeros, and zeros in between."""
    for seed, tensor in enumerate(values):
        tensor *= normal(*tensor.shape, seed=40 + seed) > 0.5
        tensor[::3] = 0
        tensor[:, 1::4] = 0
    return values


def assert_near(found: Any, wanted: Sequence[torch.Tensor], sizes: Sequence[torch.Tensor]) -> None:
    """Every element is as near as roundings of what it is the sum of allow. NaN is not near.

    sizes: for each element the sum of its terms' magnitudes.
    """
    for name, output, right, size in zip(OUTPUTS, found, wanted, sizes, strict=True):
        assert output.dtype == torch.bfloat16
        assert output.shape == right.shape
        # The least normal bfloat16: what is smaller may be lost.
        near = (output.double() - right).abs() <= ROUNDING * size + 2.0**-126
        assert bool(near.all()), f"{name}: {int((~near).sum())} of {near.numel()} elements are wrong"


class Walls:
    """Puts tensors between NaNs, and looks whether those are still there."""

    def __init__(self) -> None:
        self._rooms: list[tuple[torch.Tensor, int, int]] = []

    def room(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """A tensor full of NaN with more NaN on both sides, as far as a tile could reach."""
        count = int(np.prod(shape))
        wall = 256 * shape[-1] if len(shape) > 1 else 1024
        wall += -wall % 128  # of 256 bytes
        whole = torch.full((2 * wall + count,), NAN, dtype=dtype, device=DEVICE)
        self._rooms.append((whole, wall, wall + count))
        return whole[wall : wall + count].view(shape)

    def stand(self) -> bool:
        return all(
            bool(whole[:begin].isnan().all()) and bool(whole[end:].isnan().all()) for whole, begin, end in self._rooms
        )


@pytest.fixture(name="walls")
def walls_around_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[Walls]:
    """Whatever a kernel allocates lies between walls."""
    built = Walls()
    plain = torch.Tensor.new_empty

    def new_empty(like: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        if isinstance(shape[0], int) and set(options) <= {"dtype"}:
            return built.room(*shape, dtype=options.get("dtype", torch.bfloat16))
        return plain(like, *shape, **options)  # the interpreter

    monkeypatch.setattr(torch, "empty", lambda *shape, **_: built.room(*shape))
    monkeypatch.setattr(torch, "empty_like", lambda tensor: built.room(*tensor.shape))
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    yield built
    assert built.stand(), "something was written outside of a tensor"


def without_interpreter(*arguments: str) -> str:
    """What Python prints for these arguments, in a process in which Triton compiles and does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled_tables(script: str, report: Path) -> list[dict[str, Any]]:
    """What the tables' launches need at full size; all of them must fit."""
    print(without_interpreter(f"benchmarks/{script}.py", "--compile", "--tables", "--json", str(report)))
    found: list[dict[str, Any]] = json.loads(report.read_text())["compiled"]
    return found


class FakeClock:
    """Counts how often it is asked; the times are of no meaning."""

    def __init__(self) -> None:
        self.calls = 0

    def read_us(self, call: Any) -> float:
        self.calls += 1
        call()
        return 10.0 + self.calls % 7


def compiled_by_nvcc(source: Path, out: Path) -> str:
    """What ptxas says of a file in CUDA C++, compiled for sm_90a."""
    command = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-cubin", "-Xptxas", "-v"]
    done = subprocess.run([*command, "-o", str(out), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr
