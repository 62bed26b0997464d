"""What a candidate did besides computing: facts for the judge, gathered in the worker.

The functions used here are bound when the worker starts, before any candidate is loaded, so that one that
replaces them is seen and changes nothing.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _dispatch_modes

# What cheats have been seen to replace: clocks, synchronisation, comparison, statistics, and copies of results.
_WATCHED: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")),
    *((time, name) for name in ("process_time", "sleep")),
    *((statistics, name) for name in ("mean", "median", "fmean")),
    *((torch, name) for name in ("allclose", "equal", "isclose", "isfinite", "isnan", "empty", "no_grad")),
    *((torch.testing, name) for name in ("assert_close", "assert_allclose")),
    *((torch.cuda, name) for name in ("synchronize", "current_stream", "Event", "_sleep")),
    *((torch.cuda.Event, name) for name in ("record", "elapsed_time", "synchronize", "query", "wait")),
    *((torch.cuda.Stream, name) for name in ("synchronize", "wait_stream")),
    *((torch.Tensor, name) for name in ("copy_", "data_ptr", "shape", "dtype", "device", "is_contiguous", "max")),
    *((torch.Tensor, name) for name in ("__torch_function__", "clone", "to", "cpu", "stride", "storage_offset")),
)


class Integrity:
    """Made before a candidate is loaded; each method then tells what it finds."""

    def __init__(self) -> None:
        self._watched = [(owner, name, _attribute(owner, name)) for owner, name in _WATCHED]
        self._tensor = torch.Tensor
        self._copy: Callable[..., Any] = torch.Tensor.copy_
        self._pointer: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
        self._set_stream: Callable[[torch.cuda.Stream], None] = torch.cuda.set_stream
        self.synchronize: Callable[[], None] = torch.cuda.synchronize
        self._own_threads = set(threading.enumerate())

    def is_tensor(self, item: object) -> bool:
        return isinstance(item, self._tensor)

    def is_plain(self, item: object) -> bool:
        """Whether it is a tensor and no subclass, which could compute when it is looked at."""
        return type(item) is self._tensor

    def copy(self, place: torch.Tensor, item: torch.Tensor) -> None:
        """Copy a plain tensor, with no mode of the candidate's in between."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            self._copy(place, item)

    def back_to(self, stream: torch.cuda.Stream) -> None:
        """Make the stream current on which the call began, should the candidate have left another."""
        self._set_stream(stream)

    def facts(
        self,
        outputs: Mapping[str, torch.Tensor],
        inputs: Mapping[str, torch.Tensor],
        places: Sequence[torch.Tensor],
        earlier: Sequence[torch.Tensor],
    ) -> dict[str, Any]:
        """What the judge wants to know after every call, as JSON.

        replaced: watched functions that are no longer what they were. modes: active modes that intercept
        PyTorch's operations. shares: pairs of names of an output and what it lies in. kept: outputs in
        memory that an earlier call's outputs, which are still held, lie in.
        """
        spans = {name: self._span(tensor) for name, tensor in outputs.items()}
        pairs = []
        for name, span in spans.items():
            pairs += [[name, other] for other, tensor in inputs.items() if _overlap(span, self._span(tensor))]
            if any(_overlap(span, self._span(place)) for place in places):
                pairs.append([name, "memory of the harness"])
        names = list(spans)
        for position, name in enumerate(names):
            pairs += [[name, other] for other in names[:position] if _overlap(spans[name], spans[other])]
        held = [self._span(tensor) for tensor in earlier]
        return {
            "replaced": [
                _called(owner, name) for owner, name, was in self._watched if _attribute(owner, name) is not was
            ],
            "modes": [
                type(mode).__name__
                for mode in (*_dispatch_modes(), *_function_modes())
                if type(mode) is not DeviceContext  # what torch.set_default_device leaves
            ],
            "shares": pairs,
            "kept": [name for name, span in spans.items() if any(_overlap(span, other) for other in held)],
        }

    def _span(self, tensor: torch.Tensor) -> tuple[int, int]:
        """First byte and the one behind the last that the tensor's elements lie in."""
        if tensor.numel() == 0 or tensor.layout is not torch.strided:
            return (0, 0)
        first = self._pointer(tensor)
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return (first, first + (steps + 1) * tensor.element_size())

    def threads(self) -> list[str]:
        """Names of Python threads that are running and were not when the worker started."""
        return sorted(t.name for t in threading.enumerate() if t not in self._own_threads and t.is_alive())


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _attribute(owner: Any, name: str) -> Any:
    # As it is stored, because a method looked up twice is two objects.
    for holder in getattr(owner, "__mro__", (owner,)):
        if name in vars(holder):
            return vars(holder)[name]
    return None


def _called(owner: Any, name: str) -> str:
    kind = owner.__name__ if hasattr(owner, "__mro__") else ""
    module = owner.__module__ if kind else owner.__name__
    return ".".join(filter(None, (module.removesuffix("._tensor").removesuffix(".streams"), kind, name)))
