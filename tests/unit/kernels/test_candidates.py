"""Every kernel of the CPU against the oracle: odd, empty and strided arrays, all float dtypes.

The nodes are those of the cases of all ops, so a kernel for any op is met here without being named,
and a few more of shapes that matter to the way a kernel works.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import ITEM, OPS, parameter
from caldera.core.graph.ops import product
from caldera.core.graph.ops.base import broadcast_to
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.elementwise import add, exp, mul
from caldera.core.graph.program import Body, topological
from caldera.core.tensor.dtype import BY_NAME, float32
from caldera.errors import DtypeError
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.unit.kernels.checking import (
    DTYPES,
    ELSEWHERE,
    LAYOUTS,
    Arrange,
    check_kernel,
    in_both_orders,
    is_taken_apart,
)
from tests.unit.ops.case import Case
from tests.unit.ops.cases import ALL
from tests.unit.ops.cases.convolution import SETTINGS, output_shape

LARGE = frozenset(
    {
        "winograd 2x2",
        "winograd 4x4",
        "fourier",
        "few rows",
        "packed",
        "packed together",
        "packed, sums cut",
        "packed, sums cut in 4",
        "1x1 product",
        "amx",
        "amx 1x1 product",
        "amx im2col",
        "planes",
        "product with ones",
    }
)
"""Kernels that want more channels, rows or threads than any case has, bfloat16, or wide vectors:
test_fast_convolution, test_product, test_packed_product, test_pointwise and test_reduction_rivals
are about them."""


# --- nodes of the cases


def _has_rivals(node: Node) -> bool:
    return TABLE.has(node.op.name, "cpu") and bool(_rivals(node))


def _rivals(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cpu") if each.name != "reference"]


def _nodes_of(case: Case, dtype: str) -> Iterator[tuple[Node, tuple[np.ndarray, ...]]]:
    """The nodes of a case that have rivals, with the values they read in it."""
    wanted = BY_NAME[dtype]
    arrays = [a.astype(wanted) if a.dtype.kind == "f" else a for a in case.inputs]
    result = case.function(*[Expr(lift(array)) for array in arrays])
    several = result if isinstance(result, tuple | list) else (result,)
    values: dict[Node, tuple[np.ndarray, ...]] = {}
    with np.errstate(all="ignore"):
        for node in topological([each.node for each in several]):
            symbol = node.attrs.get("symbol")
            if symbol is not None:
                values[node] = (symbol.value.numpy(),)
            elif node.op is ITEM:
                values[node] = (values[node.inputs[0]][node.attrs["index"]],)
            else:
                inputs = tuple(values[given][0] for given in node.inputs)
                values[node] = evaluate(node, inputs)
                for each in in_both_orders(node):
                    if _has_rivals(each) and not is_taken_apart(each):
                        yield each, inputs


def _distinct(dtype: str) -> dict[Any, tuple[Node, tuple[np.ndarray, ...]]]:
    found: dict[Any, tuple[Node, tuple[np.ndarray, ...]]] = {}
    for case in [case for case in ALL if case.op not in ELSEWHERE]:
        try:
            nodes = list(_nodes_of(case, dtype))
        except DtypeError:
            # A few ops want some of their inputs in float32 whatever the others are.
            assert dtype in ("float16", "bfloat16")
            continue
        for node, inputs in nodes:
            specs = tuple(given.spec for given in node.inputs)
            found.setdefault(
                (node.op.name, repr(sorted(node.attrs.items())), specs), (node, inputs)
            )
    return found


def _arrangements(node: Node, number: int, dtype: str) -> list[Arrange]:
    """All of them in float32, else dense and one of the others in turn; for an element-wise op, in
    float32 dense and one of the others in turn, else one in turn. All its loops read their operands
    by the same lines, which test_elementwise meets in every layout, and each would be compiled for
    each way to read them."""
    every = list(LAYOUTS.values())
    two = [every[0], every[1 + number % (len(every) - 1)]]
    if node.op.kind != "elementwise":
        return every if dtype == "float32" else two
    return two if dtype == "float32" else [every[number % len(every)]]


def _is_due(kernel: Kernel, node: Node, number: int, dtype: str, checked: set[Any]) -> bool:
    """Every kernel of every op meets every dtype, and every node float32 and one dtype more: each
    node is compiled for each dtype, of which only loads, stores and widths differ."""
    turn = DTYPES.index(dtype)
    first = (node.op.name, kernel.name) not in checked
    return turn == 0 or first or number % (len(DTYPES) - 1) == turn - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compute_the_cases_of_every_op(dtype: str) -> None:
    checked: set[Any] = set()
    for number, (node, inputs) in enumerate(_distinct(dtype).values()):
        for kernel in _rivals(node):
            if not _is_due(kernel, node, number, dtype, checked):
                continue
            for arrange in _arrangements(node, number, dtype):
                arranged = tuple(arrange(array) for array in inputs)
                try:
                    check_kernel(kernel, node, arranged)
                except Exception as problem:
                    problem.add_note(
                        f"{kernel.name} on {node}, strides {[array.strides for array in arranged]}"
                    )
                    raise
            checked.add((node.op.name, kernel.name))
    if dtype == "float32":
        assert checked >= {
            (name, kernel)
            for name, each in OPS.items()
            # Those of several ranks together are in tests/unit/compiler/sharding.
            if each.kind != "distributed"
            for kernel in TABLE.names(name, "cpu")
            if kernel != "reference" and kernel not in LARGE and name not in ELSEWHERE
        }


# --- nodes that matter to a kernel


def _numbers(spec: Spec) -> np.ndarray:
    generator = np.random.default_rng(list(spec.shape))
    return generator.uniform(-1.0, 1.0, spec.shape).astype(spec.dtype)


def _check_all(plain: Node, at_least: int = 1) -> None:
    inputs = tuple(_numbers(given.spec) for given in plain.inputs)
    for node in in_both_orders(plain):
        rivals = _rivals(node)
        assert len(rivals) >= at_least
        for kernel in rivals:
            for arrange in LAYOUTS.values():
                check_kernel(kernel, node, tuple(arrange(array) for array in inputs))


@pytest.mark.parametrize(
    ("setting", "dtype"),
    [
        pytest.param(setting, dtype, id=f"{setting.name}-{dtype}")
        for number, setting in enumerate(SETTINGS)
        for dtype in ("float32", DTYPES[1 + number % 3])
    ],
)
def test_convolutions(setting: Any, dtype: str) -> None:
    x, w, g = (
        parameter(index, Spec(shape, BY_NAME[dtype]))
        for index, shape in enumerate([setting.x, setting.w, output_shape(setting)])
    )
    _check_all(product.conv2d(x, w, **setting.how))
    _check_all(product.conv2d_input(g, w, shape=setting.x, **setting.how))
    _check_all(product.conv2d_weight(x, g, shape=setting.w, **setting.how))


@pytest.mark.parametrize(
    ("a", "b", "ta", "tb"),
    [
        ((3, 4), (4, 5), False, False),
        ((4, 3), (4, 5), True, False),
        ((3, 4), (5, 4), False, True),
        ((4, 3), (5, 4), True, True),
        ((2, 3, 4), (4, 5), False, False),
        ((2, 1, 3, 4), (3, 5, 4), False, True),
        ((1, 7), (7, 1), False, False),
        ((0, 4), (4, 5), False, False),
        ((3, 0), (0, 5), False, False),
        ((0, 3, 4), (4, 5), False, False),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(a: tuple[int, ...], b: tuple[int, ...], ta: bool, tb: bool, dtype: str) -> None:
    left, right = (parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate([a, b]))
    _check_all(product.matmul(left, right, ta=ta, tb=tb))


def test_a_product_with_itself() -> None:
    x = parameter(0, Spec((5, 3), float32))
    node = product.matmul(x, x, ta=True, tb=False)
    array = _numbers(x.spec)
    for kernel in _rivals(node):
        check_kernel(kernel, node, (array, array))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 5), (0,)),
        ((3, 5), (1,)),
        ((3, 5), (0, 1)),
        ((2, 3, 4), (1,)),
        ((2, 3, 4), (0, 2)),
        ((2, 3, 4), (0, 1)),
        ((2, 3, 4), (1, 2)),
        ((7,), (0,)),
        ((0, 3), (0,)),
        ((3, 0), (1,)),
        ((0, 3), (1,)),
        ((2, 3000), (1,)),
        ((1, 1), (0,)),
    ],
)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
def test_sums(shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool, dtype: str) -> None:
    x = parameter(0, Spec(shape, BY_NAME[dtype]))
    _check_all(OPS["sum"](x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sums_keep_what_is_not_finite_in_its_row_or_column(value: float) -> None:
    array = np.ones((3, 4), "float32")
    array[1, 2] = value
    for axis in ((0,), (1,)):
        node = OPS["sum"](parameter(0, Spec((3, 4), float32)), axis=axis, keepdims=False)
        assert _rivals(node)
        for kernel in _rivals(node):
            check_kernel(kernel, node, (array,))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (300, 200), (2, 0, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_bodies(shape: tuple[int, ...], dtype: str) -> None:
    x, y = (parameter(i, Spec(shape, BY_NAME[dtype])) for i in (0, 1))
    scalar = parameter(2, Spec((), BY_NAME[dtype]))
    body = Body([x, y, scalar], [exp(add(mul(x, y), broadcast_to(scalar, shape))), mul(x, x)])
    results = fused.outputs(x, y, scalar, body=body)
    _check_all(results[0].inputs[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_what_they_say(name: str) -> None:
    view = LAYOUTS[name](np.arange(36.0).reshape(3, 3, 2, 2))
    assert view.shape == (3, 3, 2, 2)
    assert view.flags.c_contiguous == (name == "dense")
