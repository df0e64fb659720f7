"""Images lie channels last from the first convolution on, and nothing is moved without need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr, Input, Variable
from caldera.compiler.passes.layout import layout
from caldera.compiler.passes.pipeline import optimise
from caldera.compiler.plan.schedule import Root
from caldera.compiler.plan.scheduling import schedule_steps
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node
from caldera.core.graph.program import Program, program_of
from caldera.core.graph.verify import verify
from caldera.kernels.table import TABLE

models = nn.models


def optimised(*outputs: Expr, updates: tuple[Expr, ...] = ()) -> Program:
    program = program_of([each.node for each in outputs], [each.node for each in updates])
    done = optimise(program, has_kernel=lambda name: TABLE.has(name, "cpu"), channels_last=True)
    verify(done, "layout")
    return done


def moves(program: Program) -> list[str]:
    """The steps of a program that only move its elements, in order."""
    roots = [Root(node, ("output", i)) for i, node in enumerate(program.outputs)]
    roots += [Root(node, symbol, overwrites=True) for symbol, node in program.updates]
    schedule = schedule_steps(
        roots, lambda node: TABLE.candidates(node, "cpu")[0], lambda node: node.attrs.get("symbol")
    )
    copying = {"arrange", "reshape", "transpose", "copy", "broadcast_to"}
    names = ["copy" if step.kernel.name == "copy" else step.node.op.name for step in schedule.steps]
    return [name for name in names if name in copying]


def of_op(program: Program, name: str) -> list[Node]:
    return [node for node in program.order() if node.op.name == name]


def images(name: str = "x", channels: int = 3, batch: int = 2, side: int = 8) -> Input:
    return op.input(name, (batch, channels, side, side))


def filters(results: int, channels: int, side: int = 3) -> Variable:
    return op.var("w", (results, channels, side, side), fill=cd.uniform(-1, 1))


# --- networks


def training_step(layers: list[nn.Layer], shape: tuple[int, ...]) -> Program:
    with nn.trace(allocate=False, training=True, random=op.random_state()) as traced:
        network = nn.network(layers)
        result = network(op.input("x", shape))
    loss = op.mean(op.square(result))
    parameters = network.parameters()
    slopes = op.grad(loss, parameters)
    updates = [op.assign(w, w - 0.1 * g) for w, g in zip(parameters, slopes, strict=True)]
    return optimised(loss, updates=(*updates, *traced.updates))


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        (models.resnet50((3, 64, 64), 10), (2, 3, 64, 64), []),
        (models.resnet20((3, 32, 32), 10), (2, 3, 32, 32), []),
        (models.googlenet((3, 64, 64), 10, auxiliary=False), (2, 3, 64, 64), []),
        # Flattening is a copy, and its gradient comes back row major.
        (models.vgg16((3, 224, 224), 10), (2, 3, 224, 224), ["reshape", "arrange"]),
        (models.lenet5((1, 28, 28), 10), (2, 1, 28, 28), ["reshape", "arrange"]),
        # Pooling to a size that does not fit is a product of matrices, which are row major.
        (models.vgg16((3, 64, 64), 10), (2, 3, 64, 64), ["arrange", "arrange"]),
        # One pixel is left: all orders are the same memory.
        (models.vgg16((3, 32, 32), 10), (2, 3, 32, 32), []),
    ],
    ids=[
        "resnet50",
        "resnet20",
        "googlenet",
        "vgg16",
        "lenet5",
        "vgg16 resized",
        "vgg16 to one pixel",
    ],
)
def test_a_training_step_moves_images_only_to_flatten_them(
    layers: list[nn.Layer], shape: tuple[int, ...], expected: list[str]
) -> None:
    program = training_step(layers, shape)
    assert moves(program) == expected
    for node in of_op(program, "conv2d") + of_op(program, "conv2d_input"):
        assert (node.inputs[0].spec.order, node.spec.order) == (NHWC, NHWC)
        assert node.inputs[1].spec.order is None
    for node in of_op(program, "conv2d_weight"):
        assert [given.spec.order for given in node.inputs] == [NHWC, NHWC]
        assert node.spec.order is None
    assert all(node.spec.order is None for node in program.roots)
    assert layout(program).roots == program.roots


# --- the same results


def small_step(dtype: str, device: str, batch: int = 3) -> tuple[list[Expr], dict[str, np.ndarray]]:
    """Something of everything that convolutional networks do."""
    generator = np.random.default_rng(7)

    def made(name: str, *shape: int) -> Variable:
        filled = generator.uniform(-0.5, 0.5, shape)
        return op.var(name, shape, fill=filled, dtype=dtype, device=device)

    first, second, third = made("w1", 6, 3, 3, 3), made("w2", 4, 3, 3, 3), made("w3", 5, 6, 1, 1)
    scale, shift, dense = made("scale", 6), made("shift", 6), made("dense", 20, 4)
    running = made("running", 6)
    x = op.input("x", (batch, 3, 9, 9), dtype=dtype)
    state = op.var("state", (2,), fill=np.array([3, 0]), dtype="int64", device=device)
    y, mean, _ = op.batch_norm(op.conv2d(x, first, stride=2, padding=1), scale, shift)
    y = op.dropout(op.relu(y), 0.3, state=state, stream=5)
    other = op.conv2d(op.pad(y[:, 1:4], ((0, 0), (0, 0), (1, 1), (1, 1))), second)
    joined = op.concat([op.max_pool2d(y, 2, stride=1), other[:, :, 1:, :4]], axis=1)
    joined = op.local_response_norm(joined[:, 2:8], 3)
    y = op.avg_pool2d(op.tanh(op.conv2d(joined, third)), 2)
    logits = op.reshape(y, (batch, 20)) @ dense
    loss = op.mean(op.square(logits)) + op.mean(op.max(y, axis=(1,)))
    parameters = [first, second, third, scale, shift, dense]
    slopes = op.grad(loss, parameters)
    updates = [op.assign(w, w - 0.1 * g) for w, g in zip(parameters, slopes, strict=True)]
    updates.append(op.assign(running, 0.9 * running + 0.1 * mean))
    feeds = {"x": generator.normal(size=(batch, 3, 9, 9)).astype(dtype)}
    return [loss, *slopes, joined, *updates], feeds


def values(
    make: Callable[[], tuple[list[Expr], dict[str, np.ndarray]]], **how: Any
) -> list[np.ndarray]:
    """Outputs and variables after two runs."""
    outputs, feeds = make()
    plan = cd.compile(outputs, **how)
    plan.run(feeds)
    results = [each.numpy() for each in plan.run(feeds)]
    return results + [s.value.numpy() for s in plan.symbols if s.role == "variable"]


@pytest.mark.parametrize("device", ["cpu", "loopback"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_results_do_not_depend_on_the_layout(device: str, dtype: str, tolerance: float) -> None:
    arranged, plain = (
        values(lambda: small_step(dtype, device), without=without) for without in ((), ("layout",))
    )
    assert len(arranged) == len(plain) > 10
    for one, other in zip(arranged, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_the_small_step_is_channels_last() -> None:
    outputs, _ = small_step("float64", "cpu")
    plan = cd.compile(outputs)
    produced = [spec for step in plan.schedule.steps for spec in step.node.outputs]
    assert sum(spec.order == NHWC for spec in produced) > 15
    without = cd.compile(outputs, without=["layout"])
    assert all(buffer.spec.order is None for buffer in without.schedule.buffers)


def test_a_captured_plan_and_a_smaller_batch_compute_the_same() -> None:
    for batch in (3, 2):
        outputs, feeds = small_step("float64", "loopback", batch)
        right = values(lambda: small_step("float64", "cpu", batch), without=["layout"])  # noqa: B023
        plan = cd.compile(outputs)
        plan.capture()
        plan.run(feeds)
        for one, other in zip(plan.run(feeds), right, strict=False):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-12, atol=1e-12)


def test_half_precision() -> None:
    outputs, feeds = small_step("float32", "cpu")
    arranged, plain = (
        cd.compile(outputs[:1], precision="bfloat16", without=without).run(feeds)[0].numpy()
        for without in ((), ("layout",))
    )
    np.testing.assert_allclose(arranged, plain, rtol=2e-2)


# --- where values are arranged


def test_an_input_is_fed_as_its_readers_want_it() -> None:
    x = images()
    program = optimised(op.sum(op.conv2d(x / 255.0, filters(4, 3))))
    assert moves(program) == []
    (leaf,) = of_op(program, "input")
    assert leaf.spec.order == NHWC
    assert leaf.attrs["symbol"].spec.order is None


def test_an_input_that_nobody_wants_channels_last_stays() -> None:
    program = optimised(op.exp(images()))
    assert [node.spec.order for node in of_op(program, "input")] == [None]


def test_an_input_slot_holds_images_channels_last() -> None:
    x, w = images(), filters(4, 3)
    plan = cd.compile([op.sum(op.conv2d(x, w)), x * 2.0])
    fed = np.random.default_rng(0).normal(size=x.shape).astype("float32")
    np.testing.assert_array_equal(plan.run({"x": fed})[1].numpy(), fed * 2)
    (slot,) = [
        each
        for step in plan.schedule.steps
        for each in step.inputs
        if step.node.op.name == "conv2d" and each.buffer.spec.shape == x.shape
    ]
    assert slot.buffer.spec.order == NHWC


def test_a_variable_is_arranged_once_for_all_its_readers() -> None:
    x = op.var("x", (2, 3, 8, 8), fill=cd.uniform(-1, 1))
    program = optimised(
        op.sum(op.conv2d(x, filters(4, 3))) + op.sum(op.max_pool2d(op.exp(x), 2)) + op.sum(x)
    )
    assert moves(program) == ["arrange"]


def test_readers_of_both_kinds_cost_one_move() -> None:
    y = op.relu(op.conv2d(images(), filters(4, 3)))
    program = optimised(
        op.sum(op.conv2d(y, filters(2, 4))) + op.sum(op.cumsum(y, axis=3) + op.cumsum(y, axis=2))
    )
    assert moves(program) == ["arrange"]
    (arranged,) = of_op(program, "arrange")
    assert (arranged.inputs[0].spec.order, arranged.spec.order) == (NHWC, None)


def test_the_cheaper_order_wins() -> None:
    """Arranging what goes into one convolution beats arranging three values around it."""
    a, b = (op.var(name, (2, 3, 8, 8), fill=cd.uniform(-1, 1)) for name in "ab")
    y = a * b + 1.0
    assert moves(optimised(y, op.sum(op.conv2d(y, filters(4, 3))))) == ["arrange"]


def test_results_and_new_values_of_variables_are_row_major() -> None:
    state = op.var("state", (2, 4, 6, 6))
    y = op.conv2d(images(), filters(4, 3))
    program = optimised(y, updates=(op.assign(state, y),))
    assert [root.spec.order for root in program.roots] == [None, None]
    assert moves(program) == ["arrange", "copy"]


def test_broadcast_operands_stay_as_they_are() -> None:
    y = op.conv2d(images(), filters(4, 3, side=1))
    bias = op.var("bias", (1, 4, 8, 8), fill=cd.uniform(-1, 1))
    assert moves(optimised(op.sum(op.exp(y + bias)))) == []


@pytest.mark.parametrize(("channels", "results", "side"), [(1, 1, 8), (3, 1, 8), (3, 4, 3)])
def test_orders_that_are_the_same_memory_cost_nothing(
    channels: int, results: int, side: int
) -> None:
    x = op.var("x", (2, channels, side, side), fill=cd.uniform(-1, 1))
    w = filters(results, channels)
    y = op.conv2d(x, w)
    program = optimised(y)
    assert moves(program) == (["arrange"] if channels > 1 else [])
    plain = cd.compile([y], without=["layout"]).run()[0].numpy()
    np.testing.assert_allclose(cd.compile([y]).run()[0].numpy(), plain, rtol=1e-5, atol=1e-6)


def test_images_of_a_layout_of_their_own_are_only_looked_at() -> None:
    """What a user transposes from NHWC lies right already."""
    x = op.var("x", (2, 8, 8, 3), fill=cd.uniform(-1, 1))
    y = op.conv2d(op.transpose(x, (0, 3, 1, 2)), filters(4, 3))
    assert moves(optimised(op.sum(y))) == []


def test_loops_and_vectors_are_left_alone() -> None:
    w = filters(3, 3, side=1)
    start = images()
    last, _ = op.scan(lambda h, x: (op.conv2d(h, w) + x, h), start * 1.0, op.var("xs", (2, 1)))
    program = optimised(last)
    assert {spec.order for node in program.order() for spec in node.outputs} == {None}
    normal, _, _ = op.batch_norm(op.input("v", (4, 3)), op.var("s", (3,)), op.var("t", (3,)))
    assert moves(optimised(op.sum(normal))) == []


def test_random_numbers_are_those_of_the_logical_index() -> None:
    y = op.conv2d(images(channels=4), filters(4, 4, side=1))
    state = op.var("state", (2,), fill=np.array([1, 0]), dtype="int64")
    masked = op.dropout(y, 0.5, state=state, stream=9)
    feeds = {"x": np.ones((2, 4, 8, 8), "float32")}
    one, other = (
        cd.compile([masked], without=without).run(feeds)[0].numpy() for without in ((), ("layout",))
    )
    np.testing.assert_array_equal(one == 0, other == 0)
    assert moves(optimised(op.sum(masked))) == []


def test_devices_whose_kernels_do_not_care_get_no_orders() -> None:
    program = program_of([op.conv2d(images(), filters(4, 3)).node])
    done = optimise(program, has_kernel=lambda name: TABLE.has(name, "cpu"))
    assert {spec.order for node in done.order() for spec in node.outputs} == {None}


# --- heads of attention


def test_heads_are_split_and_joined_without_a_copy() -> None:
    layer = nn.MultiHeadAttention(2, causal=True)
    x = op.input("x", (2, 5, 8))
    loss = op.sum(op.square(layer(x)))
    program = optimised(loss, *op.grad(loss, layer.parameters()))
    assert moves(program) == []
    (forward,) = of_op(program, "scaled_dot_product_attention")
    (backward,) = of_op(program, "scaled_dot_product_attention_grad")
    assert [spec.order for spec in forward.outputs] == [(0, 2, 1, 3), None]
    assert [spec.order for spec in backward.outputs] == [(0, 2, 1, 3)] * 3
    assert layout(program).roots == program.roots


def test_attention_that_is_a_result_lies_row_by_row() -> None:
    q = op.input("q", (2, 3, 5, 4))
    y = op.scaled_dot_product_attention(q, q, q)
    program = optimised(y, op.transpose(y, (0, 2, 1, 3)) * 2.0)
    (forward,) = of_op(program, "scaled_dot_product_attention")
    assert forward.outputs[0].order is None
