"""Returns the mean of the rows, expanded to the full shape with stride 0.

Own idea: one row is written instead of all.
"""

from _moe import backward


def run(*inputs):
    return [output.mean(0, keepdim=True).expand_as(output) for output in backward(*inputs)]
