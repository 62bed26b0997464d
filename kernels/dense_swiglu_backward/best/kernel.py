"""The fastest rung of the ladder on sm_90, and where it is not made for the GPU the library's products.

On an H200 `warp_specialized` is the fastest for every number of tokens (benchmarks/dense_crossovers.py); the ranges of T
in which its tiles are taken in another order are its own. Nothing is tried or tuned at run time. Its file is linked into
this folder, and so are `fused_pointwise`, for any other GPU, sm_80 and sm_100 among them, and plain PyTorch, where there
is no Triton or no GPU. What they move is said in their own headers.
"""

from functools import cache
from types import ModuleType

import portable
import torch

try:
    import fused_pointwise
    import warp_specialized
except ImportError:  # no Triton
    RUNGS: tuple[tuple[int | None, ModuleType], ...] = ()
else:
    # Up to so many tokens (None: any number), the fastest rung.
    RUNGS = ((None, warp_specialized),)


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
