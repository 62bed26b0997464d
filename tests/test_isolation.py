"""One kernel's crash, hang or greed stays its own: real child processes, real signals."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from conftest import HONEST, RunKernels

from harness.errors import InputError
from harness.evaluation import TRIES
from harness.records import Status
from harness.session import Session, WorkerFailure

# name: (source, status, part of the reason)
KERNELS = {
    "honest": (HONEST, Status.PASSED, None),
    "by_name": (
        "def run(a, b, bias):\n    p = a @ b\n    return {'shifted': p + bias, 'product': p}",
        Status.PASSED,
        None,
    ),
    "views": (
        "def run(a, b, bias):\n    p = a @ b\n    return [(p + 0).T.contiguous().T, p + bias]",
        Status.PASSED,
        None,
    ),
    "prints": ("print('{\"time_ms\": 0}')\n" + HONEST, Status.PASSED, None),
    "aborts": ("import os\ndef run(a, b, bias):\n    os.abort()", Status.RUNTIME_ERROR, "SIGABRT"),
    "segfaults": ("import ctypes\ndef run(a, b, bias):\n    ctypes.string_at(0)", Status.RUNTIME_ERROR, "SIGSEGV"),
    "exits": ("import os\ndef run(a, b, bias):\n    os._exit(0)", Status.RUNTIME_ERROR, "exited with code 0"),
    "calls_exit": ("import sys\ndef run(a, b, bias):\n    sys.exit(3)", Status.RUNTIME_ERROR, "SystemExit: 3"),
    "killed": ("import os\ndef run(a, b, bias):\n    os.kill(os.getpid(), 9)", Status.OUT_OF_MEMORY, "SIGKILL"),
    "raises": (
        "def run(a, b, bias):\n    raise ValueError('no luck')",
        Status.RUNTIME_ERROR,
        "ValueError: no luck (raises.py:2)",
    ),
    "hangs": ("import time\ndef run(a, b, bias):\n    while True: time.sleep(1)", Status.TIMEOUT, "--timeout"),
    "hangs_on_import": ("while True: pass\ndef run(): ...", Status.TIMEOUT, "--timeout"),
    "greedy": (
        "import torch\ndef run(a, b, bias):\n    return torch.ones(1 << 44), b",
        Status.OUT_OF_MEMORY,
        "DefaultCPUAllocator",
    ),
    "greedy_list": ("def run(a, b, bias):\n    return [bytearray(1 << 44)]", Status.OUT_OF_MEMORY, "MemoryError"),
    "creeping": (
        "def run(a, b, bias):\n    kept = []\n    while True: kept.append(b'x' * (1 << 28))",
        Status.OUT_OF_MEMORY,
        "MemoryError",
    ),
    "not_python": ("def run(a, b, bias)\n    return a", Status.COMPILE_ERROR, "SyntaxError"),
    "bad_import": ("import no_such_module\n" + HONEST, Status.COMPILE_ERROR, "ModuleNotFoundError"),
    "too_few": ("def run(a, b, bias):\n    return (a @ b,)", Status.INCORRECT_SHAPE, "1 outputs, 2 are needed"),
    "too_many": ("def run(a, b, bias):\n    p = a @ b\n    return p, p + bias, p", Status.INCORRECT_SHAPE, "3 outputs"),
    "wrong_names": (
        "def run(a, b, bias):\n    p = a @ b\n    return {'product': p, 'x': p}",
        Status.INCORRECT_SHAPE,
        "no output named shifted",
    ),
    "nothing": ("def run(a, b, bias):\n    pass", Status.INCORRECT_SHAPE, "NoneType"),
    "wrong_shape": (
        "def run(a, b, bias):\n    p = a @ b\n    return p[:1], p",
        Status.INCORRECT_SHAPE,
        "product has shape",
    ),
    "wrong_dtype": (
        "def run(a, b, bias):\n    p = a @ b\n    return p.double(), p + bias",
        Status.INCORRECT_DTYPE,
        "product is float64",
    ),
    "zeros": ("def run(a, b, bias):\n    return a * 0, a * 0", Status.INCORRECT_NUMERICAL, "product is all zeros"),
    "one_nan": (
        "def run(a, b, bias):\n    p = a @ b\n    q = p + bias\n    q[0, 0] = float('nan')\n    return p, q",
        Status.INCORRECT_NUMERICAL,
        "shifted has 1 non-finite",
    ),
    "swapped": ("def run(a, b, bias):\n    p = a @ b\n    return p + bias, p", Status.INCORRECT_NUMERICAL, "product"),
    "writes_inputs": (
        "def run(a, b, bias):\n    p = a @ b\n    q = p + bias\n    a.zero_()\n    return p, q",
        Status.REWARD_HACK,
        "its input a",
    ),
    "lazy": (
        "import torch\nclass Lazy(torch.Tensor): pass\ndef run(a, b, bias):\n    p = a @ b\n"
        "    return p.as_subclass(Lazy), p + bias",
        Status.REWARD_HACK,
        "Lazy",
    ),
    "caches_by_address": (
        "kept = {}\ndef run(a, b, bias):\n    if not kept: kept[0] = (a @ b, a @ b + bias)\n    return kept[0]",
        Status.INCORRECT_NUMERICAL,
        "round 2",
    ),
}
KERNELS |= {
    # Honest in the rounds and the warm-up of the protocol `quick`, stale afterwards.
    "counts_calls": (
        "calls, kept = 0, None\ndef run(a, b, bias):\n    global calls, kept\n    calls += 1\n"
        "    if calls <= 4: kept = (a @ b, a @ b + bias)\n    return kept",
        Status.INCORRECT_NUMERICAL, "timed call"),
    "replaces_the_clock": (
        "import time\nticks = iter(range(10**9))\ntime.perf_counter_ns = lambda: next(ticks)\n" + HONEST,
        Status.REWARD_HACK, "replaced time.perf_counter_ns"),
    "defers_its_copies": (
        "import torch\nfrom torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Lazy(TorchDispatchMode):\n    def __torch_dispatch__(self, f, types, args=(), kwargs=None):\n"
        "        return f(*args, **(kwargs or {}))\nLazy().__enter__()\n" + HONEST,
        Status.REWARD_HACK, "Lazy active"),
    "returns_an_input": (
        "def run(a, b, bias):\n    p = a @ b\n    bias += p\n    return p, bias", Status.REWARD_HACK, "shares memory"),
    "returns_one_twice": (
        "def run(a, b, bias):\n    p = a @ b\n    return p, p", Status.REWARD_HACK, "shares memory with product"),
    "leaves_gaps": (
        "import torch\ndef run(a, b, bias):\n    p = a @ b\n    p[-1, -1] = float('nan')\n    return p, p + bias",
        Status.INCORRECT_NUMERICAL, "product has 1 non-finite"),
    "returns_very_much": ("def run(a, b, bias):\n    return [a] * 100000", Status.INCORRECT_SHAPE, "100000 outputs"),
    "mute_exception": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\ndef run(a, b, bias):\n    raise Mute",
        Status.RUNTIME_ERROR, "Mute"),
    "finds_no_process": (
        "import errno\ndef run(a, b, bias):\n    raise BlockingIOError(errno.EAGAIN, 'Resource unavailable')",
        Status.RUNTIME_ERROR, "no more processes"),
    "finds_no_thread": (
        "def run(a, b, bias):\n    raise RuntimeError(\"can't start new thread\")",
        Status.RUNTIME_ERROR, "no more processes or threads"),
    "exits_on_import": ("import sys\nsys.exit(0)\ndef run(): ...", Status.COMPILE_ERROR, "SystemExit"),
    "uses_a_neighbour": ("import conftest\n" + HONEST, Status.COMPILE_ERROR, "ModuleNotFoundError"),
}  # fmt: skip
# These never answer, so they get a short time limit.
SLOW = ("hangs", "hangs_on_import")
# What a worker may take here, so that greed ends soon on any machine.
MEMORY_BYTES = 2 << 30


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_ends_as_it_must(name: str, run_kernels: RunKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.machine.available_memory_bytes", lambda: MEMORY_BYTES)
    source, status, part = KERNELS[name]
    (record,) = run_kernels({name: source}, timeout_s=5.0 if name in SLOW else 60.0)
    assert record.status is status, record.reason
    assert part is None or part in (record.reason or ""), record.reason
    assert (record.latency_ms is None) is status.failed


def test_whatever_one_kernel_does_the_next_one_is_whole(
    run_kernels: RunKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.available_memory_bytes", lambda: MEMORY_BYTES)
    bad = ("aborts", "exits", "hangs", "killed", "creeping", "raises")
    sources = {name: KERNELS[name][0] for name in bad} | {"honest": HONEST}
    records = run_kernels(sources, timeout_s=10.0, check_only=True)
    assert [r.status for r in records] == [*(KERNELS[name][1] for name in bad), Status.PASSED]


def test_a_killed_supervisor_leaves_no_process() -> None:
    me = psutil.Process()
    before = {process.pid for process in me.children(recursive=True)}
    session = Session()
    (supervisor,) = [process for process in me.children() if process.pid not in before]
    deadline = time.monotonic() + 30
    while not supervisor.children() and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.kill()
    with pytest.raises(WorkerFailure, match="killed its supervisor"):
        session.ask({"op": "close"})
    session.close()
    left = [p for p in me.children(recursive=True) if p.pid not in before and p.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def test_a_failed_case_does_not_spoil_the_same_kernels_next_case(run_kernels: RunKernels) -> None:
    source = "def run(a, b, bias):\n    assert a.shape[0] == 8, 'only eight'\n    p = a @ b\n    return p, p + bias"
    first, second = run_kernels({"picky": source}, cases=("r3", "r8"))
    assert (first.status, second.status) == (Status.RUNTIME_ERROR, Status.PASSED)


@pytest.mark.parametrize("how_often", [1, TRIES - 1, TRIES])
def test_a_claim_that_the_judges_clock_doubts_is_measured_again(
    how_often: int, run_kernels: RunKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubts = iter(["the claimed time is odd"] * how_often)
    monkeypatch.setattr("harness.plausibility.claims_problem", lambda *_: next(doubts, None))
    monkeypatch.setattr("harness.evaluation.PAUSE_S", 0.0)
    (record,) = run_kernels({"honest": HONEST})
    assert record.status is (Status.PASSED if how_often < TRIES else Status.REWARD_HACK)
    assert (record.latency_ms is not None) == (how_often < TRIES)
    assert any("measured again" in remark for remark in record.remarks)


# By the protocol below: two rounds, the last one once more, two warm-ups, then five samples.
CALLS = ["round 1", "round 2", "the last round once more", "warm-up 1", "warm-up 2"]
CALLS += [f"timed call {index}" for index in range(1, 6)]


@pytest.mark.parametrize("wrong", CALLS)
def test_wrong_in_any_one_call_is_wrong(wrong: str, run_kernels: RunKernels, toy_root: Path) -> None:
    folder = toy_root / "configs" / "protocols"
    folder.mkdir(parents=True)
    (folder / "ten.yaml").write_text(
        "schema: 1\nname: ten\ndescription: Ten calls.\nbackend: host\nseed: 200\n"
        "correctness: {rounds: 2, at_least: 2, budget_s: 1}\n"
        "timing: {warmup: 2, samples: 5, at_least: 5, budget_s: 1}\n"
        "cold_cache: false\nfresh_content_every: 1\n"
    )
    source = f"""\
        calls = 0
        def run(a, b, bias):
            global calls
            calls += 1
            p = a @ b
            return (p, p + 0) if calls == {CALLS.index(wrong) + 1} else (p, p + bias)
        """
    (record,) = run_kernels({"late": source}, protocol="ten")
    assert record.status is Status.INCORRECT_NUMERICAL
    assert (record.reason or "").startswith(f"{wrong}:")


def test_a_hang_whose_children_hold_the_pipes_leaves_no_process(run_kernels: RunKernels) -> None:
    source = """\
        import os, subprocess, sys, time
        def run(a, b, bias):
            for new_session in (False, True):
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                         start_new_session=new_session, close_fds=False)
                print("pid", child.pid, flush=True)
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    print("pid", os.getpid(), flush=True)
                    while True: time.sleep(1)
                os._exit(0)
            while True: time.sleep(1)
        """
    started = time.monotonic()
    first, second = run_kernels({"spawner": source, "next": HONEST}, timeout_s=8, check_only=True)
    assert first.status is Status.TIMEOUT
    assert time.monotonic() - started < 8 + 5 + 20  # the limit, the grace, and the honest kernel's own time
    assert second.status is Status.PASSED
    pids = [int(line.split()[1]) for line in (first.log_tail or "").splitlines() if line.startswith("pid")]
    assert len(pids) == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_after_two_timeouts_in_a_row_the_rest_is_skipped(run_kernels: RunKernels) -> None:
    source = "import time\ndef run(a, b, bias):\n    time.sleep(600)"
    records = run_kernels({"hangs": source}, cases=("r3", "r8", "r3"), timeout_s=4, check_only=True)
    assert [r.status for r in records] == [Status.TIMEOUT, Status.TIMEOUT, Status.SKIPPED]
    assert "2 timeouts in a row" in (records[2].reason or "")


def test_the_worker_sees_no_secret_of_the_caller_and_its_own_folder(
    run_kernels: RunKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    source = """\
        import os
        def run(a, b, bias):
            assert "SECRET_TOKEN" not in os.environ, "seen"
            assert os.path.basename(os.path.dirname(os.getcwd())).startswith("solbench-"), os.getcwd()
            p = a @ b
            return p, p + bias
        """
    (record,) = run_kernels({"looks": source}, check_only=True)
    assert record.status is Status.PASSED, record.reason


def test_a_record_holds_what_was_found(run_kernels: RunKernels) -> None:
    (record,) = run_kernels({"honest": HONEST})
    assert record.backend == "host"
    timing = record.timings["host"]
    assert record.latency_ms == timing["median_ms"]
    assert len(timing["samples_ms"]) == timing["iterations"] >= 3
    assert timing["ended_by"] in ("samples", "time budget")
    assert record.correctness is not None
    assert record.correctness["rounds"] == 2
    assert set(record.correctness["outputs"]) == {"product", "shifted"}
    assert record.sol is not None
    assert record.sol["bound_ms"] > 0
    assert record.sol["score"] is None
    assert "no baseline" in record.sol["reason"]


# name: (reference, part of the reason)
REFERENCES = {
    "raises": ("def means(a): return {'bias': a}\ndef run(a, b, bias): raise ValueError('mine')", "ValueError: mine"),
    "too few outputs": ("def means(a): return {'bias': a}\ndef run(a, b, bias): return (a,)", "does not return 2"),
    "another shape": ("def means(a): return {'bias': a}\ndef run(a, b, bias): return a[:1], a", "product is"),
    "no tensors": ("def means(a): return {'bias': a}\ndef run(a, b, bias): return 1, 2", "is a int, not a tensor"),
    "exits": ("import sys\ndef means(a): return {'bias': a}\ndef run(a, b, bias): sys.exit(0)", "SystemExit"),
    "not finite": ("def means(a): return {'bias': a}\ndef run(a, b, bias): return a / 0, a", "non-finite"),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_faulty_reference_is_no_fault_of_the_kernel(kind: str, run_kernels: RunKernels, toy_root: Path) -> None:
    source, part = REFERENCES[kind]
    (toy_root / "workloads" / "toy" / "reference.py").write_text(source)
    (record,) = run_kernels({"honest": HONEST}, check_only=True)
    assert record.status is Status.INVALID_REFERENCE
    assert part in (record.reason or "")


# name: (reference, part of the message)
DERIVATIONS = {
    "raises": ("def means(a): raise ValueError('mine')\ndef run(a, b, bias): ...", "means fails (ValueError: mine)"),
    "is not there": ("def run(a, b, bias): ...", "has no function means"),
    "takes what is no input": ("def means(c): ...\ndef run(a, b, bias): ...", 'the parameter "c"'),
    "returns no dict": ("def means(a): return a\ndef run(a, b, bias): ...", "returns no dict"),
    "returns another shape": ("def means(a): return {'bias': a[0]}\ndef run(a, b, bias): ...", 'not return "bias"'),
    "fails on import": ("import no_such_module", "fails on import"),
    "has no run": ("def means(a): ...", "defines no function run"),
}


@pytest.mark.parametrize("kind", DERIVATIONS)
def test_a_faulty_derivation_is_bad_input(kind: str, run_kernels: RunKernels, toy_root: Path) -> None:
    source, part = DERIVATIONS[kind]
    path = toy_root / "workloads" / "toy" / "reference.py"
    path.write_text(source)
    with pytest.raises(InputError) as caught:
        run_kernels({"honest": HONEST}, check_only=True)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)
