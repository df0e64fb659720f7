"""Uniform random numbers of `caldera.core.tensor.philox`, one vector of blocks at a time."""

from __future__ import annotations

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.native.codegen import (
    F32,
    F64,
    I32,
    I64,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    RegisterValue,
    in_sequence,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.movement import copying, transposed
from caldera.kernels.table import Call, Runner

_ROUNDS = 10
_WORDS_IN_BLOCK = 4
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_WORTH_SPLITTING = 1 << 13
"""Elements from which on a second thread pays."""


@native_kernel
def _uniform(
    k: Emitter,
    out: Pointer,
    state: Pointer,
    offset: Pointer,
    stream: Integer,
    count: Integer,
    apart: Integer,
) -> None:
    """`state` has the seed and, `apart` elements on, the step."""
    kind = out.type
    words_each = 2 if kind == F64 else 1
    lanes = max(natural_lanes(I32), _WORDS_IN_BLOCK)
    numbers = lanes * _WORDS_IN_BLOCK // words_each
    first = offset.load()
    philox = Philox(k, lanes, state.load(0), state.load(apart), stream)
    aside = k.alloca(kind, numbers)
    begin, end = k.part_range(count)
    # Whole blocks are computed: the first and the last may extend beyond the requested range.
    start = (first + begin) // numbers
    stop = (first + end + (numbers - 1)) // numbers
    with k.loop(start, k.select(end > begin, stop, start)) as group:
        words = philox.words(group * lanes)
        place = group * numbers - first
        with k.if_else((place >= begin) & (place + numbers <= end)) as (inside, across):
            with inside:
                _store(k, out, place, words, kind)
            with across:
                _store(k, aside, k.constant(0, I64), words, kind)
                low = k.maximum(place, begin)
                with k.loop(low, k.minimum(place + numbers, end)) as i:
                    out.store(i, aside.load(i - place))


class Philox:
    """The generator for one (seed, step, stream), as other kernels use it as well."""

    def __init__(
        self,
        k: Emitter,
        lanes: int,
        seed: RegisterValue,
        step: RegisterValue,
        stream: RegisterValue,
    ) -> None:
        self.k = k
        self.lanes = lanes
        low = k.constant(0xFFFFFFFF, I64)
        self.key = [seed & low, k.shift_right(seed, 32)]
        self.upper = [k.splat(each & low, lanes) for each in (step, stream)]

    def words(self, block: RegisterValue) -> list[RegisterValue]:
        """Return the words of `lanes` blocks from this one on, in order, four in each vector."""
        k = self.k
        wide = vector(I64, self.lanes)
        numbers = k.variable(block, wide)
        counting = numbers.value
        for lane in range(1, self.lanes):
            counting = RegisterValue(
                k, k.ir.insert_element(counting.raw, (block + lane).raw, I32(lane))
            )
        low = k.constant(0xFFFFFFFF, wide)
        even = [counting & low, self.upper[0]]
        odd = [k.shift_right(counting, 32), self.upper[1]]
        for turn in range(_ROUNDS):
            key = [
                k.splat((word + turn * increment) & 0xFFFFFFFF, self.lanes)
                for word, increment in zip(self.key, _KEY_INCREMENTS, strict=True)
            ]
            product = [even[i] * _MULTIPLIERS[i] for i in (0, 1)]
            even = [k.shift_right(product[1 - i], 32) ^ odd[i] ^ key[i] for i in (0, 1)]
            odd = [product[1 - i] & low for i in (0, 1)]
        columns = [k.convert(each, I32) for each in (even[0], odd[0], even[1], odd[1])]
        result: list[RegisterValue] = []
        for start in range(0, self.lanes, _WORDS_IN_BLOCK):
            picks = range(start, start + _WORDS_IN_BLOCK)
            result += transposed(k, [k.shuffle(column, None, picks) for column in columns])
        return result


def _store(
    k: Emitter, out: Pointer, place: RegisterValue, words: list[RegisterValue], kind: object
) -> None:
    for index, four in enumerate(words):
        if kind == F32:
            upper = k.convert(k.shift_right(four, 8), F32)
            out.store(place + 4 * index, upper * 2.0**-24)
        else:
            first, second = (k.shuffle(four, None, picks) for picks in ((0, 2), (1, 3)))
            upper = k.convert(k.shift_right(first, 5), I64, unsigned=True)
            lower = k.convert(k.shift_right(second, 6), I64, unsigned=True)
            joined = k.convert((upper << 26) | lower, F64)
            out.store(place + 2 * index, joined * 2.0**-53)


def _bind(call: Call) -> Runner:
    (out,), (state, offset) = call.outputs, call.inputs
    # Elements are numbered row by row, however they lie.
    dense = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    draw = NativeRunner(
        [
            _uniform.call(
                out=dense,
                state=state,
                offset=offset,
                stream=call.node.attrs["stream"],
                count=out.size,
                apart=state.strides[0] // state.itemsize,
                parts=thread_count() if out.size >= _WORTH_SPLITTING else 1,
            )
        ]
    )
    return draw if dense is out else in_sequence([draw, copying([(out, dense)])])


offer("random_uniform", "native", _bind, lambda node: node.dtype in (float32, float64), priority=10)
