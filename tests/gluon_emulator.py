"""Runs kernels that are written in Gluon for Hopper on a CPU, as unkindly as the device may.

Triton has no interpreter for Gluon. Here the same source is executed by Python, with stand-ins for what it imports. A
program's partitions are threads, and programs run at the same time. What is asynchronous on the device happens as
late as it may here: loads arrive in random order with NaN in their place until then, products read their operands and
stores their memory only when they are waited for. So a wrong phase, a stage that is given back too early, a missing
fence or a wrong index shows as a wrong result or as a deadlock, which is an error after WAIT_S.

Matrices in shared memory lie as the device has them (128-byte swizzle aside): panels of 64 columns, one behind another.
"""

from __future__ import annotations

import builtins
import math
import operator
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

WAIT_S = 20.0
PANEL = 64
NAN = float("nan")


class Emulation(AssertionError):
    """What the device would not have done, or not in the end."""


# --- a launch and its threads ---------------------------------------------------------------------------------


class Launch:
    """What the programs of a launch share: their number, what copies for them, and the first error of any."""

    def __init__(self, programs: int) -> None:
        self.programs = programs
        self.error: BaseException | None = None
        self._copies: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._over = False
        self._engine = threading.Thread(target=self._kept, args=(self._copy_all,), daemon=True)
        self._engine.start()

    def together(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run all of them at the same time. An error is kept, and the others end because of it."""
        threads = [threading.Thread(target=self._kept, args=(function,), daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def copy_later(self, copy: Callable[[], None]) -> None:
        with self._changed:
            self._copies.append(copy)
            self._changed.notify()

    def close(self) -> None:
        """Wait for the last copies. Raises what went wrong."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._engine.join()
        if self.error:
            raise self.error

    def _copy_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._copies or self._over)
                if not self._copies:
                    return
                copy = self._copies.pop(random.randrange(len(self._copies)))
            copy()

    def _kept(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # also of the code under test
            self.error = self.error or error


class Here(threading.local):
    """Of a thread: its launch and program, and what is on its way.

    stores: those that have not read what they store. unwritten: those that have, and have not written it.
    unfenced: what was written since the last fence.
    polling_since: when it began to look at a counter again and again.
    """

    launch: Launch
    program: int
    stores: list[tuple[Descriptor, Sequence[int], Piece]]
    unwritten: list[tuple[Descriptor, Sequence[int], torch.Tensor]]
    unfenced: set[int]
    polling_since: float | None


HERE = Here()


def run_partition(launch: Launch, program: int, function: Callable[..., None], arguments: Sequence[Any]) -> None:
    HERE.launch, HERE.program, HERE.stores, HERE.unfenced = launch, program, [], set()
    HERE.unwritten, HERE.polling_since = [], None
    function(*arguments)
    if HERE.stores:
        raise Emulation("a program ends before its stores have read what they store")
    _write_all()


# --- values, shared memory, barriers ------------------------------------------------------------------------


class Value:
    """A tensor in registers."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=None)

    def to(self, dtype: torch.dtype) -> Value:
        return Value(self.data.to(dtype))

    def reshape(self, shape: Sequence[int]) -> Value:
        return Value(self.data.reshape(tuple(shape)))

    def permute(self, *order: int) -> Value:
        return Value(self.data.permute(*order))

    def split(self) -> tuple[Value, Value]:
        return Value(self.data[..., 0]), Value(self.data[..., 1])

    def __neg__(self) -> Value:
        return Value(-self.data)


def _of(value: Any) -> Any:
    return value.data if isinstance(value, Value) else value


def _add_arithmetic(name: str) -> None:
    function = getattr(operator, name)
    setattr(Value, f"__{name}__", lambda self, other: Value(function(self.data, _of(other))))
    setattr(Value, f"__r{name}__", lambda self, other: Value(function(_of(other), self.data)))


for _name in ("add", "sub", "mul", "truediv"):
    _add_arithmetic(_name)


class Piece:
    """A matrix, or several one behind another, in shared memory. `shape`: of several [count, rows, columns]."""

    def __init__(self, flat: torch.Tensor, shape: Sequence[int], transposed: bool = False) -> None:
        self.flat, self.shape, self.transposed = flat, tuple(shape), transposed

    def index(self, number: int) -> Piece:
        if not 0 <= number < self.shape[0]:
            raise Emulation(f"piece {number} of {self.shape[0]}")
        size = math.prod(self.shape[1:])
        return Piece(self.flat[number * size : (number + 1) * size], self.shape[1:])

    def permute(self, order: Sequence[int]) -> Piece:
        assert tuple(order) == (1, 0)
        return Piece(self.flat, self.shape, not self.transposed)

    def _reinterpret(self, dtype: torch.dtype, shape: Sequence[int], layout: object) -> Piece:
        assert dtype == self.flat.dtype
        assert math.prod(shape) == math.prod(self.shape)
        return Piece(self.flat, shape)

    def _panels(self) -> torch.Tensor:
        rows, columns = self.shape
        width = min(PANEL, columns)
        return self.flat.view(columns // width, rows, width)

    def read(self) -> torch.Tensor:
        matrix = self._panels().permute(1, 0, 2).reshape(self.shape) if len(self.shape) == 2 else self.flat
        return matrix.T if self.transposed else matrix.clone()

    def write(self, matrix: torch.Tensor) -> None:
        if len(self.shape) == 1:
            self.flat.copy_(matrix)
            return
        rows, columns = self.shape
        width = min(PANEL, columns)
        self._panels().copy_(matrix.view(rows, columns // width, width).permute(1, 0, 2))

    def load(self, layout: object) -> Value:
        return Value(self.read())

    def store(self, value: Value) -> None:
        self.write(value.data)
        HERE.unfenced.add(self.flat.data_ptr())


class Barrier:
    """Completes a phase when all have arrived and all bytes have come."""

    def __init__(self) -> None:
        self.count = self.waited_for = 0
        self.bytes_on_the_way = 0
        self.phase = 0
        self.changed = threading.Condition()

    def update(self, arrivals: int, byte_count: int) -> None:
        with self.changed:
            if not self.count:
                raise Emulation("a barrier is used before it is made")
            self.waited_for -= arrivals
            self.bytes_on_the_way += byte_count
            if self.waited_for < 0:
                raise Emulation("more arrivals than a barrier counts")
            if self.waited_for == 0 and self.bytes_on_the_way == 0:
                self.phase += 1
                self.waited_for = self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            began = time.monotonic()
            while not self.changed.wait_for(lambda: self.phase % 2 != parity, timeout=0.1):
                if HERE.launch.error:
                    raise Emulation("another partition failed")
                if time.monotonic() - began > WAIT_S:
                    raise Emulation("deadlock: a barrier is waited for and never completed")


class Barriers:
    def __init__(self, count: int) -> None:
        self._all = [Barrier() for _ in range(count)]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._all), 1

    def index(self, number: int) -> Barrier:
        return self._all[number]


class Descriptor:
    """A matrix in global memory, as the copy engine sees it."""

    def __init__(self, matrix: torch.Tensor, block: Sequence[int]) -> None:
        assert matrix.dim() == 2
        assert matrix.stride(1) == 1
        # What the hardware asks for.
        assert matrix.data_ptr() % 16 == 0
        assert matrix.stride(0) * matrix.element_size() % 16 == 0
        self.matrix, self.block = matrix, tuple(block)

    @staticmethod
    def from_tensor(matrix: torch.Tensor, block: Sequence[int], layout: object) -> Descriptor:
        return Descriptor(matrix, block)

    def inside(self, at: Sequence[int]) -> torch.Tensor:
        row, column = at
        return self.matrix[max(row, 0) : row + self.block[0], max(column, 0) : column + self.block[1]]

    def taken(self, at: Sequence[int]) -> torch.Tensor:
        """A block, with zeros where the matrix has ended."""
        found = self.inside(at)
        block = torch.zeros(self.block, dtype=self.matrix.dtype)
        block[: found.shape[0], : found.shape[1]] = found
        return block

    def put(self, at: Sequence[int], block: torch.Tensor) -> None:
        place = self.inside(at)
        place.copy_(block[: place.shape[0], : place.shape[1]])


class Sums:
    """An accumulator and the products that are on their way to it."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.waiting: list[tuple[Piece, Piece, bool]] = []


# --- stand-ins ------------------------------------------------------------------------------------------------


def _load(source: Descriptor, at: Sequence[int], barrier: Barrier, piece: Piece) -> None:
    assert source.block == piece.shape, f"a block of {source.block} into {piece.shape}"
    piece.flat.fill_(NAN)

    def copy() -> None:
        if random.random() < 0.2:
            time.sleep(1e-4)
        piece.write(source.taken(at))
        barrier.update(0, -piece.flat.numel() * piece.flat.element_size())

    HERE.launch.copy_later(copy)


def _store(target: Descriptor, at: Sequence[int], piece: Piece) -> None:
    if piece.flat.data_ptr() in HERE.unfenced:
        raise Emulation("a store without a fence behind what it reads")
    assert target.block == piece.shape
    HERE.stores.append((target, at, piece))


def _store_wait(count: int) -> None:
    while len(HERE.stores) > count:
        target, at, piece = HERE.stores.pop(0)
        HERE.unwritten.append((target, at, piece.read()))


def _write_all() -> None:
    while HERE.unwritten:
        target, at, block = HERE.unwritten.pop(0)
        target.put(at, block)


def _assembly(text: str, *_: object, **__: object) -> None:
    """Of PTX, what kernels write between their products: waiting until stores are written; fences do nothing here."""
    for line in filter(None, map(str.strip, text.split(";"))):
        if line == "cp.async.bulk.wait_group 0":
            _store_wait(0)
            time.sleep(random.choice((0, 0.02)))
            _write_all()
        elif line not in ("fence.proxy.async", "mov.u32 $0, 0"):
            raise Emulation(f"what does {line} do?")


def _multiply(left: Piece, right: Piece, sums: Any, *, use_acc: bool, is_async: bool) -> Sums:
    assert is_async
    found = sums if isinstance(sums, Sums) else Sums(sums)
    found.waiting.append((left, right, use_acc))
    return found


def _multiply_wait(count: int, deps: Sequence[Sums]) -> Any:
    (sums,) = deps
    while len(sums.waiting) > count:
        left, right, use = sums.waiting.pop(0)
        product = left.read().float() @ right.read().float()
        sums.value = Value(sums.value.data + product if use else product)
    return sums if sums.waiting else sums.value


def _fence() -> None:
    HERE.unfenced.clear()


def _expect(barrier: Barrier, byte_count: int) -> None:
    barrier.update(1, byte_count)


def _arrive(barrier: Barrier, *, count: int = 1, pred: bool = True) -> None:
    if pred:
        barrier.update(count, 0)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.waited_for = count


def _allocate(dtype: torch.dtype, shape: Sequence[int], layout: object) -> Any:
    if dtype == torch.int64:
        return Barriers(shape[0])
    fill = NAN if dtype.is_floating_point else -1
    return Piece(torch.full((math.prod(shape),), fill, dtype=dtype), shape)


class Pointer:
    """To an int32 in global memory."""

    def __init__(self, memory: torch.Tensor, index: int = 0) -> None:
        self._memory, self._index = memory, index

    def __add__(self, count: int) -> Pointer:
        if not 0 <= self._index + count < len(self._memory):
            raise Emulation("a pointer to other memory")
        return Pointer(self._memory, self._index + count)

    def add(self, amount: int) -> int:
        before = int(self._memory[self._index])
        self._memory[self._index] = before + amount
        return before

    def store(self, value: int) -> None:
        self._memory[self._index] = value


def _atomic_add(counter: Pointer, amount: int, sem: str) -> int:
    with _ATOMIC:
        before = counter.add(amount)
    now = time.monotonic()
    if amount:
        HERE.polling_since = None
        return before
    # Nothing is added: a program looks whether others have come so far.
    HERE.polling_since = HERE.polling_since or now
    if HERE.launch.error:
        raise Emulation("another partition failed")
    if now - HERE.polling_since > WAIT_S:
        raise Emulation("deadlock: a counter is waited for that does not rise")
    time.sleep(1e-4)
    return before


_ATOMIC = threading.Lock()


def _specialize(parts: Sequence[tuple[Callable[..., None], Sequence[Any]]], warps: object, registers: object) -> None:
    HERE.launch.together([partial(run_partition, HERE.launch, HERE.program, *part) for part in parts])


class Kernel:
    """A function that is called is itself; one that is launched runs all programs at the same time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self._launch, grid[0])

    def _launch(self, programs: int, *arguments: Any, **options: object) -> None:
        arguments = tuple(Pointer(a) if isinstance(a, torch.Tensor) else a for a in arguments)
        launch = Launch(programs)
        launch.together([partial(run_partition, launch, n, self._function, arguments) for n in range(programs)])
        launch.close()


def _jit(function: Callable[..., Any] | None = None, **options: object) -> Any:
    return Kernel(function) if function else Kernel


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _names(**names: Any) -> SimpleNamespace:
    return SimpleNamespace(**names)


LANGUAGE = _names(
    constexpr=lambda value: value,
    to_tensor=lambda value: value,
    static_range=range,
    minimum=min,
    cdiv=_cdiv,
    where=lambda condition, yes, no: yes if condition else no,
    program_id=lambda axis: HERE.program,
    num_programs=lambda axis: HERE.launch.programs,
    num_warps=lambda: None,  # layouts are of no meaning here
    zeros=lambda shape, dtype, layout: Value(torch.full(shape, NAN, dtype=dtype)),  # only the first product makes zeros
    full=lambda shape, value, dtype, layout: Value(torch.full(shape, value, dtype=dtype)),
    exp=lambda value: Value(torch.exp(value.data)),
    sum=lambda value, axis: int(value.data.sum()),
    atomic_add=_atomic_add,
    store=Pointer.store,
    barrier=lambda: None,  # the threads of a partition are one here
    inline_asm_elementwise=_assembly,
    allocate_shared_memory=_allocate,
    warp_specialize=_specialize,
    bfloat16=torch.bfloat16,
    float32=torch.float32,
    int32=torch.int32,
    int64=torch.int64,
    NVMMASharedLayout=_names,
    NVMMADistributedLayout=lambda *_: None,
    SwizzledSharedLayout=lambda *_: None,
    BlockedLayout=lambda *_: None,
)
HOPPER = _names(
    fence_async_shared=_fence,
    mbarrier=_names(init=_init, expect=_expect, arrive=_arrive, wait=Barrier.wait, MBarrierLayout=lambda: None),
    tma=_names(async_copy_global_to_shared=_load, async_copy_shared_to_global=_store, store_wait=_store_wait),
    warpgroup_mma=_multiply,
    warpgroup_mma_wait=_multiply_wait,
)
GLUON = _names(jit=_jit, language=LANGUAGE)
TRITON = _names(cdiv=_cdiv, experimental=_names(gluon=GLUON), __version__="emulated")
MODULES = {
    "triton": TRITON,
    "triton.compiler": _names(CompiledKernel=None),  # nothing is compiled
    "triton.experimental": TRITON.experimental,
    "triton.experimental.gluon": GLUON,
    "triton.experimental.gluon.language": LANGUAGE,
    "triton.experimental.gluon.language.nvidia.hopper": HOPPER,
    # One launch follows the other here.
    "triton.language.extra.cuda": _names(gdc_wait=lambda: None, gdc_launch_dependents=lambda: None),
    "triton.experimental.gluon.nvidia.hopper": _names(TensorDescriptor=Descriptor),
}


def load(file: Path, multiprocessors: int = 3) -> ModuleType:
    """The module of a kernel's file, to be run here. Modules beside it are loaded in the same way."""
    module = ModuleType(file.stem)

    def imported(name: str, *where: Any) -> Any:
        fromlist = where[2] if len(where) > 2 else None
        if name in MODULES:
            return MODULES[name] if fromlist else TRITON
        if (beside := file.parent / f"{name}.py").exists():
            return load(beside, multiprocessors)
        return builtins.__import__(name, *where)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": imported}
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    if "programs" in module.__dict__:
        module.__dict__["programs"] = lambda device, tiles: min(tiles, multiprocessors)
    return module
