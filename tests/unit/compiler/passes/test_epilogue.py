"""Bias and activation in the matrix product."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.pipeline import optimise
from caldera.core.graph.program import Program, program_of
from caldera.kernels.table import TABLE
from tests.unit.compiler.passes.tools import names


def _optimised(*outputs: Expr, has_epilogue: bool = True) -> Program:
    def has_kernel(name: str) -> bool:
        return TABLE.has(name, "cpu") and (has_epilogue or name != "matmul_epilogue")

    return optimise(
        program_of([output.node for output in outputs]), has_kernel=has_kernel, without=["fuse"]
    )


@pytest.fixture
def layer() -> tuple[Expr, Expr, Expr]:
    x = op.var("x", (5, 3), fill=cd.uniform(-1, 1))
    w = op.var("w", (3, 4), fill=cd.uniform(-1, 1))
    b = op.var("b", (4,), fill=cd.uniform(-1, 1))
    return x, w, b


ACTIVATIONS = {
    "relu": op.relu,
    "sigmoid": op.sigmoid,
    "tanh": op.tanh,
    "gelu": op.gelu,
    "silu": op.silu,
    "leaky_relu": lambda x: op.leaky_relu(x, 0.3),
    "softplus": op.softplus,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_one_node_for_product_bias_and_activation(layer, name: str, dtype: str) -> None:
    x, w, b = (op.cast(each, dtype) for each in layer)
    y = ACTIVATIONS[name](x @ w + b)
    assert [n for n in names(_optimised(y)) if n != "cast"] == ["matmul_epilogue"]
    plain = cd.compile([y], without=["epilogue", "fuse"]).run()[0].numpy()
    # Half precision is rounded once instead of three times.
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(y.numpy(), plain, rtol=tolerance, atol=tolerance)


def test_without_a_bias_and_without_an_activation(layer) -> None:
    x, w, b = layer
    assert names(_optimised(op.relu(x @ w))) == ["matmul_epilogue"]
    assert names(_optimised(x @ w + b)) == ["matmul_epilogue"]
    assert names(_optimised(b + x @ w)) == ["matmul_epilogue"]
    np.testing.assert_allclose((x @ w + b).numpy(), x.numpy() @ w.numpy() + b.numpy(), rtol=1e-5)


def test_batches_and_leading_axes(layer) -> None:
    _, w, b = layer
    x = op.var("x", (2, 5, 3), fill=cd.uniform(-1, 1))
    assert "matmul_epilogue" in names(_optimised(op.relu(x @ w + b)))
    y = op.gelu(op.linear(x, w, b))
    assert sorted(names(_optimised(y))) == ["matmul_epilogue", "reshape", "reshape"]
    plain = cd.compile([y], without=["epilogue"]).run()[0].numpy()
    np.testing.assert_allclose(y.numpy(), plain, rtol=1e-5, atol=1e-6)


def test_a_product_that_somebody_else_reads_stays(layer) -> None:
    x, w, b = layer
    product = x @ w
    for outputs in ((op.relu(product + b), product), (op.relu(product), op.sin(product))):
        assert "matmul_epilogue" not in names(_optimised(*outputs))
    total = product + b
    kept = names(_optimised(op.relu(total), total))
    assert kept == ["matmul_epilogue", "relu"]


def test_something_that_is_no_bias_stays(layer) -> None:
    x, w, _ = layer
    full = op.var("full", (5, 4), fill=cd.uniform(-1, 1))
    column = op.var("column", (5, 1), fill=cd.uniform(-1, 1))
    larger = op.var("larger", (2, 1, 4), fill=cd.uniform(-1, 1))
    for other in (full, column, larger):
        assert "matmul_epilogue" not in names(_optimised(op.relu(x @ w + other)))


def test_a_bias_that_an_element_wise_loop_will_add_stays(layer) -> None:
    x, w, b = layer
    assert "matmul_epilogue" not in names(_optimised(op.sin(x @ w + b)))


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh"])
def test_training_keeps_only_the_activated_value(layer, name: str) -> None:
    x, w, b = layer
    y = ACTIVATIONS[name](x @ w + b)
    slopes = op.grad(op.sum(y * y), [w, b])
    found = names(_optimised(y, *slopes))
    assert found.count("matmul_epilogue") == 1
    assert found.count("matmul") == 1
    optimised = cd.compile(slopes).run()
    plain = cd.compile(slopes, without=["epilogue", "fuse", "simplify"]).run()
    for one, other in zip(optimised, plain, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_gelu_needs_what_was_activated(layer) -> None:
    x, w, b = layer
    slopes = op.grad(op.sum(op.gelu(x @ w + b)), [w, b])
    assert "matmul_epilogue" not in names(_optimised(*slopes))


def test_nothing_happens_where_the_device_has_no_such_kernel(layer) -> None:
    x, w, b = layer
    assert "matmul_epilogue" not in names(_optimised(op.relu(x @ w + b), has_epilogue=False))


# --- convolutions


@pytest.fixture
def convolution() -> tuple[Expr, Expr]:
    x = op.var("x", (2, 3, 6, 5), fill=cd.uniform(-1, 1))
    w = op.var("w", (4, 3, 3, 3), fill=cd.uniform(-1, 1))
    b = op.var("b", (4,), fill=cd.uniform(-1, 1))
    return op.bias_add(op.conv2d(x, w, padding=1), b, axis=1), w


def _on_a_card(*outputs: Expr) -> list[str]:
    """The ops that remain where convolutions can end with more."""
    program = program_of([output.node for output in outputs])
    plain = optimise(program, has_kernel=lambda name: TABLE.has(name, "cpu"), without=["fuse"])
    assert "conv2d_epilogue" not in names(plain)
    joined = optimise(
        program,
        has_kernel=lambda name: name == "conv2d_epilogue" or TABLE.has(name, "cpu"),
        without=["fuse"],
    )
    for one, other in zip(plain.outputs, joined.outputs, strict=True):
        np.testing.assert_allclose(
            Expr(one).numpy(), Expr(other).numpy(), rtol=1e-5, atol=1e-5, strict=True
        )
    return names(joined)


def test_a_convolution_takes_its_bias_and_activation(convolution) -> None:
    total, _ = convolution
    assert _on_a_card(op.relu(total)).count("conv2d_epilogue") == 1
    assert "relu" not in _on_a_card(op.relu(total))
    assert _on_a_card(total).count("conv2d_epilogue") == 1


def test_training_with_convolutions_keeps_only_the_activated_value(convolution) -> None:
    total, w = convolution
    y = op.relu(total)
    v = op.var("v", (2, 4, 3, 3), fill=cd.uniform(-1, 1))
    found = _on_a_card(*op.grad(op.sum(op.conv2d(y, v)), [w, v]))
    assert found.count("conv2d_epilogue") == 1
    assert "conv2d" not in found


def test_what_a_loop_reads_is_left_to_that_loop(convolution) -> None:
    """A kernel that cannot end a convolution is followed by a loop: one is enough."""
    total, _ = convolution
    assert "conv2d_epilogue" not in _on_a_card(op.sin(op.relu(total)))


def test_what_is_added_to_single_pixels_is_no_bias(convolution) -> None:
    total, _ = convolution
    full = op.var("full", (2, 4, 6, 5), fill=cd.uniform(-1, 1))
    assert "conv2d_epilogue" not in _on_a_card(op.relu(total + full))


def test_special_values_pass_through(layer) -> None:
    w = op.var("w", (1, 3), fill=np.array([[1.0, np.inf, np.nan]], np.float32))
    x = op.var("x", (2, 1), fill=np.array([[1.0], [-1.0]], np.float32))
    b = op.var("b", (3,), fill=np.zeros(3, np.float32))
    result = op.relu(x @ w + b).numpy()
    np.testing.assert_array_equal(result, [[1, np.inf, np.nan], [0, 0, np.nan]])
