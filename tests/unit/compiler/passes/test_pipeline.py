"""The passes together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes import relu
from caldera.compiler.passes.pipeline import NAMES, optimise
from caldera.core.graph.opdef import OPS
from caldera.core.graph.program import program_of
from caldera.errors import ConfigError
from caldera.kernels.table import TABLE
from tests.unit.compiler.passes.tools import names


def has_kernel(name: str) -> bool:
    of_a_card = ("layer_norm_rounded", "layer_norm_residual", "relu_mask")
    return name in of_a_card or TABLE.has(name, "cpu")


def optimised(*outputs: Expr, without: tuple[str, ...] = ()) -> list[str]:
    program = program_of([output.node for output in outputs])
    return names(optimise(program, has_kernel=has_kernel, without=without, channels_last=True))


@pytest.fixture
def everything() -> list[Expr]:
    """Something to do for every pass."""
    x = op.var("x", (4, 3), fill=cd.uniform(-1, 1))
    w = op.var("w", (3, 3), fill=cd.uniform(-1, 1))
    b = op.var("b", (3,), fill=cd.uniform(-1, 1))
    table = np.arange(3, dtype=np.float32)
    hidden = op.relu(x @ w + b) * 1.0 + op.exp(op.cast(table, "float64"))
    _, rows = op.scan(lambda h, x: (op.tanh(h + x), h * x), op.cast(b, "float64"), hidden)
    loss = op.sum(op.log(op.softmax(rows)))
    last, _ = op.scan(lambda h, x: (op.tanh(h @ w + x), h), op.reshape(b, (1, 3)), x)
    images = op.conv2d(op.reshape(x, (1, 3, 2, 2)), op.reshape(w, (3, 3, 1, 1)))
    sequence = op.exp(op.conv1d(op.reshape(x, (1, 3, 4)), op.reshape(w, (3, 3, 1))))
    # A product of zeros, so that the variable stays what it is from run to run.
    v = op.var("v", (3, 3), fill=cd.uniform(-1, 1), dtype="float64")
    zeros = op.var("zeros", (3, 3), fill=cd.constant(0.0), dtype="float64")
    update = op.assign(v, v - 0.5 * (zeros @ zeros))
    scaled = op.relu(op.batch_norm(x, np.ones(3, np.float32), b)[0])
    pooled = op.max_pool2d(op.relu(op.conv2d(images, op.reshape(w, (3, 3, 1, 1)))), 2)
    layer = op.layer_norm(x, np.ones(3, np.float32), b) @ w
    rising = op.grad(op.sum(op.square(op.relu(op.exp(x) @ w) @ w)), x)
    block = op.layer_norm(x + layer, np.ones(3, np.float32), b)
    named = op.gather(v, np.arange(12) % 3) @ zeros
    words = op.var("words", (9, 3), fill=cd.uniform(-1, 1), dtype="float64")
    slope = op.grad(op.sum(op.gather(words, np.array([1, 2, 1])) * zeros), words)
    rows_only = op.assign(words, words - 0.5 * slope)
    filters = op.reshape(zeros + np.eye(3), (3, 3, 1, 1))
    convolved = op.conv2d(op.reshape(op.cast(x, "float64"), (1, 3, 2, 2)), filters)
    normal = op.batch_norm(convolved, np.ones(3), np.zeros(3))[0]
    made = [loss, op.grad(loss, b), last, images, update, scaled, pooled, layer, named, sequence]
    return [*made, rows_only, block, rising, normal]


@pytest.mark.parametrize("name", NAMES)
def test_each_pass_can_be_switched_off(name: str, everything: list[Expr]) -> None:
    best = cd.compile(everything).run()
    for one, other in zip(cd.compile(everything, without=[name]).run(), best, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_switching_a_pass_off_changes_the_result(
    everything: list[Expr], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relu, "LARGE", 0)
    layer = nn.MultiHeadAttention(2)
    attended = op.sum(layer(op.var("steps", (1, 3, 4))))
    more = op.grad(attended, layer.parameters())
    program = program_of([each.node for each in (*everything, *more)])
    how: dict[str, Any] = {
        # A card has kernels for more gradients than the CPU.
        "has_kernel": lambda name: has_kernel(name) or "attention_backward" in name,
        "precision": "bfloat16",
        "channels_last": True,
        "adds_rows": True,
    }
    best = optimise(program, **how)
    for name in NAMES:
        worse = optimise(program, **how, without=[name])
        assert (worse.roots == best.roots) == (name == "in_place"), name


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of losses, fold"):
        cd.compile([op.var("x", (2,)) + 1.0], without=["fusion"])


def test_lowering_cannot_be_switched_off() -> None:
    assert "lower" not in NAMES
    x = op.var("x", (2, 3))
    for name in optimised(op.gelu(op.softmax(x)), without=NAMES):
        assert has_kernel(name) or name in ("reshape", "broadcast_to")


def test_a_second_round_finds_nothing_to_do(everything: list[Expr]) -> None:
    program = program_of([each.node for each in everything])
    once = optimise(program, has_kernel=has_kernel, channels_last=True)
    assert optimise(once, has_kernel=has_kernel, channels_last=True).roots == once.roots


def test_every_op_has_a_kernel_or_parts() -> None:
    single = {name for name, op in OPS.items() if op.decompose is None}
    apart = ("leaf", "state", "distributed")
    written = {name for name in single if OPS[name].kind not in apart}
    assert {name for name in written if not has_kernel(name)} == set()


def test_the_bodies_of_loops_are_optimised() -> None:
    xs = op.var("xs", (3, 2))
    last, _ = op.scan(lambda h, x: (op.exp(h * 1.0 + x) * 2.0, h), op.var("start", (2,)), xs)
    program = optimise(program_of([last.node]), has_kernel=has_kernel)
    (loop,) = [node for node in program.order() if node.op.name == "scan"]
    inside = [node.op.name for node in loop.attrs["body"].order() if node.op.kind != "leaf"]
    assert inside == ["fused"]
    # The carry alone is left; nobody reads what a step hands out.
    assert len(loop.outputs) == 1


def test_derivatives_are_optimised_like_everything_else() -> None:
    x = op.var("x", (5,), fill=cd.uniform(0.5, 1))
    assert optimised(op.grad(op.sum(x**2), x)) == ["mul"]
    second = op.grad(op.sum(op.grad(op.sum(x**3), x)), x)
    np.testing.assert_allclose(second.numpy(), 6 * x.numpy(), rtol=1e-5)
