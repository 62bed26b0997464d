"""Inputs of a case, from a seed: what a workload file states, as tensors."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch

from harness import expressions
from harness.errors import InputError
from harness.spec import Case, Workload


def derived_seed(base: int, *parts: object) -> int:
    """A 63-bit seed for one purpose, so that cases and rounds do not share random numbers."""
    text = "\0".join(str(part) for part in (base, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def load_reference(path: Path) -> ModuleType:
    """Import a workload's `reference.py`. Raises `InputError` when it fails or has no `run`."""
    spec = importlib.util.spec_from_file_location(f"solbench_reference_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the file does wrong is the file's fault
        raise InputError(str(path), f"fails on import ({type(error).__name__}: {error})", "mend it") from error
    if not callable(getattr(module, "run", None)):
        raise InputError(str(path), "defines no function run", "write run(*inputs) that returns the outputs")
    return module


def fill(workload: Workload, case: Case, reference: ModuleType, seed: int, tensors: Sequence[torch.Tensor]) -> None:
    """Write the case's inputs for `seed` into `tensors`, which have the shapes of `case.inputs`.

    The same seed on the same kind of device and version of torch gives the same values. Raises
    `InputError` when the reference does not derive what the file says.
    """
    generator = torch.Generator(device=tensors[0].device).manual_seed(seed)
    named = {tensor.name: values for tensor, values in zip(case.inputs, tensors, strict=True)}
    derived: dict[str, list[str]] = {}
    for name, values in named.items():
        source = workload.model.inputs[name]
        if source.normal is not None:
            values.normal_(generator=generator)
            spread = float(expressions.evaluate(source.normal, case.axes))
            if spread != 1:
                values.mul_(spread)
        elif source.uniform is not None:
            values.uniform_(*source.uniform, generator=generator)
        elif source.constant is not None:
            values.fill_(source.constant)
        elif source.derived_by is not None:
            derived.setdefault(source.derived_by, []).append(name)
    for function_name, names in derived.items():
        results = _derive(workload, reference, function_name, named)
        for name in names:
            if name not in results or results[name].shape != named[name].shape:
                place = f"{workload.reference_path}: {function_name}"
                raise InputError(place, f'does not return "{name}" in its shape', "return a dict with it")
            named[name].copy_(results[name])


def _derive(
    workload: Workload, reference: ModuleType, function_name: str, named: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    place = str(workload.reference_path)
    function = getattr(reference, function_name, None)
    if not callable(function):
        raise InputError(place, f"has no function {function_name}, which derived_by names", "define it")
    parameters = inspect.signature(function).parameters
    if unknown := [name for name in parameters if name not in named]:
        problem = f'{function_name} has the parameter "{unknown[0]}", which is no input'
        raise InputError(place, problem, f"take some of {', '.join(named)}")
    try:
        results = function(**{name: named[name] for name in parameters})
    except torch.OutOfMemoryError:
        raise
    except (Exception, SystemExit) as error:  # whatever the file does wrong is the file's fault
        raise InputError(place, f"{function_name} fails ({type(error).__name__}: {error})", "mend it") from error
    if not isinstance(results, dict):
        raise InputError(place, f"{function_name} returns no dict", "return the derived tensors by name")
    return results
