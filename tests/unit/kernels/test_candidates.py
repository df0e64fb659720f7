"""Every kernel of the CPU against the oracle: odd, empty and strided arrays, all float dtypes.

The nodes are those of the cases of all ops, so a kernel for any op is met here without being named,
and a few more of shapes that matter to the way a kernel works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from caldera.errors import DtypeError
from caldera.graph.body import Body, topological
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import ITEM, OPS, parameter
from caldera.graph.ops import product
from caldera.graph.ops.base import broadcast_to
from caldera.graph.ops.control import fused, items
from caldera.graph.ops.elementwise import add, exp, mul
from caldera.graph.order import NHWC, laid_out
from caldera.graph.program import Program
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.lazy import Expr, lift
from caldera.passes.layout import IMAGES, layout
from caldera.tensor.dtype import BY_NAME, bool_, float32, is_float
from tests.unit.kernels.guarded import guarded
from tests.unit.ops.case import Case
from tests.unit.ops.cases import ALL
from tests.unit.ops.cases.convolution import SETTINGS, output_shape

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
DTYPES = ("float32", "float64", "float16", "bfloat16")
ELSEWHERE = frozenset({
    "fused", "scan", "all_sum", "collective_start", "collective_finish", "turn",
})  # fmt: skip
"""Made by passes or plans, or in need of a communicator: no case has them as they run."""
LARGE = frozenset({"winograd 2x2", "winograd 4x4", "fourier"})
"""Kernels that want more channels than any case has: test_fast_convolution is about them."""
Arrange = Callable[[np.ndarray], np.ndarray]


# --- ways for an array to lie in memory


def _dense(array: np.ndarray) -> np.ndarray:
    """Row by row, in memory that nothing may be read or written beyond."""
    memory = guarded(array.nbytes).view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, along all axes."""
    large = np.empty([2 * n + 1 for n in array.shape], array.dtype)
    view = large[*[slice(1, None, 2) for _ in array.shape], ...]
    view[...] = array
    return view


def _columns_first(array: np.ndarray) -> np.ndarray:
    return np.array(array, order="F")


def _backwards(array: np.ndarray) -> np.ndarray:
    """A view with negative strides."""
    # NumPy flips what has no axes into a scalar, which has no memory.
    return np.flip(_dense(np.flip(array))) if array.ndim else _dense(array)


def _repeated(array: np.ndarray) -> np.ndarray:
    """The first entry of axis 0 instead of all of them: a view whose stride is 0."""
    return np.broadcast_to(array[:1], array.shape) if array.ndim else array


def _channels_last(array: np.ndarray) -> np.ndarray:
    if array.ndim != len(NHWC):
        return _dense(array)
    return laid_out(_dense(array.transpose(NHWC)), array.shape, NHWC)


LAYOUTS: dict[str, Arrange] = {
    "dense": _dense, "with gaps": _with_gaps, "columns first": _columns_first,
    "backwards": _backwards, "repeated": _repeated, "channels last": _channels_last,
}  # fmt: skip


# --- the check


def _has_rivals(node: Node) -> bool:
    return TABLE.has(node.op.name, "cpu") and bool(_rivals(node))


def _rivals(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cpu") if each.name != "reference"]


def _spoiled(spec: Spec) -> np.ndarray:
    """Memory that holds nan, or the largest of numbers: what a run before it might have left."""
    memory = guarded(spec.nbytes)
    memory.fill(0x01 if spec.dtype == bool_ else 0xFF)
    return laid_out(memory.view(spec.dtype), spec.shape, spec.order)


def _in_both_orders(node: Node) -> Iterator[Node]:
    """The node as it stands, and with its images channels last if it has any."""
    yield node
    if node.op.name in IMAGES:
        stand_ins = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
        plain = node.op.node(*stand_ins, **node.attrs)
        arranged = layout(Program(items(plain))).order()
        yield next(each for each in arranged if each.op is node.op)


def _check(kernel: Kernel, node: Node, inputs: tuple[np.ndarray, ...]) -> None:
    """The kernel must give what the oracle does, twice in a row, and neither write to its inputs
    nor depend on what was in its memory before."""
    given = tuple(LAYOUTS["dense"](array) for array in inputs)
    outputs = tuple(_spoiled(spec) for spec in node.outputs)
    needed = kernel.workspace(node)
    workspace = _spoiled(Spec((needed,), np.dtype(np.uint8))) if needed else None
    with np.errstate(all="ignore"):
        expected = evaluate(node, given)
        run = kernel.bind(Call(node, outputs, inputs, workspace))
        for _ in range(2):
            run()
            for output, right in zip(outputs, expected, strict=True):
                _compare(output, right)
        for array, before in zip(inputs, given, strict=True):
            assert array.tobytes() == before.tobytes()


def _compare(output: np.ndarray, right: np.ndarray) -> None:
    if not is_float(output.dtype):
        np.testing.assert_array_equal(output, right)
        return
    wide = right.astype("float64")
    tolerance = TOLERANCE[output.dtype.name]
    # Where all results are next to nothing (the variance of equal numbers), they are rounding.
    scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=tolerance))
    np.testing.assert_allclose(
        output.astype("float64"), wide, rtol=tolerance, atol=tolerance * scale
    )


# --- nodes of the cases


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
                for each in _in_both_orders(node):
                    if _has_rivals(each):
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compute_the_cases_of_every_op(dtype: str) -> None:
    checked = set()
    for node, inputs in _distinct(dtype).values():
        for kernel in _rivals(node):
            for arrange in LAYOUTS.values():
                arranged = tuple(arrange(array) for array in inputs)
                try:
                    _check(kernel, node, arranged)
                except Exception as problem:
                    problem.add_note(f"{kernel.name} on {node}, strides "
                                     f"{[array.strides for array in arranged]}")  # fmt: skip
                    raise
            checked.add((node.op.name, kernel.name))
    if dtype == "float32":
        assert checked >= {
            (name, kernel)
            for name in OPS
            for kernel in TABLE.names(name, "cpu")
            if kernel != "reference" and kernel not in LARGE and name not in ELSEWHERE
        }


# --- nodes that matter to a kernel


def _numbers(spec: Spec) -> np.ndarray:
    generator = np.random.default_rng(list(spec.shape))
    return generator.uniform(-1.0, 1.0, spec.shape).astype(spec.dtype)


def _check_all(plain: Node, at_least: int = 1) -> None:
    inputs = tuple(_numbers(given.spec) for given in plain.inputs)
    for node in _in_both_orders(plain):
        rivals = _rivals(node)
        assert len(rivals) >= at_least
        for kernel in rivals:
            for arrange in LAYOUTS.values():
                _check(kernel, node, tuple(arrange(array) for array in inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
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
        _check(kernel, node, (array, array))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 5), (0,)), ((3, 5), (1,)), ((3, 5), (0, 1)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)),
        ((2, 3, 4), (0, 1)), ((2, 3, 4), (1, 2)), ((7,), (0,)), ((0, 3), (0,)), ((3, 0), (1,)),
        ((0, 3), (1,)), ((2, 3000), (1,)), ((1, 1), (0,)),
    ],
)  # fmt: skip
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
            _check(kernel, node, (array,))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (300, 200), (2, 0, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_bodies(shape: tuple[int, ...], dtype: str) -> None:
    x, y = (parameter(i, Spec(shape, BY_NAME[dtype])) for i in (0, 1))
    scalar = parameter(2, Spec((), BY_NAME[dtype]))
    body = Body([x, y, scalar], [exp(add(mul(x, y), broadcast_to(scalar, shape))), mul(x, x)])
    results = fused(x, y, scalar, body=body)
    _check_all(results[0].inputs[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_what_they_say(name: str) -> None:
    view = LAYOUTS[name](np.arange(36.0).reshape(3, 3, 2, 2))
    assert view.shape == (3, 3, 2, 2)
    assert view.flags.c_contiguous == (name == "dense")
