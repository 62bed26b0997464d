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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import reaper, sandbox
from harness.channel import CHANNEL_VARIABLE, Channel, ChannelClosed, Message

if TYPE_CHECKING:
    import torch

    from harness.arena import Arena
    from harness.integrity import Integrity
    from harness.sample import Sample
    from harness.timing import Held, Timer

# PyTorch's CPU allocator has no exception type of its own, only its name in a RuntimeError's message.
_CPU_ALLOCATOR_MARK = "DefaultCPUAllocator"
# Modules whose exceptions mean that the candidate's code could not be compiled.
_COMPILERS = ("triton.compiler", "torch._dynamo", "torch._inductor", "torch.utils.cpp_extension")


class Worker:
    """The state between messages: a device, a loaded candidate, an open case."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.nonce = ""
        self.device: torch.device
        self.timers: dict[str, Timer] = {}
        self.held: Held | None = None
        self.integrity: Integrity
        self.run: Any = None
        self.entry = ""
        self.destination_passing = False
        self.arena: Arena | None = None
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        # The outputs of the last correctness round, so that no honest allocator gives their memory away.
        self.earlier: list[torch.Tensor] = []

    def serve(self) -> None:
        """Answer messages until the judge hangs up."""
        handlers = {
            "prepare": self.prepare,
            "start": self.start,
            "rehearse": self.rehearse,
            "load": self.load,
            "open": self.open,
            "call": self.call,
            "close": self.close,
        }
        while True:
            message, descriptors = self.channel.receive()
            # Every reply carries the number that the judge drew for this request, so that none can be older.
            self.nonce = message["nonce"]
            try:
                reply = handlers[message["op"]](message, descriptors)
            except BaseException as error:  # also SystemExit: a candidate may call sys.exit
                reply = {"error": _describe(error, self.entry)}
            self.say(reply)

    def say(self, reply: Message) -> None:
        self.channel.send({**reply, "nonce": self.nonce})

    def prepare(self, message: Message, _: tuple[int, ...]) -> Message:
        """Import what takes long, and choose the device."""
        import torch

        from harness import timing  # noqa: F401

        self.device = torch.device(message["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)  # makes the context current
        return {}

    def start(self, message: Message, descriptors: tuple[int, ...]) -> Message:
        """Set up timing, and read what next to nothing takes."""
        from harness import timing
        from harness.integrity import Integrity

        if descriptors:
            self.held = timing.Held(descriptors[0])
        for backend in message["backends"]:
            self.timers[backend] = self._timer(backend)
        self.integrity = Integrity()
        floors_ms = {backend: timer.floor_ms() for backend, timer in self.timers.items()}
        if self.held:
            floors_ms["queued"] = self.held.floor_ms()
        # Private memory that can be written, beyond what is there now: shared mappings and reserved addresses do
        # not count.
        limit = message["memory_limit_bytes"] + _private_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return {
            "floors_ms": floors_ms,
            "empty_ms": self.held.empty_ms if self.held else None,
        }

    def _timer(self, backend: str) -> Timer:
        from harness import cupti, timing

        return cupti.CuptiTimer() if backend == "cupti" else timing.make(backend, self.device)

    def rehearse(self, message: Message, _: tuple[int, ...]) -> Message:
        """A call of nothing, before any candidate is loaded: what the judge's clock reads without one."""
        least = None if message["ticket"] else self.timers[message["backend"]].least_call

        def call() -> _Returned:
            if least:
                least()
            return _Returned("nothing", None, None)

        sample = self._timed(message, call, [])[1]
        return {"time_ms": sample.time_ms}

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

        def call() -> _Returned:
            if self.destination_passing:
                self.run(*arguments, *places)
                return _Returned("tuple", None, list(places))
            return _unpacked(self.run(*arguments), names)

        with torch.no_grad():
            returned, sample = self._timed(message, call, [] if self.destination_passing else places)
        tensors = {
            name: item
            for name, item in zip(names, returned.items or [], strict=False)
            if self.integrity.is_plain(item) and not any(item is place for place in places)
        }
        given = dict(zip((tensor.name for tensor in self.inputs), arguments, strict=True))
        facts = {
            "time_ms": sample.time_ms,
            "held": sample.held,
            "other_streams": sample.other_streams,
            "detail": sample.detail,
            "returned": returned.described(len(names) + 8, self.integrity),
            **self.integrity.facts(tensors, given, places, self.earlier),
        }
        if message["keep_outputs"]:
            self.earlier = list(tensors.values())
        elif self.earlier:
            self.earlier = []
        return facts

    def _timed(
        self, message: Message, call: Callable[[], _Returned], places: list[torch.Tensor]
    ) -> tuple[_Returned, Sample]:
        """Make one call as the judge asks, tell it when the call is over, and copy the outputs to `places`."""
        if message["ticket"] is None:
            timer = self.timers[message["backend"]]
            timer.prepare()
            self.say({"state": "ready"})
            self.channel.receive()
            returned: _Returned = timer.run(call)
            self.say({"state": "ended"})
            self._copy(returned, places)
            if self.device.type == "cuda":
                self.integrity.synchronize()
            self.say({"state": "copied"})
            return returned, timer.read()
        assert self.held is not None
        self.held.begin(message["ticket"], message["hold_all_streams"])
        returned = call()
        self.held.queue.end()
        self.integrity.back_to(self.held.queue.stream)
        self._copy(returned, places)
        self.held.queue.copied()
        self.say({"state": "queued"})
        return returned, self.held.sample()

    def _copy(self, returned: _Returned, places: list[torch.Tensor]) -> None:
        for place, item in zip(places, returned.items or [], strict=False):
            if self.integrity.is_plain(item) and item.shape == place.shape:
                self.integrity.copy(place, item)

    def close(self, message: Message, _: tuple[int, ...]) -> Message:
        """Let go of the case's memory, and say how much was needed."""
        import torch

        self.earlier = []
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_reserved()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"peak_bytes": peak, "threads": self.integrity.threads()}


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


class _Shape:
    def __init__(self, name: str, shape: list[int], dtype: str) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), dtype


@dataclass(frozen=True)
class _Returned:
    """What `run` returned, taken apart: its type's name, names (of a dict's values) and values."""

    type: str
    names: list[str] | None
    items: list[Any] | None

    def described(self, at_most: int, integrity: Integrity) -> Message:
        """As facts for the judge; of very many values only the first."""
        if self.items is None:
            return {"type": self.type, "names": None, "items": None}
        items = [_described(item, integrity) for item in self.items[:at_most]]
        names = self.names and self.names[:at_most]
        return {"type": self.type, "names": names, "items": items, "count": len(self.items)}


def _unpacked(returned: Any, names: list[str]) -> _Returned:
    """The returned values in order, a dict's in the order of `names`.

    Containers are read as lists, tuples and dicts are, whatever a subclass makes of looking into them.
    """
    import torch

    kind = type(returned).__name__
    if isinstance(returned, torch.Tensor):
        return _Returned(kind, None, [returned])
    if isinstance(returned, dict):
        values = {key: value for key, value in dict.items(returned) if type(key) is str}
        ordered = [name for name in names if name in values] + [name for name in values if name not in names]
        return _Returned(kind, ordered, [values[name] for name in ordered])
    if isinstance(returned, tuple):
        return _Returned(kind, None, list(tuple.__iter__(returned)))
    return _Returned(kind, None, list(list.__iter__(returned)) if isinstance(returned, list) else None)


def _described(item: Any, integrity: Integrity) -> Message:
    facts: Message = {"type": f"{type(item).__module__}.{type(item).__qualname__}", "plain": False}
    if integrity.is_tensor(item):
        facts |= {
            "plain": integrity.is_plain(item),
            "shape": list(item.shape),
            "dtype": str(item.dtype).removeprefix("torch."),
            "device": item.device.type,
            "layout": str(item.layout).removeprefix("torch."),
            "contiguous": str(item.layout) == "torch.strided" and item.is_contiguous(),
        }
    return facts


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
        if isinstance(error, BlockingIOError) or text == "can't start new thread":
            text += "; it may start no more processes or threads here"
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
    # The judge's supervisor stays outside, where the candidate cannot reach it.
    sandbox.enter(Path.cwd())
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    with contextlib.suppress(ChannelClosed):
        Worker(Channel(end)).serve()
    # Not sys.exit: threads that the candidate left running must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
