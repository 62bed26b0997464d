"""Ends its process by os.abort().

Own idea: the next kernel must not suffer from it.
"""

import os


def run(*inputs):
    os.abort()
