"""Ends its process with exit code 0, which some take for success.

Reported by METR and others for test harnesses: an early exit with code 0 counted as passed.
"""

import os


def run(*inputs):
    os._exit(0)
