"""Gradients of queries, keys and values that are views of one product are written side by side."""

from __future__ import annotations

import pytest

from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.pipeline import optimise
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify

PACKED = "scaled_dot_product_attention_backward_packed"


def _optimised(*outputs: Expr, has_kernel: bool = True) -> Program:
    program = program_of([each.node for each in outputs])
    done = optimise(program, has_kernel=lambda name: has_kernel or name != PACKED)
    verify(done, "packed_attention")
    return done


def _names(program: Program) -> list[str]:
    return [node.op.name for node in program.order()]


def _network() -> tuple[list[nn.Layer], Expr]:
    layers: list[nn.Layer] = [nn.MultiHeadAttention(2, causal=True) for _ in range(2)]
    y = op.input("x", (2, 5, 8))
    for layer in layers:
        y = layer(y)
    return layers, op.sum(op.square(y))


@pytest.mark.parametrize("has_kernel", [True, False])
def test_every_layer_is_packed_where_the_device_can(has_kernel: bool) -> None:
    layers, loss = _network()
    parameters = [each for layer in layers for each in layer.parameters()]
    names = _names(_optimised(loss, *op.grad(loss, parameters), has_kernel=has_kernel))
    assert names.count(PACKED) == (2 if has_kernel else 0)
    assert names.count("concat") == (0 if has_kernel else 2)


def test_gradients_that_others_read_stay_apart() -> None:
    layer = nn.MultiHeadAttention(2)
    x, memory = op.input("x", (2, 5, 8)), op.input("memory", (2, 7, 8))
    loss = op.sum(op.square(layer(x, memory)))
    assert PACKED not in _names(_optimised(loss, *op.grad(loss, layer.parameters())))
    parts = [op.var(name, (2, 2, 5, 4)) for name in "qkv"]
    loss = op.sum(op.square(op.scaled_dot_product_attention(*parts)))
    slopes = op.grad(loss, parts)
    joined = [op.reshape(op.transpose(each, (0, 2, 1, 3)), (2, 5, 8)) for each in slopes]
    assert PACKED in _names(_optimised(op.concat(joined, axis=2)))
    assert PACKED not in _names(_optimised(op.concat(joined, axis=2), slopes[0] * 2.0))
    assert PACKED not in _names(_optimised(op.concat(joined[::-1], axis=2)))
    assert PACKED not in _names(_optimised(op.concat(joined, axis=1)))
