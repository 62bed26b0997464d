"""The memory that judge and worker share: inputs and outputs of one case, at addresses that move.

The judge allocates and fills it; the worker maps it. Nothing else of the judge's memory lies in the same
allocation: on the CPU it is an anonymous file, on CUDA an allocation of its own, shared through the
driver's inter-process handles.
"""

from __future__ import annotations

import base64
import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch

from harness import driver

# Each call finds its inputs 256 bytes further on, as in the public protocol; after SHIFTS calls the
# addresses repeat. 256 bytes keep every alignment that vector loads and tensor copies ask for.
SHIFT_BYTES = 256
SHIFTS = 1024
# Sizes are rounded up to the GPU's large page. On an H200, an allocation whose size was no multiple of 64 KiB
# was mapped with small pages, and products that read a weight in it took four times as long.
PAGE_BYTES = 2 << 20


# The bytes from an offset on, as a tensor with a storage of its own.
Part = Callable[[int, int], torch.Tensor]


class TensorLike(Protocol):
    """What a layout needs to know of a tensor: `shape` in elements and a torch dtype's name."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Layout:
    """Byte offsets of inputs (before the shift) and outputs, the bytes from the first input to the last one's end,
    and the size of the whole."""

    input_offsets: tuple[int, ...]
    output_offsets: tuple[int, ...]
    input_bytes: int
    nbytes: int

    @staticmethod
    def of(inputs: Sequence[TensorLike], outputs: Sequence[TensorLike]) -> Layout:
        """One tensor after the other, each on a multiple of `SHIFT_BYTES`."""
        offsets, input_bytes = _consecutive(inputs, 0)
        output_offsets, end = _consecutive(outputs, input_bytes + SHIFT_BYTES * SHIFTS)
        return Layout(offsets, output_offsets, input_bytes, -(-end // PAGE_BYTES) * PAGE_BYTES)


def _consecutive(tensors: Sequence[TensorLike], start: int) -> tuple[tuple[int, ...], int]:
    offsets = []
    for tensor in tensors:
        offsets.append(start)
        nbytes = prod(tensor.shape) * torch_dtype(tensor.dtype).itemsize
        start += -(-nbytes // SHIFT_BYTES) * SHIFT_BYTES
    return tuple(offsets), start


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


class Arena:
    """Shared bytes, and typed views of them."""

    def __init__(self, memory: torch.Tensor, layout: Layout, release: Any, part: Part | None = None) -> None:
        self._memory: torch.Tensor | None = memory
        self.layout = layout
        self._release = release
        self._part = part

    def inputs(self, tensors: Sequence[TensorLike], call: int) -> list[torch.Tensor]:
        """The inputs of the given call: views of `tensors`' shapes at that call's addresses."""
        shift = _shift(call)
        return [self._view(t, o + shift) for t, o in zip(tensors, self.layout.input_offsets, strict=True)]

    def outputs(self, tensors: Sequence[TensorLike]) -> list[torch.Tensor]:
        return [self._view(t, o) for t, o in zip(tensors, self.layout.output_offsets, strict=True)]

    def _view(self, tensor: TensorLike, offset: int) -> torch.Tensor:
        assert self._memory is not None, "the arena is closed"
        dtype = torch_dtype(tensor.dtype)
        nbytes = prod(tensor.shape) * dtype.itemsize
        flat = self._part(offset, nbytes) if self._part else self._memory[offset : offset + nbytes]
        return flat.view(dtype).view(tensor.shape)

    def input_region(self, call: int) -> torch.Tensor:
        """The bytes of all inputs of the given call, as `Content` has them."""
        assert self._memory is not None, "the arena is closed"
        shift = _shift(call)
        return self._memory[shift : shift + self.layout.input_bytes]

    def poison_outputs(self) -> None:
        """Fill the outputs with ones in every bit (NaN in every float type), so that gaps show."""
        assert self._memory is not None, "the arena is closed"
        self._memory[self.layout.output_offsets[0] :].fill_(0xFF)

    def close(self) -> None:
        """Give the memory back. Views that are still held must not be used afterwards."""
        if self._memory is not None:
            self._memory = None
            self._release()


class Content:
    """The judge's own copy of a case's inputs: one stretch of bytes, laid out as in the arena, and views of it."""

    def __init__(self, layout: Layout, tensors: Sequence[TensorLike], device: torch.device) -> None:
        # Zeros, so that the gaps between tensors are equal on both sides.
        self._bytes = torch.zeros(layout.input_bytes, dtype=torch.uint8, device=device)
        self.tensors = Arena(self._bytes, layout, lambda: None).inputs(tensors, 0)

    def deliver(self, arena: Arena, call: int) -> None:
        """Write the inputs to the given call's addresses."""
        arena.input_region(call).copy_(self._bytes)

    def is_unchanged(self, arena: Arena, call: int) -> bool:
        """Whether every bit of the given call's inputs is as it was delivered."""
        # As whole words: bits are compared, so that NaN equals itself and -0 is not 0.
        return torch.equal(arena.input_region(call).view(torch.int64), self._bytes.view(torch.int64))


def _shift(call: int) -> int:
    return call % SHIFTS * SHIFT_BYTES


def create(layout: Layout, device: torch.device) -> tuple[Arena, dict[str, Any], tuple[int, ...]]:
    """The judge's side: an arena, and the description and descriptors that open it elsewhere."""
    if device.type == "cuda":
        return _create_cuda(layout, device)
    descriptor = os.memfd_create("solbench-arena")
    os.ftruncate(descriptor, layout.nbytes)
    arena = Arena(_mapped(descriptor, layout.nbytes), layout, lambda: os.close(descriptor))
    return arena, {"kind": "file", "nbytes": layout.nbytes}, (descriptor,)


def attach(description: dict[str, Any], descriptors: tuple[int, ...], layout: Layout) -> Arena:
    """The worker's side. Each view has a storage of its own, so that no tensor leads to its neighbours."""
    if description["kind"] == "cuda":
        return _attach_cuda(description, layout)
    (descriptor,) = descriptors
    mapped = mmap.mmap(descriptor, description["nbytes"])
    os.close(descriptor)

    def part(offset: int, nbytes: int) -> torch.Tensor:
        return torch.frombuffer(mapped, dtype=torch.uint8, count=nbytes, offset=offset)

    return Arena(part(0, description["nbytes"]), layout, lambda: None, part)


def _mapped(descriptor: int, nbytes: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)


# CUDA: the driver's interface, because an allocation that PyTorch makes for sharing stays reserved for
# ever when the process that mapped it is killed.


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class _CudaMemory:
    """Device bytes as something that `torch.as_tensor` takes without a copy."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


def _create_cuda(layout: Layout, device: torch.device) -> tuple[Arena, dict[str, Any], tuple[int, ...]]:
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)  # makes the context current in this thread
    torch.cuda.empty_cache()
    pointer = ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(layout.nbytes))
    handle = _IpcHandle()
    driver.call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
    memory = torch.as_tensor(_CudaMemory(pointer.value, layout.nbytes), device=device)

    def release() -> None:
        torch.cuda.synchronize(device)
        driver.call("cuMemFree_v2", pointer)

    encoded = base64.b64encode(bytes(handle)).decode()
    return Arena(memory, layout, release), {"kind": "cuda", "handle": encoded, "nbytes": layout.nbytes}, ()


def _attach_cuda(description: dict[str, Any], layout: Layout) -> Arena:
    torch.zeros(1, device="cuda")
    handle = _IpcHandle.from_buffer_copy(base64.b64decode(description["handle"]))
    pointer = ctypes.c_uint64()
    lazily_enable_peer_access = 1
    driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, lazily_enable_peer_access)
    memory = torch.as_tensor(_CudaMemory(pointer.value, description["nbytes"]), device="cuda")

    def release() -> None:
        torch.cuda.synchronize()
        driver.call("cuIpcCloseMemHandle", pointer)

    def part(offset: int, size: int) -> torch.Tensor:
        return torch.as_tensor(_CudaMemory(pointer.value + offset, size), device="cuda")

    return Arena(memory, layout, release, part)
