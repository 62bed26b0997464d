"""Is wrong in a single timed call that it draws at random.

Own idea: against a referee that looks at a few calls only.
"""

import random

from _moe import backward

TIMED = {"cpu": (4, 13), "cuda": (21, 70)}
calls, chosen = 0, random.random()


def run(*inputs):
    global calls, last
    calls += 1
    first, final = TIMED[inputs[0].device.type]
    if calls != first + int(chosen * (final - first + 1)):
        last = backward(*inputs)
    return last
