"""Computes in a thread that goes on after the call has returned.

Reported by DeepReinforce and Wafer: thread injection.
"""

import threading

from _moe import Later


def run(*inputs):
    later = Later(*inputs)
    threading.Timer(0.002, later.fill).start()
    return later.outputs
