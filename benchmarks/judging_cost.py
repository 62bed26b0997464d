"""What judging adds to measuring: the same run with the referee's checks and without them.

    python benchmarks/judging_cost.py [moe] [-k fused_pointwise]

Without: no reference outputs, no comparison, no look at inputs or outputs after a call; workers, calls, new content
and timing stay. One case goes first and is not counted: what a process does once, such as loading the comparison's
kernel, is no cost of a case. It needs a CUDA device to mean anything, and nothing that it measures is a record.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from harness import judge, machine
from harness.arena import Content
from harness.catalog import Catalog
from harness.evaluation import Evaluation
from harness.runner import Options, Plan, Runner
from harness.slices import Slicer


class Silent:
    def begin(self, kernel: str, workload: str, case: str) -> None: ...
    def stage(self, text: str) -> None: ...
    def done(self, record: Any) -> None: ...


def seconds(catalog: Catalog, workload_name: str, kernel_name: str, most_cases: int | None = None) -> float:
    workload = catalog.workload(workload_name)
    target = machine.target("auto")
    protocol = catalog.protocol("queued" if target.kind == "cuda" else "quick")
    scale = 1 if target.kind == "cuda" else workload.model.cpu.scale
    options = Options(target, protocol, protocol.seed, 300.0, False, None, {})
    plan = Plan(workload, [catalog.kernel(kernel_name, workload)], workload.case_ids()[:most_cases], scale)
    started = time.monotonic()
    statuses = [record.status for record in Runner(options, Silent()).run([plan])]
    assert set(statuses) == {"PASSED"}, statuses
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="moe")
    parser.add_argument("-k", "--kernel", default="fused_pointwise")
    asked = parser.parse_args()
    catalog = Catalog(Path(__file__).resolve().parent.parent)
    seconds(catalog, asked.workload, asked.kernel, most_cases=1)
    judged_s = seconds(catalog, asked.workload, asked.kernel)
    with (
        patch.object(Evaluation, "_expected", lambda self: []),
        patch.object(Evaluation, "_compare", lambda self, *_: judge.PASSED),
        patch.object(Evaluation, "_same_bits_twice", lambda self: True),
        patch.object(Evaluation, "_verdict_on_part", lambda self, seen: judge.PASSED),
        patch.object(Slicer, "draw", lambda self, secret: []),
        patch.object(Content, "is_unchanged", lambda self, arena, call: True),
        patch.object(judge, "worst", lambda comparisons: {}),
        patch.object(torch, "stack", lambda tensors: None),
        patch.object(torch.Tensor, "sum", lambda self, *_, **__: None),
    ):
        alone_s = seconds(catalog, asked.workload, asked.kernel)
    print(f"{asked.workload} with {asked.kernel}: {judged_s:.1f} s judged, {alone_s:.1f} s measured alone, ", end="")
    print(f"judging adds {judged_s / alone_s - 1:.0%}")


if __name__ == "__main__":
    main()
