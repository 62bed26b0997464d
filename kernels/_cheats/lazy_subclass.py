"""Returns a tensor subclass that computes when it is copied.

Reported for CUDA-L1 (issue 12) and by DeepReinforce's and Wafer's lists of kernel hacks.
"""

import torch
from _moe import Later


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if function is torch.Tensor.copy_:
            later.fill()
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **(named or {}))


def run(*inputs):
    global later
    later = Later(*inputs)
    return [output.as_subclass(Lazy) for output in later.outputs]
