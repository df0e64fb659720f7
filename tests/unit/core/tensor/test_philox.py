"""The random numbers are Philox's, and any range of a stream equals that part of the whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.base.config import settings as caldera_settings
from caldera.core.tensor import philox, random
from caldera.core.tensor.dtype import bfloat16, float16, float32, float64, int32
from caldera.errors import ConfigError, DtypeError

WORD = 0xFFFFFFFF
FLOATS = [float16, bfloat16, float32, float64]

# Counter, key and result from the kat_vectors file of Random123, for philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

SINGLE_BITS = ["0x3e0413fe", "0x3f85b09c", "0x3ef5bdb4", "0xbf776588", "0x3f3bfc48", "0x3e2cb339"]
DOUBLE_BITS = [
    "0xbfef695dcd8d01fb",
    "0xbfd8484f7b5296c6",
    "0xbfb0b755e0c20c51",
    "0x3fe804ee4c0f5d32",
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_published_vectors(counter, key, answer):
    block = counter[0] | counter[1] << 32
    words = philox.random_bits(key, 4 * block, 4, upper=counter[2:])
    assert words.tolist() == list(answer)


def philox_in_plain_integers(counter: list[int], key: list[int]) -> list[int]:
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & WORD,
            (first >> 32) ^ counter[3] ^ key[1],
            first & WORD,
        ]
        key = [(key[0] + 0x9E3779B9) & WORD, (key[1] + 0xBB67AE85) & WORD]
    return counter


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, WORD),
    stream=st.integers(0, WORD),
    block=st.integers(0, 2**64 - 1),
)
def test_a_name_maps_to_key_and_counter_as_documented(seed, step, stream, block):
    expected = philox_in_plain_integers(
        [block & WORD, block >> 32, step, stream], [seed & WORD, seed >> 32]
    )
    uniform = philox.uniform01(seed, step, stream, 4 * block, 4)
    assert uniform.tolist() == [(word >> 8) * 2.0**-24 for word in expected]


def test_streams_that_differ_in_one_part_of_the_name_differ():
    names = [(1, 2, 3), (2, 2, 3), (1 + 2**32, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)]
    streams = {philox.uniform01(*name, 0, 8).tobytes() for name in names}
    assert len(streams) == len(names)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("draw", [philox.uniform01, philox.normal])
@settings(max_examples=25)
@given(data=st.data())
def test_a_part_equals_the_slice_of_the_whole(draw, dtype, data):
    whole = draw(5, 6, 7, 0, 60, dtype)
    first = data.draw(st.integers(0, 60))
    count = data.draw(st.integers(0, 60 - first))
    part = draw(5, 6, 7, first, count, dtype)
    assert part.dtype == dtype
    assert part.tobytes() == whole[first : first + count].tobytes()


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("draw", [philox.uniform01, philox.normal])
def test_ranges_longer_than_a_chunk_join_up(draw, dtype):
    count = 4 * philox._BLOCKS_AT_ONCE + 100
    whole = draw(1, 0, 0, 3, count, dtype)
    pieces = [
        draw(1, 0, 0, 3 + start, min(9999, count - start), dtype) for start in range(0, count, 9999)
    ]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_uniform_takes_the_upper_bits_of_its_words():
    words = philox.random_bits((9, 0), 0, 20)
    assert (philox.uniform01(9, 0, 0, 0, 20, float32) == (words >> 8) * 2.0**-24).all()
    assert (philox.uniform01(9, 0, 0, 0, 20, float16) == (words >> 21) * 2.0**-11).all()
    assert (philox.uniform01(9, 0, 0, 0, 20, bfloat16) == ((words >> 24) * 2.0**-8)).all()
    pairs = (words[0::2] >> 5) * 2.0**26 + (words[1::2] >> 6)
    assert (philox.uniform01(9, 0, 0, 0, 10, float64) == pairs * 2.0**-53).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_moments(dtype):
    numbers = philox.uniform01(3, 0, 0, 0, 200_000, dtype).astype(np.float64)
    assert 0 <= numbers.min() < 0.001
    assert 0.99 < numbers.max() < 1
    # The values of a half lie 2**-8 apart, so their mean is a little below one half.
    assert abs(numbers.mean() - 0.5) < 0.004
    assert abs(numbers.std() - 12**-0.5) < 0.002


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_moments(dtype):
    numbers = philox.normal(3, 0, 0, 0, 200_000, dtype).astype(np.float64)
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    assert abs((numbers**3).mean()) < 0.03
    assert abs((numbers**4).mean() - 3) < 0.06
    assert abs((numbers[0::2] * numbers[1::2]).mean()) < 0.01


def test_normal_is_the_formula_of_box_and_muller():
    words = philox.random_bits((4, 0), 0, 4000).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[0::2] + 0.5) * 2.0**-32))
    angle = 2 * np.pi * np.floor(words[1::2] / 256) * 2.0**-24
    numbers = philox.normal(4, 0, 0, 0, 4000, float32)
    assert np.allclose(numbers[0::2], radius * np.cos(angle), rtol=2e-6, atol=2e-6)
    assert np.allclose(numbers[1::2], radius * np.sin(angle), rtol=2e-6, atol=2e-6)


def test_double_normal_is_the_formula_of_box_and_muller():
    uniform = philox.uniform01(4, 0, 0, 0, 4000, float64)
    radius = np.sqrt(-2 * np.log(uniform[0::2] + 2.0**-53))
    angle = 2 * np.pi * uniform[1::2]
    numbers = philox.normal(4, 0, 0, 0, 4000, float64)
    assert np.allclose(numbers[0::2], radius * np.cos(angle), rtol=1e-14, atol=1e-14)
    assert np.allclose(numbers[1::2], radius * np.sin(angle), rtol=1e-14, atol=1e-14)


def test_normal_has_the_same_bits_on_every_machine():
    single = philox.normal(2024, 1, 2, 0, 6, float32)
    assert [hex(bits) for bits in single.view(np.uint32)] == SINGLE_BITS
    double = philox.normal(2024, 1, 2, 0, 4, float64)
    assert [hex(bits) for bits in double.view(np.uint64)] == DOUBLE_BITS


def test_the_extreme_words_give_finite_numbers():
    radius = np.array([0, WORD, 0, WORD], np.uint32)
    angle = np.array([0, 0, WORD, WORD], np.uint32)
    cosine, sine = random.pairs_float32(radius, angle)
    assert np.isfinite(cosine).all()
    assert np.isfinite(sine).all()
    assert abs(cosine[0] - 6.764) < 0.001
    assert abs(cosine[1]) < 1e-3
    radius = np.array([0, 2**53 - 1])
    cosine, sine = random.pairs_float64(radius, radius)
    assert abs(cosine[0] - 8.571) < 0.001
    assert cosine[1] == 0


def test_quarter_turns_are_exact():
    radius = np.full(4, 2**31, np.uint32)
    angle = np.array([0, 1, 2, 3], np.uint32) << np.uint32(30)
    cosine, sine = random.pairs_float32(radius, angle)
    assert cosine[1] == cosine[3] == 0
    assert sine[0] == sine[2] == 0
    assert cosine[0] == -cosine[2] == sine[1] == -sine[3] > 0


@pytest.mark.parametrize("draw", [philox.uniform01, philox.normal])
def test_integers_are_refused(draw):
    with pytest.raises(DtypeError, match="expected a float dtype, got int32"):
        draw(0, 0, 0, 0, 1, int32)


@pytest.mark.parametrize("name", [(0, -1, 0), (0, 2**32, 0), (0, 0, 2**32)])
def test_step_and_stream_must_fit(name):
    with pytest.raises(ConfigError, match=r"from 0 to 2\*\*32 - 1"):
        philox.uniform01(*name, 0, 1)


def test_a_negative_seed_is_its_twos_complement():
    assert (philox.uniform01(-1, 0, 0, 0, 4) == philox.uniform01(2**64 - 1, 0, 0, 0, 4)).all()


@pytest.mark.parametrize("dtype", [float32, float64])
def test_normal_numbers_need_no_array_beside_the_result(dtype):
    count = 1 << 20
    tracemalloc.start()
    try:
        with caldera_settings.override(threads=1):
            found = philox.normal(1, 0, 0, 1, count, dtype)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # What a piece takes does not depend on how many there are.
    assert peak < found.nbytes + (4 << 20)
    assert found.tobytes() == philox.normal(1, 0, 0, 0, count + 1, dtype)[1:].tobytes()
