"""Gradients of large relus behind products read bits."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes import relu as module
from caldera.compiler.passes.epilogue import epilogue
from caldera.compiler.passes.relu import relu_mask
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from tests.unit.compiler.passes.tools import names


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of every size are large enough."""
    monkeypatch.setattr(module, "LARGE", 0)


def variable(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return op.var(name, shape, fill=cd.uniform(-1, 1), dtype=dtype)


def masked(*outputs: Expr) -> Program:
    """What the pass makes of the outputs, which must compute the same."""
    before = epilogue(program_of([output.node for output in outputs]), lambda name: True)
    result = relu_mask(before)
    verify(result)
    for right, found in zip(outputs, result.outputs, strict=True):
        np.testing.assert_allclose(
            Expr(found).numpy().astype("float64"), right.numpy().astype("float64"), rtol=1e-6
        )
    return result


def gradients(dtype: str, bias: bool = True) -> list[Expr]:
    """The gradients of two layers with a relu between them."""
    x, w = variable("x", 5, 6, dtype=dtype), variable("w", 6, 9, dtype=dtype)
    b, v = variable("b", 9, dtype=dtype), variable("v", 9, 4, dtype=dtype)
    hidden = op.relu(x @ w + b if bias else x @ w)
    loss = op.sum(op.cast(hidden @ v, "float32") * variable("g", 5, 4))
    return op.grad(loss, [w, b, v] if bias else [w, v])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_relu_behind_a_product(dtype: str, bias: bool) -> None:
    found = names(masked(*gradients(dtype, bias)))
    assert found.count("relu_mask") == found.count("relu_mask_grad") == 1
    assert not {"greater", "where"} & set(found)
    assert found.count("matmul_epilogue") == bias


def test_the_sum_for_a_bias_goes_with_it() -> None:
    assert "sum" not in names(masked(*gradients("float32")))


def test_small_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 46)
    assert "relu_mask" not in names(masked(*gradients("float32")))


def test_gradients_that_a_loop_makes_stay() -> None:
    x, w, g = variable("x", 5, 6), variable("w", 6, 9), variable("g", 5, 9)
    hidden = op.relu(x @ w)
    scaled = op.grad(op.sum(hidden * op.exp(g)), w)
    assert "relu_mask" not in names(masked(scaled))


def test_a_mask_that_others_read_stays() -> None:
    x, w, v = variable("x", 5, 6), variable("w", 6, 9), variable("v", 9, 4)
    hidden = op.relu(x @ w)
    gradient = op.grad(op.sum(hidden @ v), w)
    positive = op.where(hidden > 0, 1.0, 2.0)
    assert "relu_mask" not in names(masked(gradient, positive))
    assert "relu_mask" not in names(masked(gradient, op.cast(hidden > 0, "float32")))
