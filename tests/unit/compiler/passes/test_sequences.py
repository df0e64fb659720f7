"""Sequences between convolutions are computed as images, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from tests.unit.compiler.passes.test_layout import moves, of_op, optimised


def _filters(results: int, channels: int, length: int, seed: int) -> Any:
    values = np.random.default_rng(seed).normal(size=(results, channels, length)) * 0.4
    return op.var(f"w{seed}", (results, channels, length), fill=values.astype("float32"))


def _gated(x: Expr, depth: int = 3) -> tuple[Expr, list[Any]]:
    """A network of gates with residual and skip sums, as WaveNet is."""
    skips, made = [], []
    for i in range(depth):
        both, out, skip = (
            _filters(*shape, seed)
            for shape, seed in (((16, 8, 2), 3 * i), ((8, 8, 1), 3 * i + 1), ((8, 8, 1), 3 * i + 2))
        )
        bias = op.var(f"b{i}", (16,), fill=0.1)
        y = op.conv1d(x, both, padding=(2**i, 0), dilation=2**i)
        value, gate = op.split(op.bias_add(y, bias, axis=1), 2, axis=1)
        y = op.tanh(value) * op.sigmoid(gate)
        x = x + op.conv1d(y, out)
        skips.append(op.conv1d(y, skip))
        made += [both, out, skip, bias]
    total = skips[0]
    for each in skips[1:]:
        total = total + each
    return op.relu(total + x), made


def _pooled(x: Expr) -> tuple[Expr, list[Any]]:
    """Normalisation, pooling, borders, slices and parts of channels."""
    w, v = _filters(8, 8, 3, 0), _filters(6, 12, 3, 1)
    scale, shift = (op.var(name, (8,), fill=cd.uniform(0.5, 1)) for name in ("s", "t"))
    y, *_ = op.batch_norm(op.conv1d(x, w, padding="same"), scale, shift, eps=1e-3)
    y = op.max_pool1d(op.relu(y), 2) * 2.0
    y = op.concat([y, op.flip(y[:, 2:6], 2)], axis=1)
    y = op.conv1d(op.pad(y, ((0, 0), (0, 0), (2, 0))), v)
    return op.softmax(y + op.mean(y, axis=2, keepdims=True), axis=1), [w, v, scale, shift]


def _mixed(x: Expr) -> tuple[Expr, list[Any]]:
    """Positions, rows that broadcast, and sequences that are turned for a product."""
    w, rows = _filters(8, 8, 3, 0), op.var("rows", (8, 8), fill=cd.uniform(-1, 1))
    steps = op.var("steps", (32,), fill=cd.uniform(-1, 1))
    sample = op.var("sample", (2, 1, 1), fill=cd.uniform(-1, 1))
    y = op.gelu(op.conv1d(x, w, padding=1, groups=1) + steps) * sample + x
    y = op.transpose(op.transpose(y, (0, 2, 1)) @ rows, (0, 2, 1))
    y = op.where(y > 0, op.conv1d(y, w, padding=1, stride=1), op.exp(y))
    return y / op.sum(op.abs(y), axis=1, keepdims=True), [w, rows, steps, sample]


@pytest.mark.parametrize("build", [_gated, _pooled, _mixed])
def test_a_network_computes_what_it_computes_on_sequences(build: Any) -> None:
    values = np.random.default_rng(5).normal(size=(2, 8, 32)).astype("float32")
    x = op.input("x", values.shape)
    y, parameters = build(x)
    wanted = [y, *op.grad(op.mean(op.square(y + 1.0)), parameters)]
    found, right = (
        cd.compile(wanted, without=without).run({"x": values}) for without in ((), ("sequences",))
    )
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=2e-6)


def test_nothing_is_moved_between_convolutions() -> None:
    y, parameters = _gated(op.input("x", (2, 8, 32)))
    loss = op.mean(op.square(y))
    program = optimised(loss, *op.grad(loss, parameters))
    # Only the input, which is row major; "copy" is a gradient that two outputs share.
    assert moves(program).count("arrange") == 1
    assert set(moves(program)) <= {"arrange", "copy"}
    assert not [node for node in of_op(program, "fused") if node.outputs[0].rank == 3]


def test_filters_and_other_values_stay_as_they_are() -> None:
    x, w = op.input("x", (2, 3, 8)), _filters(3, 3, 1, 0)
    (slope,) = op.grad(op.sum(op.conv1d(x, w) ** 2), [w])
    program = optimised(op.assign(w, w - 0.1 * slope * w))
    (update,) = of_op(program, "fused")
    assert update.spec.rank == 3
