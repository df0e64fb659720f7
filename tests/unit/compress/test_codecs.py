"""Codes: bytes as the formulas say, no bias where none is promised, no loss where none is."""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera.compress.codecs import (
    Codec,
    HalfPrecisionCodec,
    LosslessCodec,
    QsgdCodec,
    RawCodec,
    SignCodec,
    TernaryCodec,
)
from caldera.compress.compressor import HEADER, pack_indices, packed_bits, unpack_indices
from caldera.core.tensor.dtype import bfloat16, float16, float32, float64
from caldera.kernels.native.compression.stochastic_rounding import Draws

SIZES = (0, 1, 5, 63, 64, 65, 511, 512, 513, 4000)
DRAWS = 10_000


def _normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("code", "bits", "scales"),
    [
        (RawCodec("float32"), 32, lambda n: 0),
        (HalfPrecisionCodec("bfloat16"), 16, lambda n: 0),
        (HalfPrecisionCodec("float16"), 16, lambda n: 4),
        (SignCodec(64), 1, lambda n: 8 * ceil(n / 64)),
        (TernaryCodec(), 1.6, lambda n: 4 * (n > 0)),
    ]
    + [(QsgdCodec(bits, 512), bits, lambda n: 4 * ceil(n / 512)) for bits in (2, 4, 8)],
    ids=lambda value: type(value).__name__ if isinstance(value, Codec) else "",
)
def test_bytes_on_the_wire(code: Codec, bits: float, scales, n: int) -> None:  # type: ignore[no-untyped-def]
    message = code.encode(_normal(n), Draws(0, 0, 0))
    assert message.dtype == np.uint8
    assert message.size == ceil(round(bits * n, 6) / 8) + scales(n)
    assert code.size(n) == message.size
    assert code.decode(message, n, float32).shape == (n,)


def test_a_message_of_the_wrong_length_is_refused() -> None:
    for code in (
        RawCodec(),
        HalfPrecisionCodec("float16"),
        QsgdCodec(4),
        TernaryCodec(),
        SignCodec(),
    ):
        message = code.encode(_normal(100), Draws(0, 0, 0))
        with pytest.raises(cd.DataError, match="bytes"):
            code.decode(message[:-1], 100, float32)


@pytest.mark.parametrize("code", [QsgdCodec(2), QsgdCodec(4), QsgdCodec(8), TernaryCodec(clip=0)])
def test_quantisers_are_unbiased_and_within_their_variance(code: QsgdCodec | TernaryCodec) -> None:
    n = 96
    x = _normal(n, seed=3)
    x[7] = 0
    total, squares = np.zeros(n), np.zeros(n)
    for step in range(DRAWS):
        draws = Draws(11, step, 5)
        found = code.decode(code.encode(x, draws), n, float32).astype(np.float64)
        total += found
        squares += (found - x) ** 2
    levels = code.levels if isinstance(code, QsgdCodec) else 1
    unit = np.abs(x).max() / levels
    level = np.abs(x.astype(np.float64)) / unit
    part = level - np.floor(level)
    sigma = unit * np.sqrt(part * (1 - part) / DRAWS)
    # float32 rounds the levels themselves.
    assert (np.abs(total / DRAWS - x) <= 4 * sigma + 1e-6).all()
    bound = min(n / levels**2, sqrt(n) / levels) * float(x @ x)
    assert squares.sum() / DRAWS <= bound


def test_one_bit_gives_the_two_means_that_lose_least() -> None:
    x = np.array([1.0, 3.0, -2.0, -6.0, -1.0, 0.0, 0.0, 0.0], np.float32)
    code = SignCodec(8)
    found = code.decode(code.encode(x, Draws(0, 0, 0)), 8, float32)
    np.testing.assert_allclose(found, np.where(x < 0, -3.0, 4 / 5), rtol=1e-6)


def test_terngrad_clips_what_is_far_from_the_rest() -> None:
    x = np.ones(1000, np.float32)
    x[0] = 1000.0
    code = TernaryCodec(clip=2.5)
    found = code.decode(code.encode(x, Draws(0, 0, 0)), 1000, float32)
    assert found.max() == pytest.approx(2.5 * x.std(), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_float16_keeps_its_accuracy_at_any_scale(scale: float) -> None:
    x = (_normal(1000) * np.float32(scale)).astype(np.float32)
    code = HalfPrecisionCodec("float16")
    found = code.decode(code.encode(x, Draws(0, 0, 0)), 1000, float32)
    np.testing.assert_allclose(found, x, rtol=2**-11, atol=float(np.abs(x).max()) * 2**-25)


@pytest.mark.parametrize(
    "code",
    [
        HalfPrecisionCodec("float16"),
        HalfPrecisionCodec(),
        QsgdCodec(4),
        TernaryCodec(),
        SignCodec(),
    ],
)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_is_seen_on_the_other_side(code: Codec, bad: float) -> None:
    x = _normal(100)
    x[40] = bad
    found = code.decode(code.encode(x, Draws(0, 0, 0)), 100, float32)
    assert not np.isfinite(found).all()


def _patterns() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    rows = np.zeros((50, 40), np.float32)
    rows[[3, 4, 30]] = rng.normal(size=(3, 40))
    steps = np.repeat(rng.normal(size=20).astype(np.float32), rng.integers(1, 200, size=20))
    odd = np.zeros(300, np.float32)
    odd[[1, 50, 51]] = [np.nan, -0.0, np.inf]
    dense = _normal(777)
    return [
        rows.reshape(-1),
        steps,
        odd,
        dense,
        dense.astype(np.float64),
        np.empty(0, np.float32),
        dense.astype(float16),
        dense.astype(bfloat16),
        np.zeros(1000, np.float32),
    ]


@pytest.mark.parametrize("values", _patterns(), ids=str)
def test_lossless_packing_gives_every_bit_back(values: np.ndarray) -> None:
    message = LosslessCodec().encode(values, Draws(0, 0, 0))
    again = LosslessCodec().decode(message, values.size, values.dtype)
    assert again.tobytes() == values.tobytes()
    assert message.size <= values.nbytes + 1


def test_lossless_packing_is_small_where_little_is_in_it() -> None:
    rows, steps, odd, *_ = _patterns()
    assert LosslessCodec().encode(rows, Draws(0, 0, 0)).size < 3 * 40 * 4 + 60
    assert LosslessCodec().encode(steps, Draws(0, 0, 0)).size < 20 * 4 + 70
    assert LosslessCodec().encode(odd, Draws(0, 0, 0)).size < 3 * 4 + 40


@settings(max_examples=100)
@given(st.integers(1, 3000), st.sampled_from([0.0, 0.002, 0.03, 0.2, 0.6, 1.0]), st.integers(0, 99))
def test_places_are_packed_without_loss_and_never_larger_than_a_bitmap(
    length: int, density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(length) < density).astype(np.int32)
    packed = pack_indices(places, length)
    assert packed.size <= ceil(length / 8) + HEADER
    found, rest = unpack_indices(np.concatenate([packed, np.arange(3, dtype=np.uint8)]), length)
    np.testing.assert_array_equal(found, places)
    assert rest.tolist() == [0, 1, 2]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), min_size=1, max_size=20))
def test_runs_of_neighbours_are_packed_without_loss(runs: list[tuple[int, int]]) -> None:
    mask = np.concatenate([np.repeat([False, True], run) for run in runs])
    places = np.flatnonzero(mask).astype(np.int32)
    packed = pack_indices(places, mask.size)
    np.testing.assert_array_equal(unpack_indices(packed, mask.size)[0], places)
    assert packed.size <= 24 + 4 * len(runs)


@pytest.mark.parametrize("density", [0.001, 1 / 32, 0.2, 0.5])
def test_places_spread_by_chance_take_about_their_entropy(density: float) -> None:
    n = 200_000
    places = np.flatnonzero(np.random.default_rng(0).random(n) < density).astype(np.int32)
    headers = 16
    bits = 8 * (pack_indices(places, n).size - headers) / places.size
    entropy = -(density * np.log2(density) + (1 - density) * np.log2(1 - density)) / density
    assert entropy <= bits * 1.02
    assert bits <= 1.1 * entropy + 1
    assert packed_bits(density) == pytest.approx(bits, rel=0.03)


def test_damaged_places_are_refused() -> None:
    packed = pack_indices(np.arange(0, 1000, 10, dtype=np.int32), 1000)
    with pytest.raises(cd.DataError):
        unpack_indices(packed[:-4], 1000)
    with pytest.raises(cd.DataError, match="below 500"):
        unpack_indices(packed, 500)


@pytest.mark.parametrize("arguments", [{"bits": 3}, {"bits": 4, "bucket": 100}])
def test_settings_that_cannot_be_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(cd.ConfigError):
        QsgdCodec(**arguments)


def test_values_in_float64_travel_whole_where_nothing_is_lost() -> None:
    x = np.random.default_rng(0).normal(size=10)
    code = RawCodec("float64")
    assert code.decode(code.encode(x, None), 10, float64).tolist() == x.tolist()
