"""Kernels for compression, each beside a few lines of NumPy that say what it must do."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera.core.tensor.philox import uniform01
from caldera.kernels.native.compression import (
    FORMATS,
    add_at,
    dequantise,
    merge_sorted,
    not_zero,
    put_only,
    quantise,
    round_stochastically,
    take_out,
    take_top_k_in_blocks,
    top_k_in_blocks,
)
from caldera.kernels.native.compression.rice import HEADER, Span, pack, unpack
from caldera.kernels.native.compression.stochastic_rounding import Draws

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
    [
        (5120, 16, 512),
        (1000, 16, 512),
        (77, 3, 10),
        (100, 10, 10),
        (64, 1, 1),
        (4096, 60, 256),
        (0, 1, 4),
        (3000, 100, 1000),
        (40_000, 16, 512),
    ],
)
def test_the_largest_of_every_block(n: int, count: int, block: int, threads: int) -> None:
    with cd.settings.override(threads=threads):
        for vector in _vectors(n):
            found = top_k_in_blocks(vector, count, block)
            np.testing.assert_array_equal(found, _largest(vector, count, block))
            half = vector * np.float32(0.5)
            places, taken = take_top_k_in_blocks(half, [half.copy()], count, block)
            np.testing.assert_array_equal(places, found)
            np.testing.assert_array_equal(taken, vector[found])
            rest = vector.copy()
            rest[found] = 0
            np.testing.assert_array_equal(half, rest)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_largest_of_every_block_of_several_vectors(threads: int) -> None:
    vectors = [_vectors(n)[0] for n in (40_000, 0, 7, 1000)]
    values = np.zeros(sum(vector.size for vector in vectors), np.float32)
    with cd.settings.override(threads=threads):
        places, taken = take_top_k_in_blocks(values, vectors, 16, 512)
    begins = np.cumsum([0, *(vector.size for vector in vectors)])
    expected = [_largest(v, 16, 512) + begin for v, begin in zip(vectors, begins, strict=False)]
    np.testing.assert_array_equal(places, np.concatenate(expected))
    whole = np.concatenate(vectors)
    np.testing.assert_array_equal(taken, whole[places])
    whole[places] = 0
    np.testing.assert_array_equal(values, whole)


def _packed(codes: np.ndarray, width: int) -> np.ndarray:
    bits = (codes[:, None] >> np.arange(width, dtype=np.uint8)) & 1
    return np.packbits(bits.reshape(-1), bitorder="little")


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
        codes = expected.astype(np.uint8)
        unit = np.repeat(scales / np.float32(levels), bucket)[:size]
        rounded = (codes.astype(np.float32) - levels) * unit
        for width in {1: (2, 4, 8), 7: (4, 8), 127: (8,)}[levels]:
            packed = _packed(codes, width)
            message = np.empty(scales.nbytes + packed.size, np.uint8)
            form = {"levels": levels, "width": width, "bucket": bucket}
            with cd.settings.override(threads=threads):
                lost = quantise(x, [(0, size)], [message], DRAWS, **form)
                values = dequantise([message], [size], **form)
            assert message.tobytes() == scales.tobytes() + packed.tobytes()
            np.testing.assert_array_equal(values, rounded)
            np.testing.assert_array_equal(lost, x - rounded)


FEW: dict[str, int] = {"levels": 7, "width": 4, "bucket": 64}


def test_messages_of_some_spans_have_buckets_and_draws_of_their_own() -> None:
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    spans = [(0, 70), (100, 100), (130, 300)]
    messages = [np.empty(4 * -(-(b - a) // 64) + -(-(b - a) // 2), np.uint8) for a, b in spans]
    lost = quantise(x, spans, messages, DRAWS, **FEW)
    draws = DRAWS
    for (low, high), message in zip(spans, messages, strict=True):
        alone = np.empty_like(message)
        quantise(x[low:high], [(0, high - low)], [alone], draws, **FEW)
        assert alone.tobytes() == message.tobytes()
        draws = draws.after(high - low)
    values = dequantise(messages, [b - a for a, b in spans], **FEW)
    expected = np.concatenate([x[low:high] for low, high in spans])
    missed = np.concatenate([lost[low:high] for low, high in spans])
    np.testing.assert_array_equal(missed, expected - values)
    assert not lost[70:130].any()


def _rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    message = np.empty(4 * -(-x.size // 64) + -(-x.size // 2), np.uint8)
    lost = quantise(x, [(0, x.size)], [message], DRAWS, **FEW)
    return dequantise([message], [x.size], **FEW), lost


def test_a_bucket_with_something_that_is_no_number_has_no_numbers_after_it() -> None:
    for bad in (np.inf, -np.inf, np.nan):
        x = np.ones(128, np.float32)
        x[70] = bad
        values, lost = _rounded(x)
        assert not np.isfinite(values[64:]).any()
        assert (values[:64] == 1).all()
        assert not lost.any()


def test_tiny_and_zero_buckets_become_zeros() -> None:
    x = np.array([0.0, 1e-40, -1e-38], np.float32)
    values, lost = _rounded(x)
    assert not values.any()
    np.testing.assert_array_equal(lost, x)


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
    found = round_stochastically(np.tile(x, draws), name, DRAWS).reshape(draws, -1)
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
    found = round_stochastically(numbers, name, DRAWS)
    np.testing.assert_array_equal(found.view(np.int32), numbers.view(np.int32))


def test_what_is_too_large_for_a_format_becomes_its_largest_number() -> None:
    found = round_stochastically(np.array([1e6, -1e6, np.inf], np.float32), "float16", DRAWS)
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


_places = st.sets(st.integers(0, 4999), max_size=300).map(lambda x: np.array(sorted(x), np.int32))
_runs = st.lists(st.tuples(st.integers(0, 4900), st.integers(1, 100)), max_size=9).map(
    lambda runs: np.unique([i for a, n in runs for i in range(a, a + n)]).astype(np.int32)
)


def _strings(places: np.ndarray, rest: int) -> bytes:
    """By the definition: r, the bits of the unary part, what is left over, the unary part."""
    gaps = np.diff(places.astype(np.int64), prepend=-1) - 1
    unary = "".join("0" * (gap >> rest) + "1" for gap in gaps.tolist())
    low = "".join(format(gap & ((1 << rest) - 1), f"0{rest}b")[::-1] for gap in gaps if rest)
    header = np.array([rest, len(unary)], np.uint32).tobytes()
    return header + b"".join(
        np.packbits(np.array([*map(int, bits)], np.uint8), bitorder="little").tobytes()
        for bits in (low, unary)
    )


@settings(max_examples=50)
@given(_places | _runs, st.lists(st.integers(0, 5000), max_size=4))
def test_places_by_rices_code(places: np.ndarray, edges: list[int]) -> None:
    bounds = sorted([0, *edges, 5000])
    parts: list[Span] = list(pairwise(bounds))
    spans = [(int(a), int(b)) for a, b in pairwise(np.searchsorted(places, bounds))]
    messages = pack(places, spans, parts, [3] * len(parts))
    found, counts, taken = unpack(messages, parts)
    np.testing.assert_array_equal(found, places)
    assert counts == [high - low for low, high in spans]
    assert taken == [message.size - 3 for message in messages]
    for message, (low, high), (begin, end) in zip(messages, spans, parts, strict=True):
        mine = places[low:high] - np.int32(begin)
        best = min((_strings(mine, rest) for rest in range(13)), key=len)
        assert message.size - 3 <= HEADER + -(-(end - begin) // 8)
        assert message.size - 3 <= len(best) + 8 + 2
        if not message[4:8].any():
            assert message[8:-3].tobytes() == _strings(mine, int(message[8]))


def test_places_that_cannot_be_are_refused() -> None:
    rng = np.random.default_rng(0)
    for places in (np.arange(0, 300, 3), np.arange(100, 200)):
        (message,) = pack(places.astype(np.int32), [(0, 100)], [(0, 300)], [0])
        for length in (0, 99, int(places[-1])):
            with pytest.raises(cd.DataError):
                unpack([message], [(0, length)])
        for size in range(message.size):
            with pytest.raises(cd.DataError):
                unpack([message[:size].copy()], [(0, 300)])
        # Whatever a message says, no place lies outside its part.
        for _ in range(300):
            damaged = message.copy()
            damaged[rng.integers(0, damaged.size, size=2)] = rng.integers(0, 256, size=2)
            try:
                found, _, _ = unpack([damaged], [(0, 300)])
            except cd.DataError:
                continue
            assert (np.diff(found) > 0).all()
            assert found.size == 0 or 0 <= found[0] <= found[-1] < 300


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
    long = np.ones(9000, dtype)
    for places in (np.arange(0, 9000, 7), np.array([4095, 4096]), np.array([], int)):
        values = np.arange(1, places.size + 1).astype(dtype)
        put_only(long, places.astype(np.int32), values)
        expected = np.zeros(9000, dtype)
        expected[places] = values
        np.testing.assert_array_equal(long, expected)
    found, values = not_zero(np.array([0.0, -0.0, np.nan, 3.0], dtype), begin=7)
    assert found.tolist() == [9, 10]
    np.testing.assert_array_equal(values, [np.nan, 3.0])
