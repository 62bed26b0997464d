"""Is right once, frees that result, and returns memory that was never written ever after.

Reported for Sakana's AI CUDA Engineer: memory that still held right results was read again.
"""

from _moe import backward, empty_outputs

done = False


def run(*inputs):
    global done
    if done:
        return empty_outputs(*inputs)
    done = True
    return [output.clone() for output in backward(*inputs)]
