"""At most 16 tokens in two launches of clusters in CUDA C++: no program waits for memory twice.

Eight programs divide the summed axis of a product; each brings all that it needs of a weight at once, and their sums
meet in the shared memory of the program that finishes them (distributed shared memory), always in the same order:
repeatable bit for bit. The first launch makes d and its SwiGLU backward, the second one all that is left. The second
begins early, brings its weights, writes grad_down_weight, which needs nothing of the first, and only then waits for it,
so the memory is never idle. The source is compiled by NVRTC, which comes with PyTorch, in the first call.

More tokens, hidden sizes beyond 2048 and 768, and other GPUs than sm_90 take plain PyTorch here.

FLOPs: 12*T*H*I, with T rounded up to 16. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up]
is written and read once more (8TI), and grad_output, x and intermediate come from the L2 cache several times.
"""

import ctypes

import nvrtc_launch
import portable
import torch

MOST_TOKENS, MOST_HIDDEN, MOST_INNER = 16, 2048, 768
PROGRAMS, THREADS, SHARED_BYTES = 8, 256, 88064
# Columns that a cluster has of d and of grad_x; rows and columns that a program has of grad_down_weight.
D_COLUMNS, X_COLUMNS = 48, 128
DOWN_ROWS, DOWN_COLUMNS = 64, 192


def arguments(name: str, matrices: str) -> type[ctypes.Structure]:
    """A kernel's struct of addresses and of three sizes."""
    fields = [(field, ctypes.c_void_p) for field in matrices.split()]
    sizes = [(field, ctypes.c_int) for field in ("tokens", "hidden", "inner")]
    return type(name, (ctypes.Structure,), {"_fields_": fields + sizes})


First = arguments("First", "grad_output down_weight gate sigmoid silu up both")
Second = arguments(
    "Second", "both x gate_weight up_weight grad_output intermediate grad_x grad_weights grad_down_weight"
)


def device(of: torch.device) -> nvrtc_launch.Device:
    return nvrtc_launch.of_device(__file__, of, THREADS, SHARED_BYTES)


def up_to(number: int, by: int) -> int:
    """Divided, and rounded up."""
    return -(-number // by)


def takes(inputs) -> bool:
    """Whether it is made for tensors like these."""
    tokens, hidden = inputs[0].shape
    fits = tokens <= MOST_TOKENS and hidden <= MOST_HIDDEN and len(inputs[2]) <= MOST_INNER
    whole = hidden % 8 == 0 and len(inputs[2]) % 8 == 0  # rows begin at multiples of 16 bytes
    return fits and whole and all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in inputs)


def launch(grad_output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, intermediate):
    (tokens, hidden), inner = x.shape, len(gate_weight)
    both, grad_weights = x.new_empty(tokens, 2 * inner), x.new_empty(2 * inner, hidden)
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(down_weight)
    sizes, on = (tokens, hidden, inner), device(x.device)
    matrices = (grad_output, down_weight, gate, sigmoid, silu, up, both)
    clusters = up_to(inner, D_COLUMNS)
    on.launch("first_launch", First(*(t.data_ptr() for t in matrices), *sizes), PROGRAMS * clusters)
    matrices = (both, x, gate_weight, up_weight, grad_output, intermediate, grad_x, grad_weights, grad_down_weight)
    clusters = max(up_to(hidden, X_COLUMNS), up_to(up_to(hidden, DOWN_ROWS) * up_to(inner, DOWN_COLUMNS), PROGRAMS))
    on.launch("second_launch", Second(*(t.data_ptr() for t in matrices), *sizes), PROGRAMS * clusters, early=True)
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(*inputs) if takes(inputs) else portable.run(*inputs)
