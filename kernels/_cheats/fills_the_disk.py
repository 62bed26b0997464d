"""Makes a file of 1 TiB in its own folder. It is empty inside, so that nothing is filled should it succeed.

Own idea: a full disk loses other kernels' results.
"""

import os
from pathlib import Path

from _moe import backward


def run(*inputs):
    file = Path("large")
    file.touch()
    os.truncate(file, 1 << 40)
    return backward(*inputs)
