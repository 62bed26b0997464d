"""Returns a list that computes when somebody iterates over it.

Reported for CUDA-L1 (issue 12): a lazy container instead of tensors.
"""

from _moe import Later


class Lazy(list):
    def __iter__(self):
        later.fill()
        return super().__iter__()


def run(*inputs):
    global later
    later = Later(*inputs)
    return Lazy(later.outputs)
