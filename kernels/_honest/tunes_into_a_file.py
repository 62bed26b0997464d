"""Asks another process for a setting on import, and keeps it in a file of its own folder."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SETTING = Path(tempfile.gettempdir()) / "setting.json"
command = [sys.executable, "-c", "print('{\"split\": 2}')"]
SETTING.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    split = json.loads(SETTING.read_text())["split"]
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    halves = zip(grad_output.chunk(split), intermediate.chunk(split), strict=True)
    grad_down_weight = sum(left.T.float() @ right.float() for left, right in halves).to(x.dtype)
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_down_weight
