"""Runs kernels in CUDA C++ on a CPU: an emulator with a C++ compiler in place of the device."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
# By the folder of the kernels: what runs them, and their names.
SOURCES = {
    "multicast": ("cluster_emulator.cpp", ("first_launch", "second_launch")),
    "clusters": ("few_tokens_emulator.cpp", ("first_launch", "second_launch")),
    "slices": ("slices_emulator.cpp", ("up_to_16_tokens", "up_to_32_tokens")),
}
COMPILER = shutil.which("g++")


@cache
def built(kernels: Path, shared_bytes: int) -> ctypes.CDLL:
    """The emulator with the kernels of a file in it, for which a program has so much shared memory."""
    assert COMPILER is not None
    source, names = SOURCES[kernels.parent.name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "emulator.so"
        command = [COMPILER, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", "-DEMULATED"]
        command += [f'-DKERNEL_SOURCE="{kernels}"', f"-DMEMORY_BYTES={shared_bytes}", "-o", str(out)]
        command.append(str(HERE / source))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(out))
    for name in names:
        getattr(library, f"emulate_{name}").restype = ctypes.c_char_p
    return library


class Emulation(AssertionError):
    """What the device would not have done, or not in the end."""


class Device:
    """In place of the kernel's own device. Raises `Emulation`."""

    def __init__(self, library: ctypes.CDLL, map_type: Any, multiprocessors: int = 4) -> None:
        self.library, self._map_type = library, map_type
        self.multiprocessors = multiprocessors

    def map(self, matrix: torch.Tensor) -> Any:
        assert matrix.data_ptr() % 16 == 0
        assert matrix.stride(0) * 2 % 16 == 0
        assert matrix.stride(1) == 1
        found = self._map_type()
        found.opaque[:4] = [matrix.data_ptr(), *matrix.shape, matrix.stride(0)]
        return found

    def launch(self, name: str, what: ctypes.Structure, programs: int, early: bool = False) -> None:
        problem = getattr(self.library, f"emulate_{name}")(ctypes.byref(what), programs)
        if problem is not None:
            raise Emulation(problem.decode())
