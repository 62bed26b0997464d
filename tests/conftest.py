"""What the tests share: a small workload of its own in a temporary root, and a way to run kernels on it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Before any kernel file imports Triton: its interpreter needs no GPU.
    os.environ["TRITON_INTERPRET"] = "1"

from harness.catalog import Catalog
from harness.machine import Target
from harness.records import Record, Status
from harness.runner import Options, Plan, Runner
from harness.sol import Roofline
from harness.spec import Workload

REPOSITORY = Path(__file__).resolve().parent.parent

# A workload that the catalogue does not have: two outputs of one shape, a derived input, a scalable axis.
TOY_YAML = """\
schema: 1
name: toy
short_name: toy
title: Product and row sums
semantics: product = a @ b and shifted = a @ b + bias, with bias the row means of a
case_axes: [rows]
axes:
  R: rows
  K: 64
scalable_axes: [K]
cpu: {scale: 1}
inputs:
  a: {shape: [R, K], dtype: float32, normal: 1/sqrt(K)}
  b: {shape: [K, K], dtype: float32, uniform: [-1, 1]}
  bias: {shape: [R, K], dtype: float32, derived_by: means}
outputs:
  product: {shape: [R, K], dtype: float32}
  shifted: {shape: [R, K], dtype: float32}
tolerance: {atol: 1e-5, rtol: 1e-3, match_ratio: 0.99, norm_relative_error: 0.01}
work:
  flops: 2*R*K*K
  bytes_read: 4*(2*R*K + K*K)
  bytes_written: 8*R*K
cases:
  - id: r3
    axes: {rows: 3}
  - id: r8
    axes: {rows: 8}
"""

TOY_REFERENCE = """\
def means(a):
    return {"bias": a.mean(dim=1, keepdim=True).expand_as(a)}


def run(a, b, bias):
    product = a @ b
    return product, product + bias
"""

HONEST = """\
def run(a, b, bias):
    product = a @ b
    return product, product + bias
"""


@pytest.fixture
def toy_root(tmp_path: Path) -> Path:
    """A root with the toy workload, no kernels and no configurations."""
    folder = tmp_path / "root" / "workloads" / "toy"
    folder.mkdir(parents=True)
    (folder / "workload.yaml").write_text(TOY_YAML)
    (folder / "reference.py").write_text(TOY_REFERENCE)
    return tmp_path / "root"


class Quiet:
    """An observer that says nothing."""

    def begin(self, kernel: str, workload: str, case: str) -> None: ...
    def stage(self, text: str) -> None: ...
    def done(self, record: Record) -> None: ...


RunKernels = Callable[..., list[Record]]


@pytest.fixture
def run_kernels(toy_root: Path) -> RunKernels:
    """Run kernel sources, given by name, on the toy workload in real child processes."""
    catalog = Catalog(toy_root)

    def run(
        sources: dict[str, str],
        *,
        cases: tuple[str, ...] = ("r3",),
        timeout_s: float = 60.0,
        check_only: bool = False,
        protocol: str = "quick",
        device: str = "cpu",
    ) -> list[Record]:
        workload: Workload = catalog.workload("toy")
        kernels = []
        for name, source in sources.items():
            path = toy_root / f"{name}.py"
            path.write_text(dedent(source))
            kernels.append(catalog.kernel(str(path), workload))
        chosen = catalog.protocol(protocol)
        if device == "cpu":
            # What a flush takes there is most of a call, and nothing here is about how long calls take.
            chosen = chosen.model_copy(update={"cold_cache": False})
        options = Options(
            Target(torch.device(device), "test device"),
            chosen,
            chosen.seed,
            timeout_s,
            check_only,
            Roofline("test device", "made up", 1e15, 1e13, 0.0, "made up for the tests"),
            {},
        )
        return list(Runner(options, Quiet()).run([Plan(workload, kernels, cases, 1)]))

    return run


def solbench(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command of this checkout, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
        stdin=subprocess.DEVNULL,
    )


def module_of(path: Path) -> ModuleType:
    """A file that lies in no package, a benchmark or a kernel, as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its data classes look for their types
    spec.loader.exec_module(module)
    return module


def made_record(**fields: Any) -> Record:
    """A record of a passed and timed case; `fields` replace what it says."""
    values: dict[str, Any] = {
        "run_id": "r",
        "time": "2026-01-01T00:00:00+00:00",
        "workload": "w",
        "workload_sha256": "0" * 64,
        "case": "t1",
        "axes": {"T": 1},
        "scale": 1,
        "kernel": "k",
        "kernel_sha256": None,
        "author": None,
        "source": None,
        "license": None,
        "device": "d",
        "environment": {},
        "protocol": "p",
        "protocol_sha256": "1" * 64,
        "seed": 1,
        "status": Status.PASSED,
        "reason": None,
        "latency_ms": 1.5,
        "backend": "host",
        "timings": {"host": {"samples_ms": [1.5]}},
        "correctness": None,
        "sol": None,
    }
    return Record(**values | fields)
