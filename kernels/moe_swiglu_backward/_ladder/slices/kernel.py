"""At most 32 tokens in one launch of clusters in CUDA C++: a cluster owns columns of I, and only grad_x sums over them.

Who owns columns of d has all that the same rows of both weight gradients need, and makes its part of grad_x. Eight
programs of a cluster divide H; each asks for its pieces of all three weights at once. Their parts of d go from each
program to all others through distributed shared memory, counted by a barrier where they arrive (st.async), so that
nobody waits for a cluster barrier. The parts of grad_x go to memory, in float32; a program counts itself in, writes its
weight gradients, and then sums its share of grad_x in an order that is always the same: repeatable bit for bit.

A program that has looked long enough for the others leaves, and the last one to arrive sums its share, so that kernels
of several streams cannot hold each other up. The counters are kept from call to call, and calls on different streams
have their own. The source is compiled by NVRTC, which comes with PyTorch, in the first call.

More tokens, hidden sizes beyond 2048 and 768, and other GPUs than sm_90 take plain PyTorch here.

FLOPs: 12*T*H*I, with T rounded up to 16 or 32. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: 16 parts of
grad_x are written and read (128TH), and grad_output and x read 16 times, all in the L2 cache. It has run in an emulator
and on no GPU yet.
"""

import ctypes

import nvrtc_launch
import portable
import torch

MOST_HIDDEN, MOST_INNER = 2048, 768
PROGRAMS, THREADS, SHARED_BYTES = 8, 256, 212496
COLUMNS = 48  # of d, a cluster's
INPUTS = (
    *("grad_output", "x", "gate_weight", "up_weight", "down_weight"),
    *("gate", "sigmoid", "silu", "up", "intermediate"),
)
OUTPUTS = ("grad_x", "grad_weights", "grad_down_weight")
# A kernel takes up to so many tokens.
KERNELS = ((16, "up_to_16_tokens"), (32, "up_to_32_tokens"))
MOST_TOKENS = KERNELS[-1][0]


class Arguments(ctypes.Structure):
    """As in kernel.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*INPUTS, *OUTPUTS, "parts", "meetings")),
        *((name, ctypes.c_int) for name in ("tokens", "hidden", "inner", "clusters")),
    )


def device(of: torch.device) -> nvrtc_launch.Device:
    return nvrtc_launch.of_device(__file__, of, THREADS, SHARED_BYTES)


def takes(inputs) -> bool:
    """Whether it is made for tensors like these."""
    tokens, hidden = inputs[0].shape
    fits = tokens <= MOST_TOKENS and hidden <= MOST_HIDDEN and len(inputs[2]) <= MOST_INNER
    whole = hidden % 8 == 0 and len(inputs[2]) % 8 == 0  # rows begin at multiples of 16 bytes
    return fits and whole and all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in inputs)


_meetings: dict[tuple[torch.device, int], torch.Tensor] = {}


def meetings(of: torch.device) -> torch.Tensor:
    """Where programs of different clusters meet in calls on the current stream: zeros before the first of them."""
    key = (of, torch.cuda.current_stream(of).cuda_stream if of.type == "cuda" else 0)
    if key not in _meetings:
        _meetings[key] = torch.zeros(PROGRAMS, dtype=torch.int64, device=of)
    return _meetings[key]


def launch(*inputs):
    x, inner = inputs[1], len(inputs[2])
    tokens, hidden = x.shape
    clusters = -(-inner // (2 * COLUMNS)) * 2  # neighbours share tiles of grad_down_weight
    grad_x, grad_weights = torch.empty_like(x), x.new_empty(2 * inner, hidden)
    grad_down_weight = torch.empty_like(inputs[4])
    parts = x.new_empty(clusters, tokens, hidden, dtype=torch.float32)
    matrices = (*inputs, grad_x, grad_weights, grad_down_weight, parts, meetings(x.device))
    name = next(name for most, name in KERNELS if tokens <= most)
    what = Arguments(*(t.data_ptr() for t in matrices), tokens, hidden, inner, clusters)
    device(x.device).launch(name, what, PROGRAMS * clusters)
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(*inputs) if takes(inputs) else portable.run(*inputs)
