"""Random expressions: the same until the step moves on, and the same however they are split."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.tensor import philox, random
from caldera.errors import ConfigError, DtypeError, ShapeError


@pytest.fixture(autouse=True)
def _fresh_seed() -> Iterator[None]:
    op.seed(0)
    yield
    op.seed(0)


def test_an_expression_keeps_its_numbers_until_the_step_moves_on() -> None:
    x = op.random_uniform((4,))
    first = x.tolist()
    assert x.tolist() == first
    assert (x + 0.0).tolist() == first
    op.next_step()
    second = x.tolist()
    assert second != first
    op.next_step()
    assert x.tolist() not in (first, second)


def test_two_random_expressions_differ_and_one_used_twice_does_not() -> None:
    a, b = op.random_normal((50,)), op.random_normal((50,))
    assert a.tolist() != b.tolist()
    assert (a - a).tolist() == [0.0] * 50
    assert op.any(a - b != 0.0).item()


def test_the_same_seed_gives_the_same_program_the_same_numbers() -> None:
    def program() -> list[list[float]]:
        op.next_step()
        return [op.random_uniform((3,)).tolist(), op.dropout(np.ones(8, "float32")).tolist()]

    op.seed(42)
    first = program()
    assert program() != first
    op.seed(42)
    assert program() == first
    op.seed(43)
    assert program() != first


def test_seed_sets_fillers_too_and_is_what_users_call() -> None:
    assert cd.seed is op.seed
    cd.seed(9)
    first = cd.Tensor((3,), fill=cd.uniform()).tolist()
    cd.seed(9)
    assert cd.Tensor((3,), fill=cd.uniform()).tolist() == first
    assert random.global_seed() == 9
    assert op.random_state().numpy().tolist() == [9, 0]


def test_a_seed_of_64_bits_keeps_all_of_them() -> None:
    large = 2**64 - 5
    op.seed(large)
    assert op.random_state().numpy().tolist() == [-5, 0]
    x = op.random_uniform((4,), stream=6)
    np.testing.assert_array_equal(x.numpy(), philox.uniform01(large, 0, 6, 0, 4))
    with pytest.raises(ConfigError, match="seed"):
        op.seed(-1)


@pytest.mark.parametrize("draw", [op.random_uniform, op.random_normal, op.bernoulli])
def test_parts_with_an_offset_are_parts_of_the_whole(draw: object) -> None:
    assert callable(draw)
    whole = draw((6, 4), stream=3).numpy()
    for first in (0, 1, 3):
        part = draw((3, 4), stream=3, offset=4 * first).numpy()
        np.testing.assert_array_equal(part, whole[first : first + 3])


def test_dropout_of_a_split_batch_is_the_same() -> None:
    x = np.arange(1.0, 25.0).reshape(6, 4)
    whole = op.dropout(x, 0.3, stream=1).numpy()
    index = op.input("index", (), dtype="int64")
    half = op.dropout(x[3:], 0.3, stream=1, offset=index * 4)
    np.testing.assert_array_equal(half.eval(index=3).numpy(), whole[3:])


def test_a_state_of_ones_own_replaces_the_global_one() -> None:
    state = op.var("state", (2,), fill=np.array([11, 5]), dtype="int64")
    x = op.random_normal((3,), state=state, stream=2)
    np.testing.assert_array_equal(x.numpy(), philox.normal(11, 5, 2, 0, 3))
    op.next_step()
    np.testing.assert_array_equal(x.numpy(), philox.normal(11, 5, 2, 0, 3))
    op.assign(state, state + np.array([0, 1])).eval()
    np.testing.assert_array_equal(x.numpy(), philox.normal(11, 6, 2, 0, 3))


def test_the_numbers_have_their_distributions() -> None:
    uniform = op.random_uniform((20_000,), -1.0, 3.0).numpy()
    assert uniform.min() >= -1.0
    assert uniform.max() <= 3.0
    assert uniform.mean() == pytest.approx(1.0, abs=0.05)
    assert uniform.var() == pytest.approx(16 / 12, rel=0.05)
    normal = op.random_normal((20_000,), 2.0, 0.5).numpy()
    assert normal.mean() == pytest.approx(2.0, abs=0.02)
    assert normal.std() == pytest.approx(0.5, rel=0.05)
    assert op.mean(op.bernoulli((20_000,), 0.1)).item() == pytest.approx(0.1, abs=0.01)


def test_dropout_keeps_the_mean_and_scales_what_is_left() -> None:
    x = np.ones(20_000, "float32")
    dropped = op.dropout(x, 0.2).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.8)}
    assert dropped.mean() == pytest.approx(1.0, abs=0.02)


def test_dropout_passes_gradients_where_it_passes_values() -> None:
    x = op.var("x", (50,), fill=cd.one())
    dropped = op.dropout(x, 0.5)
    np.testing.assert_array_equal(op.grad(op.sum(dropped), x).numpy(), dropped.numpy())


def test_the_ends_of_the_range_of_rates() -> None:
    x = op.var("x", (5,), fill=cd.one())
    assert op.dropout(x, 0).node is x.node
    assert op.dropout(x, 1).tolist() == [0.0] * 5
    assert not op.any(op.bernoulli((100,), 0.0)).item()
    assert op.all(op.bernoulli((100,), 1.0)).item()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_dtype_can_be_drawn(dtype: str) -> None:
    x = op.random_uniform((500,), dtype=dtype)
    assert x.dtype.name == dtype
    assert x.numpy().max() < 1.0
    assert op.random_normal((3,), dtype=dtype).dtype.name == dtype


def test_bad_use_is_refused_when_written() -> None:
    x = op.var("x", (3,))
    for rate in (-0.1, 1.5):
        with pytest.raises(ConfigError, match=r"op\.dropout of x .*a rate from 0 to 1"):
            op.dropout(x, rate)
    with pytest.raises(ConfigError, match=r"op\.bernoulli: expected a probability from 0 to 1"):
        op.bernoulli((2,), 2.0)
    with pytest.raises(DtypeError, match=r"op\.random_uniform: expected a floating-point dtype"):
        op.random_uniform((2,), dtype="int32")
    with pytest.raises(DtypeError, match=r"op\.random_normal: expected state"):
        op.random_normal((2,), state=np.array([1.0, 2.0]))
    with pytest.raises(ShapeError, match=r"op\.random_uniform: .*sizes >= 0"):
        op.random_uniform((-2,))
    with pytest.raises(ShapeError, match=r"op\.broadcast_to"):
        op.random_normal((2,), mean=np.zeros(3))
