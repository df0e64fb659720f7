"""Mixed precision: what runs in half, what in float32, and what is not touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.pipeline import optimise
from caldera.compiler.passes.precision import PRODUCTS, STORED, lower_precision
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from caldera.core.tensor.dtype import bfloat16, complex64, float16, float32, float64
from caldera.errors import ConfigError
from caldera.kernels.table import TABLE
from tests.unit.compiler.passes.graphs import Graph, graphs
from tests.unit.compiler.passes.tools import program_for

HALVES = {"float16": float16, "bfloat16": bfloat16}


def lowered(*outputs: Expr, precision: str = "float16") -> Program:
    program = program_of([output.node for output in outputs])
    return lower_precision(program, precision)


def of_op(program: Program, name: str) -> list[Node]:
    return [node for node in program.order() if node.op.name == name]


def uniform(name: str, *shape: int, dtype: str = "float32") -> Expr:
    return op.var(name, shape, fill=cd.uniform(-1, 1), dtype=dtype)


def network() -> tuple[list[Expr], Expr, list[Expr]]:
    """A small network with a loss: its variables, the loss, the gradients."""
    x, labels = uniform("x", 8, 6), np.arange(8) % 4
    w1, b1, w2, b2 = uniform("w1", 6, 16), uniform("b1", 16), uniform("w2", 16, 4), uniform("b2", 4)
    hidden = op.tanh(op.relu(x @ w1 + b1) * 0.5)
    loss = op.cross_entropy(hidden @ w2 + b2, labels)
    variables = [w1, b1, w2, b2]
    return variables, loss, op.grad(loss, variables)


@pytest.mark.parametrize("precision", HALVES)
def test_products_run_in_half_and_delicate_ops_do_not(precision: str) -> None:
    _, loss, slopes = network()
    program = lowered(loss, *slopes, precision=precision)
    half = HALVES[precision]
    assert {node.dtype for node in of_op(program, "matmul")} == {half}
    assert {node.dtype for node in of_op(program, "relu")} == {half}
    assert {node.dtype for node in of_op(program, "tanh")} == {half}
    for name in ("cross_entropy", "cross_entropy_grad", "mean", "sum"):
        assert {node.dtype for node in of_op(program, name)} <= {float32}
    assert {root.dtype for root in program.roots} == {float32}
    assert {node.dtype for node in of_op(program, "variable")} == {float32}


@pytest.mark.parametrize("precision", HALVES)
def test_results_are_close(precision: str) -> None:
    _, loss, slopes = network()
    exact = cd.compile([loss, *slopes]).run()
    close = cd.compile([loss, *slopes], precision=precision).run()
    for one, other in zip(exact, close, strict=True):
        assert other.dtype == float32
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=0.02)
        assert (one.numpy() != other.numpy()).any()


def test_updates_are_computed_in_float32() -> None:
    variables, loss, slopes = network()
    updates = [
        op.assign(variable, variable - 1e-4 * slope)
        for variable, slope in zip(variables, slopes, strict=True)
    ]
    program = program_of([loss.node], [update.node for update in updates])
    result = lower_precision(program, "float16")
    for _, new in result.updates:
        assert new.dtype == float32
        assert {given.dtype for given in new.inputs} == {float32}
    before = [variable.numpy() for variable in variables]
    cd.compile([loss, *updates], precision="float16").run()
    # In float16 a step this small would be lost.
    for variable, old in zip(variables, before, strict=True):
        step = np.abs(variable.numpy() - old)
        assert 0 < step.max() < 1e-4


def test_float64_is_left_alone() -> None:
    a, b = uniform("a", 3, 3, dtype="float64"), uniform("b", 3, 3, dtype="float64")
    program = program_of([op.relu(a @ b).node])
    assert lower_precision(program, "float16").roots == program.roots
    mixed = lowered(op.cast(uniform("c", 3, 3) @ uniform("d", 3, 3), "float64") @ a)
    assert [node.dtype for node in of_op(mixed, "matmul")] == [float16, float64]


def test_integers_are_left_alone() -> None:
    i = op.var("i", (3,), dtype="int32")
    program = program_of([(i * 2 + 1).node])
    assert lower_precision(program, "bfloat16").roots == program.roots


def test_a_loss_scale_is_never_rounded() -> None:
    scale = op.var("scale", (), fill=cd.constant(2.0**20))
    x, w = uniform("x", 3, 3), uniform("w", 3, 3)
    loss = op.sum(op.relu(x @ w) @ w)
    slope = op.grad(loss * scale, w) / scale
    (result,) = cd.compile([slope], precision="bfloat16").run()
    expected = cd.compile([op.grad(loss, w)]).run()[0].numpy()
    np.testing.assert_allclose(result.numpy(), expected, atol=0.05)


def test_constants_out_of_range_keep_an_op_in_float32() -> None:
    x, w = uniform("x", 3, 3), uniform("w", 3, 3)
    for value, dtype in ((2.0, float16), (1e-9, float32), (1e6, float32)):
        product = of_op(lowered(((x @ w) * value) @ w), "mul")
        assert [node.dtype for node in product] == [dtype]
    for value, dtype in ((0.5, float16), (0.1, float32)):
        chosen = op.where((x @ w) > value, x @ w, 0.0) @ w
        (test,) = of_op(lowered(chosen), "greater")
        assert test.inputs[0].dtype == dtype


def test_dropout_keeps_its_mask() -> None:
    x, w = uniform("x", 16, 16), uniform("w", 16, 16)
    kept = op.dropout(x @ w, 0.5) @ op.cast(np.eye(16), "float32")
    exact, close = cd.compile([kept]), cd.compile([kept], precision="float16")
    np.testing.assert_array_equal(exact.run()[0].numpy() == 0, close.run()[0].numpy() == 0)


def test_norms_compute_their_statistics_in_float32() -> None:
    x, w = uniform("x", 8, 16), uniform("w", 16, 16)
    y, _, _ = _batch_norm(x @ w, uniform("scale", 16), uniform("shift", 16))
    program = lowered(op.relu(y) @ w)
    (norm,) = of_op(program, "batch_norm")
    assert [spec.dtype for spec in norm.outputs] == [float16, float32, float32]
    assert [given.dtype for given in norm.inputs] == [float16, float32, float32]
    assert [node.dtype for node in of_op(program, "relu")] == [float16]


@pytest.mark.parametrize("name", ["batch_norm", "layer_norm"])
def test_the_gradient_of_a_norm_sees_the_x_of_its_statistics(name: str) -> None:
    # A mean of hundreds of deviations: rounded to half precision, x would be off by one or more.
    first = uniform("first", 16, 24)
    x = 300 + op.exp(uniform("x", 32, 16) @ first)
    scale, shift, w = uniform("scale", 24), uniform("shift", 24), uniform("w", 24, 24)
    axis: object = 1 if name == "batch_norm" else (1,)
    y, _, _ = OPS[name].outputs(x.node, scale.node, shift.node, axis=axis, eps=1e-5)
    slopes = op.grad(op.sum(op.tanh(Expr(y) @ w)), [first, scale])
    exact = [each.numpy() for each in cd.compile(slopes).run()]
    for half, allowed in (("float16", 0.01), ("bfloat16", 0.05)):
        for one, other in zip(cd.compile(slopes, precision=half).run(), exact, strict=True):
            assert np.linalg.norm(one.numpy() - other) < allowed * np.linalg.norm(other)


def _batch_norm(x: Expr, scale: Expr, shift: Expr) -> tuple[Expr, Expr, Expr]:
    made = OPS["batch_norm"].outputs(x.node, scale.node, shift.node, axis=1, eps=1e-5)
    return tuple(Expr(node) for node in made)


def test_casts_cancel_where_they_meet() -> None:
    _, loss, slopes = network()
    program = program_of([loss.node, *[slope.node for slope in slopes]])
    result = optimise(
        program,
        has_kernel=lambda name: TABLE.has(name, "cpu"),
        precision="float16",
        without=["fuse"],
    )
    for node in of_op(result, "cast"):
        given = node.inputs[0]
        assert given.op.name != "cast" or given.inputs[0].dtype != node.dtype


def test_loops_run_their_products_in_half() -> None:
    w, xs, start = uniform("w", 4, 4), uniform("xs", 3, 2, 4), uniform("start", 2, 4)

    def step(h: Expr, x: Expr) -> tuple[Expr, Expr]:
        new = op.tanh(h @ w + x)
        return new, new

    last, _ = op.scan(step, start, xs)
    result = optimise(
        program_of([last.node]),
        has_kernel=lambda name: TABLE.has(name, "cpu"),
        precision="bfloat16",
        without=["fuse", "epilogue"],
    )
    (loop,) = of_op(result, "scan")
    inside = Program(loop.attrs["body"].outputs)
    assert [node.dtype for node in of_op(inside, "matmul")] == [bfloat16]
    assert loop.outputs[0].dtype == float32
    # The weight is cast once, before the loop; the state in every step.
    assert [node.shape for node in of_op(inside, "cast")] == [(2, 4), (2, 4)]


def fourier_network() -> tuple[Expr, list[Expr]]:
    """The loss of a Fourier neural operator of one layer, and its gradients."""
    x, w1, w2 = uniform("x", 2, 8, 3), uniform("w1", 3, 3), uniform("w2", 3, 2)
    modes = op.view_as_complex(uniform("modes", 5, 3, 3, 2))
    hidden = op.relu(x @ w1)
    # A product of complex matrices for each frequency, beside a product of real ones.
    mixed = op.reshape(op.rfft(hidden, axis=1), (2, 5, 1, 3)) @ modes
    signal = op.irfft(op.reshape(mixed, (2, 5, 3)), 8, axis=1)
    loss = op.mean(op.square((signal + hidden @ w1) @ w2))
    return loss, op.grad(loss, [w1, w2])


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
def test_complex_numbers_keep_their_precision_beside_products_that_do_not(precision: str) -> None:
    loss, slopes = fourier_network()
    program = lowered(loss, *slopes, precision=precision)
    verify(program)
    assert {node.inputs[0].dtype for node in of_op(program, "rfft")} == {float32}
    assert {node.inputs[0].dtype for node in of_op(program, "irfft")} == {float32}
    products = of_op(program, "matmul")
    assert {node.dtype for node in products} == {complex64, HALVES.get(precision, float32)}
    optimised = optimise(
        program_of([loss.node, *(slope.node for slope in slopes)]),
        has_kernel=lambda name: TABLE.has(name, "cpu"),
        precision=precision,
        without=["epilogue"],
    )
    products = [node for node in of_op(optimised, "matmul") if len(node.shape) == 4]
    # The products of parts: neither rounded nor marked.
    assert products
    assert {(node.dtype, node.attrs.get("compute")) for node in products} == {(float32, None)}
    exact = [each.numpy() for each in cd.compile([loss, *slopes]).run()]
    close = [each.numpy() for each in cd.compile([loss, *slopes], precision=precision).run()]
    for one, other in zip(exact, close, strict=True):
        np.testing.assert_allclose(one, other, atol=0.03 * np.abs(one).max())


def test_a_program_of_complex_numbers_alone_is_the_same_in_every_precision() -> None:
    z = op.var(
        "z", (3, 4, 4), fill=np.exp(1j * np.arange(48.0)).reshape(3, 4, 4), dtype="complex64"
    )
    result = op.abs(op.fft(op.exp(z) @ z, axis=1))
    for precision in ("bfloat16", "tf32"):
        (same,) = cd.compile([result], precision=precision).run()
        np.testing.assert_array_equal(same.numpy(), result.numpy())


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(graph=graphs(float32))
def test_any_graph_keeps_its_dtypes(graph: Graph) -> None:
    program = program_for(graph)
    result = lower_precision(program, "bfloat16")
    verify(result)
    assert [root.spec for root in result.roots] == [root.spec for root in program.roots]
    if not any(node.op.name in PRODUCTS for node in program.order()):
        assert result.roots == program.roots


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="float16, bfloat16, tf32, float8"):
        cd.compile([uniform("x", 2) + 1.0], precision="float4")


def test_the_tables_name_ops_that_exist() -> None:
    assert set(PRODUCTS) | set(STORED) <= set(OPS)
    assert not set(PRODUCTS) & set(STORED)
