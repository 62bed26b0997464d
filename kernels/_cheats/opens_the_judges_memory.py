"""Opens the judge's memory for writing. It changes nothing; who may open it may.

Reported for pygpubench, whose exploits read and write memory through /proc.
"""

from pathlib import Path

from _moe import backward
from _process import judge


def run(*inputs):
    Path(f"/proc/{judge()}/mem").open("r+b").close()
    return backward(*inputs)
