"""Loops on a card: every element-wise op, every dtype, any layout and size."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS
from caldera.core.graph.ops import elementwise
from caldera.core.graph.ops.base import cast, sum_
from caldera.core.graph.ops.control import fused
from caldera.core.graph.program import Body
from caldera.core.memory import Device
from caldera.core.memory.software import DeviceArray
from caldera.core.tensor.dtype import ALL, BY_NAME, bool_, is_complex, is_float
from caldera.errors import CalderaError
from caldera.kernels.cuda.codegen import loops
from caldera.kernels.cuda.codegen.loops import can_apply, lanes_for, operand
from caldera.kernels.cuda.elementwise.loop import FULL
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.reference import evaluate
from caldera.kernels.reference.elementwise import UFUNCS
from caldera.kernels.table import TABLE, Call
from tests.card.candidates import check, nodes_of_cases, run_kernel, stand_ins
from tests.card.emulated import EmulatedCard
from tests.unit.kernels.checking import LAYOUTS

ELEMENTWISE = {
    name for name, each in OPS.items() if each.kind == "elementwise" and each.decompose is None
}
DTYPES = [dtype.name for dtype in ALL if not is_complex(dtype)]


def special(dtype: str, shape: tuple[int, ...] = (19,)) -> np.ndarray:
    """Numbers with all that may go wrong among them."""
    generator = np.random.default_rng(len(dtype) + sum(shape))
    wanted = BY_NAME[dtype]
    if dtype == "bool":
        return generator.random(shape) < 0.5
    if is_float(wanted):
        values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 1.0, 7.0, -3.0]
        values += [1e-5, 300.0, -40.0, 0.1, -0.9999, 65504.0]
    else:
        limits = np.iinfo(wanted)
        values = [0, 1, 2, 3, 5, 7, 100, limits.min, limits.max]
        values += [-1, -2, -7] if limits.min else [limits.max // 2, limits.max // 2 + 1]
        return generator.choice(np.array(values, wanted), shape)
    return generator.choice(np.array(values), shape).astype(wanted)


def test_every_op_has_a_kernel() -> None:
    assert {name for name in ELEMENTWISE if can_apply(name, "float32")} == ELEMENTWISE


def test_the_cases_of_other_ops(card: Device) -> None:
    ops = {
        "sum",
        "argmax",
        "argmin",
        "cumsum",
        "reshape",
        "concat",
        "split",
        "pad",
        "unslice",
        "iota",
    }
    found = set()
    for node, inputs in nodes_of_cases(ops, "float32"):
        assert check(card, node, inputs, layouts=["dense"])
        found.add(node.op.name)
    assert found == ops


def _together(arrays: list[np.ndarray], nodes: list[Node]) -> Node:
    """One body that computes all of these: one source to compile instead of many."""
    arguments = stand_ins(*arrays)
    node: Node = fused.outputs(*arguments, body=Body(arguments, nodes))[0].inputs[0]
    return node


def test_a_loop_of_many_operands(card: Device) -> None:
    """As many as the widest integer has bits, and results of every integer type: numbered operands
    once took the names of types."""
    arrays = [np.arange(5, dtype=np.float32) * k % 2 for k in range(66)]
    total = reduce(elementwise.add, stand_ins(*arrays))
    nodes = [cast(total, BY_NAME[f"int{bits}"]) for bits in (8, 16, 32, 64)]
    assert check(card, _together(arrays, nodes), tuple(arrays), layouts=["dense"])


def _applied(name: str, condition: Node, a: Node, b: Node) -> Node | None:
    operands = {"where": [condition, a, b]}.get(name)
    if operands is None:
        operands = [a, b][: UFUNCS[name].nin if name in UFUNCS else 1]
    try:
        node: Node = OPS[name](*operands)
        return node
    except CalderaError:
        return None


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_for_every_dtype(card: Device, dtype: str) -> None:
    arrays = [special("bool"), special(dtype), special(dtype)[::-1].copy()]
    stands = stand_ins(*arrays)
    names = sorted(ELEMENTWISE - {"cast", "pow"})
    nodes = [node for name in names if (node := _applied(name, *stands)) is not None]
    assert len(nodes) > 10
    assert check(card, _together(arrays, nodes), tuple(arrays), layouts=["dense", "with gaps"])


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_powers(card: Device, dtype: str) -> None:
    a, b = special(dtype), special(dtype)[::-1].copy()
    if not is_float(a.dtype):
        # NumPy refuses negative powers of integers.
        b = (np.abs(b // 2) % 9).astype(b.dtype)
    assert check(card, elementwise.pow_(*stand_ins(a, b)), (a, b), layouts=["dense"])


@pytest.mark.parametrize("source", DTYPES)
def test_casts(card: Device, source: str) -> None:
    x = special(source)
    if source in ("int32", "int64"):
        # Near the middle between two halves: rounding twice would show.
        x = np.concatenate([x, [16777217, 33554435, 8421505, 2049, 65519]]).astype(x.dtype)
    inside = np.clip(np.nan_to_num(x.astype("float64")), 0, 100).astype(x.dtype)
    targets = [BY_NAME[name] for name in DTYPES if name != source]
    for values, wanted in (
        (x, [each for each in targets if is_float(each) or each == bool_]),
        # A float outside of the integers' range has no meaning in NumPy.
        (inside if is_float(x.dtype) else x, [each for each in targets if not is_float(each)]),
    ):
        (argument,) = stand_ins(values)
        node = _together([values], [cast(argument, each) for each in wanted])
        assert check(card, node, (values,), layouts=["dense"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1,), (1,)),
        ((37,), (37,)),
        ((5, 21), (21,)),
        ((6, 19), (6, 1)),
        ((6, 20), (20,)),
        ((6, 20), (6, 1)),
        ((2, 3, 4, 5), (3, 1, 1)),
        ((), ()),
        ((0, 3), (3,)),
        ((3, 70), ()),
        ((4, 1), (1, 5)),
        ((2, 1, 3), (2, 4, 3)),
        ((2, 3, 8), (3, 1)),
        ((300, 40), (40,)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_operands_are_broadcast(
    card: Device,
    first: tuple[int, ...],
    second: tuple[int, ...],
    dtype: str,
) -> None:
    generator = np.random.default_rng(1)
    a, b = (
        np.asarray(generator.integers(0, 9, shape)).astype(BY_NAME[dtype])
        for shape in (first, second)
    )
    layouts = LAYOUTS if dtype == "float32" else ["dense"]
    assert check(card, elementwise.sub(*stand_ins(a, b)), (a, b), layouts=layouts)


def test_many_items_a_thread(card: Device) -> None:
    """Sizes from which on a thread takes several items, on both ways to take them."""
    many = 2 * FULL * driver().multiprocessors
    for a in (np.arange(4 * many + 3, dtype="float32"), np.ones((3, many), "uint8")[:, 1:]):
        assert check(card, elementwise.square(*stand_ins(a)), (a,), layouts=["dense"])
    odd = np.ones((3, many), "float32")[:, 1:]
    bias = np.arange(many - 1, dtype="float32")
    node = elementwise.add(*stand_ins(odd, bias))
    (kernel,) = TABLE.candidates(node, "cuda")
    (found,) = run_kernel(card, kernel, node, (odd, bias))
    np.testing.assert_array_equal(found, odd + bias)


def test_wide_indices(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that 32 bits cannot number, made small: the limit is moved instead."""
    monkeypatch.setattr(loops, "NARROW", 10)
    a, b = (
        np.arange(60.0, dtype="float32").reshape(3, 4, 5),
        np.arange(4.0, dtype="float32")[:, None],
    )
    assert check(card, elementwise.sub(*stand_ins(a, b)), (a, b), layouts=["dense", "backwards"])
    (argument,) = stand_ins(a)
    for node in (
        sum_(argument, (0,)),
        sum_(argument, (2,)),
        OPS["argmax"](argument, axis=1, keepdims=False),
        OPS["cumsum"](argument, axis=1, reverse=False),
        OPS["pad"](argument, widths=((1, 0), (0, 0), (0, 2)), value=3.0),
        OPS["unslice"](argument, shape=(3, 8, 5), bounds=((0, 3, 1), (1, 8, 2), (0, 5, 1))),
        OPS["concat"](argument, argument, axis=1),
        OPS["arrange"](argument, order=(1, 2, 0)),
    ):
        assert check(card, node, (a,) * len(node.inputs), layouts=["dense"])
    large = np.arange(600.0, dtype="float32").reshape(20, 30)
    node = OPS["arrange"](stand_ins(large)[0], order=(1, 0))
    assert check(card, node, (large,), layouts=["dense"])


@pytest.mark.parametrize("shift", [0, 4, 8, 16])
def test_neighbours_are_read_together_only_on_borders(shift: int) -> None:
    memory = np.zeros(1024, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    x = memory[start : start + 256].view("float32").reshape(8, 8)
    wanted = {0: 4, 4: 1, 8: 2, 16: 4}[shift]
    place = operand(x, (32, 4), 8)
    assert lanes_for([x], [place], 8, exact=True) == wanted
    assert lanes_for([x[:, :6]], [place], 6, exact=True) == min(wanted, 2)
    assert lanes_for([x, x], [place, operand(x, (20, 4), 8)], 8, exact=True) == 1


@pytest.mark.parametrize("width", [16, 12, 7])
def test_a_bias_of_another_width_does_not_slow_down_what_it_is_added_to(
    card: Device, width: int
) -> None:
    images, bias = np.zeros((300, width), "float16"), np.zeros(width, "float32")
    places = [operand(images, (2 * width, 2), width), operand(bias, (0, 4), width)]
    assert lanes_for([images], places[:1], width, exact=True) == {16: 8, 12: 4, 7: 1}[width]
    x, b = stand_ins(images, bias)
    total = elementwise.add(cast(x, BY_NAME["float32"]), b)
    node = fused.node(x, b, body=Body([x, b], [cast(total, BY_NAME["float16"])]))
    given = (special("float16", (300, width)), special("float32", (width,)))
    assert check(card, node, given, layouts=["dense"])


def test_an_output_may_take_the_place_of_an_input(card: Device) -> None:
    x = cd.tensor(np.arange(1000, dtype="float32").reshape(20, 50)).to(device=card)
    scale = cd.tensor(np.arange(50, dtype="float32")).to(device=card)
    y = op.exp(op.sqrt(x) * -0.1) + scale
    expected = np.exp(np.sqrt(x.numpy()) * np.float32(-0.1)) + scale.numpy()
    np.testing.assert_allclose(y.eval().numpy(), expected, rtol=1e-6)


def test_elements_are_never_touched_from_the_host(card: Device) -> None:
    """Arrays on a card refuse it; these are such arrays over memory that the host can look at."""
    if not isinstance(card, EmulatedCard):
        pytest.skip("on a real card every plan would fail if it were not so")
    x = np.arange(24.0, dtype="float32").reshape(4, 6)
    (argument,) = stand_ins(x)
    empty = np.zeros((0, 6), "float32")
    for given, node in (
        (x, elementwise.exp(argument)),
        (x, sum_(argument, (0,))),
        (x, sum_(argument, (0, 1))),
        (empty, sum_(stand_ins(empty)[0], (0,))),
        (x, OPS["argmax"](argument, axis=1, keepdims=False)),
        (x, OPS["cumsum"](argument, axis=0, reverse=True)),
        (x, OPS["reshape"](argument, shape=(8, 3))),
        (x, OPS["pad"](argument, widths=((1, 0), (0, 2)), value=3.0)),
        (x, OPS["unslice"](argument, shape=(4, 12), bounds=((0, 4, 1), (1, 12, 2)))),
        (x, OPS["concat"](argument, argument, axis=1)),
        (x, OPS["arrange"](argument, order=(1, 0))),
    ):
        arrays = [given] * len(node.inputs)
        output = np.empty(node.shape, node.dtype)
        (kernel,) = TABLE.candidates(node, "cuda")
        there = tuple(array.view(DeviceArray) for array in arrays)
        kernel.bind(Call(node, (output.view(DeviceArray),), there))()
        np.testing.assert_allclose(output, evaluate(node, arrays)[0], rtol=1e-6)
