"""Computes the weight gradients in threads that it keeps, and waits for them."""

from concurrent.futures import ThreadPoolExecutor

import torch

pool = ThreadPoolExecutor(2)


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    products = ((grad_gate, x), (grad_up, x), (grad_output, intermediate))
    waiting = [pool.submit(torch.mm, left.T, right) for left, right in products]
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, *(product.result() for product in waiting)
