"""precision="tf32": products are marked and nothing else changes; the CPU rounds nothing."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.pipeline import optimise
from caldera.compiler.passes.precision import lower_precision
from caldera.core.graph.node import Node
from caldera.core.graph.program import Body, Program, program_of

PRODUCTS = (
    "matmul",
    "matmul_epilogue",
    "matmul_accumulate",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
)


def _products(program: Program) -> list[Node]:
    return [node for node in program.order() if node.op.name in PRODUCTS]


def _loss(dtype: str = "float32") -> tuple[Expr, list[Expr]]:
    x = op.input("x", (2, 3, 8, 8), dtype=dtype)
    filters = op.var("filters", (4, 3, 3, 3), dtype=dtype, fill=cd.constant(0.1))
    weight = op.var("weight", (64, 5), dtype=dtype, fill=cd.constant(0.1))
    images = op.conv2d(x, filters, stride=2, padding=1)
    hidden = op.relu(
        op.matmul(op.reshape(images, (2, 64)), weight) + op.var("b", (5,), dtype=dtype)
    )
    return op.mean(hidden), [filters, weight]


def _program(*outputs: Expr) -> Program:
    return program_of(tuple(each.node for each in outputs), ())


def test_products_and_convolutions_are_marked() -> None:
    loss, weights = _loss()
    program = lower_precision(_program(loss, *op.grad(loss, weights)), "tf32")
    found = _products(program)
    assert {node.op.name for node in found} >= {"matmul", "conv2d", "conv2d_weight"}
    assert all(node.attrs["compute"] == "tf32" for node in found)
    assert {node.dtype.name for node in program.order() if node.op.kind != "leaf"} <= {
        "float32",
        "bool",
    }


def test_attention_is_marked() -> None:
    q = op.var("q", (2, 5, 4), fill=cd.uniform(-1, 1))
    loss = op.sum(op.square(op.scaled_dot_product_attention(q, q, q, causal=True)))
    program = lower_precision(_program(loss, op.grad(loss, q)), "tf32")
    found = [node for node in program.order() if "attention" in node.op.name]
    assert len(found) == 2
    assert all(node.attrs["compute"] == "tf32" for node in found)
    right = cd.compile([loss]).run()[0].numpy()
    np.testing.assert_allclose(cd.compile([loss], precision="tf32").run()[0].numpy(), right)


def test_passes_keep_the_mark() -> None:
    loss, weights = _loss()
    program = optimise(
        _program(loss, *op.grad(loss, weights)), has_kernel=lambda name: True, precision="tf32"
    )
    names = {node.op.name for node in _products(program)}
    assert "matmul_epilogue" in names
    assert all(node.attrs["compute"] == "tf32" for node in _products(program))


def test_transposes_keep_the_mark() -> None:
    a, b = (op.input(name, (4, 4)) for name in "ab")
    program = optimise(
        _program(op.matmul(op.transpose(a), op.transpose(b))),
        has_kernel=lambda name: True,
        precision="tf32",
    )
    (node,) = _products(program)
    assert dict(node.attrs) == {"ta": True, "tb": True, "compute": "tf32"}


def test_loops_are_marked_inside() -> None:
    weight = op.var("weight", (5, 5), fill=cd.constant(0.1))
    start = op.var("start", (2, 5), fill=cd.constant(1.0))
    result = op.scan(
        lambda h, x: (op.tanh(op.matmul(h, weight) + x), h), start, op.input("x", (3, 2, 5))
    )
    outputs = [each for each in result if isinstance(each, Expr)]
    program = lower_precision(_program(*outputs), "tf32")
    (loop,) = [node for node in program.order() if node.op.name == "scan"]
    body: Body = loop.attrs["body"]
    (inside,) = [node for node in body.order() if node.op.name == "matmul"]
    assert inside.attrs["compute"] == "tf32"


def test_other_dtypes_and_other_precisions_are_not_marked() -> None:
    loss, _ = _loss("float64")
    assert not any(
        "compute" in node.attrs for node in _products(lower_precision(_program(loss), "tf32"))
    )
    loss, _ = _loss()
    for precision in (None, "bfloat16"):
        program = lower_precision(_program(loss), precision)
        assert not any("compute" in node.attrs for node in _products(program))


def test_the_cpu_rounds_nothing() -> None:
    loss, weights = _loss()
    outputs = [loss, *op.grad(loss, weights)]
    images = np.random.default_rng(0).uniform(-1, 1, (2, 3, 8, 8)).astype("float32")
    plain = cd.compile(outputs).run({"x": images})
    marked = cd.compile(outputs, precision="tf32").run({"x": images})
    for one, other in zip(plain, marked, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_derivatives_of_marked_products() -> None:
    a, b = (op.var(name, (3, 3), fill=cd.constant(0.5)) for name in "ab")
    (marked,) = lower_precision(_program(op.matmul(a, b)), "tf32").outputs
    slopes = op.grad(op.sum(Expr(marked)), [a, b])
    assert all(node.attrs["compute"] == "tf32" for node in _products(_program(*slopes)))
