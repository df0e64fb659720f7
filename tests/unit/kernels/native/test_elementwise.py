"""Native loops: layouts, broadcasting, tails, reductions over any axes, and any number of parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops import elementwise, reduction
from caldera.core.graph.ops.base import cast, constant, sum_
from caldera.core.graph.ops.control import fused
from caldera.core.graph.program import Body
from caldera.core.tensor.dtype import BY_NAME, bool_, float32
from caldera.kernels.common.loops import axes_of
from caldera.kernels.native.elementwise import loop
from caldera.kernels.native.reduction import reduce as native_reduction
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call

GENERATOR = np.random.default_rng(0)
Arrange = Callable[[np.ndarray], np.ndarray]


def _reversed(array: np.ndarray) -> np.ndarray:
    return np.asfortranarray(array)


def _with_gaps(array: np.ndarray) -> np.ndarray:
    if not array.ndim:
        return array
    wide = np.zeros(tuple(2 * length for length in array.shape), array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


LAYOUTS: list[Arrange] = [np.asarray, _reversed, _with_gaps, np.flip]


def _run(node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "native")
    outputs = tuple(np.empty(spec.shape, spec.dtype) for spec in node.outputs)
    kernel.bind(Call(node, outputs, tuple(inputs)))()
    return list(outputs)


def _check(node: Node, inputs: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    with np.errstate(all="ignore"):
        right = evaluate(node, inputs)
    for found, wanted in zip(_run(node, inputs), right, strict=True):
        if found.dtype.kind in "biu":
            np.testing.assert_array_equal(found, wanted)
        else:
            wide = wanted.astype(np.float64)
            scale = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
            np.testing.assert_allclose(
                found.astype(np.float64), wide, rtol=tolerance, atol=tolerance * scale
            )


def _numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.asarray(GENERATOR.normal(0, 1, shape)).astype(BY_NAME[dtype])


@pytest.fixture(params=[1, 2, 3])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Loops of a few elements are shared, and reduced in several stretches."""
    for name in ("LIGHT_SHARE", "HEAVY_SHARE"):
        monkeypatch.setattr(loop, name, 4)
    monkeypatch.setattr(native_reduction, "LONGEST_ROW", 3)
    monkeypatch.setattr(native_reduction, "MOST_ROWS", 3)
    with cd.settings.override(threads=request.param):
        yield request.param


# --- element by element


@pytest.mark.parametrize("arrange", LAYOUTS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1,), (1,)),
        ((37,), (37,)),
        ((5, 21), (21,)),
        ((6, 19), (6, 1)),
        ((2, 3, 4, 5), (3, 1, 1)),
        ((), ()),
        ((0, 3), (3,)),
        ((3, 70), ()),
        ((4, 1), (1, 5)),
        ((2, 1, 3), (2, 4, 3)),
    ],
)
@pytest.mark.usefixtures("parts")
def test_operands_are_broadcast(
    first: tuple[int, ...], second: tuple[int, ...], arrange: Arrange
) -> None:
    a, b = parameter(0, Spec(first, float32)), parameter(1, Spec(second, float32))
    inputs = [np.asarray(arrange(_numbers(shape))) for shape in (first, second)]
    _check(elementwise.mul(a, b), inputs)
    _check(elementwise.less(a, b), inputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("channels", [2, 6, 31])
@pytest.mark.usefixtures("parts")
def test_a_number_for_each_of_a_few_channels(
    channels: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels that are last in memory are short rows, which are taken several at a time."""
    monkeypatch.setattr(loop, "WORTH_JOINING", 1)
    monkeypatch.setattr(loop, "SHORT_ROW", 40)
    shape = (3, channels, 5, 8)
    specs = [Spec(each, BY_NAME[dtype]) for each in (shape, (channels, 1, 1), (), (3, 1, 1, 1))]
    x, bias, factor, image = (parameter(index, spec) for index, spec in enumerate(specs))
    pixels = (8 * _numbers((3, 5, 8, channels))).astype(BY_NAME[dtype]).transpose(0, 3, 1, 2)
    others = [np.array(8 * _numbers(spec.shape), BY_NAME[dtype]) for spec in specs[1:]]
    # The second has a factor of its own for each image, so only rows of one image go together.
    for last in (factor, image):
        arguments = [x, bias, last]
        body = Body(arguments, [elementwise.mul(elementwise.add(x, bias), last)])
        node = fused.node(*arguments, body=body)
        kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "native")
        out = np.empty((3, 5, 8, channels), BY_NAME[dtype]).transpose(0, 3, 1, 2)
        given = (pixels, others[0], others[1] if last is factor else others[2])
        run = kernel.bind(Call(node, (out,), given))
        for _ in range(2):
            run()
            np.testing.assert_array_equal(out, evaluate(node, given)[0])
            others[0][...] += np.ones((), BY_NAME[dtype])


@pytest.mark.parametrize(
    "shape", [(5, 6, 30, 28), (3, 1, 41, 43), (2, 40, 64, 64), (1, 3, 4099, 1)]
)
def test_sums_for_each_of_a_few_channels(shape: tuple[int, ...]) -> None:
    """Short rows are reduced several at a time, beside a value that is the same for all."""
    draw = np.random.default_rng(0)
    x, y = (draw.standard_normal(shape).transpose(0, 2, 3, 1).astype("f4") for _ in range(2))
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    a, b = (op.var(name, each.shape, fill=each) for name, each in (("a", x), ("b", y)))
    factor = op.var("factor", (), fill=cd.constant(0.5))
    product = a * b * factor
    found = cd.compile([product, op.sum(product, axis=(0, 1, 2)), op.max(product, axis=(1, 2))])
    right = x * y * np.float32(0.5)
    expected = [right, right.sum((0, 1, 2), "f8"), right.max((1, 2))]
    for one, other in zip(found.run(), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-5, atol=1e-4)


def test_axes_are_joined_whatever_their_order() -> None:
    x = np.zeros((2, 8, 8, 16), np.float32).transpose(0, 3, 1, 2)
    assert axes_of(x.shape, [x, x]).lengths == (2048,)
    channel = np.zeros((16, 1, 1), np.float32)
    assert axes_of(x.shape, [x, channel]).lengths == (128, 16)
    assert axes_of(x.shape, [x, channel]).strides == ((64, 4), (0, 4))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("name", ["floor_div", "mod"])
def test_division_rounds_down(name: str, dtype: str) -> None:
    wanted = BY_NAME[dtype]
    values = [-7, -4, -1, 0, 1, 3, 7, 100]
    if wanted.kind == "f":
        values += [np.inf, -np.inf, np.nan, -0.0, 0.25]  # type: ignore[list-item]
    else:
        values += [np.iinfo(wanted).min, np.iinfo(wanted).max]
    sample = np.array(values)
    numbers = (sample[sample >= 0] if wanted.kind == "u" else sample).astype(wanted)
    a, b = (each.ravel() for each in np.meshgrid(numbers, numbers))
    spec = Spec(a.shape, wanted)
    node = OPS[name](parameter(0, spec), parameter(1, spec))
    with np.errstate(all="ignore"):
        (right,) = evaluate(node, (a, b))
    (found,) = _run(node, (a, b))
    np.testing.assert_array_equal(found, right)
    if wanted.kind == "f":
        np.testing.assert_array_equal(
            np.signbit(found[~np.isnan(right)]), np.signbit(right[~np.isnan(right)])
        )


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_nan_wins(name: str, dtype: str) -> None:
    values = np.array([1, np.nan, np.nan, -np.inf, 2], BY_NAME[dtype])
    others = np.array([np.nan, 1, np.nan, np.inf, 3], BY_NAME[dtype])
    spec = Spec((5,), BY_NAME[dtype])
    _check(OPS[name](parameter(0, spec), parameter(1, spec)), [values, others])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_after_every_op_fused_or_not(dtype: str) -> None:
    spec = Spec((101,), BY_NAME[dtype])
    x, y = parameter(0, spec), parameter(1, spec)
    body = Body([x, y], [elementwise.sub(elementwise.mul(x, y), y)])
    node = fused.node(x, y, body=body)
    inputs = [_numbers((101,), dtype) for _ in range(2)]
    (right,) = evaluate(node, inputs)
    (found,) = _run(node, inputs)
    np.testing.assert_array_equal(found.view(np.uint16), right.view(np.uint16))


def test_an_output_may_take_the_place_of_an_input() -> None:
    spec = Spec((103,), float32)
    x, y = parameter(0, spec), parameter(1, spec)
    body = Body([x, y], [elementwise.add(x, y), elementwise.sub(x, y)])
    node = fused.node(x, y, body=body)
    inputs = tuple(_numbers((103,)) for _ in range(2))
    right = evaluate(node, [each.copy() for each in inputs])
    kernel = TABLE.candidates(node, "cpu")[0]
    assert kernel.in_place(node)
    kernel.bind(Call(node, inputs[::-1], inputs))()
    for found, wanted in zip(inputs[::-1], right, strict=True):
        np.testing.assert_array_equal(found, wanted)


# --- reductions


@pytest.mark.parametrize("arrange", LAYOUTS)
@pytest.mark.parametrize("shape", [(1,), (41,), (9, 22), (2, 3, 4, 5), (4, 1, 6), (1, 1)])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.usefixtures("parts")
def test_reductions_over_all_axes(name: str, shape: tuple[int, ...], arrange: Arrange) -> None:
    x = arrange(1 + 0.1 * _numbers(shape))
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            node = OPS[name](parameter(0, Spec(shape, float32)), axis=axes, keepdims=count % 2 == 0)
            _check(node, [x])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_reductions_of_other_dtypes(name: str, dtype: str) -> None:
    wanted = BY_NAME[dtype]
    x = GENERATOR.integers(0 if wanted.kind in "bu" else -3, 2, (7, 33)).astype(wanted)
    for axis in ((0,), (1,), (0, 1)):
        _check(OPS[name](parameter(0, Spec(x.shape, wanted)), axis=axis, keepdims=False), [x], 1e-2)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize(("name", "nothing"), [("sum", 0.0), ("prod", 1.0)])
def test_nothing_is_reduced_to_the_neutral_number(
    name: str, nothing: float, shape: tuple[int, ...]
) -> None:
    x = np.zeros(shape, np.float32)
    for axis in ((0,), (1,), (0, 1)):
        node = OPS[name](parameter(0, Spec(shape, float32)), axis=axis, keepdims=False)
        (found,) = _run(node, [x])
        np.testing.assert_array_equal(found, np.full(found.shape, nothing))
        np.testing.assert_array_equal(np.signbit(found), False)


def test_a_sum_of_negative_zeros_is_zero_as_in_numpy() -> None:
    x = np.full((3, 40), -0.0, np.float32)
    for axis in ((0,), (1,), (0, 1)):
        node = OPS["sum"](parameter(0, Spec(x.shape, float32)), axis=axis, keepdims=False)
        (found,) = _run(node, [x])
        assert not np.signbit(found).any()


@pytest.mark.parametrize(("shape", "axis"), [((300000,), 0), ((5, 40000), 1), ((40000, 5), 0)])
def test_sums_are_at_least_as_accurate_as_numpy(shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(3).uniform(0, 1, shape).astype(np.float32)
    node = OPS["sum"](parameter(0, Spec(shape, float32)), axis=(axis,), keepdims=False)
    exact = x.astype(np.float64).sum(axis)
    (found,) = _run(node, [x])
    assert (
        np.abs(found - exact).max() <= np.abs(x.sum(axis) - exact).max() + np.spacing(found).max()
    )


@pytest.mark.parametrize("shape", [(70000,), (300, 700), (4, 5, 30, 40)])
def test_sums_do_not_depend_on_the_number_of_threads(shape: tuple[int, ...]) -> None:
    x = _numbers(shape)
    for axis in ((0,), (len(shape) - 1,), tuple(range(len(shape)))):
        node = OPS["sum"](parameter(0, Spec(shape, float32)), axis=axis, keepdims=False)
        found = []
        for threads in (1, 2, 3):
            with cd.settings.override(threads=threads):
                found += _run(node, [x])
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("arrange", LAYOUTS)
@pytest.mark.parametrize("shape", [(7,), (33, 20), (2, 5, 6, 3), (1, 9), (0, 4), (3, 0)])
@pytest.mark.usefixtures("parts")
def test_a_body_may_write_and_reduce(shape: tuple[int, ...], arrange: Arrange) -> None:
    rank = len(shape)
    a, b = parameter(0, Spec(shape, float32)), parameter(1, Spec(shape[-1:], BY_NAME["float64"]))
    chosen = parameter(2, Spec(shape[:1] + (1,) * (rank - 1), bool_))
    scaled = elementwise.mul(cast(a, BY_NAME["float64"]), b)
    value = elementwise.where(chosen, scaled, constant(0.5, BY_NAME["float64"]))
    every = tuple(range(rank))
    outputs = [value, cast(value, float32), sum_(value, (0,)), sum_(scaled, every)]
    if 0 not in shape:
        outputs.append(reduction.max_(value, axis=(rank - 1,), keepdims=True))
    node = fused.node(a, b, chosen, body=Body([a, b, chosen], outputs))
    _check(
        node,
        [
            np.asarray(arrange(_numbers(shape))),
            np.asarray(arrange(_numbers(shape[-1:], "float64"))),
            np.asarray(arrange(GENERATOR.integers(0, 2, chosen.shape).astype(bool))),
        ],
    )


# --- positions


@pytest.mark.parametrize(
    ("dtype", "arrange"),
    [
        *[("float32", arrange) for arrange in LAYOUTS],
        *zip(["float16", "int64", "uint8", "bool"], LAYOUTS, strict=True),
    ],
)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_are_the_first_among_equals(name: str, dtype: str, arrange: Arrange) -> None:
    for shape in ((1,), (45,), (3, 17), (2, 19, 3), (4, 1, 6)):
        x = GENERATOR.integers(0, 4, shape).astype(BY_NAME[dtype])
        for axis in range(len(shape)):
            node = OPS[name](parameter(0, Spec(shape, x.dtype)), axis=axis, keepdims=axis == 0)
            _check(node, [arrange(x)])


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_nan_is_both_largest_and_smallest(name: str) -> None:
    x = np.ones((30, 30), np.float32)
    x[GENERATOR.integers(0, 30, 40), GENERATOR.integers(0, 30, 40)] = np.nan
    x[3] = np.inf
    for axis in (0, 1):
        _check(OPS[name](parameter(0, Spec(x.shape, float32)), axis=axis, keepdims=False), [x])


# --- optimizers


@pytest.mark.parametrize(
    "rule",
    [
        optim.SGD(0.1, momentum=0.9, weight_decay=1e-3),
        optim.Adam(0.1),
        optim.AdamW(0.1),
        optim.RMSProp(0.1),
        optim.Adagrad(0.1),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_an_update_is_one_pass_in_place(rule: optim.Optimizer) -> None:
    weight, gradient = op.var("w", (1000,)), op.var("g", (1000,))
    plan = cd.compile(rule.apply([weight], [gradient]))
    plan.run()
    large = [step for step in plan.schedule.steps if step.node.outputs[0].shape == (1000,)]
    assert len(large) == 1
    assert large[0].kernel.name == "native"
    assert plan.arena_bytes < 1000


@pytest.mark.parametrize("function", ["sinh", "asinh", "atanh"])
def test_odd_functions_of_small_integers_as_halves(function: str) -> None:
    # LLVM rounds their float64 to float16 by a function of compilers' libraries.
    values = np.arange(-10, 11, 3).astype(np.int8)
    x = cd.tensor(values)
    found = getattr(op, function)(op.cast(x, "float16")).numpy()
    expected = getattr(op, function)(op.cast(x, "float32")).numpy().astype(np.float16)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
