"""Compiles the CUDA C++ beside a kernel with NVRTC, and launches it."""

import ctypes
from functools import cache
from pathlib import Path

import driver
import torch
from driver import Map

SWIZZLE_128, PROMOTE_256 = 3, 3  # of a tensor map
BOX = 64
PACKAGES = Path(torch.__file__).parent.parent
MAX_DYNAMIC_SHARED_BYTES = 8  # the attribute of a function


def arguments(name: str, maps: tuple[str, ...], numbers: tuple[str, ...]) -> type[ctypes.Structure]:
    """A kernel's struct of tensor maps and ints, as large as C++ makes it."""
    fields = [(field, Map) for field in maps] + [(field, ctypes.c_int) for field in numbers]
    padding = -4 * len(numbers) % driver.ALIGNMENT
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
        self._threads, self._shared_bytes = threads, shared_bytes
        self.multiprocessors = torch.cuda.get_device_properties(of).multi_processor_count
        self._of = of
        torch.empty(1, device=of)  # makes its context the current one
        self._module = ctypes.c_void_p()
        code = compiled(folder, nvrtc(PACKAGES))
        driver.check(driver.library().cuModuleLoadData(ctypes.byref(self._module), code))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def map(self, matrix: torch.Tensor) -> Map:
        """A matrix as boxes of 64 x 64; it may be some columns of a wider one."""
        room = driver.Room(ctypes.sizeof(Map))
        row_bytes = matrix.element_size() * matrix.stride(0)
        driver.encode(
            room.address, matrix.data_ptr(), tuple(matrix.shape), row_bytes, (BOX, BOX), SWIZZLE_128, PROMOTE_256
        )  # fmt: skip
        return Map.from_buffer_copy(room.memory, room.offset)

    def launch(self, name: str, what: ctypes.Structure, programs: int, early: bool = False) -> None:
        """On the current stream. early: as `driver.Launch` has it."""
        parameters = [ctypes.addressof(what)]
        driver.Launch(
            self._function(name), self._of, programs, self._threads, self._shared_bytes, parameters, early
        ).go()  # fmt: skip

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            found = ctypes.c_void_p()
            driver.check(driver.library().cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()))
            driver.check(driver.library().cuFuncSetAttribute(found, MAX_DYNAMIC_SHARED_BYTES, self._shared_bytes))
            self._functions[name] = found
        return self._functions[name]


@cache
def of_device(file: str, of: torch.device, threads: int, shared_bytes: int) -> Device:
    """The kernels of a file's folder on a device, loaded once."""
    return Device(Path(file).parent, of, threads, shared_bytes)
