"""Relu and what is added before it go into batch normalisation."""

from __future__ import annotations

import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.epilogue import norm_epilogue
from caldera.core.graph.program import Program
from tests.unit.compiler.passes.tools import joined, names

Layer = tuple[Expr, Expr, Expr]


@pytest.fixture
def layer() -> Layer:
    x = op.var("x", (4, 3, 2, 2), fill=cd.uniform(-1, 1))
    scale = op.var("scale", (3,), fill=cd.uniform(0.5, 1))
    shift = op.var("shift", (3,), fill=cd.uniform(-1, 1))
    return x, scale, shift


def _joined(*outputs: Expr) -> Program:
    return joined(norm_epilogue, outputs, near=1e-5)


def _norms(program: Program) -> list[str]:
    return [name for name in names(program) if "norm" in name or name == "relu"]


def test_relu_joins(layer: Layer) -> None:
    y, mean, variance = op.batch_norm(*layer)
    assert _norms(_joined(op.relu(y), mean, variance)) == ["batch_norm_relu"]


def test_what_is_added_joins_on_either_side(layer: Layer) -> None:
    x = layer[0]
    for total in (op.batch_norm(*layer)[0] + x, x + op.batch_norm(*layer)[0]):
        program = _joined(op.relu(total))
        assert _norms(program) == ["batch_norm_relu"]
        assert "add" not in names(program)


def test_of_two_normalisations_one_takes_the_other(layer: Layer) -> None:
    x, scale, shift = layer
    total = op.batch_norm(x, scale, shift)[0] + op.batch_norm(x * x, scale, shift)[0]
    assert _norms(_joined(op.relu(total))) == ["batch_norm", "batch_norm_relu"]


def test_given_statistics_join(layer: Layer) -> None:
    x, scale, shift = layer
    y = op.batch_norm(x, scale, shift, shift, scale)
    assert _norms(_joined(op.relu(y))) == ["batch_norm_inference_relu"]
    assert _norms(_joined(op.relu(y + x))) == ["batch_norm_inference_relu"]


def test_gradients_take_the_relu_in(layer: Layer) -> None:
    y, mean, _ = op.batch_norm(*layer)
    z = op.relu(y)
    slopes = op.grad(op.sum(z * z * z), list(layer))
    program = _joined(z, mean, *slopes)
    assert _norms(program) == ["batch_norm_relu", "batch_norm_relu_grad"]
    assert not {"where", "greater"} & set(names(program))


def test_gradients_of_a_sum_keep_their_mask(layer: Layer) -> None:
    """The gradient behind the mask is also that of what was added."""
    z = op.relu(op.batch_norm(*layer)[0] + layer[0])
    slopes = op.grad(op.sum(z * z * z), list(layer))
    program = _joined(z, *slopes)
    assert _norms(program) == ["batch_norm_relu", "batch_norm_grad"]
    assert "where" in names(program)


def test_a_value_that_is_read_elsewhere_stays(layer: Layer) -> None:
    y = op.batch_norm(*layer)[0]
    assert _norms(_joined(op.relu(y), y)) == ["batch_norm", "relu"]
    assert _norms(_joined(op.relu(y), op.exp(y))) == ["batch_norm", "relu"]
    total = y + layer[0]
    assert _norms(_joined(op.relu(total), total)) == ["batch_norm", "relu"]


def test_a_batch_does_not_wait_for_its_own_statistics(layer: Layer) -> None:
    y, mean, _ = op.batch_norm(*layer)
    more = layer[0] * op.reshape(mean, (3, 1, 1))
    assert _norms(_joined(op.relu(y + more))) == ["batch_norm", "relu"]


def test_what_is_broadcast_is_not_taken_in(layer: Layer) -> None:
    y = op.batch_norm(*layer)[0] + op.reshape(layer[2], (3, 1, 1))
    assert _norms(_joined(op.relu(y))) == ["batch_norm", "relu"]
