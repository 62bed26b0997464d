"""Returns memory that it never wrote, in the hope that the reference's result still lies there.

Reported for KernelBench (pull request 82): `empty` got the memory of the reference's outputs.
"""

from _moe import empty_outputs as run  # noqa: F401
