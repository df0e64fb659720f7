"""Counter-based random numbers, which depend on their position only: Philox4x32-10.

A counter-based generator is a pure function from (key, counter) to four random 32-bit words. Any
range of a stream can therefore be computed separately, in any order, on any number of threads,
devices or ranks. It equals the same range of the whole stream. Every backend reproduces the
following definition. It uses only integer operations and correctly rounded float operations (no
library `log` or `cos`), so the results are equal bit for bit.

Names of a number: `seed` (64 bits; a negative int means its two's complement), `step` (32 bits),
`stream` (32 bits), element `index`.

- Key words: (seed mod 2**32, seed div 2**32).
- Counter words: (block mod 2**32, block div 2**32, step, stream), with a 64-bit block number. No
  two names share a (key, counter), so streams never overlap.
- Word `w` of a stream is output word `w mod 4` of block `w div 4`.
- Uniform float32 `i` is word `i`: its upper 24 bits, times 2**-24. float16 and bfloat16 take the
  upper 11 and 8 bits, all they can hold, so that 1 is never reached by rounding.
- Uniform float64 `i` is words `2i` and `2i + 1`: 27 and 26 upper bits, times 2**-53.
- Normal numbers come in pairs by Box and Muller: elements `2p` and `2p + 1` are `r cos t` and `r
  sin t`, where float32 takes words `2p` (radius) and `2p + 1` (angle) and float64 takes words `4p,
  4p + 1` and `4p + 2, 4p + 3`; `box_muller.py` has the arithmetic. The halves are rounded from
  float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.threads import parallel_for
from caldera.core.tensor import random
from caldera.core.tensor.dtype import HALVES, DType, bfloat16, float16, float32, float64, is_float
from caldera.errors import DtypeError

Words = NDArray[np.uint32]
Name = tuple[tuple[int, int], tuple[int, int]]
"""The key words and the upper counter words of a stream."""

_ROUNDS = 10
_WORDS_IN_BLOCK = 4
_LOW_WORD = 0xFFFFFFFF
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
# 16384 blocks need three work arrays of 256 KiB: small enough for the second-level cache, and
# large enough that NumPy's cost per call disappears.
_BLOCKS_AT_ONCE = 16384
_WORTH_A_THREAD = 1 << 18

# Number of upper bits of a word in a uniform number of this dtype.
_UNIFORM_BITS = {float16: 11, bfloat16: 8, float32: 24}


def random_bits(
    key: tuple[int, int], first_index: int, count: int, upper: tuple[int, int] = (0, 0)
) -> Words:
    """Return words `first_index` to `first_index + count` of the stream with this key.

    `key` is two 32-bit words; `upper` is the two upper words of the counter.

    >>> [hex(word) for word in random_bits((0, 0), 0, 4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    >>> hex(random_bits((0, 0), 3, 1)[0])
    '0x9b00dbd8'
    """
    words = np.empty(count, dtype=np.uint32)
    for start, chunk in _chunks(key, upper, first_index, count):
        words[start : start + chunk.size] = chunk
    return words


def uniform01(
    seed: int, step: int, stream: int, first: int, count: int, dtype: DType = float32
) -> NDArray[Any]:
    """Return elements `first` to `first + count` of a stream of uniform numbers in [0, 1).

    >>> whole = uniform01(seed=7, step=0, stream=1, first=0, count=10)
    >>> part = uniform01(seed=7, step=0, stream=1, first=4, count=3)
    >>> bool((whole[4:7] == part).all())
    True
    """
    require_float(dtype, "uniform01")
    return _filled(_fill_uniform, _name(seed, step, stream), first, np.empty(count, dtype))


def _fill_uniform(values: NDArray[Any], name: Name, first: int) -> None:
    if values.dtype == float64:
        for start, words in _chunks(*name, 2 * first, 2 * values.size):
            integers = _join_53_bits(words)
            np.multiply(integers, 2.0**-53, out=values[start // 2 : start // 2 + integers.size])
        return
    bits = _UNIFORM_BITS[values.dtype]
    for start, words in _chunks(*name, first, values.size):
        floats = (words >> np.uint32(32 - bits)).astype(np.float32)
        floats *= np.float32(2.0**-bits)
        values[start : start + words.size] = floats


def normal(
    seed: int, step: int, stream: int, first: int, count: int, dtype: DType = float32
) -> NDArray[Any]:
    """Return elements `first` to `first + count` of a stream of standard normal numbers.

    >>> whole = normal(seed=7, step=0, stream=1, first=0, count=10)
    >>> part = normal(seed=7, step=0, stream=1, first=5, count=2)
    >>> bool((whole[5:7] == part).all())
    True
    """
    if dtype in HALVES:
        return normal(seed, step, stream, first, count, float32).astype(dtype)
    require_float(dtype, "normal")
    return _filled(_fill_normal, _name(seed, step, stream), first, np.empty(count, dtype))


def _fill_normal(values: NDArray[Any], name: Name, first: int) -> None:
    # Whole pairs are computed; `skipped` drops the cosine of a first pair that is half asked for.
    skipped = first % 2
    pairs = (skipped + values.size + 1) // 2
    words_in_pair = 4 if values.dtype == float64 else 2
    for start, words in _chunks(*name, first // 2 * words_in_pair, pairs * words_in_pair):
        if values.dtype == float64:
            integers = _join_53_bits(words)
            cosines, sines = random.pairs_float64(integers[0::2], integers[1::2])
        else:
            cosines, sines = random.pairs_float32(words[0::2], words[1::2])
        # Written directly into the result: a temporary array would be as large as this thread's
        # share.
        begin = start // words_in_pair * 2 - skipped
        unwanted = int(begin < 0)
        even, odd = values[begin + 2 * unwanted :: 2], values[begin + 1 :: 2]
        even[: cosines.size - unwanted] = cosines[unwanted : unwanted + even.size]
        odd[: sines.size] = sines[: odd.size]


def _filled(
    fill: Callable[[NDArray[Any], Name, int], None], name: Name, first: int, values: NDArray[Any]
) -> NDArray[Any]:
    """Fill an array from element `first` of a stream on, on several threads if it is long."""

    def part(worker: int, workers: int) -> None:
        begin, end = (values.size * share // workers for share in (worker, worker + 1))
        fill(values[begin:end], name, first + begin)

    parallel_for(part, -(-values.size // _WORTH_A_THREAD))
    return values


def _name(seed: int, step: int, stream: int) -> Name:
    """Return key words and upper counter words of a stream."""
    for label, value in (("step", step), ("stream", stream)):
        require(0 <= value <= _LOW_WORD, "random numbers", f"a {label} from 0 to 2**32 - 1", value)
    return (seed & _LOW_WORD, (seed >> 32) & _LOW_WORD), (step, stream)


def _chunks(
    key: tuple[int, int], upper: tuple[int, int], first_word: int, count: int
) -> Iterator[tuple[int, Words]]:
    """Yield words of the stream in cache-sized pieces, each with its position from `first_word`.

    A piece starts at a multiple of four words, except for the first. The array is reused for the
    next piece.
    """
    end_word = first_word + count
    first_block = first_word // _WORDS_IN_BLOCK
    end_block = -(-end_word // _WORDS_IN_BLOCK)
    schedule = _key_schedule(key)
    longest = min(_BLOCKS_AT_ONCE, end_block - first_block)
    work = [np.empty((2, longest), dtype=np.uint64) for _ in range(3)]
    output = np.empty((longest, _WORDS_IN_BLOCK), dtype=np.uint32)
    for block in range(first_block, end_block, _BLOCKS_AT_ONCE):
        blocks = min(_BLOCKS_AT_ONCE, end_block - block)
        _philox(schedule, upper, block, [array[:, :blocks] for array in work], output[:blocks])
        block_word = block * _WORDS_IN_BLOCK
        begin = max(first_word, block_word)
        end = min(end_word, block_word + blocks * _WORDS_IN_BLOCK)
        words = output.reshape(-1)[begin - block_word : end - block_word]
        yield begin - first_word, words


def _key_schedule(key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return the two key words of each round, as an array of shape (rounds, 2, 1)."""
    rounds = [
        [
            [(word + round_number * increment) & _LOW_WORD]
            for word, increment in zip(key, _KEY_INCREMENTS, strict=True)
        ]
        for round_number in range(_ROUNDS)
    ]
    return np.array(rounds, dtype=np.uint64)


def _philox(
    schedule: NDArray[np.uint64],
    upper: tuple[int, int],
    first_block: int,
    work: list[NDArray[np.uint64]],
    output: Words,
) -> None:
    """Fill `output` (blocks, 4) from consecutive block numbers.

    `even` holds counter words 0 and 2, `odd` words 1 and 3, one 32-bit word in each 64-bit element.
    A round is then five array operations: both multiplications are one, and the exchange of the
    halves is a reversed view.
    """
    even, odd, product = work
    blocks = np.arange(even.shape[1], dtype=np.uint64) + np.uint64(first_block)
    low_word, half = np.uint64(_LOW_WORD), np.uint64(32)
    np.bitwise_and(blocks, low_word, out=even[0])
    np.right_shift(blocks, half, out=odd[0])
    even[1] = upper[0]
    odd[1] = upper[1]
    exchanged = product[::-1]
    for round_key in schedule:
        np.multiply(even, _MULTIPLIERS, out=product)
        np.right_shift(exchanged, half, out=even)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_xor(even, round_key, out=even)
        np.bitwise_and(exchanged, low_word, out=odd)
    output[:, 0] = even[0]
    output[:, 1] = odd[0]
    output[:, 2] = even[1]
    output[:, 3] = odd[1]


def _join_53_bits(words: Words) -> NDArray[np.int64]:
    """One 53-bit integer from each two words: 27 upper bits of the first, 26 of the second."""
    upper = (words[0::2] >> np.uint32(5)).astype(np.int64)
    lower = (words[1::2] >> np.uint32(6)).astype(np.int64)
    return (upper << 26) | lower


def require_float(dtype: DType, where: str) -> None:
    """Raise if `dtype` is not one of the floating-point dtypes."""
    require(is_float(dtype), where, "a float dtype", dtype, error=DtypeError)
