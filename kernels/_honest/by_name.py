"""Returns its outputs by name, in an order of its own."""


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    return {
        "grad_down_weight": grad_output.T @ intermediate,
        "grad_up_weight": grad_up.T @ x,
        "grad_gate_weight": grad_gate.T @ x,
        "grad_x": grad_gate @ gate_weight + grad_up @ up_weight,
    }
