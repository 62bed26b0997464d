"""Each number of tokens takes the rung of the ladder that is the fastest there, by a table of crossovers.

Nothing is tried or tuned at run time, and the crossovers are ranges of T, not a list of sizes. The rungs are the
files of `clusters`, `grouped` and `warp_specialized`, linked into this folder; their own headers say what they move. They
are made for sm_90: on any other GPU, sm_80 and sm_100 among them, `joined_products` runs, because its products are the
library's own, and without Triton the same products in plain PyTorch.
"""

from functools import cache
from types import ModuleType

import portable
import torch

try:
    import clusters
    import grouped
    import joined_products
    import warp_specialized
except ImportError:  # no Triton
    RUNGS: tuple[tuple[int | None, ModuleType], ...] = ()
else:
    # Up to so many tokens (None: any number), the fastest rung: benchmarks/moe_crossovers.py on an H200.
    RUNGS = ((16, clusters), (1152, grouped), (None, warp_specialized))


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def choose(tokens: int, device: torch.device) -> ModuleType:
    """The module whose `run` does it."""
    if not RUNGS:
        return portable
    if not is_hopper(device):
        return joined_products
    return next(rung for most, rung in RUNGS if most is None or tokens <= most)


def run(*inputs):
    return choose(len(inputs[0]), inputs[0].device).run(*inputs)
