"""How is a cache made cold? The judge does it, after the inputs are in their places and before a call may begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Used where the size of the last-level cache cannot be read.
FALLBACK_CACHE_BYTES = 64 << 20
# On the CPU no more than this: the caches that servers share are larger, and reading them several times over would
# take longer than most calls.
CPU_FLUSH_BYTES = 512 << 20


def flusher(device: torch.device, how: str, multiple: int) -> Callable[[], Any]:
    """A call that makes the device's cache cold: `how` is "read" or "zero" a buffer of `multiple` times its size.

    Reading leaves no dirty lines that the timed call would have to write back; zeroing is what the public
    protocol does.
    """
    if device.type == "cuda":
        nbytes = multiple * torch.cuda.get_device_properties(device).L2_cache_size
    else:
        nbytes = min(multiple * _last_level_cache_bytes(), CPU_FLUSH_BYTES)
    # Written once, because memory that was never written is one shared page of zeros that stays in cache.
    buffer = torch.ones(nbytes // 4, dtype=torch.int32, device=device)
    return buffer.zero_ if how == "zero" else buffer.max


def _last_level_cache_bytes() -> int:
    sizes = [FALLBACK_CACHE_BYTES // 4]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        if text.rstrip("KM").isdigit():
            sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)
