"""What only a GPU shows. Run with `pytest -m gpu` on a CUDA machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch
from conftest import HONEST, Quiet, RunKernels

from harness import judge, machine, timing
from harness.catalog import Catalog
from harness.hold import Gate, HeldQueue
from harness.inputs import fill, load_reference
from harness.judge import compare
from harness.records import Status
from harness.runner import Options, Plan, Runner
from harness.spec import Tolerance

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("protocol", ["queued", "events", "host"])
def test_a_kernel_is_judged_and_timed_on_the_device(protocol: str, run_kernels: RunKernels) -> None:
    (record,) = run_kernels({"honest": HONEST}, protocol=protocol, device="cuda:0")
    assert record.status is Status.PASSED, record.reason
    timing_found = record.timings[protocol]
    assert timing_found["iterations"] >= 20
    assert timing_found["held"] == ([True] * timing_found["iterations"] if protocol == "queued" else None)
    assert timing_found["judge_median_ms"] == pytest.approx(timing_found["median_ms"], rel=0.5, abs=0.3)
    assert record.memory is not None
    assert record.memory["judge_peak_bytes"] > 0


def test_an_honest_kernel_is_held_and_one_that_waits_is_marked(run_kernels: RunKernels) -> None:
    waits = "import torch\n" + HONEST.replace("    return", "    torch.cuda.synchronize()\n    return")
    honest, waiting = run_kernels({"honest": HONEST, "waits": waits}, protocol="queued", device="cuda:0")
    assert all(honest.timings["queued"]["held"])
    assert honest.remarks == ()
    assert not any(waiting.timings["queued"]["held"])
    assert any("waits for the device" in remark for remark in waiting.remarks)


CUDA = torch.device("cuda", 0)
MATRIX = torch.Size((3, 70_001))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("spoil", ["nothing", "noise", "nan", "inf", "reference_nan", "zeros"])
def test_the_one_pass_comparison_agrees_with_the_plain_one(dtype: torch.dtype, spoil: str) -> None:
    reference = torch.randn(MATRIX, device="cuda").to(dtype)
    output = reference.clone()
    match spoil:
        case "noise":
            output += 0.03 * torch.randn(MATRIX, device="cuda").to(dtype)
        case "nan":
            output[1, 5] = torch.nan
        case "inf":
            output[2, -1] = -torch.inf
        case "reference_nan":
            reference[0, 0] = output[0, 0] = torch.nan
        case "zeros":
            output.zero_()
    limits = Tolerance(1e-3, 0.02, 0.99, 0.01)
    ours, plain = compare(output, reference, limits), judge._compare_by_chunks(output, reference, limits)
    assert ours.matched_ratio == pytest.approx(plain.matched_ratio, abs=1e-5)
    assert (ours.nonfinite, ours.reference_nonfinite, ours.all_zero) == (
        plain.nonfinite, plain.reference_nonfinite, plain.all_zero)  # fmt: skip
    assert ours.max_abs_error == plain.max_abs_error
    assert ours.norm_rel_error == pytest.approx(plain.norm_rel_error, rel=1e-5, nan_ok=True)


def test_the_time_covers_work_on_other_streams() -> None:
    side = torch.cuda.Stream()
    big = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def runs_away() -> None:
        with torch.cuda.stream(side):
            torch.mm(big, big)

    timer = timing.make("events", CUDA)
    for call, elsewhere in ((runs_away, True), (lambda: torch.mm(big, big), False)):
        for _ in range(3):
            timer.prepare()
            timer.run(call)
            sample = timer.read()
        assert sample.other_streams is elsewhere
        assert sample.time_ms > 0.1  # 137 GFLOP


# name: (source, status, part of the reason)
KERNELS = {
    "out_of_memory": (
        "import torch\ndef run(a, b, bias):\n    return torch.empty(1 << 44, device='cuda'), a",
        Status.OUT_OF_MEMORY,
        "OutOfMemoryError",
    ),
    "on_the_cpu": ("def run(a, b, bias):\n    p = (a @ b).cpu()\n    return p, p", Status.INCORRECT_DTYPE, "on cpu"),
    "writes_inputs": (
        "def run(a, b, bias):\n    p = a @ b\n    q = p + bias\n    b.zero_()\n    return p, q",
        Status.REWARD_HACK,
        "its input b",
    ),
    "aborts": ("import os\ndef run(a, b, bias):\n    os.abort()", Status.RUNTIME_ERROR, "SIGABRT"),
    "illegal_access": (
        "import torch\ndef run(a, b, bias):\n    i = torch.full((1,), 1 << 40, device='cuda')\n"
        "    return a[i] @ b, bias",
        Status.RUNTIME_ERROR,
        None,
    ),
    "not_triton": (
        "import triton, triton.language as tl\n@triton.jit\ndef k(x): tl.no_such_thing(x)\n"
        "def run(a, b, bias):\n    k[(1,)](a)\n    return a, b",
        Status.COMPILE_ERROR,
        None,
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_failure_on_the_device_stays_its_own(name: str, run_kernels: RunKernels) -> None:
    source, status, part = KERNELS[name]
    first, second = run_kernels({name: source, "next": HONEST}, check_only=True, protocol="queued", device="cuda:0")
    assert first.status is status, first.reason
    assert part is None or part in (first.reason or ""), first.reason
    assert second.status is Status.PASSED, second.reason


def test_memory_of_failed_cases_is_given_back(run_kernels: RunKernels) -> None:
    before = torch.cuda.mem_get_info()[0]
    run_kernels(
        {f"aborts{n}": KERNELS["aborts"][0] for n in range(3)}, check_only=True, protocol="queued", device="cuda:0"
    )
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > before - (64 << 20)


def test_a_timer_on_the_device_has_a_floor() -> None:
    gate = Gate(CUDA)
    held = timing.Held(os.dup(gate.descriptor))
    floor_ms = timing.make("events", CUDA).floor_ms()
    assert floor_ms is not None
    assert 0 < held.empty_ms < held.floor_ms() <= floor_ms
    gate.handed_over()
    gate.close()


def test_a_page_that_nobody_has_any_more_is_let_go() -> None:
    """Addresses come back: one that the driver still held could not be registered again."""
    for _ in range(50):
        gate = Gate(CUDA)
        HeldQueue(os.dup(gate.descriptor))
        gate.handed_over()


def test_dense_offsets_past_32_bits_are_right_at_full_size() -> None:
    """[T, 2I] in bytes passes 2^31 from T = 10083 on; the elementwise kernel is compared row by row."""
    from test_kernels import loaded

    catalog = Catalog()
    workload = catalog.workload("dense")
    case = workload.case("b64-s128")
    tokens, columns = 10_496, case.axes["I"]
    module = loaded(catalog.kernel("fused_pointwise", workload).entry).__globals__
    d, gate, up, activated = (torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out = torch.full((tokens, 2 * columns), torch.nan, device="cuda", dtype=torch.bfloat16)
    product = torch.full_like(d, torch.nan)
    grid = (-(-d.numel() // module["BLOCK"]),)
    module["swiglu_backward"][grid](d, gate, up, activated, out, product, columns, d.numel(), BLOCK=module["BLOCK"])
    limit = case.tolerances["grad_x"]
    for start in range(0, tokens, 1024):
        rows = slice(start, start + 1024)
        g = gate[rows].float()
        s = torch.sigmoid(g)
        wanted = d[rows].float() * up[rows].float() * (s * (1 + g * (1 - s)))
        assert compare(out[rows, :columns], wanted.bfloat16(), limit).norm_rel_error < 1e-3
        assert compare(out[rows, columns:], d[rows] * activated[rows], limit).norm_rel_error < 1e-3
        assert compare(product[rows], activated[rows] * up[rows], limit).norm_rel_error < 1e-3


def test_inputs_on_the_device_repeat_for_a_seed() -> None:
    workload = Catalog().workload("moe")
    case, reference = workload.case("t128"), load_reference(workload.reference_path)
    first, second = (
        [torch.empty(t.shape, dtype=torch.bfloat16, device="cuda:0") for t in case.inputs] for _ in range(2)
    )
    fill(workload, case, reference, 5, first)
    fill(workload, case, reference, 5, second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


COPY_YAML = """\
schema: 1
name: copy
short_name: copy
title: Copy
semantics: b is a
case_axes: [mebi]
axes: {N: 524288*mebi}
inputs:
  a: {shape: [N], normal: 1}
outputs:
  b: {shape: [N]}
tolerance: {atol: 0, rtol: 0, match_ratio: 1, norm_relative_error: 1e-6}
work: {flops: N, bytes_read: 2*N, bytes_written: 2*N}
cases:
  - id: m16
    axes: {mebi: 16}
"""
PLAIN_COPY = "import torch\ndef run(a):\n    return torch.empty_like(a).copy_(a)\n"
# Asks the L2 to keep the input's memory, and reads it ahead on another stream as soon as it is called.
PERSISTING_COPY = """\
import ctypes
import torch
side = torch.cuda.Stream()
class Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t), ("hit_ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("unused", ctypes.c_char * 64)]
def run(a):
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuCtxSetLimit(6, ctypes.c_size_t(32 << 20))
    window = Window(a.data_ptr(), 16 << 20, 1.0, 2, 2, b"")
    driver.cuStreamSetAttribute(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), 1, ctypes.byref(window))
    with torch.cuda.stream(side):
        a.float().sum()
    return torch.empty_like(a).copy_(a)
"""


def test_a_copy_that_fits_the_cache_is_no_faster_than_the_memory(toy_root: Path) -> None:
    """16 MiB in and out fit three quarters of an H200's L2; warm, they would pass at over twice the memory's speed."""
    folder = toy_root / "workloads" / "copy"
    folder.mkdir()
    (folder / "workload.yaml").write_text(COPY_YAML)
    (folder / "reference.py").write_text("def run(a):\n    return (a.clone(),)\n")
    catalog = Catalog(toy_root)
    workload, kernels = catalog.workload("copy"), []
    for name, source in (("plain", PLAIN_COPY), ("persisting", PERSISTING_COPY)):
        (toy_root / f"{name}.py").write_text(source)
        kernels.append(catalog.kernel(str(toy_root / f"{name}.py"), workload))
    target, protocol = machine.target("cuda:0"), catalog.protocol("queued")
    peak = catalog.device(target.name).roofline("datasheet")
    options = Options(target, protocol, 1, 60.0, False, peak, {})
    for record in Runner(options, Quiet()).run([Plan(workload, kernels, ["m16"], 1)]):
        assert record.status is Status.PASSED, record.reason
        assert record.latency_ms is not None
        moved_bytes = 2 * (16 << 20)
        assert moved_bytes / (record.latency_ms * 1e-3) <= peak.bandwidth, record.kernel


def test_the_quickest_of_several_workers_is_measured(toy_root: Path) -> None:
    (toy_root / "honest.py").write_text(HONEST)
    catalog = Catalog(toy_root)
    workload, target, protocol = catalog.workload("toy"), machine.target("cuda:0"), catalog.protocol("queued")
    kernel = catalog.kernel(str(toy_root / "honest.py"), workload)
    options = Options(target, protocol, 1, 60.0, False, None, {}, workers=3)
    (record,) = Runner(options, Quiet()).run([Plan(workload, [kernel], ["r3"], 1)])
    assert record.status is Status.PASSED, record.reason
    timing_found = record.timings["queued"]
    assert len(timing_found["floors_passed_over_ms"]) == 2
    assert timing_found["floor_ms"] <= min(timing_found["floors_passed_over_ms"])
    assert psutil.Process().children(recursive=True) == []
