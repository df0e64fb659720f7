"""Unpacking places by Rice's code; `rice` has the layout.

A message may be damaged: whatever it says, no place outside its part comes of it.
"""

from __future__ import annotations

from caldera.kernels.native.codegen.emitter import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Emitter,
    Pointer,
    Value,
)
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.compression.rice_encode import (
    HEADER,
    STRING_HEADER,
    get_word,
    load_wide,
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
    """The places of messages, each in its part of a vector (`reach`), and how many bytes of each
    were taken; there is room for a string, and for two times as many runs as one has at most."""
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
    string: Value,
    size: Value,
    count: Value,
    begin: Value,
    end: Value,
    places: Value,
    scratch: Value,
    taken: Value,
) -> None:
    """The places of a string; to `taken` its bytes, or -1 if it cannot be."""
    source, target = Pointer(k, string.raw, I8), Pointer(k, places.raw, I32)
    low, result = Pointer(k, scratch.raw, I8), Pointer(k, taken.raw, I64)
    result.store(0, -1)
    with k.if_then(size >= STRING_HEADER):
        rest, unary = get_word(k, source), get_word(k, source.at(4))
        low_size = (count * rest + 7) // 8
        whole = low_size + (unary + 7) // 8 + STRING_HEADER
        # With these bounds no place is too large for 64 bits, whatever a message says.
        sane = (rest < 32) & (unary - count <= end - begin)
        with k.if_then(sane & (whole <= size)):
            # Eight bytes are read at once, also the last ones.
            k.copy_bytes(low, source.at(STRING_HEADER), low_size)
            store_wide(k, low.at(low_size), k.constant(0, I64))
            ones = source.at(low_size + STRING_HEADER)
            found, last = _read_bits(k, ones, unary, low, rest, count, begin, target)
            result.store(0, k.select(found.equals(count) & (last < end), whole, -1))


def _read_bits(
    k: Emitter,
    ones: Pointer,
    unary: Value,
    low: Pointer,
    rest: Value,
    count: Value,
    begin: Value,
    target: Pointer,
) -> tuple[Value, Value]:
    """How many places there are, none of them written beyond `count`, and the last."""
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
        several = Value(k, k.ir.ctpop(left.value.raw))
        with k.if_then(found.value + several > count):
            # One too many is enough to be refused.
            found.value = count + 1
            left.value = 0
        with k.while_loop(lambda: left.value.differs(0)):
            one = (number << 6) + Value(k, k.ir.cttz(left.value.raw, I1(1)))
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
    k: Emitter, starts: Value, stops: Value, runs: Value, begin: Value, count: Value, places: Value
) -> None:
    """The places of runs, from what `_split` made of them."""
    first, last = Pointer(k, starts.raw, I32), Pointer(k, stops.raw, I32)
    target = Pointer(k, places.raw, I32)
    from_here = k.variable(0, I64)
    with k.loop(0, runs) as number:
        shift = begin + k.convert(first.load(number), I64) - number
        stop = k.convert(last.load(number), I64) + 1
        with k.loop(from_here.value, stop) as i:
            target.store(i, k.convert(shift + i, I32))
        from_here.value = stop
