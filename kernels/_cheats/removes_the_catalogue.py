"""Removes, renames and replaces files of the catalogue, and adds one.

Reported by METR: models changed the tests or the scoring code. Here nothing may be writable.
"""

import os
from pathlib import Path

from _moe import backward

root = Path(__file__).parents[2]


def run(*inputs):
    workload = root / "workloads" / "moe_swiglu_backward"
    attempts = (
        lambda: (root / "kernels" / "moe_swiglu_backward" / "best.py").write_text("def run(*inputs): ...\n"),
        lambda: (root / "results" / "added").mkdir(),
        lambda: os.symlink("/dev/null", workload / "link"),
        lambda: os.truncate(workload / "workload.yaml", 0),
        lambda: (workload / "workload.yaml").rename(workload / "old.yaml"),
        lambda: (workload / "reference.py").unlink(),
    )
    denied = []
    for attempt in attempts:
        try:
            attempt()
        except OSError as error:
            denied.append(error)
    if len(denied) == len(attempts):
        raise denied[-1]
    return backward(*inputs)
