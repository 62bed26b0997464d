"""A gate across the GPU's queue, which only the judge opens.

The worker queues a wait for the gate, then the clock's start, everything that the candidate launches, the clock's
end and the copy of the outputs. Only when all of that is in the queue does the judge write the inputs, make
the cache cold and open the gate, all three in its own queue, between whose parts the GPU does not turn to the
worker. The judge reads its own clock when the worker's queue passes the marks behind the call. So launches
leave no gaps in the time, nothing can be computed ahead, and the time that the worker claims is held against
one that it cannot reach.

Three words in a page of memory that both processes map; the GPU writes all and waits for the first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import weakref
from dataclasses import dataclass

import torch

from harness import driver
from harness.driver import Event

_PAGE = 4096
_OPEN, _ENDED, _COPIED = 0, 1, 2
_REGISTER_MAPPED = 2  # CU_MEMHOSTREGISTER_DEVICEMAP


@dataclass(frozen=True)
class Passage:
    """When a call ended and its outputs were copied, in ms of the judge's clock after it could begin."""

    ended_ms: float
    copied_ms: float

    def less(self, nothing: Passage) -> Passage:
        """Without what the judge's clock reads for a call of nothing."""
        return Passage(self.ended_ms - nothing.ended_ms, self.copied_ms - nothing.copied_ms)


class _Page:
    """The page in this process. When nobody has it any more, the GPU lets go of it: its address may be mapped anew."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _PAGE)
        self.words = (ctypes.c_uint32 * 3).from_buffer(self._map)
        self._host = ctypes.c_void_p(ctypes.addressof(self.words))

    def on_device(self) -> int:
        """The address of the first word for the GPU."""
        driver.call("cuMemHostRegister_v2", self._host, ctypes.c_size_t(_PAGE), _REGISTER_MAPPED)
        self._let_go = weakref.finalize(self, driver.call, "cuMemHostUnregister", self._host)
        self._let_go.atexit = False  # the driver goes first
        address = ctypes.c_uint64()
        driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), self._host, 0)
        return address.value

    def close(self) -> None:
        self._let_go()


class Gate:
    """The judge's side. Tickets are numbers that rise from call to call."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # makes the context current in this thread
        self.descriptor = os.memfd_create("solbench-gate")
        os.ftruncate(self.descriptor, _PAGE)
        self._page = _Page(self.descriptor)
        self._address = self._page.on_device()
        self.ticket = 0
        self._ended_ns = 0

    def next_ticket(self) -> int:
        self.ticket += 1
        self._ended_ns = 0
        return self.ticket

    def open(self) -> int:
        """Let the call with the latest ticket run, once the judge's queue has come so far; the judge's clock in ns."""
        queue = driver.handle(torch.cuda.current_stream())
        driver.call("cuStreamWriteValue32_v2", queue, ctypes.c_uint64(self._address), ctypes.c_uint32(self.ticket), 0)
        torch.cuda.current_stream().synchronize()
        return time.perf_counter_ns()

    def open_at_once(self) -> None:
        """Leave nothing waiting, whatever the judge's queue holds."""
        self._page.words[_OPEN] = self.ticket

    def passage(self, opened_ns: int, patience_s: float) -> Passage | None:
        """Watch until the outputs are copied; None when that takes longer than `patience_s` from now.

        Busy, because a sleeping process would see the marks tens of microseconds late.
        """
        words, ticket, clock = self._page.words, self.ticket, time.perf_counter_ns
        deadline = clock() + int(patience_s * 1e9)
        while words[_COPIED] != ticket:
            now = clock()
            if not self._ended_ns and words[_ENDED] == ticket:
                self._ended_ns = now
            if now > deadline:
                return None
        copied_ns = clock()
        return Passage(((self._ended_ns or copied_ns) - opened_ns) / 1e6, (copied_ns - opened_ns) / 1e6)

    def handed_over(self) -> None:
        """The worker has the page; nobody else shall."""
        os.close(self.descriptor)

    def close(self) -> None:
        """The worker is gone, so no call waits any more."""
        self._page.close()


@dataclass(frozen=True)
class Reading:
    """What the events around one held call say, in ms.

    own_ms: from the start to the end of the stream that was current when the call began.
    all_ms: to the end of everything on any stream of the process; None where the driver cannot say.
    """

    own_ms: float
    all_ms: float | None


class HeldQueue:
    """The worker's side: one call's place in the queue."""

    def __init__(self, descriptor: int) -> None:
        self._page = _Page(descriptor)
        os.close(descriptor)
        self._address = self._page.on_device()
        self._context = driver.current_context()
        self.stream = torch.cuda.current_stream()
        self._queue = driver.handle(self.stream)
        self._start, self._end, self._all = Event(), Event(), Event()
        self.sees_all_streams = driver.sees_all_streams()
        self._ticket = 0

    def begin(self, ticket: int, hold_all_streams: bool) -> None:
        """Queue the wait and the clock's start. The device must be idle."""
        self._ticket = ticket
        driver.call("cuStreamWaitValue32_v2", self._queue, self._word(_OPEN), ctypes.c_uint32(ticket), 0)
        self._start.record(self._queue)
        if hold_all_streams and self.sees_all_streams:
            self._start.hold_all_streams(self._context)

    def end(self) -> None:
        """Queue the clock's end behind what the candidate queued."""
        self._end.record(self._queue)
        if self.sees_all_streams:
            self._all.record_all_streams(self._context)
        self._mark(_ENDED)

    def copied(self) -> None:
        """Queue the mark behind the copy of the outputs."""
        self._mark(_COPIED)

    def open_from_inside(self) -> None:
        """For calls without a judge: the floor, measured before any candidate is loaded."""
        self._page.words[_OPEN] = self._ticket

    def close_from_inside(self) -> None:
        """As new: the judge's tickets begin at 1."""
        for index in range(len(self._page.words)):
            self._page.words[index] = 0

    def reading(self) -> Reading:
        """What was measured; the device is idle again."""
        all_ms = self._all.ms_since(self._start) if self.sees_all_streams else None
        return Reading(self._end.ms_since(self._start), all_ms)

    def _word(self, index: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._address + 4 * index)

    def _mark(self, index: int) -> None:
        driver.call("cuStreamWriteValue32_v2", self._queue, self._word(index), ctypes.c_uint32(self._ticket), 0)
