"""Compiles the CUDA C++ beside a kernel with NVRTC, makes tensor maps and launches, by the driver's own interface."""

import ctypes
from functools import cache
from pathlib import Path

import torch

# Of a tensor map: bfloat16, no interleaving, 128-byte swizzle, reads of 256 bytes into the L2 cache, zeros outside.
BFLOAT16, PLAIN, SWIZZLE_128, PROMOTE_256, ZEROS = 9, 0, 3, 3, 0
BOX = 64
PACKAGES = Path(torch.__file__).parent.parent
ALIGNMENT = 64
MAX_DYNAMIC_SHARED_BYTES = 8  # the attribute of a function

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


def arguments(name: str, maps: tuple[str, ...], numbers: tuple[str, ...]) -> type[ctypes.Structure]:
    """A kernel's struct of tensor maps and ints, as large as C++ makes it."""
    fields = [(field, Map) for field in maps] + [(field, ctypes.c_int) for field in numbers]
    padding = -4 * len(numbers) % ALIGNMENT
    fields += [("padding", ctypes.c_char * padding)] if padding else []
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def nvrtc(packages: Path) -> ctypes.CDLL:
    """The run-time compiler that came with PyTorch, or the system's. Raises `OSError` where there is none."""
    name = f"libnvrtc.so.{(torch.version.cuda or '13').partition('.')[0]}"
    found = sorted((packages / "nvidia").glob(f"*/lib/{name}"))
    if not found:
        return ctypes.CDLL(name)
    # It opens this one by its name alone.
    for builtins in found[0].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(found[0]))


def compiled(folder: Path, compiler: ctypes.CDLL) -> bytes:
    """The machine code of kernel.cu, which may include the .cuh files of its folder. Raises `RuntimeError`."""
    headers = sorted(folder.glob("*.cuh"))
    texts = [header.read_bytes() for header in headers]
    program = ctypes.c_void_p()
    many = ctypes.c_char_p * len(headers)
    source, names = (folder / "kernel.cu").read_bytes(), [header.name.encode() for header in headers]
    compiler.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernel.cu", len(headers), many(*texts), many(*names)
    )  # fmt: skip
    options = (b"--gpu-architecture=sm_90a", b"--std=c++17")
    failed = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if failed:
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"kernel.cu does not compile: {log.value.decode()}")
    compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetCUBIN(program, code)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


class Device:
    """One GPU with the kernels loaded. Raises `RuntimeError` for what the driver refuses."""

    def __init__(self, folder: Path, of: torch.device, threads: int, shared_bytes: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._threads, self._shared_bytes = threads, shared_bytes
        self.multiprocessors = torch.cuda.get_device_properties(of).multi_processor_count
        self._of = of
        torch.empty(1, device=of)  # makes its context the current one
        self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), compiled(folder, nvrtc(PACKAGES))))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def map(self, matrix: torch.Tensor) -> Map:
        """A matrix as boxes of 64 x 64; it may be some columns of a wider one."""
        room = ctypes.create_string_buffer(ctypes.sizeof(Map) + ALIGNMENT)  # the driver asks for its alignment
        offset = -ctypes.addressof(room) % ALIGNMENT
        rows, columns = matrix.shape
        sizes, stride = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(2 * matrix.stride(0))
        box, steps = (ctypes.c_uint32 * 2)(BOX, BOX), (ctypes.c_uint32 * 2)(1, 1)
        self._check(
            self._driver.cuTensorMapEncodeTiled(
                ctypes.byref(room, offset), BFLOAT16, 2, ctypes.c_void_p(matrix.data_ptr()), sizes, stride, box, steps,
                PLAIN, SWIZZLE_128, PROMOTE_256, ZEROS,
            )
        )  # fmt: skip
        return Map.from_buffer_copy(room, offset)

    def launch(self, name: str, what: ctypes.Structure, programs: int, early: bool = False) -> None:
        """On the current stream. The size of a cluster is in the machine code.

        early: it begins as soon as the launch before it lets it (programmatic dependent launch).
        """
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(what))
        stream = torch.cuda.current_stream(self._of).cuda_stream
        attributes = (_Attribute * 1)(_Attribute(EARLY, 1)) if early else None
        grid, block = (programs, 1, 1), (self._threads, 1, 1)
        config = _LaunchConfig(*grid, *block, self._shared_bytes, stream, attributes, int(early))
        self._check(self._driver.cuLaunchKernelEx(ctypes.byref(config), self._function(name), pointers, None))

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            found = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()))
            self._check(self._driver.cuFuncSetAttribute(found, MAX_DYNAMIC_SHARED_BYTES, self._shared_bytes))
            self._functions[name] = found
        return self._functions[name]

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"the driver says {status}: {(text.value or b'nothing more').decode()}")


@cache
def of_device(file: str, of: torch.device, threads: int, shared_bytes: int) -> Device:
    """The kernels of a file's folder on a device, loaded once."""
    return Device(Path(file).parent, of, threads, shared_bytes)
