"""Reductions on a card: any axes, any layout, whole or in parts; positions and running sums."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops import elementwise, reduction
from caldera.core.graph.ops.base import cast, sum_
from caldera.core.graph.ops.control import fused
from caldera.core.graph.program import Body
from caldera.core.memory import Device
from caldera.core.tensor.dtype import ALL, BY_NAME, is_complex, is_float
from caldera.kernels.common.loops import ReductionTask, loop_body_of, with_axes
from caldera.kernels.cuda.codegen.loops import LaunchIntegers
from caldera.kernels.cuda.product.problem import described
from caldera.kernels.cuda.reduction import reduce as cuda_reduction
from caldera.kernels.cuda.runtime.driver import driver
from tests.card.candidates import check, run_kernel, stand_ins
from tests.card.emulated import EmulatedDriver
from tests.unit.kernels.checking import LAYOUTS

DTYPES = [dtype.name for dtype in ALL if not is_complex(dtype)]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)),
    ((3, 5), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0, 1)),
    ((2, 3, 4), (1,)),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 4), (0, 1)),
    ((2, 3, 4), (1, 2)),
    ((0, 3), (0,)),
    ((3, 0), (1,)),
    ((0, 3), (1,)),
    ((1, 1), (0,)),
    ((70, 40), (1,)),
    ((70, 40), (0,)),
    ((5, 300), (1,)),
    ((300, 6), (0,)),
    ((2, 3, 5, 8), (0, 2, 3)),
    ((4, 6, 8), (0, 2)),
    ((), ()),
]


@pytest.fixture(params=["whole", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions as they are, and cut into parts however small they are."""
    if request.param == "in parts":
        for name, value in (
            ("LONGEST_ROW", 4),
            ("SHORTEST_PART", 3),
            ("MOST_ROWS", 2),
            ("FEWEST_ROWS", 2),
            ("BUSY_ROWS", 2),
            ("FEWEST_BUSY_ROWS", 1),
        ):
            monkeypatch.setattr(cuda_reduction, name, value)


def _numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng([len(shape), *shape])
    return np.asarray(generator.normal(0, 3, shape)).astype(BY_NAME[dtype])


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.usefixtures("parts")
def test_sums(
    card: Device,
    shape: tuple[int, ...],
    axis: tuple[int, ...],
    keepdims: bool,
) -> None:
    x = _numbers(shape)
    layouts = ["dense"] if keepdims else LAYOUTS
    node = OPS["sum"](*stand_ins(x), axis=axis, keepdims=keepdims)
    assert check(card, node, (x,), layouts=layouts)


def test_narrow_blocks_do_without_parts(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_reduction, "NARROW_BLOCKS", 2)
    x = _numbers((700, 6))
    node = OPS["sum"](*stand_ins(x), axis=(0,), keepdims=False)
    assert check(card, node, (x,), layouts=["dense"])
    using = driver()
    if isinstance(using, EmulatedDriver):
        assert set(using.launches) == {"reduce"}


@pytest.mark.parametrize("columns", [768, 2304, 3072, 4096])
def test_blocks_of_a_tall_matrix_read_whole_lines(columns: int) -> None:
    spec = Spec((8192, columns), BY_NAME["bfloat16"])
    node = sum_(cast(parameter(0, spec), BY_NAME["float32"]), (0,))
    body = loop_body_of(fused.node(parameter(0, spec), body=Body([parameter(0, spec)], [node])))
    result = with_axes(described(node.spec), (0,), 2)
    plan = cuda_reduction.planned(
        ReductionTask(body, spec.shape, (0,), [described(spec)], [], [result])
    )
    assert plan.cut.lanes == 8
    assert plan.block[0] == 32
    # Several for each of 132 multiprocessors, and their totals fit into the workspace.
    assert plan.cut.blocks * plan.cut.parts >= 132
    totals = plan.cut.parts * plan.totals * 8
    assert totals <= cuda_reduction.workspace_of(spec.shape, (0,), ["sum"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_of_every_dtype(card: Device, dtype: str) -> None:
    x = np.abs(_numbers((9, 12))).astype(BY_NAME[dtype])
    for axis in ((0,), (1,)):
        (argument,) = stand_ins(x)
        names = ("sum", "prod", "max", "min")
        nodes = [OPS[name](argument, axis=axis, keepdims=False) for name in names]
        node = fused.outputs(argument, body=Body([argument], nodes))[0].inputs[0]
        assert check(card, node, (x,), layouts=["dense"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin", "cumsum"])
@pytest.mark.usefixtures("parts")
def test_what_is_not_finite_stays_in_its_row(
    card: Device,
    name: str,
    value: float,
) -> None:
    x = np.ones((6, 50), "float32")
    x[2, 21] = x[4, 3] = x[4, 30] = value
    for axis in (0, 1):
        how = {"axis": (axis,) if name in ("sum", "prod", "max", "min") else axis}
        more = {"reverse": False} if name == "cumsum" else {"keepdims": False}
        assert check(card, OPS[name](*stand_ins(x), **how, **more), (x,), layouts=["dense"])


def test_sums_are_accurate_and_repeat(card: Device) -> None:
    x = np.random.default_rng(0).uniform(0, 1, (3, 30001)).astype("float32")
    node = sum_(stand_ins(x)[0], (1,))
    kernel = cuda_reduction.TABLE.candidates(node, "cuda")[0]
    (first,) = run_kernel(card, kernel, node, (x,))
    (second,) = run_kernel(card, kernel, node, (x,))
    assert first.tobytes() == second.tobytes()
    np.testing.assert_array_equal(first, x.astype("float64").sum(1).astype("float32"))


# --- positions


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("argmax", "float32"), ("argmin", "float32"), ("argmax", "bool"), ("argmin", "bfloat16")],
)
@pytest.mark.usefixtures("parts")
def test_the_first_of_equals_is_found(card: Device, name: str, dtype: str) -> None:
    x = np.random.default_rng(5).integers(0, 3, (4, 50, 6)).astype(BY_NAME[dtype])
    if is_float(x.dtype):
        x[1, 20, 3] = x[1, 30, 3] = np.nan
    for axis in range(3):
        node = OPS[name](*stand_ins(x), axis=axis, keepdims=axis == 1)
        assert check(card, node, (x,), layouts=["dense", "columns first"])


# --- running sums


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.usefixtures("parts")
def test_running_sums(card: Device, dtype: str, reverse: bool) -> None:
    x = _numbers((3, 37, 5), dtype)
    for axis in range(3):
        node = reduction.cumsum(*stand_ins(x), axis=axis, reverse=reverse)
        assert check(card, node, (x,), layouts=["dense", "columns first", "with gaps"])


@pytest.mark.parametrize("shape", [(1,), (2100,), (0, 3), (5, 1), (40, 3)])
def test_running_sums_of_any_length(card: Device, shape: tuple[int, ...]) -> None:
    x = _numbers(shape)
    for axis in range(len(shape)):
        assert check(card, reduction.cumsum(*stand_ins(x), axis=axis, reverse=False), (x,))


# --- bodies with reductions


def _body(shape: tuple[int, ...], axes: list[tuple[str, tuple[int, ...]]]) -> tuple[Node, ...]:
    x, scale = stand_ins(_numbers(shape), _numbers(shape[-1:]))
    y = elementwise.tanh(elementwise.mul(x, scale))
    reduced = [OPS[name](y, axis=axis, keepdims=False) for name, axis in axes]
    body = Body([x, scale], [y, elementwise.greater(x, y), *reduced])
    return tuple(fused.outputs(x, scale, body=body))


@pytest.mark.parametrize("shape", [(6, 40), (3, 4, 7), (0, 3), (20, 8)])
@pytest.mark.usefixtures("parts")
def test_bodies_with_reductions(card: Device, shape: tuple[int, ...]) -> None:
    rank = len(shape)
    several: list[list[tuple[str, tuple[int, ...]]]] = [
        [("max", (rank - 1,)), ("min", (rank - 1,))],
        [("sum", (0,)), ("prod", (0,))],
        [("sum", tuple(range(rank))), ("sum", (0,)), ("sum", (rank - 1,))],
    ]
    for axes in several:
        node = _body(shape, axes)[0].inputs[0]
        inputs = (_numbers(shape), _numbers(shape[-1:]))
        assert check(card, node, inputs, layouts=["dense", "columns first"])


def test_a_loop_that_computes_much_has_many_blocks(card: Device) -> None:
    (y, *_), inputs = _body((300, 24), [("sum", (0,))]), (_numbers((300, 24)), _numbers((24,)))
    assert check(card, y.inputs[0], inputs, layouts=["dense"])
    using = driver()
    if isinstance(using, EmulatedDriver):
        assert set(using.launches) == {"reduce", "join"}


def test_blocks_of_a_loop_that_computes_much() -> None:
    spec = Spec((2048, 1024), BY_NAME["bfloat16"])
    x = parameter(0, spec)
    y = elementwise.exp(x)
    node = sum_(cast(y, BY_NAME["float32"]), (0,))
    body = loop_body_of(fused.node(x, body=Body([x], [y, node])), (1,))
    result = with_axes(described(node.spec), (0,), 2)
    arrays = [described(spec)], [described(spec)], [result]
    plan = cuda_reduction.planned(ReductionTask(body, spec.shape, (0,), *arrays))
    assert plan.cut.blocks * plan.cut.parts >= 132
    totals = plan.cut.parts * plan.totals * 8
    assert totals <= cuda_reduction.workspace_of(spec.shape, (0,), ["sum"], busy=True)


# --- the pieces


@pytest.mark.parametrize("by", [1, 2, 3, 7, 10, 64, 100, 641, 65535, 2**20 + 1, 2**31 - 1])
def test_divisors_divide(by: int) -> None:
    numbers = LaunchIntegers(wide=False)
    numbers.divisor(by)
    _, signed, shift = numbers.values
    factor = signed % 2**32
    for n in (0, 1, by - 1, by, by + 1, 3 * by - 1, 12345, 2**31 - 1):
        if 0 <= n < 2**31:
            assert (((n * factor) >> 32) + n) >> shift == n // by
