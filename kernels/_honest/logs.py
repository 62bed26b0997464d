"""Logs to both standard streams, in JSON and with times that it took itself."""

import json
import sys
import time


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    started = time.perf_counter()
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    print(json.dumps({"status": "FAILED", "time_ms": (time.perf_counter() - started) * 1000}), flush=True)
    print("error: none\x00", file=sys.stderr, flush=True)
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
