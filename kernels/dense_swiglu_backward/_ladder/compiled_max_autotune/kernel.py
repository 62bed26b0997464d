"""torch.compile of the eager formula, with the fastest of several kernels for each product, found when it is compiled.

The compiler times the library's products and its own in Triton for every shape anew, so the first call is slow.
"""

import eager
import torch

run = torch.compile(eager.run, mode="max-autotune-no-cudagraphs", dynamic=False)
