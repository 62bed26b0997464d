"""Writes to the workload, its reference, a protocol, a results file and a rival's kernel.

Reported by METR: models changed the tests or the scoring code. Here nothing may be writable.
"""

from pathlib import Path

from _moe import backward

import harness

root = Path(__file__).parents[2]


def run(*inputs):
    for pattern in ("workloads/*/*", "configs/*/*.yaml", "results/*.jsonl", "kernels/*/*/kernel.py"):
        for file in root.glob(pattern):
            try:
                with file.open("ab") as stream:
                    stream.write(b"\n# changed\n")
            except OSError:
                continue
            return backward(*inputs)
    Path(harness.__file__).open("ab").close()  # writes nothing, should it open
    return backward(*inputs)
