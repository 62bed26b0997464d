"""A part of a question has the same answer as that part of the whole."""

from __future__ import annotations

import random

import pytest
import torch

from harness import inputs
from harness.arena import torch_dtype
from harness.catalog import Catalog
from harness.judge import compare
from harness.slices import Slicer

CASES = [("moe", "t1", 4), ("moe", "t16", 4), ("moe", "t128", 4), ("dense", "b1-s128", 64), ("dense", "b8-s128", 64)]


@pytest.mark.parametrize(("name", "case_id", "scale"), CASES)
def test_the_reference_of_a_part_is_a_part_of_the_reference(name: str, case_id: str, scale: int) -> None:
    workload = Catalog().workload(name)
    case, reference = workload.case(case_id, scale), inputs.load_reference(workload.reference_path)
    given = [torch.empty(t.shape, dtype=torch_dtype(t.dtype)) for t in case.inputs]
    inputs.fill(workload, case, reference, 3, given)
    whole = reference.run(*given)
    slicer = Slicer(workload, case, torch.device("cpu"))
    parts = slicer.draw(random.Random(1))
    taken = slicer.taken(parts, whole)
    expected = slicer.expected(parts, lambda values: reference.run(*values), given)
    assert set(taken) == set(expected) == {tensor.name for tensor in case.outputs}
    for output, values in taken.items():
        assert values.shape == expected[output].shape
        figures = compare(values, expected[output], case.tolerances[output])
        assert figures.matched_ratio > 0.998
        assert figures.norm_rel_error < 0.004


def test_every_index_can_be_drawn_and_no_two_draws_agree() -> None:
    workload = Catalog().workload("moe")
    slicer = Slicer(workload, workload.case("t1087", 4), torch.device("cpu"))
    secret = random.Random(0)
    draws = [slicer.draw(secret) for _ in range(200)]
    tokens = [tuple(parts[1].indices["T"].tolist()) for parts in draws]
    columns = {index for parts in draws for index in parts[0].indices["I"].tolist()}
    assert len(set(tokens)) == 200
    assert columns == set(range(192))
    assert all(len(drawn) == len(set(drawn)) == 16 for drawn in tokens)
