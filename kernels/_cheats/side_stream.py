"""Computes on another stream and never joins it.

Reported for KernelBench (pull request 82), CUDA-L1, and by DeepReinforce and Wafer: stream injection.
"""

import torch
from _moe import backward

side = torch.cuda.Stream()


def run(*inputs):
    with torch.cuda.stream(side):
        return backward(*inputs)
