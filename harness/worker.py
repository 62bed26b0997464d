"""The child process that runs a candidate: maps the shared memory, calls `run`, times it, reports facts.

Started by the runner as `python -m harness.worker`. It is told shapes and addresses, never seeds,
references or limits, and it decides nothing: replies are facts for the judge. Every call is made the same
way, and which of the timed ones are checked only the judge knows.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import reaper
from harness.channel import CHANNEL_VARIABLE, Channel, ChannelClosed, Message

if TYPE_CHECKING:
    import torch

    from harness.arena import Arena
    from harness.timing import Timer

# PyTorch's CPU allocator has no exception type of its own, only its name in a RuntimeError's message.
_CPU_ALLOCATOR_MARK = "DefaultCPUAllocator"
# Modules whose exceptions mean that the candidate's code could not be compiled.
_COMPILERS = ("triton.compiler", "torch._dynamo", "torch._inductor", "torch.utils.cpp_extension")


class Worker:
    """The state between messages: a device, a loaded candidate, an open case."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.device: torch.device
        self.timer: Timer
        self.run: Any = None
        self.entry = ""
        self.destination_passing = False
        self.arena: Arena | None = None
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def serve(self) -> None:
        """Answer messages until the judge hangs up."""
        handlers = {"start": self.start, "load": self.load, "open": self.open, "call": self.call, "close": self.close}
        while True:
            message, descriptors = self.channel.receive()
            try:
                reply = handlers[message["op"]](message, descriptors)
            except BaseException as error:  # also SystemExit: a candidate may call sys.exit
                reply = {"error": _describe(error, self.entry)}
            self.channel.send(reply)

    def start(self, message: Message, _: tuple[int, ...]) -> Message:
        """Choose the device and set up timing; imports torch."""
        if limit := message["memory_limit_bytes"]:
            # Private memory that can be written: shared mappings and reserved addresses do not count.
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        import torch

        from harness import timing

        self.device = torch.device(message["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.timer = timing.make(message["backend"], self.device, message["cold_cache"])
        return {"floor_ms": self.timer.floor_ms()}

    def load(self, message: Message, _: tuple[int, ...]) -> Message:
        """Import the candidate."""
        import importlib.util

        self.entry = message["entry"]
        self.destination_passing = message["destination_passing_style"]
        if message["folder"]:
            # Only a folder's files are all in its hash; a single file has no helpers beside it.
            sys.path.insert(0, message["folder"])
        spec = importlib.util.spec_from_file_location("solbench_candidate", self.entry)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            return {"error": {**_describe(error, self.entry), "kind": "compile"}}
        self.run = getattr(module, "run", None)
        if not callable(self.run):
            return {"error": {"kind": "compile", "text": "the file defines no callable run"}}
        return {}

    def open(self, message: Message, descriptors: tuple[int, ...]) -> Message:
        """Map the memory of one case."""
        from harness import arena
        from harness.arena import Layout

        self.inputs = [_Shape(**tensor) for tensor in message["inputs"]]
        self.outputs = [_Shape(**tensor) for tensor in message["outputs"]]
        layout = Layout.of(self.inputs, self.outputs)
        self.arena = arena.attach(message["arena"], descriptors, layout)
        return {}

    def call(self, message: Message, _: tuple[int, ...]) -> Message:
        """Run the candidate once on the inputs of the given call, and copy its outputs out."""
        import torch

        assert self.arena is not None
        arguments = self.arena.inputs(self.inputs, message["call"])
        places = self.arena.outputs(self.outputs)
        names = [tensor.name for tensor in self.outputs]
        if self.destination_passing:
            arguments += places
        with torch.no_grad():
            returned, sample = self.timer.measure(lambda: self.run(*arguments))
            if self.destination_passing:
                returned = places
            items = _items(returned, names)
            if items is not None:
                for place, item in zip(places, items, strict=False):
                    if isinstance(item, torch.Tensor) and item is not place and item.shape == place.shape:
                        place.copy_(item)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {
            "time_ms": sample.time_ms,
            "held": sample.held,
            "returned": _describe_returned(returned, items, names),
        }

    def close(self, message: Message, _: tuple[int, ...]) -> Message:
        """Let go of the case's memory, and say how much was needed."""
        import torch

        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_reserved()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"peak_bytes": peak}


class _Shape:
    def __init__(self, name: str, shape: list[int], dtype: str) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), dtype


def _items(returned: Any, names: list[str]) -> list[Any] | None:
    """The returned values as a list, a dict's in the order of `names`; None for anything else."""
    import torch

    if isinstance(returned, torch.Tensor):
        return [returned]
    if isinstance(returned, dict):
        return [returned[name] for name in _keys_in_order(returned, names)]
    return list(returned) if isinstance(returned, (tuple, list)) else None


def _keys_in_order(returned: dict[Any, Any], names: list[str]) -> list[Any]:
    return [name for name in names if name in returned] + [key for key in returned if key not in names]


def _describe_returned(returned: Any, items: list[Any] | None, names: list[str]) -> Message:
    import torch

    kind = type(returned).__name__
    if items is None:
        return {"type": kind, "names": None, "items": None}
    described: list[Message] = []
    for item in items[: len(names) + 8]:
        facts: Message = {"type": f"{type(item).__module__}.{type(item).__qualname__}"}
        if isinstance(item, torch.Tensor):
            facts |= {
                "shape": list(item.shape),
                "dtype": str(item.dtype).removeprefix("torch."),
                "device": item.device.type,
                "layout": str(item.layout).removeprefix("torch."),
                "contiguous": item.layout == torch.strided and item.is_contiguous(),
            }
        described.append(facts)
    keys = [str(key) for key in _keys_in_order(returned, names)] if isinstance(returned, dict) else None
    return {"type": kind, "names": keys and keys[: len(names) + 8], "items": described, "count": len(items)}


def _describe(error: BaseException, entry: str) -> Message:
    """An exception as facts: what kind of failure, its text, and the candidate's line it came from."""
    kind = "runtime"
    lineage = [cls.__module__ for cls in type(error).__mro__]
    if isinstance(error, _memory_errors()) or (isinstance(error, RuntimeError) and _CPU_ALLOCATOR_MARK in str(error)):
        kind = "memory"
    elif any(module.startswith(_COMPILERS) for module in lineage):
        kind = "compile"
    try:
        text = " ".join(str(error).split())[:400]
    except Exception:  # the candidate's own exception, whose text is its code too
        text = "an exception whose text cannot be made"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == entry:
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f" ({os.path.basename(entry)}:{line})" if line else ""
    return {"kind": kind, "text": f"{type(error).__name__}{': ' + text if text else ''}{place}"}


def _memory_errors() -> tuple[type[BaseException], ...]:
    torch = sys.modules.get("torch")  # not imported for this: an error may come before it is loaded
    return (MemoryError, torch.OutOfMemoryError) if torch else (MemoryError,)


def main() -> None:
    """Fork the supervisor, then serve the channel that the runner passed in the environment."""
    descriptor = int(os.environ.pop(CHANNEL_VARIABLE))
    reaper.guard(keep_for_worker=descriptor)
    with contextlib.suppress(OSError):
        # When the machine's memory runs out, the kernel should end this process, not the judge.
        Path("/proc/self/oom_score_adj").write_text("800")
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    with contextlib.suppress(ChannelClosed):
        Worker(Channel(end)).serve()
    # Not sys.exit: threads that the candidate left running must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
