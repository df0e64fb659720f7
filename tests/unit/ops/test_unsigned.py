"""Unsigned integers against NumPy: the dtypes they meet in, wrapping, division, conversion, order,
positions; by the reference and by the native loops.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops.base import cast
from caldera.core.tensor.dtype import BY_NAME, INTEGERS, promote
from caldera.errors import CalderaError, DataError, DtypeError, IndexingError
from caldera.io import load_safetensors, save_safetensors
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call

UNSIGNED = ("uint16", "uint32", "uint64")


def _values(dtype: str, seed: int = 0, count: int = 37) -> np.ndarray:
    """Small numbers, the middle and the end of the range, and random ones between."""
    largest = np.iinfo(dtype).max
    middle = largest // 2
    ends = [0, 1, 2, 3, 255, middle - 1, middle, middle + 1, largest - 1, largest]
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, largest, count - len(ends), dtype, endpoint=True)
    return generator.permutation(np.concatenate([np.array(ends, dtype), drawn]))


def _native(node: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "native")
    output = np.empty(node.shape, node.dtype)
    kernel.bind(Call(node, (output,), tuple(arrays)))()
    return output


def _check(node: Node, arrays: Sequence[np.ndarray], wanted: np.ndarray) -> None:
    assert node.dtype == wanted.dtype
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(node, arrays)[0], wanted)
    np.testing.assert_array_equal(_native(node, arrays), wanted)


def _stand_ins(*arrays: np.ndarray) -> list[Node]:
    return [parameter(i, Spec(each.shape, each.dtype)) for i, each in enumerate(arrays)]


# --- which dtype


def test_integers_meet_where_numpy_has_them_meet() -> None:
    for first, second in itertools.product(INTEGERS, repeat=2):
        assert promote(first, second) == np.promote_types(first, second)


def test_floats_win_over_unsigned_integers_whatever_the_order() -> None:
    a, b, half = (cd.Tensor((2,), dtype=name) for name in ("uint64", "int8", "float16"))
    for order in itertools.permutations((a, b, half)):
        assert op.concat(order, 0).dtype.name == "float16"
    assert (a + b).dtype.name == "float64"
    assert (a + True).dtype.name == "uint64"


@pytest.mark.parametrize("dtype", ["uint8", *UNSIGNED])
def test_numbers_beyond_the_range_are_refused_or_compared_as_they_are(dtype: str) -> None:
    largest = int(np.iinfo(dtype).max)
    x = cd.tensor(np.array([0, largest], dtype))
    assert (x + largest).tolist() == [largest, largest - 1]
    for number in (-1, largest + 1, 2**70):
        for refused in (lambda n: x + n, lambda n: op.where(x > 0, x, n), lambda n: op.add(n, x)):
            with pytest.raises(DtypeError, match=rf"a number that {dtype} can hold, got {number}"):
                refused(number)
        assert (x < number).tolist() == [number > 0] * 2
        assert (number >= x).tolist() == [number > 0] * 2
        assert op.not_equal(x, number).tolist() == [True] * 2
    if largest < 2**63:
        with pytest.raises(DtypeError, match=f"integers from 0 to {largest}"):
            op.add(x, [0, -1])


# --- element by element


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_arithmetic_and_order_are_those_of_numpy(dtype: str) -> None:
    a, b = _values(dtype, 1), _values(dtype, 2)
    functions: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floor_div": np.floor_divide,
        "mod": np.remainder,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "less": np.less,
        "greater_equal": np.greater_equal,
    }
    for name, function in functions.items():
        with np.errstate(divide="ignore"):
            _check(OPS[name](*_stand_ins(a, b)), (a, b), function(a, b))
    for name, single in {"neg": np.negative, "abs": np.abs, "sign": np.sign}.items():
        _check(OPS[name](*_stand_ins(a)), (a,), single(a))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_conversion_in_both_directions(dtype: str) -> None:
    x = _values(dtype)
    for other in ("float32", "float64", "int8", "int64", "uint8", *UNSIGNED):
        if other != dtype:
            _check(cast(*_stand_ins(x), BY_NAME[other]), (x,), x.astype(other))
    for other in ("float32", "float64"):
        # The largest float below the end of the range, and those around 2^31 and 2^63.
        end = np.dtype(other).type(2.0 ** (8 * x.itemsize))
        reals = np.array([0, 0.75, 1.5, 254.9, end / 2, end / 2 + end / 1024, 0.75 * end], other)
        reals = np.append(reals, np.nextafter(end, np.zeros(1, other)))
        wanted = np.array([int(each) for each in reals], dtype)
        _check(cast(*_stand_ins(reals), x.dtype), (reals,), wanted)


def test_the_passes_keep_what_wraps() -> None:
    x = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    given = cd.tensor(x)
    found = cd.compile([-given * (2**64 - 1), op.abs(-given), -(given * 3)]).run()
    for each, wanted in zip(found, (x, -x, -(x * np.uint64(3))), strict=True):
        np.testing.assert_array_equal(each.numpy(), wanted)


def test_padding_keeps_every_digit_and_refuses_what_does_not_fit() -> None:
    for dtype, value in (("uint64", 2**64 - 1), ("int64", 2**62 + 1)):
        x = cd.tensor(np.array([1], dtype))
        assert op.pad(x, ((1, 0),), value=value).tolist() == [value, 1]
        for beyond in (2**64, -(2**63) - 1):
            with pytest.raises(DtypeError, match=f"a value that {dtype} can hold, got {beyond}"):
                op.pad(x, ((1, 0),), value=beyond)


def test_what_is_made_of_numbers_that_do_not_fit_is_refused() -> None:
    bytes_ = cd.tensor(np.array([1], "uint8"))
    assert op.full((1,), 2**64 - 1, "uint64").tolist() == [2**64 - 1]
    assert op.arange(253, 256, dtype="uint8").tolist() == [253, 254, 255]
    for write in (
        lambda: op.full((1,), 300, "uint8"),
        lambda: op.full((1,), -1, "uint64"),
        lambda: op.arange(257, dtype="uint8"),
        lambda: op.arange(3, -2, -1, dtype="uint16"),
        lambda: op.unique(bytes_, 2, fill=300),
        lambda: op.unique(bytes_, 2, fill=math.inf),
        lambda: op.full((1,), math.inf, "int8"),
        lambda: op.full((1,), math.nan, "int8"),
        lambda: op.clip(bytes_, 0, 300),
    ):
        with pytest.raises(CalderaError, match="can hold"):
            write()


# --- reductions, order, positions


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_reductions_of_large_values(dtype: str) -> None:
    x = _values(dtype, count=60).reshape(4, 15)
    for axis in (0, 1):
        for name in ("max", "min"):
            node = OPS[name](*_stand_ins(x), axis=(axis,), keepdims=False)
            _check(node, (x,), getattr(np, name)(x, axis=axis))
        for name in ("argmax", "argmin"):
            node = OPS[name](*_stand_ins(x), axis=axis, keepdims=False)
            _check(node, (x,), getattr(np, name)(x, axis=axis))
    wide = np.uint64 if dtype == "uint64" else np.int64
    total = op.sum(cd.tensor(x), axis=1)
    assert total.dtype == wide
    np.testing.assert_array_equal(total.numpy(), x.sum(axis=1, dtype=wide))
    np.testing.assert_array_equal(op.cumsum(cd.tensor(x), 0).numpy(), x.cumsum(0, dtype=wide))
    np.testing.assert_allclose(op.mean(cd.tensor(x), axis=1).numpy(), x.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_sorting_of_large_values(dtype: str) -> None:
    x = _values(dtype)
    np.testing.assert_array_equal(op.sort(cd.tensor(x)).numpy(), np.sort(x))
    places = op.argsort(cd.tensor(x), descending=True).numpy()
    np.testing.assert_array_equal(x[places], np.sort(x)[::-1])
    values, _, counts, count = op.unique(cd.tensor(x), size=x.size)
    np.testing.assert_array_equal(values.numpy()[: count.item()], np.unique(x))
    assert counts.numpy().sum() == x.size


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_positions(dtype: str) -> None:
    x, places = np.arange(5.0, dtype="float32"), np.array([4, 0, 4], dtype)
    table, given = cd.tensor(x), cd.tensor(places)
    for found in (table[given], op.gather(table, given), _lazy(table)[given]):
        np.testing.assert_array_equal(found.numpy(), [4.0, 0.0, 4.0])
    added = op.scatter_add(table, given, np.ones(3, "float32"))
    np.testing.assert_array_equal(added.numpy(), [1.0, 1.0, 2.0, 3.0, 6.0])
    np.testing.assert_array_equal(op.one_hot(given, 5).numpy(), np.eye(5)[places])
    matrix = op.reshape(table, (5, 1))
    beyond = cd.tensor(np.array([np.iinfo(dtype).max], dtype))
    for wrong in (
        lambda: table[beyond],
        lambda: _lazy(table)[beyond].eval(),
        lambda: matrix[beyond, cd.tensor([0])].eval(),
        lambda: op.gather(table, beyond).eval(),
        lambda: op.take_along_axis(table, beyond, 0).eval(),
        lambda: op.put_along_axis(table, beyond, 1.0, 0).eval(),
        lambda: op.embedding(matrix, beyond).eval(),
        lambda: op.scatter_add(table, beyond, np.ones(1, "float32")).eval(),
    ):
        with pytest.raises((DataError, IndexingError)):
            wrong()


def _lazy(x: Any) -> Any:
    return x + 0.0


# --- in and out


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_tensors_files_and_lenders(dtype: str) -> None:
    x = _values(dtype)
    tensor = cd.tensor(x)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(np.from_dlpack(tensor), x)
    np.testing.assert_array_equal(cd.from_dlpack(x).numpy(), x)
    file = io.BytesIO()
    save_safetensors(file, {"x": tensor})
    file.seek(0)
    found = load_safetensors(file)["x"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), x)
    drawn = cd.Tensor((200,), fill=cd.uniform(0, 2 ** (8 * x.itemsize)), dtype=dtype).numpy()
    assert drawn.max() > 0.9 * np.iinfo(dtype).max
    assert len(np.unique(drawn)) > 190
    with pytest.raises(DtypeError, match=f"range of {dtype}"):
        cd.Tensor((2,), fill=cd.uniform(-1, 5), dtype=dtype)


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    names = [str(each) for each in generator.choice(["uint8", *UNSIGNED], 3)]
    arrays = [_values(name, seed + i, 12) for i, name in enumerate(names)]
    steps = [
        ("add", np.add),
        ("mul", np.multiply),
        ("sub", np.subtract),
        ("mod", np.remainder),
        ("floor_div", np.floor_divide),
        ("maximum", np.maximum),
    ]
    expression: Any = cd.tensor(arrays[0])
    wanted: Any = arrays[0]
    for i in generator.integers(0, 3, 8):
        name, function = steps[generator.integers(len(steps))]
        expression = getattr(op, name)(expression, cd.tensor(arrays[i]))
        with np.errstate(divide="ignore"):
            wanted = function(wanted, arrays[i])
    assert expression.dtype == wanted.dtype
    np.testing.assert_array_equal(expression.numpy(), wanted)
