"""A table of few rows is multiplied before rows are read from it, forwards and backwards."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.reshapes import row_products
from caldera.core.graph.node import Node
from caldera.core.graph.program import program_of
from caldera.core.graph.verify import verify

WORDS, WIDTH, UNITS = 5, 3, 7


def _loss(batch: int, steps: int, *, turned: bool) -> list[Expr]:
    """A product of an embedding's rows and all gradients."""
    draw = np.random.default_rng(0)
    table = op.var("table", (WORDS, WIDTH), fill=draw.standard_normal((WORDS, WIDTH)))
    weight = op.var("weight", (WIDTH, UNITS), fill=draw.standard_normal((WIDTH, UNITS)))
    bias = op.var("bias", (UNITS,), fill=draw.standard_normal(UNITS))
    # The last word is never named.
    words = draw.integers(0, WORDS - 1, (batch, steps))
    rows = op.gather(table, words)
    if turned:
        rows = op.transpose(rows, (1, 0, 2))
    found = op.reshape(rows, (batch * steps, WIDTH)) @ weight + bias
    loss = op.sum(op.tanh(found))
    return [found, *op.grad(loss, [table, weight, bias])]


def _longest(nodes: list[Node]) -> int:
    """The most rows or terms that any product has."""
    products = [each for each in nodes if each.op.name == "matmul"]
    return max(max(*each.shape, *each.inputs[0].shape) for each in products)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_rows_are_small_and_the_same(turned: bool) -> None:
    outputs = _loss(8, 6, turned=turned)
    before = program_of([each.node for each in outputs])
    after = row_products(before)
    verify(after)
    assert _longest(before.order()) == 48
    assert _longest(after.order()) == UNITS
    assert sum(each.op.name == "scatter_add" for each in after.order()) == 1
    for one, other in zip(after.outputs, outputs, strict=True):
        np.testing.assert_allclose(Expr(one).numpy(), other.numpy(), rtol=1e-5, atol=1e-5)
    assert not Expr(after.outputs[1]).numpy()[-1].any()


def test_rows_that_are_hardly_used_again_are_read_first() -> None:
    before = program_of([each.node for each in _loss(3, 6, turned=False)])
    assert row_products(before).outputs == before.outputs


def test_a_recurrent_network_over_letters_learns_the_same() -> None:
    words = np.random.default_rng(1).integers(0, WORDS, (8, 12))
    letters = op.input("letters", words.shape, dtype="int64")
    layers = [nn.Embedding(WORDS, WIDTH), nn.LSTM(4, return_sequences=True), nn.Dense(WORDS)]
    with nn.trace(training=True):
        x: Expr = letters
        for layer in layers:
            x = layer(x)
    parameters = [each for layer in layers for each in layer.parameters()]
    outputs = [x, *op.grad(op.sum(op.tanh(x)), parameters)]
    feeds = {"letters": words}
    found, expected = (
        cd.compile(outputs, without=without).run(feeds) for without in ((), ("row_products",))
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=1e-5)
