"""Rice codes of increasing indices: byte layout, packing of several messages, decoding.

A packed index set is the number of indices and the number of runs (both uint32), then a string of
indices. If there are runs, a string of their starts and a string of their ends replace it. A string
encodes the gap before each index in Rice code, as gap // 2**r in unary and the remainder in r bits:

    r, bits of the unary part (uint32); the remainders, lowest bits first; the unary part

In the unary part, every index is a one, preceded by a number of zeros equal to the quotient. For `r
= 0` this is a bitmap of all elements up to the last index.

A message may be damaged: decoding never returns an index outside its part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.codegen import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    addresses_of,
    native_kernel,
    run_now,
)
from caldera.kernels.native.compression.rice_encode import (
    HEADER,
    STRING_HEADER,
    get_word,
    load_wide,
    pack_places,
    store_wide,
)

SLACK = 8
"""Bytes behind a string of bits that are read with its last ones."""


@native_kernel
def unpack_places(
    k: Emitter,
    addresses: Pointer,
    sizes: Pointer,
    reach: Pointer,
    messages: Integer,
    places: Pointer,
    taken: Pointer,
    scratch: Pointer,
    spare: Pointer,
    most: Integer,
) -> None:
    """Decode the indices of messages and the number of bytes that each index set occupied.

    The indices of each message are in its part of a vector (`reach`). `scratch` has the capacity of
    a string, and `spare` twice the maximum number of runs of a message.
    """
    starts, stops = spare, spare.at(most)
    read = k.internal_function(
        "read", [POINTER, I64, I64, I64, I64, POINTER, POINTER, POINTER], _read
    )
    spread = k.internal_function("spread", [POINTER, POINTER, I64, I64, I64, POINTER], _spread)
    found = k.variable(0, I64)
    result = k.alloca(I64, 1)
    zero = k.constant(0, I64)
    with k.loop(0, messages) as number:
        message = k.int_to_pointer(addresses.load(number), I8)
        begin, end = reach.load(number * 2), reach.load(number * 2 + 1)
        length = end - begin
        count, runs = get_word(k, message), get_word(k, message.at(4))
        strings = message.at(HEADER - STRING_HEADER)
        size = sizes.load(number) - (HEADER - STRING_HEADER)
        mine = places.at(found.value)
        with k.if_else(runs.equals(0)) as (as_places, as_runs):
            with as_places:
                k.call(read, strings, size, count, begin, end, mine, scratch, result)
            with as_runs:
                # There are no more runs than places, which there is room for.
                result.store(0, -1)
                with k.if_then(runs <= count):
                    k.call(read, strings, size, runs, zero, length, starts, scratch, result)
                first = result.load(0)
                with k.if_then(first >= 0):
                    after, left = strings.at(first), size - first
                    k.call(read, after, left, runs, zero, count, stops, scratch, result)
                    whole = k.convert(stops.load(runs - 1), I64).equals(count - 1)
                    reached = k.convert(starts.load(runs - 1), I64) + count - runs
                    right = (result.load(0) >= 0) & whole & (reached < length)
                    both = first + result.load(0)
                    result.store(0, k.select(right, both, -1))
                    with k.if_then(right):
                        k.call(spread, starts, stops, runs, begin, count, mine)
        header = HEADER - STRING_HEADER
        taken.store(number, k.select(result.load(0) >= 0, result.load(0) + header, -1))
        found.value = found.value + count


def _read(
    k: Emitter,
    string: RegisterValue,
    size: RegisterValue,
    count: RegisterValue,
    begin: RegisterValue,
    end: RegisterValue,
    places: RegisterValue,
    scratch: RegisterValue,
    taken: RegisterValue,
) -> None:
    """The places of a string; to `taken` its bytes, or -1 if it cannot be."""
    source, target = Pointer(k, string.raw, I8), Pointer(k, places.raw, I32)
    low, result = Pointer(k, scratch.raw, I8), Pointer(k, taken.raw, I64)
    result.store(0, -1)
    with k.if_then(size >= STRING_HEADER):
        rest, unary = get_word(k, source), get_word(k, source.at(4))
        low_size = (count * rest + 7) // 8
        whole = low_size + (unary + 7) // 8 + STRING_HEADER
        # With these bounds, no index overflows 64 bits, even if the message is damaged.
        sane = (rest < 32) & (unary - count <= end - begin)
        with k.if_then(sane & (whole <= size)):
            # Eight bytes are read per step, even at the end.
            k.copy_bytes(low, source.at(STRING_HEADER), low_size)
            store_wide(k, low.at(low_size), k.constant(0, I64))
            ones = source.at(low_size + STRING_HEADER)
            found, last = _read_bits(k, ones, unary, low, rest, count, begin, target)
            result.store(0, k.select(found.equals(count) & (last < end), whole, -1))


def _read_bits(
    k: Emitter,
    ones: Pointer,
    unary: RegisterValue,
    low: Pointer,
    rest: RegisterValue,
    count: RegisterValue,
    begin: RegisterValue,
    target: Pointer,
) -> tuple[RegisterValue, RegisterValue]:
    """Return the number of indices and the last index; at most `count` are written."""
    mask = (k.constant(1, I64) << rest) - 1
    found, bit = k.variable(0, I64), k.variable(0, I64)
    # A place is the zeros before it times 2**r, all that was left over so far, and the places.
    behind = k.variable(begin)
    left, latest = k.variable(0, I64), k.variable(begin - 1)
    last = k.alloca(I64, 1)
    with k.loop(0, (unary + 63) // 64) as number:
        size = k.minimum((unary + 7) // 8 - (number << 3), 8)
        last.store(0, 0)
        with k.if_else(size.equals(8)) as (inside, at_the_end):
            with inside:
                left.value = load_wide(k, ones.at(number << 3))
            with at_the_end:
                k.copy_bytes(last, ones.at(number << 3), size)
                left.value = last.load(0)
        several = RegisterValue(k, k.ir.ctpop(left.value.raw))
        with k.if_then(found.value + several > count):
            # One too many is enough to be refused.
            found.value = count + 1
            left.value = 0
        with k.while_loop(lambda: left.value.differs(0)):
            one = (number << 6) + RegisterValue(k, k.ir.cttz(left.value.raw, I1(1)))
            left.value = left.value & (left.value - 1)
            lower = k.shift_right(load_wide(k, low.at(k.shift_right(bit.value, 3))), bit.value & 7)
            bit.value = bit.value + rest
            place = ((one - found.value) << rest) + behind.value + (lower & mask)
            target.store(found.value, k.convert(place, I32))
            latest.value = place
            behind.value = behind.value + (lower & mask) + 1
            found.value = found.value + 1
    return found.value, latest.value


def _spread(
    k: Emitter,
    starts: RegisterValue,
    stops: RegisterValue,
    runs: RegisterValue,
    begin: RegisterValue,
    count: RegisterValue,
    places: RegisterValue,
) -> None:
    """Expand the runs that `_split` encoded into indices."""
    first, last = Pointer(k, starts.raw, I32), Pointer(k, stops.raw, I32)
    target = Pointer(k, places.raw, I32)
    from_here = k.variable(0, I64)
    with k.loop(0, runs) as number:
        shift = begin + k.convert(first.load(number), I64) - number
        stop = k.convert(last.load(number), I64) + 1
        with k.loop(from_here.value, stop) as i:
            target.store(i, k.convert(shift + i, I32))
        from_here.value = stop


Span = tuple[int, int]
"""Half-open range of numbers."""


def pack(
    places: np.ndarray, spans: Sequence[Span], parts: Sequence[Span], free: Sequence[int]
) -> list[np.ndarray]:
    """Return a message for each span of increasing int32 indices.

    The indices of a message are all in its part of a vector. Each message leaves `free` bytes
    unused behind its indices.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression.rice import pack, unpack
    >>> places, parts = np.array([3, 4, 5, 17], np.int32), [(0, 10), (10, 20)]
    >>> messages = pack(places, [(0, 3), (3, 4)], parts, free=[0, 2])
    >>> [message.size for message in messages]
    [17, 19]
    >>> unpack(messages, parts)
    (array([ 3,  4,  5, 17], dtype=int32), [3, 1], [17, 17])
    """
    longest = [
        HEADER + -(-(end - begin) // 8) + spare
        for (begin, end), spare in zip(parts, free, strict=True)
    ]
    out = np.empty(sum(longest), np.uint8)
    ends = np.empty(len(longest), np.int64)
    most = max((high - low for low, high in spans), default=0)
    run_now(
        pack_places,
        places=places,
        spans=_numbers(spans),
        reach=_numbers(parts),
        free=_numbers(free),
        messages=len(longest),
        out=out,
        ends=ends,
        spare=np.empty((2, most), np.int32),
        most=most,
    )
    found = ends.tolist()
    return [out[begin:end] for begin, end in zip([0, *found], found, strict=False)]


def unpack(
    messages: Sequence[np.ndarray], parts: Sequence[Span]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Decode the indices of all messages, each in its part of a vector.

    Return the indices, the number of indices of each message, and the number of bytes they
    occupied. Invalid messages are rejected.
    """
    lengths = [end - begin for begin, end in parts]
    counts = [
        int.from_bytes(each[:4].tobytes(), "little") if each.size >= HEADER else -1
        for each in messages
    ]
    for count, length in zip(counts, lengths, strict=True):
        if not 0 <= count <= length:
            raise DataError.build(
                "places of a message", expected=f"places below {length}", got=f"{count} of them"
            )
    places = np.empty(sum(counts), np.int32)
    taken = np.empty(len(messages), np.int64)
    sizes = [each.size for each in messages]
    most = max(counts, default=0)
    run_now(
        unpack_places,
        addresses=addresses_of(messages),
        sizes=_numbers(sizes),
        reach=_numbers(parts),
        messages=len(messages),
        places=places,
        taken=taken,
        scratch=np.empty(max(sizes, default=0) + SLACK, np.uint8),
        spare=np.empty((2, most), np.int32),
        most=most,
    )
    found = taken.tolist()
    for each, length in zip(found, lengths, strict=True):
        if each < 0:
            raise DataError.build(
                "places of a message", expected=f"increasing places below {length}", got="others"
            )
    return places, counts, found


def _numbers(values: Sequence[int] | Sequence[Span]) -> np.ndarray:
    return np.array(values, np.int64)
