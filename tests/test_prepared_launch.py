"""Launches without Triton: parameters lie as the compiled kernel takes them, and what is not known Triton launches."""

from __future__ import annotations

import ctypes
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, module_of
from triton_ladder import without_interpreter

# Compiles two launches of a kernel for sm_90 and, by the addresses that a launch would hand to the driver, reads as
# many bytes as the machine code declares for each parameter. One JSON line for each launch.
PARAMETERS = """\
import ctypes, json, re, sys
sys.path.insert(0, "benchmarks")
import crossovers, moe_crossovers as benchmark

name, tokens = sys.argv[1], int(sys.argv[2])
module = benchmark.kernel(name)
requests = []
names = module.in_a_row.__globals__
driver, convention = names["driver"], names["_Convention"]
vars(module)["in_a_row"] = lambda *some: requests.extend(some)
module.run(*benchmark.made_inputs(tokens, 0, "meta"))
for request in requests:
    given = dict(zip([p.name for p in request.kernel.params], [*request.arguments, *request.constants]))
    built = crossovers.compiled_for_hopper(request.kernel, given, {"num_warps": request.warps})
    entry = built.asm["ptx"].partition(".entry")[2].partition(")")[0]
    declared = re.findall(r"\\.param (?:\\.align (\\d+) )?\\.(b8|u32|u64|b32|b64)\\b[^,\\[]*(?:\\[(\\d+)\\])?", entry)
    sizes = [int(many) if many else int(kind[1:]) // 8 for _, kind, many in declared]
    maps = iter(range(1, 100))
    driver.encode = lambda address, *_: ctypes.memset(address, next(maps), 128)
    driver.Launch = lambda function, of, programs, threads, shared, parameters, early: (threads, shared, parameters)
    (threads, shared, parameters), room = convention(built, request.arguments).ready(request, None)
    held = [ctypes.string_at(address, size) for address, size in zip(parameters, sizes, strict=True)]
    expected, number = [], 0
    for argument in request.arguments:
        if isinstance(argument, int):
            expected.append((argument, 4))
        elif hasattr(argument, "block_shape"):
            number += 1
            expected.append((int.from_bytes(bytes([number] * 128), "little"), 128))
            expected += [(n, 4) for n in argument.shape] + [(n, 8) for n in argument.strides]
        else:
            expected.append((argument.data_ptr(), 8))
    print(json.dumps({
        "function": request.kernel.__name__,
        "held": [(int.from_bytes(value, "little"), len(value)) for value in held],
        "expected": [*expected, (0, 8), (0, 8)],
        "threads": [threads, 32 * built.metadata.num_warps],
        "aligned": all(address % 64 == 0 for address, size in zip(parameters, sizes) if size == 128),
    }))
"""


@pytest.mark.parametrize(("name", "tokens"), [("warp_specialized", 2447), ("grouped", 1087), ("grouped", 129)], ids=str)
def test_parameters_lie_where_the_machine_code_reads_them(name: str, tokens: int) -> None:
    said = without_interpreter("-c", PARAMETERS, name, str(tokens))
    launches = [json.loads(line) for line in said.splitlines()]
    assert len(launches) == 2
    for launch in launches:
        assert launch["held"] == launch["expected"], launch["function"]
        assert launch["threads"][0] == launch["threads"][1]
        assert launch["aligned"]


# --- when it is Triton's launch, and when not ---------------------------------------------------------------------


class Compiled:
    """Stands in for what Triton returns from a launch."""

    def __init__(self, **other: Any) -> None:
        plain = {"num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0, "num_warps": 4, "shared": 1024}
        self.metadata = SimpleNamespace(**{**plain, "tensordesc_meta": [], **other})
        self.function = 7


class Kernel:
    """Stands in for a kernel: notes what Triton launches."""

    def __init__(self, compiled: object, made: list[str]) -> None:
        self._compiled, self._made = compiled, made

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*_: Any, **options: Any) -> object:
            self._made.append("triton, early" if options.get("launch_pdl") else "triton")
            return self._compiled

        return launch


class Descriptor:
    def __init__(self, base: torch.Tensor) -> None:
        self.base, self.block_shape = base, [64, 64]


@pytest.fixture(name="made")
def launches_made() -> list[str]:
    """Who launched."""
    return []


@pytest.fixture(name="prepared")
def module_with_a_driver_that_notes(made: list[str], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    launch = SimpleNamespace(go=lambda: made.append("driver"))
    driver = SimpleNamespace(Map=ctypes.c_uint64 * 16, Room=Room, Launch=lambda *_: launch)
    monkeypatch.setitem(sys.modules, "driver", driver)
    module = module_of(REPOSITORY / "kernels" / "moe_swiglu_backward" / "_prepared_launch.py")
    monkeypatch.setattr(module, "CompiledKernel", Compiled)
    monkeypatch.setattr(module, "KNOWN", True)
    return module


class Room:
    def __init__(self, size_bytes: int) -> None:
        self.memory, self.offset, self.address = bytearray(size_bytes), 0, 0


def test_what_triton_compiled_is_launched_without_it_from_then_on(prepared: ModuleType, made: list[str]) -> None:
    kernel = Kernel(Compiled(), made)
    request = prepared.Request(kernel, 3, (torch.zeros(8), 5), (16,), 4)
    early = request._replace(early=True)
    prepared.in_a_row(request, early)
    assert made == ["triton", "triton, early"]
    prepared.in_a_row(request, early._replace(arguments=(torch.ones(8), 6)))
    assert made[2:] == ["driver", "driver"]


@pytest.mark.parametrize(
    "change",
    [
        {"constants": (32,)},
        {"warps": 8},
        {"early": True},
        {"arguments": (torch.zeros(8, dtype=torch.bfloat16), 5)},
        {"arguments": (torch.zeros(8)[1:], 5)},
    ],
    ids=["constants", "warps", "early", "type", "alignment"],
)
def test_what_triton_compiles_anew_it_launches(change: dict[str, Any], prepared: ModuleType, made: list[str]) -> None:
    request = prepared.Request(Kernel(Compiled(), made), 3, (torch.zeros(8), 5), (16,), 4)
    prepared.in_a_row(request)
    prepared.in_a_row(request._replace(**change))
    assert [who.partition(",")[0] for who in made] == ["triton", "triton"]


@pytest.mark.parametrize(
    ("compiled", "known", "argument"),
    [
        (None, True, torch.zeros(8)),
        (Compiled(), False, torch.zeros(8)),
        (Compiled(num_ctas=2), True, torch.zeros(8)),
        (Compiled(global_scratch_size=64), True, torch.zeros(8)),
        (Compiled(profile_scratch_size=64), True, torch.zeros(8)),
        (Compiled(tensordesc_meta=None), True, Descriptor(torch.zeros(8))),
    ],
    ids=[
        "the interpreter", "another Triton", "a cluster", "memory of its own", "a profile", "a descriptor without a map"
    ],
)  # fmt: skip
def test_what_is_not_known_here_triton_launches_always(
    compiled: object, known: bool, argument: Any, prepared: ModuleType, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "KNOWN", known)
    request = prepared.Request(Kernel(compiled, made), 3, (torch.zeros(8), argument), (16,), 4)
    for _ in range(3):
        prepared.in_a_row(request)
    assert made == ["triton"] * 3
