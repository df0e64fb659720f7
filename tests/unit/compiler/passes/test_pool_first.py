"""Relu and biases go behind the maximum over windows, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes.lower import lower
from caldera.compiler.passes.pipeline import passes
from caldera.compiler.passes.relu import pool_first
from caldera.core.graph.node import Node
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from tests.unit.compiler.passes.tools import names

IMAGES = (2, 3, 9, 8)


@pytest.fixture
def x() -> Variable:
    # Few different numbers: windows have several maxima, and some are all negative.
    values = np.random.default_rng(3).integers(-4, 3, IMAGES).astype("float32")
    return op.var("x", IMAGES, fill=values)


@pytest.fixture
def bias() -> Variable:
    return op.var("bias", (3,), fill=np.array([0.5, -1.0, 0.0], "float32"))


def _moved(*outputs: Expr) -> Program:
    """What the pass makes of the outputs; it must compute the same."""
    program = program_of([output.node for output in outputs])
    result = pool_first(program)
    verify(result)
    # What a device that has no kernel for both makes of it.
    result = lower(result, lambda name: name != "max_pool2d_epilogue")
    for before, after in zip(outputs, result.outputs, strict=True):
        np.testing.assert_allclose(
            Expr(after).numpy(), before.numpy(), rtol=1e-6, atol=1e-6, strict=True
        )
    return result


def _shapes(program: Program, name: str) -> set[tuple[int, ...]]:
    return {node.shape for node in program.order() if node.op.name == name}


def _loss(y: Expr) -> Expr:
    return op.sum(y * y)


@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(2, 2, 0), (3, 2, 1), ((2, 3), (1, 2), 0)]
)
def test_relu_and_bias_in_training(
    x: Variable, bias: Variable, window: Any, stride: Any, padding: int
) -> None:
    y = op.max_pool2d(
        op.relu(op.bias_add(x * 1.0, bias, axis=1)), window, stride=stride, padding=padding
    )
    loss = _loss(y)
    program = _moved(loss, *op.grad(loss, [x, bias]))
    assert IMAGES not in _shapes(program, "relu") | _shapes(program, "greater")
    assert IMAGES not in _shapes(program, "add") | _shapes(program, "where")
    sums = [node for node in program.order() if node.op.name == "sum"]
    assert all(node.inputs[0].shape != IMAGES for node in sums)


def test_sums_for_the_bias_in_half_precision(bias: Variable) -> None:
    """They are kept in float32, so a cast stands before them."""
    x = op.var("x", IMAGES, fill=cd.uniform(-1, 1))
    w = op.var("w", (3, 3, 1, 1), fill=cd.uniform(-1, 1))
    y = op.max_pool2d(op.relu(op.bias_add(op.conv2d(x, w), bias, axis=1)), 2)
    loss = _loss(op.conv2d(y, w))
    program = program_of([each.node for each in op.grad(loss, [w, bias])])
    for name, run in passes(lambda name: True, precision="bfloat16"):
        program = run(program)
        if name == "pool_first":
            break
    verify(program)
    sums = [node for node in program.order() if node.op.name == "sum"]
    assert sums
    assert all(node.inputs[0].shape != IMAGES for node in sums)


def test_where_there_are_as_many_elements_after_it_nothing_moves(x: Variable) -> None:
    program = _moved(op.max_pool2d(op.relu(x * 2.0), 3, stride=1, padding=1))
    assert [name for name in names(program) if name in ("max_pool2d", "relu")] == [
        "relu",
        "max_pool2d",
    ]


def test_prediction(x: Variable, bias: Variable) -> None:
    program = _moved(op.max_pool2d(op.relu(op.bias_add(x, bias, axis=1)), 2))
    assert [name for name in names(program) if name in ("max_pool2d", "add", "relu")] == [
        "max_pool2d",
        "add",
        "relu",
    ]


def test_a_relu_that_others_read_stays(x: Variable) -> None:
    y = op.relu(x)
    for more in (op.sum(y), op.grad(_loss(op.max_pool2d(y, 2)) + op.sum(y * 3.0), x)):
        program = _moved(op.max_pool2d(y, 2), more)
        assert IMAGES in _shapes(program, "relu")


def test_what_is_wanted_itself_stays(x: Variable, bias: Variable) -> None:
    before = op.bias_add(x, bias, axis=1)
    assert IMAGES in _shapes(_moved(op.max_pool2d(op.relu(before), 2), before), "relu")
    y = op.relu(before)
    assert IMAGES in _shapes(_moved(op.max_pool2d(y, 2), y), "relu")


def test_the_relu_of_a_normalisation_stays(x: Variable) -> None:
    scale, shift = (op.var(name, (3,), fill=cd.constant(1.0)) for name in ("scale", "shift"))
    y = op.max_pool2d(op.relu(op.batch_norm(x, scale, shift)[0]), 2)
    assert IMAGES in _shapes(_moved(y), "relu")


def test_what_is_added_to_single_pixels_stays(x: Variable) -> None:
    other = op.var("other", (9, 8), fill=cd.uniform(-1, 1))
    loss = _loss(op.max_pool2d(x + other, 2))
    assert IMAGES in _shapes(_moved(loss, *op.grad(loss, [x, other])), "add")


def test_sums_of_something_else_stay(x: Variable, bias: Variable) -> None:
    """Only what was spread by the pooling of a bias is added up before."""
    y = op.max_pool2d(x, 2)
    spread = op.grad(_loss(y), x)
    program = _moved(op.sum(spread, (0, 2, 3)), op.sum(spread, (0, 1)))
    sums: list[Node] = [node for node in program.order() if node.op.name == "sum"]
    assert all(node.inputs[0].shape == IMAGES for node in sums)
