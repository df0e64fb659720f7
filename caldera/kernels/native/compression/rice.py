"""Increasing places as bytes, for several messages in one call.

Packed places are how many there are and how many runs (both uint32), then a string of places; or,
if there are runs, one of where these begin and one of where they end. A string has, by Rice's code,
the gap before each place divided by 2**r in unary, and what is left over in r bits:

    r, bits of the unary part (uint32); what is left over, the lowest bits first; the unary part

In the unary part every place has a one, with as many zeros before it as the quotient says. With
r = 0 that is a bitmap of all elements up to the last place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.compression.run import address_of, kernel, run
from caldera.kernels.native.emit import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Emitter,
    Pointer,
    Value,
    Variable,
    natural_lanes,
    vector,
)

HEADER = 16
"""Bytes before the places, if there are no runs."""
_STRING_HEADER = 8
_SLACK = 8
"""Bytes after a string of bits that are read with its last ones."""
_TRIED = 3
"""How many r are compared: around the mean gap, where the best is."""
_WIDEST = 28
_REST, _UNARY, _SIZE, _RUNS = range(4)
"""What is known of places before they are written."""


Span = tuple[int, int]
"""From one number to (but without) another."""


def pack(
    places: np.ndarray, spans: Sequence[Span], parts: Sequence[Span], free: Sequence[int]
) -> list[np.ndarray]:
    """A message for each span of places (int32, increasing), all of which lie in that part of a
    vector; so many bytes are free behind the places.

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
        HEADER + -(-(end - begin) // 8) + room
        for (begin, end), room in zip(parts, free, strict=True)
    ]
    out = np.empty(sum(longest), np.uint8)
    ends = np.empty(len(longest), np.int64)
    most = max((high - low for low, high in spans), default=0)
    run(
        kernel(_build_pack), places, _numbers(spans), _numbers(parts), _numbers(free), len(longest),
        out, ends, np.empty((2, most), np.int32), most,
    )  # fmt: skip
    found = ends.tolist()
    return [out[begin:end] for begin, end in zip([0, *found], found, strict=False)]


def unpack(
    messages: Sequence[np.ndarray], parts: Sequence[Span]
) -> tuple[np.ndarray, list[int], list[int]]:
    """The places of all messages, each in its part of a vector; how many a message has, and how
    many of its bytes these took. Messages that cannot be are refused."""
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
    addresses = [address_of(each) for each in messages]
    sizes = [each.size for each in messages]
    most = max(counts, default=0)
    room = np.empty(max(sizes, default=0) + _SLACK, np.uint8)
    run(
        kernel(_build_unpack), _numbers(addresses), _numbers(sizes), _numbers(parts),
        len(messages), places, taken, room, np.empty((2, most), np.int32), most,
    )  # fmt: skip
    found = taken.tolist()
    for each, length in zip(found, lengths, strict=True):
        if each < 0:
            raise DataError.build(
                "places of a message", expected=f"increasing places below {length}", got="others"
            )
    return places, counts, found


def _numbers(values: Sequence[int] | Sequence[Span]) -> np.ndarray:
    return np.array(values, np.int64)


# --- writing


def _build_pack(k: Emitter) -> None:
    """Slots: places, spans, parts, free, messages, out, ends, room for runs, its width."""
    places, out, ends = k.pointer(0, I32), k.pointer(5, I8), k.pointer(6, I64)
    spans, parts, free = (k.pointer(slot, I64) for slot in (1, 2, 3))
    starts, stops = k.pointer(7, I32), k.pointer(7, I32).at(k.integer(8))
    plain, first, second = (k.stack(I64, 4) for _ in range(3))
    fit = k.inner("fit", [POINTER, I64, I64, POINTER], _fit)
    write = k.inner("write", [POINTER, I64, I64, POINTER, POINTER], _write)
    split = k.inner("split", [POINTER, I64, I64, POINTER, POINTER], _split)
    at = k.variable(0, I64)
    with k.loop(0, k.integer(4)) as number:
        low = spans.load(number * 2)
        count, begin = spans.load(number * 2 + 1) - low, parts.load(number * 2)
        mine = places.at(low)
        k.call(fit, mine, count, begin, plain)
        runs = k.variable(0, I64)
        # Runs have to be two places long on average to be worth their ends.
        with k.when(plain.load(_RUNS) * 2 < count):
            k.call(split, mine, count, begin, starts, stops)
            k.call(fit, starts, plain.load(_RUNS), k.constant(0, I64), first)
            k.call(fit, stops, plain.load(_RUNS), k.constant(0, I64), second)
            smaller = first.load(_SIZE) + second.load(_SIZE) < plain.load(_SIZE)
            runs.value = k.select(smaller, plain.load(_RUNS), 0)
        here = out.at(at.value)
        _put(k, here, count)
        _put(k, here.at(4), runs.value)
        strings = here.at(HEADER - _STRING_HEADER)
        with k.either(runs.value.equals(0)) as (as_places, as_runs):
            with as_places:
                k.call(write, mine, count, begin, plain, strings)
                at.value = at.value + plain.load(_SIZE)
            with as_runs:
                k.call(write, starts, runs.value, k.constant(0, I64), first, strings)
                after = strings.at(first.load(_SIZE))
                k.call(write, stops, runs.value, k.constant(0, I64), second, after)
                at.value = at.value + first.load(_SIZE) + second.load(_SIZE)
        at.value = at.value + (HEADER - _STRING_HEADER) + free.load(number)
        ends.store(number, at.value)


def _fit(k: Emitter, places: Value, count: Value, begin: Value, found: Value) -> None:
    """The r for which some places take fewest bytes, its unary bits, these bytes, and the runs."""
    source, result = Pointer(k, places.raw, I32), Pointer(k, found.raw, I64)
    last = k.variable(begin - 1)
    with k.when(count > 0):
        last.value = k.convert(source.load(count - 1), I64)
    span = last.value - begin + 1
    # r = 0 is a bitmap, and never more than one bit an element.
    for index, value in ((_REST, 0), (_UNARY, span), (_SIZE, (span + 7) // 8)):
        result.store(index, k.constant(value, I64))
    mean = span // k.maximum(count, 1) | 1
    logarithm = 63 - Value(k, k.ir.ctlz(mean.raw, I1(0)))
    guess = k.minimum(k.maximum(logarithm - 1, 0), _WIDEST)
    sums, runs = _gaps(k, source, count, begin, guess)
    for turn, total in enumerate(sums):
        unary, rest = total + count, guess + turn
        size = (unary + 7) // 8 + (count * rest + 7) // 8
        with k.when(size < result.load(_SIZE)):
            for index, value in ((_REST, rest), (_UNARY, unary), (_SIZE, size)):
                result.store(index, value)
    result.store(_SIZE, result.load(_SIZE) + _STRING_HEADER)
    result.store(_RUNS, runs)


def _gaps(
    k: Emitter, places: Pointer, count: Value, begin: Value, guess: Value
) -> tuple[list[Value], Value]:
    """The gaps before all places, divided by 2**r for each r that is tried and added up; and how
    many runs there are. No sum is larger than the last place."""
    lanes = natural_lanes(I32)
    several = [k.variable(0, vector(I32, lanes)) for _ in range(_TRIED + 1)]
    single = [k.variable(0, I32) for _ in range(_TRIED + 1)]

    def add(gap: Value, totals: list[Variable]) -> None:
        *sums, runs = totals
        for turn, total in enumerate(sums):
            total.value = total.value + k.shift_right(gap, k.convert(guess + turn, I32))
        runs.value = runs.value + k.convert(gap.differs(0), I32)

    def look(i: Value, width: int) -> None:
        gap = places.load(i, width) - places.load(i - 1, width) - 1
        add(gap, several if width > 1 else single)

    with k.when(count > 0):
        add(places.load(0) - k.convert(begin, I32), single)
        # The first place begins a run even where there is no gap before it.
        first = k.convert(places.load(0), I64).equals(begin)
        single[-1].value = single[-1].value + k.convert(first, I32)
    k.in_vectors(1, count, lanes, look)
    *sums, runs = (
        k.convert(one.value + k.total(all_lanes.value, lambda a, b: a + b), I64)
        for one, all_lanes in zip(single, several, strict=True)
    )
    return sums, runs


def _write(
    k: Emitter, places: Value, count: Value, begin: Value, fitted: Value, out: Value
) -> None:
    """A string of places."""
    source, known = Pointer(k, places.raw, I32), Pointer(k, fitted.raw, I64)
    target = Pointer(k, out.raw, I8)
    rest, unary = known.load(_REST), known.load(_UNARY)
    _put(k, target, rest)
    _put(k, target.at(4), unary)
    low = target.at(_STRING_HEADER)
    low_size = (count * rest + 7) // 8
    ones = low.at(low_size)
    mask = (k.constant(1, I64) << rest) - 1
    before = k.variable(begin - 1)
    # Both strings are put together in registers, and written a word at a time.
    following, word, held, written, filled, lower = (k.variable(0, I64) for _ in range(6))
    with k.loop(0, count) as i:
        place = k.convert(source.load(i), I64)
        gap = place - before.value - 1
        before.value = place
        one = following.value + k.shift_right(gap, rest)
        following.value = one + 1
        with k.repeat_while(lambda: word.value < k.shift_right(one, 6)):
            _store(k, ones.at(word.value << 3), held.value)
            word.value = word.value + 1
            held.value = 0
        held.value = held.value | (k.constant(1, I64) << (one & 63))
        lower.value = lower.value | ((gap & mask) << filled.value)
        filled.value = filled.value + rest
        with k.when(filled.value >= 32):
            _put(k, low.at(written.value), lower.value)
            lower.value = k.shift_right(lower.value, 32)
            written.value = written.value + 4
            filled.value = filled.value - 32
    # The last bytes: what follows them is not ours, or has been written already.
    end = k.stack(I64, 1)
    done = word.value << 3
    end.store(0, held.value)
    k.copy_bytes(ones.at(done), end, (unary + 7) // 8 - done)
    end.store(0, lower.value)
    k.copy_bytes(low.at(written.value), end, low_size - written.value)


def _split(
    k: Emitter, places: Value, count: Value, begin: Value, starts: Value, stops: Value
) -> None:
    """The runs of neighbours: where they would begin if each were one place long, and the number
    of the last place in each. Both increase as places do."""
    source = Pointer(k, places.raw, I32)
    first, last = Pointer(k, starts.raw, I32), Pointer(k, stops.raw, I32)
    runs = k.variable(0, I64)
    before = k.variable(begin - 2)
    with k.loop(0, count) as i:
        place = k.convert(source.load(i), I64)
        with k.when(place.differs(before.value + 1)):
            first.store(runs.value, k.convert(place - begin - i + runs.value, I32))
            runs.value = runs.value + 1
        last.store(runs.value - 1, k.convert(i, I32))
        before.value = place


# --- reading


def _build_unpack(k: Emitter) -> None:
    """Slots: addresses, sizes, parts, messages, places, taken, room for a string, room for runs,
    its width."""
    addresses, sizes, parts = (k.pointer(slot, I64) for slot in range(3))
    places, taken, room = k.pointer(4, I32), k.pointer(5, I64), k.pointer(6, I8)
    starts, stops = k.pointer(7, I32), k.pointer(7, I32).at(k.integer(8))
    read = k.inner("read", [POINTER, I64, I64, I64, I64, POINTER, POINTER, POINTER], _read)
    spread = k.inner("spread", [POINTER, POINTER, I64, I64, I64, POINTER], _spread)
    found = k.variable(0, I64)
    result = k.stack(I64, 1)
    zero = k.constant(0, I64)
    with k.loop(0, k.integer(3)) as number:
        message = k.at_address(addresses.load(number), I8)
        begin, end = parts.load(number * 2), parts.load(number * 2 + 1)
        length = end - begin
        count, runs = _get(k, message), _get(k, message.at(4))
        strings = message.at(HEADER - _STRING_HEADER)
        size = sizes.load(number) - (HEADER - _STRING_HEADER)
        mine = places.at(found.value)
        with k.either(runs.equals(0)) as (as_places, as_runs):
            with as_places:
                k.call(read, strings, size, count, begin, end, mine, room, result)
            with as_runs:
                # There are no more runs than places, which there is room for.
                result.store(0, -1)
                with k.when(runs <= count):
                    k.call(read, strings, size, runs, zero, length, starts, room, result)
                first = result.load(0)
                with k.when(first >= 0):
                    after, left = strings.at(first), size - first
                    k.call(read, after, left, runs, zero, count, stops, room, result)
                    whole = k.convert(stops.load(runs - 1), I64).equals(count - 1)
                    reach = k.convert(starts.load(runs - 1), I64) + count - runs
                    right = (result.load(0) >= 0) & whole & (reach < length)
                    both = first + result.load(0)
                    result.store(0, k.select(right, both, -1))
                    with k.when(right):
                        k.call(spread, starts, stops, runs, begin, count, mine)
        header = HEADER - _STRING_HEADER
        taken.store(number, k.select(result.load(0) >= 0, result.load(0) + header, -1))
        found.value = found.value + count


def _read(
    k: Emitter, string: Value, size: Value, count: Value, begin: Value, end: Value, places: Value,
    room: Value, taken: Value,
) -> None:  # fmt: skip
    """The places of a string; to `taken` its bytes, or -1 if it cannot be."""
    source, target = Pointer(k, string.raw, I8), Pointer(k, places.raw, I32)
    low, result = Pointer(k, room.raw, I8), Pointer(k, taken.raw, I64)
    result.store(0, -1)
    with k.when(size >= _STRING_HEADER):
        rest, unary = _get(k, source), _get(k, source.at(4))
        low_size = (count * rest + 7) // 8
        whole = low_size + (unary + 7) // 8 + _STRING_HEADER
        # With these bounds no place is too large for 64 bits, whatever a message says.
        sane = (rest < 32) & (unary - count <= end - begin)
        with k.when(sane & (whole <= size)):
            # Eight bytes are read at once, also the last ones.
            k.copy_bytes(low, source.at(_STRING_HEADER), low_size)
            _store(k, low.at(low_size), k.constant(0, I64))
            ones = source.at(low_size + _STRING_HEADER)
            found, last = _read_bits(k, ones, unary, low, rest, count, begin, target)
            result.store(0, k.select(found.equals(count) & (last < end), whole, -1))


def _read_bits(
    k: Emitter, ones: Pointer, unary: Value, low: Pointer, rest: Value, count: Value,
    begin: Value, target: Pointer,
) -> tuple[Value, Value]:  # fmt: skip
    """How many places there are, none of them written beyond `count`, and the last."""
    mask = (k.constant(1, I64) << rest) - 1
    found, bit = k.variable(0, I64), k.variable(0, I64)
    # A place is the zeros before it times 2**r, all that was left over so far, and the places.
    behind = k.variable(begin)
    left, latest = k.variable(0, I64), k.variable(begin - 1)
    last = k.stack(I64, 1)
    with k.loop(0, (unary + 63) // 64) as number:
        size = k.minimum((unary + 7) // 8 - (number << 3), 8)
        last.store(0, 0)
        with k.either(size.equals(8)) as (inside, at_the_end):
            with inside:
                left.value = _load(k, ones.at(number << 3))
            with at_the_end:
                k.copy_bytes(last, ones.at(number << 3), size)
                left.value = last.load(0)
        several = Value(k, k.ir.ctpop(left.value.raw))
        with k.when(found.value + several > count):
            # One too many is enough to be refused.
            found.value = count + 1
            left.value = 0
        with k.repeat_while(lambda: left.value.differs(0)):
            one = (number << 6) + Value(k, k.ir.cttz(left.value.raw, I1(1)))
            left.value = left.value & (left.value - 1)
            lower = k.shift_right(_load(k, low.at(k.shift_right(bit.value, 3))), bit.value & 7)
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


# --- words that begin anywhere


def _get(k: Emitter, place: Pointer) -> Value:
    """Four bytes as a number that is not negative."""
    word = Value(k, k.ir.load(place.raw, typ=I32, align=1))
    return k.convert(word, I64, unsigned=True)


def _put(k: Emitter, place: Pointer, value: Value) -> None:
    k.ir.store(k.convert(value, I32).raw, place.raw, align=1)


def _load(k: Emitter, place: Pointer) -> Value:
    return Value(k, k.ir.load(place.raw, typ=I64, align=1))


def _store(k: Emitter, place: Pointer, value: Value) -> None:
    k.ir.store(value.raw, place.raw, align=1)
