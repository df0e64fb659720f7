"""Composite ops and their parts."""

from __future__ import annotations

import numpy as np

from caldera.compiler.passes.lower import lower
from caldera.core.graph.ops.activation import selu, softmax
from caldera.core.graph.ops.base import sum_
from caldera.core.graph.ops.indexing import top_k
from caldera.core.graph.program import Program
from tests.unit.compiler.passes.tools import compute, names, variable


def test_ops_with_a_kernel_stay() -> None:
    program = Program((softmax(selu(variable(3)), axis=0),))
    assert lower(program, lambda name: True) is program
    assert "softmax" in names(lower(program, lambda name: name != "selu"))


def test_parts_of_parts_are_expanded() -> None:
    # selu is made of elu, which is made of others.
    program = Program((selu(variable(3)),))
    parts = names(lower(program, lambda name: False))
    assert not {"selu", "elu"} & set(parts)
    assert "elu" in names(lower(program, lambda name: name != "selu"))


def test_several_outputs() -> None:
    x = variable(2, 5)
    values, positions = top_k.outputs(x, k=2, axis=1)
    program = Program((positions, sum_(values, (0,))))
    result = lower(program, lambda name: False)
    assert "top_k" not in names(result)
    data = {x: np.array([[1, 5, 2, 4, 3], [9, 6, 8, 7, 0]], np.float32)}
    for one, other in zip(compute(program.roots, data), compute(result.roots, data), strict=True):
        np.testing.assert_array_equal(one, other)
