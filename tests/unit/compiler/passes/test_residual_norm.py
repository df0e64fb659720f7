"""Layer norms take the sums of residual blocks along, and so do their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes.residual_norm import residual_norm
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from tests.unit.compiler.passes.tools import names

ROWS, WIDTH = 4, 6


def variable(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return op.var(name, shape or (ROWS, WIDTH), fill=cd.uniform(-1, 1), dtype=dtype)


def joined(*outputs: Expr) -> Program:
    """What the pass makes of the outputs, which must compute the same."""
    result = residual_norm(program_of([output.node for output in outputs]))
    verify(result)
    for before, after in zip(outputs, result.outputs, strict=True):
        assert np.array_equal(Expr(after).numpy(), before.numpy())
    return result


def norm(x: Expr, name: str = "") -> Expr:
    return op.layer_norm(x, variable(f"scale{name}", WIDTH), variable(f"shift{name}", WIDTH))


def product(dtype: str = "float32") -> Expr:
    return variable("a", ROWS, 3, dtype=dtype) @ variable("b", 3, WIDTH, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_takes_what_a_product_adds(dtype: str) -> None:
    x = variable("x")
    total = x + op.cast(product(dtype), "float32")
    program = joined(norm(total), total * total)
    assert names(program).count("layer_norm_residual") == 1
    assert not {"layer_norm", "add", "cast"} & set(names(program))


def test_one_of_two_norms_takes_the_sum() -> None:
    total = variable("x") + product()
    found = names(joined(norm(total, "1"), norm(total, "2")))
    assert found.count("layer_norm_residual") == found.count("layer_norm") == 1


@pytest.mark.parametrize(
    "more",
    [
        lambda: variable("row", WIDTH),
        lambda: op.exp(product()),
    ],
    ids=["broadcast", "made by a loop"],
)
def test_other_sums_stay(more: object) -> None:
    assert callable(more)
    assert "layer_norm" in names(joined(norm(variable("x") + more())))


def test_a_scale_that_waits_for_the_sum_leaves_it() -> None:
    total = variable("x") + product()
    y = op.layer_norm(total, op.sum(total, axis=0), variable("shift", WIDTH))
    assert "layer_norm" in names(joined(y))


def gradient() -> tuple[Expr, Expr]:
    """The gradients of a norm with respect to its input and its scale."""
    x, scale = variable("x"), variable("scale", WIDTH)
    loss = op.sum(op.layer_norm(x, scale, variable("shift", WIDTH)) * variable("g"))
    dx, for_scale = op.grad(loss, [x, scale])
    return dx, for_scale


def used(total: Expr) -> list[Expr]:
    """A product in half precision, and a bias's gradient."""
    narrow = op.cast(total, "bfloat16")
    return [narrow @ op.transpose(narrow), op.sum(total, axis=0)]


def test_a_gradient_is_added_rounded_and_summed_at_once() -> None:
    dx, for_scale = gradient()
    total = dx + product()
    found = names(joined(*used(total), total * total, for_scale))
    assert found.count("layer_norm_grad_residual") == 1
    assert not {"layer_norm_grad", "add", "cast", "sum"} & set(found)


def test_a_gradient_to_which_nothing_is_added() -> None:
    dx, for_scale = gradient()
    found = names(joined(*used(dx), op.exp(dx), for_scale))
    assert "layer_norm_grad_residual" in found
    assert "sum" not in found
    assert "layer_norm_grad" in names(joined(op.exp(dx), for_scale))


def test_rows_of_several_axes() -> None:
    x, scale = variable("x", 2, 3, WIDTH), variable("scale", WIDTH)
    loss = op.sum(op.layer_norm(x, scale, variable("shift", WIDTH)) * variable("g", 2, 3, WIDTH))
    dx = op.grad(loss, x)
    rows = op.reshape(dx, (6, WIDTH))
    sums = [op.sum(dx, axis=(0, 1)), op.sum(rows, axis=0)]
    assert "sum" not in names(joined(*sums))
    others = [op.sum(dx, axis=0), op.sum(dx, axis=(0, 1), keepdims=True), op.sum(rows, axis=1)]
    assert "layer_norm_grad" in names(joined(*others))


def test_two_gradients_that_are_added_to_each_other() -> None:
    x = variable("x")
    first, second = (op.sum(norm(x, name) * variable("g" + name)) for name in "12")
    found = names(joined(op.grad(first, x) + op.grad(second, x)))
    assert found.count("layer_norm_grad_residual") == found.count("layer_norm_grad") == 1


def test_what_waits_for_the_gradient_is_not_added_to_it() -> None:
    dx, for_scale = gradient()
    waiting = variable("w") * op.exp(for_scale)
    assert "layer_norm_grad" in names(joined(waiting + dx))
    assert "layer_norm_grad" in names(joined(dx + waiting))


def test_a_gradient_somebody_reads_before_the_sum_is_not_lost() -> None:
    dx, _ = gradient()
    found = names(joined(dx, dx + product(), *used(dx)))
    assert "add" in found
    assert "layer_norm_grad_residual" in found
