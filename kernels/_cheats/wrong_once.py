"""Is wrong in a single timed call that it draws at random.

Own idea: against a referee that looks at a few calls only.
"""

import random

from _moe import CALLS, UNTIMED_CALLS, backward

calls, chosen = 0, random.random()


def run(*inputs):
    global calls, last
    calls += 1
    device = inputs[0].device.type
    untimed = UNTIMED_CALLS[device]
    if calls != untimed + 1 + int(chosen * (CALLS[device] - untimed)):
        last = backward(*inputs)
    return last
