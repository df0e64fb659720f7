"""Arrays whose parts are on ranks, beside NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import CalderaError, ConfigError

RANKS = 4


@pytest.fixture(autouse=True)
def session() -> Iterator[dm.Session]:
    with dm.connect(threads=RANKS) as made:
        yield made


def spread(values: np.ndarray, layout: Any) -> Any:
    return dm.array(values, layout=layout)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


def test_what_is_computed_from_an_array_is_one() -> None:
    a = spread(numbers(5, 4), dm.Rows())
    for made in (a + 1, 1 - a, a @ a.T, op.exp(a), a[1:3], op.grad(op.sum(a * a), a), a.sum()):
        assert type(made) is dm.Array
    assert type(op.exp(np.ones(3))) is Expr
    assert type(op.exp(np.ones(3)) + a[0, :3]) is dm.Array


def test_a_program_over_several_layouts() -> None:
    a, b = numbers(50, 40), numbers(40, 30)
    left = spread(a, dm.Rows())
    right = spread(b, dm.Blocks(rows=[0, 7, 40], columns=16))
    product = left @ right + dm.ones(30)
    np.testing.assert_allclose(product.numpy(), a @ b + 1, rtol=1e-12)
    np.testing.assert_allclose(product.sum(axis=0).numpy(), (a @ b + 1).sum(0), rtol=1e-12)
    slope = op.grad(op.sum(op.square(left @ right)), left)
    np.testing.assert_allclose(slope.numpy(), 2 * (a @ b) @ b.T, rtol=1e-12)


def test_to_another_layout_dtype_and_ranks() -> None:
    a = numbers(9, 6)
    x = spread(a, dm.Grid(2, 2))
    y = x.to(layout=dm.Columns(), dtype="bfloat16", ranks=range(2))
    assert y.dtype.name == "bfloat16"
    assert y.layout.ranks == (0, 1)
    assert np.array_equal(y.numpy(), a.astype(y.dtype))
    assert np.array_equal(x.to(ranks=[3]).numpy(), a)
    assert x.to(ranks=[3]).eval().layout.ranks == (3,)
    back = x.to(layout=dm.Replicated()).to(layout=dm.BlockCyclic(2, grid=(4,)))
    assert back.numpy().tobytes() == a.tobytes()


@pytest.mark.parametrize("layout", [dm.Rows(), dm.Columns(), dm.Grid(2, 2)], ids=repr)
def test_integers_are_multiplied_and_their_bits_combined(layout: Any) -> None:
    a = np.random.default_rng(0).integers(-128, 128, (20, 20), np.int8)
    x, y = spread(a, layout), spread(a.T.copy(), dm.Rows())
    pairs = [(x @ y, a @ a.T), (x & y, a & a.T), (x << y, a << a.T), (~x, ~a)]
    for ours, right in pairs:
        assert ours.dtype == right.dtype
        assert np.array_equal(ours.numpy(), right)


def test_complex_numbers_move_as_others_do() -> None:
    values = numbers(6, 4) + 1j * numbers(6, 4)
    moved = spread(values, dm.Rows()).to(layout=dm.Columns()).T.to(layout=dm.Grid(2, 2))
    np.testing.assert_array_equal(moved.numpy(), values.T)


def test_an_array_of_which_nothing_is_left_is_still_one() -> None:
    found = spread(numbers(2, 3), dm.Rows())
    found[np.array([0, 1])] = 1.0
    assert isinstance(found.reshape(-1), dm.Array)
    np.testing.assert_array_equal(found.numpy(), np.ones((2, 3)))


def test_creation() -> None:
    assert dm.zeros((2, 3)).numpy().tolist() == [[0.0] * 3] * 2
    assert dm.arange(1, 4, 0.5).numpy().tolist() == np.arange(1, 4, 0.5).tolist()
    assert np.array_equal(dm.eye(3, 5, layout=dm.Rows()).numpy(), np.eye(3, 5))
    assert dm.full((2,), 7, "int32").numpy().dtype == np.int32
    seen = [
        dm.random((40, 30), seed=5, layout=each).numpy() for each in (dm.Rows(), dm.Columns(), None)
    ]
    assert seen[0].tobytes() == seen[1].tobytes() == seen[2].tobytes()
    assert not np.array_equal(dm.random((40, 30), seed=6).numpy(), seen[0])
    assert abs(dm.normal((100, 100), layout=dm.Grid(2, 2)).numpy().std() - 1) < 0.05


def test_assignment() -> None:
    a = numbers(6, 5)
    x = spread(a, dm.Rows())
    before = x + 0
    x[1:4, ::2] = 3.0
    x[-1] = dm.ones(5)
    right = a.copy()
    right[1:4, ::2] = 3
    right[-1] = 1
    assert np.array_equal(x.numpy(), right)
    assert np.array_equal(before.numpy(), a)


def test_a_value_is_computed_once(session: dm.Session) -> None:
    x = dm.random((8, 8), seed=1).eval()
    y = x @ x
    first = y.numpy()
    runs: list[Any] = []
    original = session.run
    session.run = lambda *given: runs.append(given) or original(*given)  # type: ignore[method-assign, func-returns-value]
    assert np.array_equal(y.numpy(), first)
    assert not runs
    np.testing.assert_allclose((y + 1).numpy(), first + 1)
    assert len(runs) == 1


def test_what_explain_says_is_what_moves() -> None:
    a = numbers(64, 64)
    x, y = spread(a, dm.Columns()), spread(a, dm.Rows())
    product = x @ y
    explanation = product.explain()
    assert explanation.nbytes == sum(move.nbytes for move in explanation.moves) > 0
    assert explanation.choices[0].others
    assert explanation.seconds > sum(move.seconds for move in explanation.moves)
    text = str(explanation)
    assert "4 terms" in text
    assert "before" in text
    np.testing.assert_allclose(product.numpy(), a @ a, rtol=1e-12, atol=1e-12)
    assert (x + 1).explain().nbytes == 0


def test_methods_are_those_of_numpy() -> None:
    a = numbers(5, 4)
    x = spread(a, dm.Columns())
    for name in ("sum", "mean", "max", "min", "prod", "var", "std", "argmax", "argmin", "cumsum"):
        for axis in (None, 0, 1):
            made, right = getattr(x, name)(axis=axis).numpy(), getattr(a, name)(axis=axis)
            np.testing.assert_allclose(made, right, rtol=1e-12)
    assert x.T.shape == x.transpose(1, 0).shape == (4, 5)
    assert np.array_equal(x.reshape(2, 10).numpy(), a.reshape(2, 10))
    assert np.array_equal(x.ravel().astype("float32").numpy(), a.ravel().astype("float32"))
    assert x.sum().item() == pytest.approx(a.sum())
    assert np.array_equal(np.asarray(x), a)
    assert float(x[0, 0]) == a[0, 0]
    z = spread(a + 2j * a[::-1], dm.Rows())
    np.testing.assert_array_equal((z.conj().real + z.conj().imag).numpy(), a - 2 * a[::-1])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: dm.array(np.ones(3), ranks=[RANKS]),
        lambda: dm.array(np.ones((3, 3)), layout=dm.Rows(ranks=[7, 8])),
        lambda: dm.ones((2, 2)).to(layout=cast(Any, "rows")),
        lambda: dm.random((2,), dtype="int32"),
        lambda: dm.ones(3).eval(x=1),
    ],
)
def test_what_is_refused(wrong: Any) -> None:
    with pytest.raises(CalderaError, match="expected"):
        wrong()


def test_an_array_of_a_session_that_has_ended(session: dm.Session) -> None:
    x = dm.ones((2, 2)).eval()
    session.close()
    with dm.connect(threads=2), pytest.raises(ConfigError, match="an array of an ended session"):
        x.numpy()


def test_numpys_functions_stay_on_the_ranks() -> None:
    a, b = numbers(6, 4), numbers(6, 6)
    x, y = spread(a, dm.Rows()), spread(b, dm.Grid(2, 2))
    pairs = [
        (np.exp(x), np.exp(a)),
        (a + x, a + a),
        (np.float64(2.0) * x, 2 * a),
        (b @ x, b @ a),
        (np.maximum(x, 0.0), np.maximum(a, 0.0)),
        (np.add.reduce(x, axis=1), np.add.reduce(a, axis=1)),
        (np.mean(x), np.mean(a)),
        (np.sum(x, axis=0, keepdims=True), np.sum(a, axis=0, keepdims=True)),
        (np.std(x, axis=0, ddof=1), np.std(a, axis=0, ddof=1)),
        (np.concatenate([x, y], axis=1), np.concatenate([a, b], axis=1)),
        (np.stack([x, x]), np.stack([a, a])),
        (np.vstack([x, a]), np.vstack([a, a])),
        (np.transpose(x), a.T),
        (np.where(x > 0, x, 0.0), np.where(a > 0, a, 0.0)),
        (np.linalg.svd(x, full_matrices=False)[1], np.linalg.svd(a)[1]),
        (np.linalg.solve(y, x), np.linalg.solve(b, a)),
        (np.linalg.norm(x), np.linalg.norm(a)),
        (np.linalg.norm(x, 1), np.linalg.norm(a, 1)),
        (np.fft.fft2(x), np.fft.fft2(a)),
        (np.cumsum(x), np.cumsum(a)),
        (np.clip(x, -1, 1), np.clip(a, -1, 1)),
        (np.diag(x[:, 0], k=-2), np.diag(a[:, 0], k=-2)),
        (np.percentile(x, [10, 50], axis=0), np.percentile(a, [10, 50], axis=0)),
        (np.split(x, [1, 4])[1], a[1:4]),
        (np.diff(x, 2, axis=0), np.diff(a, 2, axis=0)),
        (np.average(x, 0, np.arange(6.0)), np.average(a, 0, np.arange(6.0))),
        (np.inner(y, x.T), np.inner(b, a.T)),
        (np.full_like(x, 3.0), np.full_like(a, 3.0)),
        (np.fft.fftn(x, axes=(0,)), np.fft.fftn(a, axes=(0,))),
        (np.take(x, [1, -1], axis=0), a[[1, -1]]),
    ]
    for made, right in pairs:
        assert type(made) is dm.Array
        np.testing.assert_allclose(made.numpy(), right, rtol=1e-9, atol=1e-9)
    assert np.allclose(x, a)
    assert np.array_equal(x, x)
    assert np.shape(x) == (6, 4)


@pytest.mark.parametrize("seed", range(6))
def test_least_squares_as_numpy_gives_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns, rank = random.integers(1, 7, 3)
    a = random.standard_normal((rows, rank)) @ random.standard_normal((rank, columns))
    b = random.standard_normal([(rows,), (rows, 3)][seed % 2])
    made = np.linalg.lstsq(spread(a, dm.Rows()), b)
    right = np.linalg.lstsq(a, b)
    assert made[2] == right[2] == np.linalg.matrix_rank(spread(a, dm.Columns())).numpy()
    for each, numpys in zip(
        (made[0], made[1], made[3]), (right[0], right[1], right[3]), strict=True
    ):
        assert each.shape == numpys.shape
        np.testing.assert_allclose(np.asarray(each), numpys, rtol=1e-9, atol=1e-9)
    whole = random.standard_normal((3, 3))
    np.testing.assert_allclose(
        np.linalg.cond(spread(whole, dm.Rows())).numpy(), np.linalg.cond(whole), rtol=1e-9
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: np.cbrt(x),
        lambda x: np.add.reduceat(x, [0, 1]),
        lambda x: np.gradient(x),
        lambda x: np.histogram(x, "auto"),
        lambda x: np.histogram(x, 3, weights="x"),
        lambda x: np.linalg.qr(x, "raw"),
        lambda x: np.sum(x, out=np.zeros(())),
        lambda x: np.add(x, x, where=x > 0),
    ],
)
def test_numpys_functions_that_are_not_there_say_so(wrong: Any) -> None:
    with pytest.raises(CalderaError, match="np"):
        wrong(spread(numbers(3, 2), dm.Rows()))


def test_a_picture_of_a_layout(tmp_path: Any) -> None:
    x = spread(numbers(8, 6), dm.Grid(2, 2))
    made = x.draw(tmp_path / "layout.svg")
    assert (tmp_path / "layout.svg").read_text() == made._repr_svg_()
    assert made.svg.count("<title>rank") == 4
    assert "(8, 6) on 4 ranks" in made.svg
    assert dm.ones(()).draw().svg.count("<title>rank") == 1
    assert "axes 0 and 1" in spread(numbers(4, 4, 2), dm.Rows()).draw().svg
    with pytest.raises(ConfigError, match="at most"):
        spread(numbers(100, 100), dm.BlockCyclic(1, grid=(2, 2))).draw()


@pytest.mark.parametrize(
    "key",
    [
        np.array([0, 2]),
        (np.array([0, 1]), np.array([1, 2])),
        np.arange(12).reshape(4, 3) > 5,
        (Ellipsis, np.array([0, 2])),
        (slice(None, None, -1),),
    ],
    ids=["rows", "points", "mask", "columns", "backwards"],
)
def test_any_key_of_numpy_can_be_assigned_to(key: Any) -> None:
    expected = np.arange(12.0).reshape(4, 3)
    found = dm.array(expected)
    found[key] = 7.0
    expected[key] = 7.0
    np.testing.assert_array_equal(found.numpy(), expected)


def test_whole_numbers_are_rounded_as_whole_numbers() -> None:
    large = np.array([2**60 + 1, -(2**60) - 7, 25, 35, -25, -26, 0, 4], np.int64)
    for decimals, wanted in (
        (0, large),
        (2, large),
        (-1, [2**60 + 4, -(2**60) - 4, 20, 40, -20, -30, 0, 0]),
    ):
        found = np.round(spread(large, dm.Rows()), decimals)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_differences_and_cuts_beyond_the_end_are_empty() -> None:
    line = numbers(5)
    assert np.diff(spread(line, dm.Rows()), 7).numpy().shape == np.diff(line, 7).shape
    parts = np.split(spread(line, dm.Rows()), [2, 9])
    for found, wanted in zip(parts, np.split(line, [2, 9]), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)
