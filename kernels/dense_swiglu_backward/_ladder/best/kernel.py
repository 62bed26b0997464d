"""Each number of tokens takes the rung of the ladder that is the fastest there, by a table of crossovers.

Nothing is tried or tuned at run time, and the crossovers are ranges of T, not a list of sizes. `grouped` is the file
of that rung, linked into this folder, and so are the two that are no rungs: `fused_pointwise`, whose products are the
library's own, wherever nothing faster is known (many tokens, any GPU but sm_90, sm_80 and sm_100 among them), and plain
PyTorch, where there is no Triton or no GPU. What they move is said in their own headers.

No GPU has run this yet: its table is an estimate.
"""

from functools import cache
from types import ModuleType

import portable
import torch

try:
    import fused_pointwise
    import grouped
except ImportError:  # no Triton
    RUNGS: tuple[tuple[int | None, ModuleType], ...] = ()
else:
    # Up to so many tokens (None: any number), the fastest rung.
    # To be set by benchmarks/dense_crossovers.py: until it has run on an H200 these are estimates. From there on
    # the library's products are expected to be faster than a plain product in Triton by more than fusing saves.
    RUNGS = ((512, grouped), (None, fused_pointwise))


@cache
def is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def choose(tokens: int, device: torch.device) -> ModuleType:
    """The module whose `run` does it."""
    if not RUNGS or device.type != "cuda":
        return portable
    if not is_hopper(device):
        return fused_pointwise
    return next(rung for most, rung in RUNGS if most is None or tokens <= most)


def run(*inputs):
    x = inputs[1]
    return choose(x.shape[:-1].numel(), x.device).run(*inputs)
