"""Norms, losses and gathers round what products read."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes.residual_norm import LARGE, rounded_results
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from tests.unit.compiler.passes.tools import names

LABELS = np.array([2, 0, 1, 3])


def variable(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return op.var(name, shape, fill=cd.uniform(-1, 1), dtype=dtype)


def rounded(*outputs: Expr) -> Program:
    """What the pass makes of the outputs; nothing is rounded that was not before."""
    result = rounded_results(program_of([output.node for output in outputs]))
    verify(result)
    for before, after in zip(outputs, result.outputs, strict=True):
        assert np.array_equal(Expr(after).numpy(), before.numpy())
    return result


def normalised() -> Expr:
    x, scale, shift = variable("x", 4, 6), variable("scale", 6), variable("shift", 6)
    return op.layer_norm(x, scale, shift)


def test_a_norm_that_everybody_rounds_writes_what_they_read() -> None:
    y = op.cast(normalised(), "bfloat16")
    program = rounded(y @ op.transpose(y), op.exp(y))
    assert "layer_norm_rounded" in names(program)
    assert "cast" not in names(program)


def test_a_norm_that_somebody_reads_as_it_is_stays() -> None:
    y = normalised()
    for more in (y, op.exp(y), op.cast(y, "float16")):
        assert "layer_norm" in names(rounded(op.exp(op.cast(y, "bfloat16")), more))


def test_the_samples_of_a_large_batch_are_rounded_while_they_are_gathered() -> None:
    x = variable("x", 3, LARGE)
    batch = op.gather(x, np.array([2, 0]))
    y = op.cast(batch, "bfloat16")
    assert "cast" not in names(found := rounded(op.exp(y), y[:1]))
    assert "gather_rounded" in names(found)
    assert "gather_rounded" not in names(rounded(op.exp(y), op.exp(batch)))
    few = op.cast(op.gather(x[:, :9], np.array([2, 0])), "bfloat16")
    assert "gather_rounded" not in names(rounded(op.exp(few)))


def trained(loss_weight: Expr | None = None) -> tuple[Expr, Expr, Expr]:
    """The losses of logits in half precision, and what two products make of the gradient."""
    logits = variable("logits", 4, 5, dtype="bfloat16")
    losses = op.cross_entropy(op.cast(logits, "float32"), LABELS, "none")
    seed = variable("g", 4) if loss_weight is None else loss_weight
    gradient = op.grad(op.sum(losses * seed), op.cast(logits, "float32"))
    narrow = op.cast(gradient, "bfloat16")
    return losses, narrow @ op.transpose(logits), gradient


def test_a_loss_and_its_gradient_read_the_logits_once() -> None:
    losses, product, _ = trained()
    found = names(rounded(losses, product))
    assert found.count("cross_entropy_with_gradient") == 1
    assert not {"cross_entropy", "cross_entropy_grad", "cast"} & set(found)


def test_a_gradient_that_somebody_reads_as_it_is_stays() -> None:
    losses, product, gradient = trained()
    assert "cross_entropy_grad" in names(rounded(losses, product, op.sum(gradient, axis=0)))


def test_a_gradient_that_waits_for_the_loss_stays() -> None:
    logits = variable("logits", 4, 5, dtype="bfloat16")
    wide = op.cast(logits, "float32")
    losses = op.cross_entropy(wide, LABELS, "none")
    narrow = op.cast(op.grad(op.sum(losses * losses), wide), "bfloat16")
    assert "cross_entropy_grad" in names(rounded(losses, narrow @ op.transpose(logits)))
