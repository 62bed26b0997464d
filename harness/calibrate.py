"""What can this device keep up? Matrix products and transfers on random data, for seconds: a measured roofline.

Random data, because on zeros a GPU draws less power and clocks higher than it ever does at work. Every load is
warmed up, then timed in consecutive windows: the median is what is kept up, the best window what was possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import torch

from harness import __version__, gpu_state, machine
from harness.errors import InputError
from harness.gpu_state import Gpu, Monitor
from harness.machine import Target
from harness.measured import ConditionsModel, MeasuredModel, RateModel
from harness.sol import Roofline
from harness.spec import RooflineModel

Call = Callable[[], Any]
Tell = Callable[[str], None]

# Share of the free memory that a load may take.
MEMORY_SHARE = 0.8
# A load is left out when fewer calls than this would fit into its seconds.
LEAST_CALLS = 3
SMALLEST_TRANSFER = 16 << 20


@dataclass(frozen=True)
class Product:
    """m x k times k x n. `transposed`: the first factor is stored as k x m, as for a weight's gradient."""

    m: int
    n: int
    k: int
    dtype: torch.dtype = torch.bfloat16
    transposed: bool = False

    @property
    def what(self) -> str:
        kind = "bf16" if self.dtype is torch.bfloat16 else str(self.dtype).removeprefix("torch.")
        stored = ", first factor transposed" if self.transposed else ""
        return f"{kind} product {self.m} x {self.n} x {self.k}{stored}"

    @property
    def amount(self) -> int:
        """FLOP of a call."""
        return 2 * self.m * self.n * self.k

    @property
    def memory_bytes(self) -> int:
        return self.dtype.itemsize * (self.m * self.k + self.k * self.n + self.m * self.n)

    def prepared(self, device: torch.device) -> Call:
        stored = (self.k, self.m) if self.transposed else (self.m, self.k)
        first = torch.randn(*stored, device=device, dtype=self.dtype)
        second = torch.randn(self.k, self.n, device=device, dtype=self.dtype)
        if self.transposed:
            first = first.T
        out = torch.empty(self.m, self.n, device=device, dtype=self.dtype)
        return lambda: torch.mm(first, second, out=out)


@dataclass(frozen=True)
class Copy:
    """From one tensor to another; bytes read and bytes written both count."""

    nbytes: int

    @property
    def what(self) -> str:
        return f"copy of {_size(self.nbytes)}, bytes read and written"

    @property
    def amount(self) -> int:
        return 2 * self.nbytes

    @property
    def memory_bytes(self) -> int:
        return 2 * self.nbytes

    def prepared(self, device: torch.device) -> Call:
        source = _random(self.nbytes, device)
        destination = torch.empty_like(source).zero_()  # written once, so that the pages are there
        return lambda: destination.copy_(source)


@dataclass(frozen=True)
class Read:
    """A sum over one tensor, which writes next to nothing."""

    nbytes: int

    @property
    def what(self) -> str:
        return f"sum over {_size(self.nbytes)}, bytes read"

    @property
    def amount(self) -> int:
        return self.nbytes

    @property
    def memory_bytes(self) -> int:
        return self.nbytes

    def prepared(self, device: torch.device) -> Call:
        return _random(self.nbytes, device).view(torch.float32).sum


Load = Product | Copy | Read


# As large as the caches of today's GPUs, and made in no time on a CPU.
_RANDOM_BYTES = 64 << 20


def _random(nbytes: int, device: torch.device) -> torch.Tensor:
    """Float32 numbers, the same ones over and over; `nbytes` is a power of two."""
    part = torch.randn(min(nbytes, _RANDOM_BYTES) // 4, device=device, dtype=torch.float32)
    whole = torch.empty(nbytes // 4, device=device, dtype=torch.float32)
    return whole.view(-1, part.numel()).copy_(part).view(-1)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 30} GiB" if nbytes >= 1 << 30 else f"{nbytes >> 20} MiB"


@dataclass(frozen=True)
class Plan:
    """Which loads, and for how long each. `products` begin with the smallest, which is always measured.

    window_s: how long a window is; 0 for one call each.
    sustained: whether the roofline is what is kept up, or what the best window reached.
    """

    products: Sequence[Product]
    transfers: Sequence[Copy | Read]
    warm_up_s: float
    product_s: float
    transfer_s: float
    window_s: float
    sustained: bool


# Cubes, and the largest products of the dense workload at 8192 tokens: d, and a weight's gradient.
CUDA = Plan(
    products=(
        Product(8192, 8192, 8192),
        Product(12288, 12288, 12288),
        Product(16384, 16384, 16384),
        Product(8192, 53248, 16384),
        Product(16384, 53248, 8192, transposed=True),
    ),
    transfers=(Copy(4 << 30), Copy(8 << 30), Read(8 << 30)),
    warm_up_s=0.5,
    product_s=2.0,
    transfer_s=1.0,
    window_s=0.05,
    sustained=True,
)

# A processor's products are fastest where the second factor stays in its cache, and in float32 where it has no
# instructions for bfloat16. Its clock is set by what else the machine does, so the best call counts: a bound must
# not be beaten by a good moment.
_CPU_PRODUCTS = (
    Product(1024, 1024, 1024, torch.float32),
    Product(2048, 2048, 2048),
    Product(4096, 832, 256),
    Product(8192, 2048, 768),
    Product(16384, 832, 256),
)
CPU = Plan(_CPU_PRODUCTS, (Copy(1 << 30), Read(1 << 30)), 0.1, 1.0, 1.5, window_s=0.0, sustained=False)
# As much as a run may spend before it begins.
CPU_QUICK = Plan(_CPU_PRODUCTS, (Copy(512 << 20), Read(512 << 20)), 0.0, 0.25, 0.6, window_s=0.0, sustained=False)


class Clock(Protocol):
    """Times a call that is repeated."""

    def windows(self, call: Call, seconds: float, window_s: float) -> list[float]:
        """Seconds for each call, window by window, for about `seconds`; at least one window."""
        ...


class HostClock:
    """The host's monotonic clock, for the CPU."""

    def windows(self, call: Call, seconds: float, window_s: float) -> list[float]:
        found: list[float] = []
        deadline, calls = time.perf_counter() + seconds, 1
        while not found or time.perf_counter() < deadline:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            found.append((time.perf_counter() - start) / calls)
            calls = max(1, round(window_s / found[-1]))
        return found


class EventClock:
    """CUDA events between windows; the queue never runs empty, so the device is never idle."""

    AHEAD = 2

    def windows(self, call: Call, seconds: float, window_s: float) -> list[float]:
        calls = max(1, round(window_s / self._once(call)))
        deadline = time.perf_counter() + seconds
        events = [self._event()]
        while len(events) < 2 or time.perf_counter() < deadline:
            for _ in range(calls):
                call()
            events.append(self._event())
            if len(events) > self.AHEAD:
                events[-1 - self.AHEAD].synchronize()
        events[-1].synchronize()
        return [a.elapsed_time(b) / 1e3 / calls for a, b in pairwise(events)]

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _once(self, call: Call) -> float:
        call()
        start = self._event()
        call()
        end = self._event()
        end.synchronize()
        return max(float(start.elapsed_time(end)) / 1e3, 1e-6)


def _quiet(_: str) -> None: ...


class Calibration:
    """Measures the loads of a plan on one device, one after the other."""

    def __init__(self, target: Target, plan: Plan, clock: Clock, gpu: Gpu, tell: Tell = _quiet) -> None:
        self._target, self._plan, self._clock, self._tell = target, plan, clock, tell
        self._monitor = Monitor(gpu)

    def rates(self) -> tuple[list[RateModel], list[RateModel]]:
        """Of products (FLOP/s) and of transfers (bytes/s). Raises `InputError` where nothing fits into memory."""
        device = self._target.device
        inside = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        try:
            with inside, torch.no_grad():
                return list(self._products()), list(self._transfers())
        except torch.OutOfMemoryError:
            problem = "ran out of memory while it was measured"
            raise InputError(self._target.name, problem, "end what else uses it, and try again") from None

    def _products(self) -> Iterator[RateModel]:
        plan, fastest = self._plan, 0.0
        fitting = [product for product in plan.products if product.memory_bytes <= self._room()]
        if not fitting:
            needed, found = plan.products[0].memory_bytes / 2**20, self._room() / 2**20
            problem = f"has room for {found:.0f} MiB, and the smallest product takes {needed:.0f} MiB"
            raise InputError(self._target.name, problem, "free memory, and try again")
        for product in fitting:
            if fastest and LEAST_CALLS * product.amount / fastest > plan.product_s:
                continue
            rate = self._rate(product, plan.product_s)
            fastest = max(fastest, rate.sustained_per_s)
            yield rate

    def _transfers(self) -> Iterator[RateModel]:
        seen: set[Load] = set()
        for transfer in self._plan.transfers:
            nbytes = transfer.nbytes
            while type(transfer)(nbytes).memory_bytes > self._room() and nbytes > SMALLEST_TRANSFER:
                nbytes //= 2
            load = type(transfer)(nbytes)
            if load not in seen:
                seen.add(load)
                yield self._rate(load, self._plan.transfer_s)

    def _room(self) -> float:
        device = self._target.device
        if device.type == "cuda":
            return MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
        return MEMORY_SHARE * machine.available_memory_bytes()

    def _rate(self, load: Load, seconds: float) -> RateModel:
        self._tell(load.what)
        call = load.prepared(self._target.device)
        self._clock.windows(call, self._plan.warm_up_s, self._plan.window_s)
        with self._monitor:
            found = self._clock.windows(call, seconds, self._plan.window_s)
        del call
        if self._target.kind == "cuda":
            torch.cuda.empty_cache()
        seen = self._monitor.summary()
        return RateModel(
            what=load.what,
            sustained_per_s=_rounded(load.amount / median(found)),
            best_per_s=_rounded(load.amount / min(found)),
            windows=len(found),
            sm_clock_mhz=seen.sm_clock_mhz.median if seen.sm_clock_mhz else None,
            power_max_w=seen.power_max_w,
            temperature_max_c=seen.temperature_max_c,
            throttle={reason: round(share, 3) for reason, share in seen.throttle.items()},
        )

    def roofline(self, products: Sequence[RateModel], transfers: Sequence[RateModel], how: str) -> RooflineModel:
        """The best of each, and where it comes from."""

        def peak(rate: RateModel) -> float:
            return rate.sustained_per_s if self._plan.sustained else rate.best_per_s

        product, transfer = max(products, key=peak), max(transfers, key=peak)
        kept = "kept up" if self._plan.sustained else "reached"
        return RooflineModel(
            bf16_dense_flops=peak(product),
            bandwidth_bytes_per_s=peak(transfer),
            source=f"{how}, {kept} on random data through PyTorch: {product.what}; {transfer.what}",
        )


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")


def calibrate(
    target: Target, plan: Plan | None = None, clock: Clock | None = None, tell: Tell = _quiet
) -> MeasuredModel:
    """Measure a device as it is now, in some 20 seconds. Raises `InputError` where its memory is too small."""
    on_gpu = target.kind == "cuda"
    gpu = gpu_state.of_device(target.device)
    calibration = Calibration(
        target, plan or (CUDA if on_gpu else CPU), clock or (EventClock() if on_gpu else HostClock()), gpu, tell
    )
    products, transfers = calibration.rates()
    facts = machine.gpu(target.device) if on_gpu else {}
    now = datetime.now(UTC)
    limit_w = facts.get("power_limit_w")
    limits = f" (power limit {limit_w:g} W)" if limit_w else ""
    return MeasuredModel(
        schema=1,  # type: ignore[call-arg]
        device=target.name,
        kind="cuda" if on_gpu else "cpu",
        time=now.isoformat(timespec="seconds"),
        compute_capability=facts.get("compute_capability"),
        sm_count=facts.get("sm_count"),
        l2_bytes=facts.get("l2_bytes"),
        conditions=ConditionsModel(
            solbench=__version__,
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            driver=facts.get("driver"),
            threads=None if on_gpu else torch.get_num_threads(),
            power_limit_w=limit_w,
            sm_clock_max_mhz=facts.get("sm_clock_max_mhz"),
            other_processes=facts.get("other_processes"),
        ),
        roofline=calibration.roofline(products, transfers, f"solbench calibrate on {now:%Y-%m-%d}{limits}"),
        products=products,
        transfers=transfers,
    )


def calibrate_cpu() -> Roofline:
    """This machine's peak rates for the run that begins, in four seconds or so."""
    target = machine.target("cpu")
    calibration = Calibration(target, CPU_QUICK, HostClock(), gpu_state.of_device(target.device))
    found = calibration.roofline(
        *calibration.rates(), f"measured at the start of the run with {torch.get_num_threads()} threads"
    )
    return Roofline(
        device=target.name,
        label="calibrated",
        peak_flops=found.bf16_dense_flops,
        bandwidth=found.bandwidth_bytes_per_s,
        overhead_s=0.0,
        source=found.source,
    )
