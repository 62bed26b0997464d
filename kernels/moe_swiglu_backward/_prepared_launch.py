"""Launches of Triton and Gluon kernels that leave the host nothing to do between them but one call of the driver.

Through Triton, a launch binds its arguments and makes a tensor map of each descriptor after the launch before it was
handed over. On a slow host that took 70 to 180 µs, in which the GPU had long ended the one before. Here all of it comes
before the first launch. The first call of a kernel is Triton's, which compiles it; so is every one with a Triton whose
calling convention is not known here, and in its interpreter.
"""

import ctypes
import struct
from collections.abc import Hashable
from typing import Any, NamedTuple

import driver
import torch
import triton
from triton.compiler import CompiledKernel

# Where a tensor is one parameter, an int has 32 bits, a descriptor is a tensor map with its sizes (32 bits each) and
# strides (64), and the addresses of two pieces of memory come last.
KNOWN = triton.__version__.startswith(("3.6.", "3.7."))
WARP = 32
PROMOTE_128 = 2  # what Triton asks of its tensor maps
MAP_BYTES = ctypes.sizeof(driver.Map)


class Request(NamedTuple):
    """A launch that is asked for. arguments: what is known only now; constants: what the kernel is compiled for.

    early: it begins as soon as the one before lets it (programmatic dependent launch).
    """

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]
    warps: int
    early: bool = False


class _Convention:
    """How a compiled kernel takes its arguments."""

    def __init__(self, compiled: CompiledKernel, arguments: tuple[Any, ...]) -> None:
        metadata = compiled.metadata
        self.function = ctypes.c_void_p(compiled.function)
        self.threads, self.shared_bytes = WARP * metadata.num_warps, metadata.shared
        maps = list(metadata.tensordesc_meta or ())
        kinds = ["map" if _is_descriptor(one) else "i" if isinstance(one, int) else "Q" for one in arguments]
        self.boxes = [(tuple(one["block_size"]), one["swizzle"]) for one in maps]
        self.values = struct.Struct("".join("iiqq" if kind == "map" else kind for kind in kinds) + "QQ")
        # Maps lie in front, since they are aligned most.
        self.offsets, ahead, number = [], "", 0
        for kind in [*kinds, "Q", "Q"]:
            if kind == "map":
                self.offsets.append(number * MAP_BYTES)
                number += 1
            for value in "iiqq" if kind == "map" else kind:
                ahead += value
                self.offsets.append(len(maps) * MAP_BYTES + struct.calcsize(ahead) - struct.calcsize(value))

    def ready(self, request: Request, of: torch.device) -> tuple[driver.Launch, driver.Room]:
        """The launch, and where its parameters are until it is made."""
        room = driver.Room(len(self.boxes) * MAP_BYTES + self.values.size)
        values: list[int] = []
        number = 0
        for argument in request.arguments:
            if isinstance(argument, int):
                values.append(argument)
            elif isinstance(argument, torch.Tensor):
                values.append(argument.data_ptr())
            else:
                matrix, (box, swizzle) = argument.base, self.boxes[number]
                row_bytes = matrix.element_size() * argument.strides[0]
                at, shape = room.address + number * MAP_BYTES, tuple(argument.shape)
                driver.encode(at, matrix.data_ptr(), shape, row_bytes, box, swizzle, PROMOTE_128)
                values += [*argument.shape, *argument.strides]
                number += 1
        self.values.pack_into(room.memory, room.offset + number * MAP_BYTES, *values, 0, 0)
        parameters = [room.address + offset for offset in self.offsets]
        launch = driver.Launch(
            self.function, of, request.programs, self.threads, self.shared_bytes, parameters, request.early
        )  # fmt: skip
        return launch, room


_conventions: dict[Hashable, _Convention] = {}


def _is_descriptor(argument: Any) -> bool:
    return not isinstance(argument, int | torch.Tensor)


def _kind(argument: Any) -> Hashable:
    """What of an argument Triton compiles anew for."""
    if isinstance(argument, int):
        return int
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument.base.dtype, *argument.block_shape


def _convention(compiled: Any, request: Request) -> _Convention | None:
    """How a kernel that was launched may be launched without Triton, where that is known."""
    if not isinstance(compiled, CompiledKernel):
        return None
    metadata = compiled.metadata
    plain = metadata.num_ctas == 1 and not metadata.global_scratch_size + metadata.profile_scratch_size
    # A descriptor without a tensor map of its own is passed in another way.
    described = sum(map(_is_descriptor, request.arguments))
    if not plain or len(metadata.tensordesc_meta or ()) != described:
        return None
    return _Convention(compiled, request.arguments)


def _by_triton(request: Request) -> Any:
    """Launch it; returns what Triton compiled."""
    options = {"launch_pdl": True} if request.early else {}
    return request.kernel[(request.programs,)](
        *request.arguments, *request.constants, num_warps=request.warps, **options
    )


def in_a_row(*requests: Request) -> None:
    """Launch them one after the other, on the current stream of the device of their tensors."""
    if not KNOWN:
        for one in requests:
            _by_triton(one)
        return
    of = next(one.device for one in requests[0].arguments if isinstance(one, torch.Tensor))
    keys = [(one.kernel, of, *map(_kind, one.arguments), one.constants, one.warps, one.early) for one in requests]
    if not all(key in _conventions for key in keys):
        for key, one in zip(keys, requests, strict=True):
            if how := _convention(_by_triton(one), one):
                _conventions[key] = how
        return
    prepared = [_conventions[key].ready(one, of) for key, one in zip(keys, requests, strict=True)]
    for one, _ in prepared:
        one.go()
