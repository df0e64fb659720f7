"""NumPy's names on distributed arrays mean NumPy's rules: value, shape, dtype or error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import op
from caldera.errors import CalderaError, ConfigError, DtypeError, ShapeError
from tests.fuzz import numpy_names

RANKS = 3
random = np.random.default_rng(0)
CUBE = random.normal(size=(2, 3, 4))
MATRIX = random.normal(size=(5, 3))
SQUARE = random.normal(size=(4, 4))
COMPLEX = random.normal(size=(3, 3)) + 1j * random.normal(size=(3, 3))
INTS = random.integers(-9, 9, (4, 3))
GAPS = np.where(random.random((4, 5)) < 0.3, np.nan, random.normal(size=(4, 5)))
LINE = np.array([3.0, 0.0, 2.0, 0.0, 3.0, np.nan, np.nan])


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[dm.Session]:
    with dm.connect(threads=RANKS) as made:
        yield made


def whole(made: Any) -> Any:
    if isinstance(made, list | tuple):
        return [whole(each) for each in made]
    return made.numpy() if isinstance(made, dm.Array) else made


def check(function: Callable[[Any], Any], values: np.ndarray) -> None:
    """Compare what a function gives for an array that ranks share with NumPy's own answer."""
    expected = function(values)
    made = function(dm.array(values, layout=dm.Rows()))
    pairs = zip(made, expected, strict=True) if isinstance(expected, tuple | list) else None
    for found, right in pairs or [(made, expected)]:
        assert isinstance(found, dm.Array | bool | np.ndarray | np.int32)
        got = whole(found)
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12)


CALLS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "the spectral norm": (lambda a: np.linalg.norm(a, 2, axis=(0, 1)), CUBE),
    "a norm over axes": (lambda a: np.linalg.norm(a, "nuc", axis=(2, 0), keepdims=True), CUBE),
    "a small norm": (lambda a: np.linalg.norm(a, -1), MATRIX),
    "the default axes of a trace": (np.trace, CUBE),
    "axes of a trace": (lambda a: np.trace(a, 1, axis1=2, axis2=0), CUBE),
    "the default axes of a diagonal": (np.diagonal, CUBE),
    "axes of a diagonal": (lambda a: np.diagonal(a, -1, 1, 2), CUBE),
    "a lower triangle": (np.linalg.eigvalsh, SQUARE),
    "an upper triangle": (lambda a: np.linalg.eigvalsh(a, "U"), COMPLEX),
    "eigenvalues of a batch": (np.linalg.eigvalsh, np.stack([SQUARE, SQUARE.T])),
    "weights as a list": (lambda a: np.average(a, 0, [1, 2, 3, 4, 5]), MATRIX),
    "means of integers": (lambda a: np.mean(a, axis=1), INTS),
    "integers over integers": (lambda a: a / 2, INTS),
    "a list beside it": (lambda a: np.add(a, [1.5, 2, 3]), INTS.astype("float32")),
    "a scalar beside it": (lambda a: np.float64(2) * a + a, INTS.astype("float32")),
    "a dtype of sums": (lambda a: np.sum(a, 0, dtype="float32"), INTS),
    "sums of small integers": (lambda a: np.sum(a, 1, keepdims=True), INTS.astype("uint8")),
    "a mask of sums": (lambda a: np.sum(a, 0, initial=2, where=INTS > 0), INTS),
    "sums without nan": (lambda a: np.nansum(a, 0), GAPS),
    "a deviation without nan": (lambda a: np.nanstd(a, 0, ddof=1), GAPS),
    "quantiles without nan": (lambda a: np.nanquantile(a, [0.2, 0.7], 1), GAPS),
    "a median without nan": (lambda a: np.nanmedian(a, 1, keepdims=True), GAPS),
    "places": (np.nonzero, INTS),
    "places of a condition": (lambda a: np.where(a > 2), INTS),
    "different elements": (lambda a: np.unique(a, True, True, True), LINE),
    "running products": (lambda a: np.cumprod(a, 1), INTS),
    "covariances": (lambda a: np.cov(a, rowvar=False, bias=True), MATRIX),
    "correlations": (np.corrcoef, MATRIX),
    "a histogram": (lambda a: np.histogram(a, 4), MATRIX),
    "a density": (lambda a: np.histogram(a, [-1, 0, 2.5], density=True), MATRIX),
    "a bound": (lambda a: np.clip(a, min=0), INTS),
    "a power": (lambda a: np.linalg.matrix_power(a, -3), SQUARE),
    "a vector's norm": (lambda a: np.linalg.vector_norm(a, axis=(0, 2), ord=3), CUBE),
    "shifted frequencies": (lambda a: np.fft.fftshift(a, 1), CUBE),
    "frequencies": (lambda a: a * np.fft.fftfreq(4), CUBE),
    "half a transform": (lambda a: np.fft.rfftn(a, (3, 5), (2, 0)), CUBE),
    "back from half of it": (lambda a: np.fft.irfftn(a, (3, 5), (0, 1)), COMPLEX),
    "lengths of a transform": (lambda a: np.fft.fftn(a, s=(4, 2), axes=(0, 1)), CUBE),
    "axes of a transform": (lambda a: np.fft.fft2(a, axes=(0, 2), norm="ortho"), CUBE),
    "differences with ends": (lambda a: np.diff(a, prepend=0, append=a), INTS),
    "a count of differences": (lambda a: np.diff(a, n=2, axis=0), MATRIX),
    "columns in Fortran's order": (lambda a: np.reshape(a, (3, -1), order="F"), CUBE),
    "the sizes of complex numbers": (lambda a: np.linalg.norm(a, axis=0), COMPLEX),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_of_numpy(name: str) -> None:
    check(*CALLS[name])


def test_factorisations_have_numpys_triangles_modes_and_names() -> None:
    spread = dm.array(SQUARE, layout=dm.Rows())
    found = np.linalg.eigh(spread)
    np.testing.assert_allclose(found.eigenvalues.numpy(), np.linalg.eigh(SQUARE)[0], rtol=1e-9)
    positive = SQUARE @ SQUARE.T + np.eye(4)
    lower = np.linalg.cholesky(dm.array(positive + np.triu(SQUARE, 1), layout=dm.Columns()))
    np.testing.assert_allclose(lower.numpy(), np.linalg.cholesky(positive), rtol=1e-9)
    tall = dm.array(MATRIX, layout=dm.Rows())
    u, s, vh = (each.numpy() for each in np.linalg.svd(tall))
    np.testing.assert_allclose((u[:, :3] * s) @ vh, MATRIX, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(5), atol=1e-12)
    q, r = (each.numpy() for each in np.linalg.qr(tall, "complete"))
    assert (q.shape, r.shape) == ((5, 5), (5, 3))
    np.testing.assert_allclose(q @ r, MATRIX, atol=1e-12)
    np.testing.assert_allclose(q.T @ q, np.eye(5), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda a: np.linalg.norm(a, 1), ConfigError),
        (lambda a: np.linalg.norm(a[0, 0], "fro"), ConfigError),
        (lambda a: np.diff(a, n=-1), ConfigError),
        (lambda a: np.linalg.eigh(a[0, :, :3], UPLO="x"), ConfigError),
        (lambda a: np.sum(a, axis=3), ShapeError),
        (lambda a: np.linalg.inv(a[0]), ShapeError),
        (lambda a: np.subtract(a > 0, a > 0), DtypeError),
        (lambda a: np.linalg.inv(a.astype("float16")), DtypeError),
        (lambda a: np.max(a[:0]), ConfigError),
        (lambda a: np.average(a, weights=[1, 2, 3]), CalderaError),
        (lambda a: np.quantile(a, 1.5), ConfigError),
    ],
)
def test_what_numpy_refuses_is_refused(call: Any, kind: type[Exception]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - NumPy's own
        call(CUBE)
    with pytest.raises(CalderaError, match="expected") as caught:
        call(dm.array(CUBE, layout=dm.Rows()))
    assert isinstance(caught.value, kind)


def test_comparisons_with_lists_are_answers() -> None:
    spread = dm.array([1.0, 2.0, 3.0])
    assert np.array_equal(spread, [1, 2, 3])
    assert not np.array_equal(spread, [1, 2])
    assert np.allclose(spread, [1, 2, 3 + 1e-12])
    large = dm.array(np.array([2**63 - 1, -1], np.int64))
    assert np.less(large, np.array([2**63, 0], np.uint64)).numpy().all()


def test_operators_have_one_rule_of_dtypes_and_caldera_s_functions_another() -> None:
    spread = dm.array(INTS, dtype="int32")
    assert (spread / 2).dtype == (2 / spread).dtype == np.float64
    single = dm.array(MATRIX, dtype="float32")
    assert (single * np.ones((5, 3))).dtype == (np.ones((5, 3)) * single).dtype == np.float64
    assert (single * 2.0).dtype == np.float32
    assert op.mean(spread).dtype == np.float32


SEEDS = range(4_000, 4_060)


@pytest.mark.parametrize("first", SEEDS[::20])
def test_random_calls_of_numpys_functions(first: int) -> None:
    cases = [numpy_names.case_of(seed) for seed in range(first, first + 20)]
    wrong = [
        str(each) for each in map(numpy_names.compared, cases) if each.what in ("wrong", "raw")
    ]
    assert not wrong
