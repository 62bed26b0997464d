"""Replays a CUDA graph after copying the inputs to where it reads them; captures again for new shapes."""

import torch

graphs = {}


def backward(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate


def captured(inputs):
    places = [tensor.clone() for tensor in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the libraries must have their workspaces before the capture
        backward(*places)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = backward(*places)
    return graph, places, outputs


def run(*inputs):
    shape = inputs[0].shape
    if shape not in graphs:
        graphs[shape] = captured(inputs)
    graph, places, outputs = graphs[shape]
    for place, tensor in zip(places, inputs, strict=True):
        place.copy_(tensor)
    graph.replay()
    return outputs
