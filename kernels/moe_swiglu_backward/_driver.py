"""Tensor maps and launches by the CUDA driver's own interface."""

import ctypes
from functools import cache

import torch

BFLOAT16 = 9  # a CUtensorMapDataType
ALIGNMENT = 64  # of a tensor map
PLAIN, ZEROS = 0, 0  # no interleaving; what is read outside is zero
EARLY = 6  # the attribute of a launch that allows programmatic stream serialization


class _Attribute(ctypes.Structure):
    """A CUlaunchAttribute, whose value here is an int."""

    _fields_ = (("id", ctypes.c_int), ("_", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))

    def __init__(self, id: int, value: int) -> None:
        super().__init__(id, 0, value)


class _LaunchConfig(ctypes.Structure):
    """A CUlaunchConfig."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Map(ctypes.Structure):
    """A CUtensorMap."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


class Room:
    """Memory as large as asked for, aligned as the driver wants a tensor map to be."""

    def __init__(self, size_bytes: int) -> None:
        self.memory = ctypes.create_string_buffer(size_bytes + ALIGNMENT)
        self.offset = -ctypes.addressof(self.memory) % ALIGNMENT
        self.address = ctypes.addressof(self.memory) + self.offset


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    """Raises `RuntimeError` for what the driver refuses."""
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"the driver says {status}: {(text.value or b'nothing more').decode()}")


def encode(
    address: int, data: int, shape: tuple[int, int], row_bytes: int, box: tuple[int, int], swizzle: int, promotion: int
) -> None:
    """Make a tensor map at `address` of a bfloat16 matrix at `data` with so many bytes from row to row.

    shape, box: rows and columns, of the matrix and of what is moved at a time. swizzle: a CUtensorMapSwizzle.
    promotion: a CUtensorMapL2promotion, how much the L2 cache reads at a time.
    """
    sizes, strides = (ctypes.c_uint64 * 2)(shape[1], shape[0]), (ctypes.c_uint64 * 1)(row_bytes)
    boxes, steps = (ctypes.c_uint32 * 2)(box[1], box[0]), (ctypes.c_uint32 * 2)(1, 1)
    check(
        library().cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), BFLOAT16, 2, ctypes.c_void_p(data), sizes, strides, boxes, steps,
            PLAIN, swizzle, promotion, ZEROS,
        )
    )  # fmt: skip


class Launch:
    """One launch with everything ready, on the current stream of a device.

    parameters: an address for each of the kernel's parameters; what they hold is read when it is launched.
    early: it begins as soon as the launch before it lets it (programmatic dependent launch). The size of a cluster is
    in the machine code.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        of: torch.device,
        programs: int,
        threads: int,
        shared_bytes: int,
        parameters: list[int],
        early: bool,
    ) -> None:
        stream = torch.cuda.current_stream(of).cuda_stream
        attributes = (_Attribute * 1)(_Attribute(EARLY, 1)) if early else None
        grid, block = (programs, 1, 1), (threads, 1, 1)
        config = _LaunchConfig(*grid, *block, shared_bytes, stream, attributes, int(early))
        pointers = (ctypes.c_void_p * len(parameters))(*parameters)
        self._arguments = (ctypes.byref(config), function, pointers, None)

    def go(self) -> None:
        """Raises `RuntimeError` where the driver refuses it."""
        check(library().cuLaunchKernelEx(*self._arguments))
