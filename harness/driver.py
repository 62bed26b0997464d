"""The CUDA driver's own functions, where PyTorch has none, or none that a candidate cannot replace."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def has(name: str) -> bool:
    """Whether this driver is new enough to have the function."""
    try:
        getattr(library(), name)
    except (OSError, AttributeError):
        return False
    return True


def sees_all_streams() -> bool:
    """Whether an event may stand for all streams of a context: from the driver of CUDA 12.5 on."""
    return has("cuCtxRecordEvent") and has("cuCtxWaitEvent")


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises `torch.OutOfMemoryError` or `RuntimeError` when it fails."""
    checked(getattr(library(), name)(*arguments), name)


def checked(result: int, what: str) -> None:
    """Raise what a result other than 0 means."""
    if result == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"{what}: the GPU has not enough free memory")
    if result:
        text = ctypes.c_char_p()
        library().cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"{what} failed: {(text.value or b'').decode()} ({result})")


class Event:
    """A CUDA event that keeps time."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self._handle), 0)

    def record(self, stream: ctypes.c_void_p) -> None:
        call("cuEventRecord", self._handle, stream)

    def record_all_streams(self, context: ctypes.c_void_p) -> None:
        """Happens when everything that the context's streams, all of them, hold by now has ended."""
        call("cuCtxRecordEvent", context, self._handle)

    def hold_all_streams(self, context: ctypes.c_void_p) -> None:
        """Whatever any stream of the context is given from now on waits for this event."""
        call("cuCtxWaitEvent", context, self._handle)

    def synchronize(self) -> None:
        call("cuEventSynchronize", self._handle)

    def ms_since(self, start: Event) -> float:
        """The time from `start` to this event; both have happened."""
        elapsed_ms = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(elapsed_ms), start._handle, self._handle)
        return elapsed_ms.value


def handle(stream: torch.cuda.Stream) -> ctypes.c_void_p:
    """A stream of PyTorch's as the driver knows it."""
    return ctypes.c_void_p(stream.cuda_stream)


def current_context() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context


_LIMIT_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


def forget_persisting_l2() -> None:
    """Let go of cache lines that a candidate asked the L2 to keep, and of the share set aside for them."""
    call("cuCtxResetPersistingL2Cache")
    call("cuCtxSetLimit", _LIMIT_PERSISTING_L2, ctypes.c_size_t(0))
