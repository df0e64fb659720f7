"""Kernels for compression, each beside a few lines of NumPy that say what it must do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera.kernels.native.compression import (
    FORMATS,
    add_at,
    from_levels,
    largest_in_blocks,
    merge_sorted,
    pack_bits,
    put,
    rice_read,
    rice_sizes,
    rice_write,
    round_by_chance,
    take_largest_in_blocks,
    take_out,
    to_levels,
    unpack_bits,
)
from caldera.kernels.native.compression.draws import Draws
from caldera.tensor.philox import uniform01

DRAWS = Draws(seed=-5, step=3, stream=9, first=2)


def _vectors(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    sparse = rng.normal(size=n) * (rng.random(n) < 0.05)
    odd = rng.normal(size=n)
    odd[::7] = np.inf
    odd[3::11] = np.nan
    few = rng.integers(-2, 3, size=n)
    return [each.astype(np.float32) for each in (rng.normal(size=n), few, sparse, odd, 0 * few)]


def _largest(vector: np.ndarray, count: int, block: int) -> np.ndarray:
    found = []
    for start in range(0, vector.size, block):
        bits = (vector[start : start + block].view(np.int32) & 0x7FFFFFFF).astype(np.int64)
        wanted = -(-count * bits.size // block)
        order = np.argsort(-bits, kind="stable")[:wanted]
        found.append(np.sort(order[bits[order] > 0]) + start)
    return np.concatenate([np.empty(0, np.int64), *found])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("n", "count", "block"),
    [(5120, 16, 512), (1000, 16, 512), (77, 3, 10), (100, 10, 10), (64, 1, 1), (4096, 60, 256),
     (0, 1, 4), (3000, 100, 1000), (40_000, 16, 512)],
)  # fmt: skip
def test_the_largest_of_every_block(n: int, count: int, block: int, threads: int) -> None:
    with cd.settings.override(threads=threads):
        for vector in _vectors(n):
            found = largest_in_blocks(vector, count, block)
            np.testing.assert_array_equal(found, _largest(vector, count, block))
            half = vector * np.float32(0.5)
            places, taken = take_largest_in_blocks(half, half.copy(), count, block)
            np.testing.assert_array_equal(places, found)
            np.testing.assert_array_equal(taken, vector[found])
            rest = vector.copy()
            rest[found] = 0
            np.testing.assert_array_equal(half, rest)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 11, 20, 31, 32])
def test_bits_are_packed_without_a_gap(width: int) -> None:
    rng = np.random.default_rng(width)
    for count in (0, 1, 31, 32, 33, 1000, 70_000):
        words = rng.integers(0, 1 << width, size=count).astype(np.uint32)
        bits = (words[:, None] >> np.arange(width, dtype=np.uint32)) & 1
        expected = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")
        kinds = [words.view(np.int32)] + [words.astype(np.uint8)] * (width <= 8)
        for integers in kinds:
            packed = pack_bits(integers, width)
            np.testing.assert_array_equal(packed, expected)
            again = unpack_bits(packed, count, width, integers.dtype.name)
            np.testing.assert_array_equal(again, integers)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(cd.DataError, match="expected 4 bytes, got 3"):
        unpack_bits(np.zeros(3, np.uint8), 8, 4)


@pytest.mark.parametrize("levels", [1, 7, 127])
@pytest.mark.parametrize("threads", [1, 2])
def test_levels_are_drawn_by_the_definition_of_random_numbers(levels: int, threads: int) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 63, 64, 129, 20_001):
        x = rng.normal(size=size).astype(np.float32)
        bucket = 128
        padded = np.zeros(-(-size // bucket) * bucket, np.float32)
        padded[:size] = np.abs(x)
        scales = padded.reshape(-1, bucket).max(axis=1)
        level = np.abs(x) * np.repeat(np.float32(levels) / scales, bucket)[:size]
        level = np.minimum(level, np.float32(levels))
        chance = uniform01(DRAWS.seed, DRAWS.step, DRAWS.stream, 64 * DRAWS.first, size)
        rounded = np.floor(level) + (chance < level - np.floor(level))
        expected = np.where(np.signbit(x), -rounded, rounded) + levels
        with cd.settings.override(threads=threads):
            codes, found = to_levels(x, levels, bucket, DRAWS)
            values = from_levels(codes, found, levels, bucket)
        np.testing.assert_array_equal(codes, expected.astype(np.uint8))
        np.testing.assert_array_equal(found, scales)
        unit = np.repeat(scales / np.float32(levels), bucket)[:size]
        np.testing.assert_array_equal(values, (codes.astype(np.float32) - levels) * unit)
        for width in {1: (2, 4), 7: (4,)}.get(levels, ()):
            packed = pack_bits(codes, width)
            again = from_levels(packed, found, levels, bucket, count=size, width=width)
            np.testing.assert_array_equal(again, values)


def test_a_bucket_with_something_that_is_no_number_has_no_numbers_after_it() -> None:
    for bad in (np.inf, -np.inf, np.nan):
        x = np.ones(128, np.float32)
        x[70] = bad
        values = from_levels(*to_levels(x, 7, 64, DRAWS), 7, 64)
        assert not np.isfinite(values[64:]).any()
        assert (values[:64] == 1).all()


def test_tiny_and_zero_buckets_become_zeros() -> None:
    x = np.array([0.0, 1e-40, -1e-38], np.float32)
    assert not from_levels(*to_levels(x, 7, 64, DRAWS), 7, 64).any()


def _all_of(name: str) -> np.ndarray:
    """Every number of a format, nans and infinities left out, in order."""
    dtype = np.dtype(name if name == "float16" else getattr(ml_dtypes, name))
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"uint{8 * dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        numbers = bits.view(dtype).astype(np.float32)
    return np.unique(numbers[np.isfinite(numbers)])


@pytest.mark.parametrize("name", list(FORMATS))
def test_rounding_by_chance_goes_to_a_neighbour_and_is_right_on_average(name: str) -> None:
    numbers, draws = _all_of(name), 2000
    assert numbers[-1] == np.float32(FORMATS[name].largest)
    rng = np.random.default_rng(1)
    x = (rng.normal(size=300) * 10.0 ** rng.integers(-9, 3, size=300)).astype(np.float32)
    x = np.clip(x, numbers[1], numbers[-2])
    above = np.searchsorted(numbers, x)
    low, high = numbers[above - 1].astype(np.float64), numbers[above].astype(np.float64)
    found = round_by_chance(np.tile(x, draws), name, DRAWS).reshape(draws, -1)
    assert ((found == low) | (found == high)).all()
    part = (x - low) / (high - low)
    sigma = (high - low) * np.sqrt(part * (1 - part) / draws)
    error = np.abs(found.mean(axis=0, dtype=np.float64) - x)
    # Where both neighbours are likely enough for the mean to be nearly normal.
    usual = draws * part * (1 - part) > 10
    assert (error <= 4 * sigma)[usual].all()
    assert usual.sum() > 100


@pytest.mark.parametrize("name", list(FORMATS))
def test_rounding_by_chance_keeps_what_the_format_holds(name: str) -> None:
    numbers = np.concatenate([_all_of(name), np.float32([np.inf, -np.inf, np.nan, -0.0])])
    found = round_by_chance(numbers, name, DRAWS)
    np.testing.assert_array_equal(found.view(np.int32), numbers.view(np.int32))


def test_what_is_too_large_for_a_format_becomes_its_largest_number() -> None:
    found = round_by_chance(np.array([1e6, -1e6, np.inf], np.float32), "float16", DRAWS)
    assert found.tolist() == [65504.0, -65504.0, np.inf]


_sparse = st.dictionaries(st.integers(0, 40), st.integers(-9, 9), max_size=30)


@settings(max_examples=50)
@given(_sparse, _sparse, st.sampled_from(["float32", "float64"]))
def test_merging_adds_up(a: dict[int, int], b: dict[int, int], dtype: str) -> None:
    def arrays(given: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
        places = sorted(given)
        return np.array(places, np.int32), np.array([given[p] for p in places], dtype)

    places, values = merge_sorted(arrays(a), arrays(b))
    expected = {place: a.get(place, 0) + b.get(place, 0) for place in sorted({*a, *b})}
    assert places.tolist() == list(expected)
    assert values.tolist() == list(expected.values())


_places = st.sets(st.integers(0, 5000), max_size=300).map(lambda x: np.array(sorted(x), np.int32))


@settings(max_examples=50)
@given(_places, st.integers(0, 12))
def test_places_by_rices_code(places: np.ndarray, rest: int) -> None:
    sizes, runs = rice_sizes(places, rest)
    gaps = np.diff(places, prepend=-1) - 1
    assert sizes == [places.size + int((gaps >> (rest + i)).sum()) for i in range(3)]
    assert runs == places.size - int((np.diff(places) == 1).sum())
    ones, low = rice_write(places, rest, sizes[0])
    assert (ones.size, low.size) == (-(-sizes[0] // 8), -(-places.size * rest // 8))
    np.testing.assert_array_equal(rice_read(ones, low, places.size, rest), places)


def test_codes_of_another_number_of_places_are_refused() -> None:
    strings = rice_write(np.arange(0, 300, 3, dtype=np.int32), 1, 200)
    for count in (0, 99):
        with pytest.raises(cd.DataError, match=f"expected {count} places"):
            rice_read(*strings, count, 1)
    with pytest.raises(cd.DataError, match="expected 120 bits"):
        rice_read(*strings, 120, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single_elements_are_taken_written_and_added(dtype: str) -> None:
    x = np.arange(10, dtype=dtype)
    places, values = np.array([1, 4, 9], np.int32), np.array([5, 6, 7], dtype)
    expected = x.copy()
    expected[places] += values
    add_at(x, places, values)
    np.testing.assert_array_equal(x, expected)
    taken = take_out(x, places)
    np.testing.assert_array_equal(taken, expected[places])
    assert not x[places].any()
    put(x, places + np.int32(100), taken, start=100)
    np.testing.assert_array_equal(x, expected)
