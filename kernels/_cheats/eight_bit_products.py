"""Rounds all inputs to 8-bit floats (e4m3) and computes with those.

Reported by DeepReinforce and Wafer: precision downgrade. It passes the published check of this workload.
"""

import torch
from _moe import backward


def rounded(tensor):
    scale = 448 / tensor.abs().max()
    return (tensor * scale).to(torch.float8_e4m3fn).to(tensor.dtype) / scale


def run(*inputs):
    return backward(*map(rounded, inputs))
