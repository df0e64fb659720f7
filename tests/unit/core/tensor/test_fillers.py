"""Fillers write what they say, and the random ones are the same numbers each time and anywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caldera as cd
from caldera.core.tensor import dtype as dtypes
from caldera.core.tensor.fillers import fans
from caldera.core.tensor.random import global_seed, next_stream
from caldera.errors import ConfigError, DtypeError, ShapeError

RANDOM = {
    "uniform": cd.uniform(-1, 1),
    "normal": cd.normal(),
    "glorot_uniform": cd.glorot_uniform(),
    "glorot_normal": cd.glorot_normal(),
    "he_uniform": cd.he_uniform(),
    "he_normal": cd.he_normal(),
    "orthogonal": cd.orthogonal(),
}
random_fillers = pytest.mark.parametrize("fill", RANDOM.values(), ids=RANDOM)
every_float = pytest.mark.parametrize("dtype", sorted(dtypes.FLOATS, key=str), ids=str)


def values(fill, shape, dtype="float32", seed=1, stream=2):
    result = fill.generate(shape, dtypes.canonical(dtype), seed, stream)
    assert result.shape == shape
    assert result.dtype == dtypes.canonical(dtype)
    return result


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_constants(dtype):
    assert (values(cd.zero(), (2, 3), dtype) == 0).all()
    assert (values(cd.one(), (2, 3), dtype) == 1).all()


def test_a_constant_must_fit_the_dtype():
    assert values(cd.constant(2.5), (2,)).tolist() == [2.5, 2.5]
    assert values(cd.constant(True), (2,), "int8").tolist() == [1, 1]
    with pytest.raises(DtypeError, match=r"constant\(2.5\): expected values that int64 can hold"):
        values(cd.constant(2.5), (2,), "int64")
    with pytest.raises(DtypeError, match="from -128 to 127"):
        values(cd.constant(300), (2,), "int8")


@every_float
def test_uniform_stays_below_high(dtype):
    # With so few values of the dtype in between, rounding would often reach the upper bound.
    numbers = values(cd.uniform(2, 2.01), (100_000,), dtype).astype(np.float64)
    assert numbers.min() >= float(dtype.type(2))
    assert numbers.max() < 2.01


def test_uniform_moments():
    numbers = values(cd.uniform(-3, 5), (200_000,))
    assert abs(numbers.mean() - 1) < 0.02
    assert abs(numbers.std() - 8 / 12**0.5) < 0.02


def test_uniform_integers_are_equally_likely():
    numbers = values(cd.uniform(-2, 3), (50_000,), "int16")
    found, counts = np.unique(numbers, return_counts=True)
    assert found.tolist() == [-2, -1, 0, 1, 2]
    assert abs(counts - 10_000).max() < 400


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 300, "int8"), (-1, 5, "uint8")])
def test_uniform_integers_must_fit(low, high, dtype):
    with pytest.raises(DtypeError, match=f"range of {dtype}"):
        values(cd.uniform(low, high), (3,), dtype)


def test_uniform_bounds_are_checked():
    assert values(cd.uniform(2, 2), (3,)).tolist() == [2, 2, 2]
    assert values(cd.uniform(2, 2), (3,), "int64").tolist() == [2, 2, 2]
    with pytest.raises(ConfigError, match="low <= high"):
        cd.uniform(1, 0)


def test_normal_moments():
    numbers = values(cd.normal(3, 0.5), (200_000,))
    assert abs(numbers.mean() - 3) < 0.005
    assert abs(numbers.std() - 0.5) < 0.005


def test_fans_of_matrices_and_convolutions():
    assert fans((784, 528), "glorot_uniform") == (784, 528)
    assert fans((32, 16, 3, 5), "glorot_uniform") == (16 * 15, 32 * 15)
    assert fans((8, 4, 7), "glorot_uniform") == (28, 56)


@pytest.mark.parametrize("shape", [(300, 200), (40, 50, 3, 3)])
@pytest.mark.parametrize(
    ("fill", "variance"),
    [
        (cd.glorot_uniform(), lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
        (cd.glorot_normal(), lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
        (cd.he_uniform(), lambda fan_in, fan_out: 2 / fan_in),
        (cd.he_normal(), lambda fan_in, fan_out: 2 / fan_in),
    ],
)
def test_glorot_and_he_have_their_variance(fill, variance, shape):
    fan_in, fan_out = fans(shape, "")
    numbers = values(fill, shape)
    assert abs(numbers.mean()) < 0.03 * numbers.std()
    assert numbers.std() == pytest.approx(variance(fan_in, fan_out) ** 0.5, rel=0.02)
    if fill.distribution == "uniform":
        assert abs(numbers).max() <= (3 * variance(fan_in, fan_out)) ** 0.5


@pytest.mark.parametrize("shape", [(6, 6), (8, 3), (3, 8), (4, 2, 3, 3)])
def test_orthogonal(shape):
    matrix = values(cd.orthogonal(gain=2), shape, "float64").reshape(shape[0], -1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    assert np.allclose(product, 4 * np.eye(len(product)))


def test_identity_and_diagonal():
    assert values(cd.identity(), (2, 3), "bool").tolist() == [[1, 0, 0], [0, 1, 0]]
    assert values(cd.diagonal([3, 4]), (2, 3)).tolist() == [[3, 0, 0], [0, 4, 0]]
    assert values(cd.diagonal(7), (2, 2)).tolist() == [[7, 0], [0, 7]]


def test_from_array_copies():
    array = np.array([[1, 2], [3, 4]])
    result = values(cd.from_array(array), (2, 2), "int64")
    result[0, 0] = 9
    assert array[0, 0] == 1


@pytest.mark.parametrize(
    ("fill", "shape", "message"),
    [
        (cd.identity(), (3,), "identity: expected a matrix"),
        (cd.diagonal([1, 2]), (3, 3), "diagonal: expected 3 values"),
        (cd.diagonal([1]), (3,), "diagonal: expected a matrix"),
        (cd.orthogonal(), (3,), "orthogonal: expected at least two axes"),
        (cd.he_normal(), (3,), "he_normal: expected a weight of at least two axes"),
        (cd.from_array([1, 2]), (3,), r"from_array: expected an array of shape \(3,\)"),
    ],
)
def test_wrong_shapes_are_refused(fill, shape, message):
    with pytest.raises(ShapeError, match=message):
        values(fill, shape)


def test_ragged_lists_are_refused():
    with pytest.raises(ShapeError, match="nested lists of equal lengths"):
        cd.from_array([[1, 2], [3]])


@pytest.mark.parametrize("fill", [fill for name, fill in RANDOM.items() if name != "uniform"])
def test_random_fillers_are_for_floats(fill):
    with pytest.raises(DtypeError, match="expected a float dtype, got int32"):
        values(fill, (2, 2), "int32")


@random_fillers
def test_the_same_name_gives_the_same_numbers(fill):
    first = values(fill, (5, 7))
    assert (first == values(fill, (5, 7))).all()
    assert (first != values(fill, (5, 7), stream=3)).any()
    assert (first != values(fill, (5, 7), seed=3)).any()


@random_fillers
@pytest.mark.parametrize("kind", [cd.DEVICE, cd.MANAGED], ids=lambda kind: kind.name)
def test_numbers_do_not_depend_on_the_device(fill, kind):
    cd.seed(11)
    here = cd.Tensor((4, 6), fill=fill, device="cpu").tolist()
    cd.seed(11)
    there = cd.Tensor((4, 6), fill=fill, kind=kind, device="loopback").tolist()
    assert here == there


def test_a_seed_restarts_the_streams():
    cd.seed(42)
    assert global_seed() == 42
    first = [cd.Tensor((3,), fill=cd.uniform()).tolist() for _ in range(3)]
    cd.seed(42)
    assert first == [cd.Tensor((3,), fill=cd.uniform()).tolist() for _ in range(3)]
    assert first[0] != first[1]
    cd.seed(43)
    assert first[0] != cd.Tensor((3,), fill=cd.uniform()).tolist()


def test_plain_fillers_take_no_stream():
    cd.seed(1)
    cd.Tensor((3,), fill=cd.one())
    cd.Tensor((2, 2), fill=cd.identity())
    assert next_stream() == 0


def test_streams_are_never_given_twice():
    cd.seed(0)
    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda _: next_stream(), range(1000)))
    assert sorted(streams) == list(range(1000))


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.5, "1", True, None])
def test_seeds_are_checked(wrong):
    with pytest.raises(ConfigError, match=r"seed: expected an int from 0 to 2\*\*64 - 1"):
        cd.seed(wrong)


def test_a_filler_that_was_not_called_is_explained():
    with pytest.raises(DtypeError, match=r"call it: a filler is made by cd\.uniform\(\)"):
        cd.Tensor((3,), fill=cd.uniform)
