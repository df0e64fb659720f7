"""Packing places by Rice's code; `rice` has the layout."""

from __future__ import annotations

from caldera.kernels.native.codegen import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Emitter,
    Integer,
    MutableRegister,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
    vector,
)

HEADER = 16
"""Bytes before the indices of a message without runs."""
STRING_HEADER = 8
_TRIED = 3
"""Number of values of r to compare; the best one is near the mean gap."""
_WIDEST = 28
_REST, _UNARY, _SIZE, _RUNS = range(4)
"""Properties of an index set that are computed before it is written."""


@native_kernel
def pack_places(
    k: Emitter,
    places: Pointer,
    spans: Pointer,
    reach: Pointer,
    free: Pointer,
    messages: Integer,
    out: Pointer,
    ends: Pointer,
    spare: Pointer,
    most: Integer,
) -> None:
    """Messages of spans of places, each in its part of a vector (`reach`), with some bytes left
    free behind each; `spare` is room for two times the runs that one has at most."""
    starts, stops = spare, spare.at(most)
    plain, first, second = (k.alloca(I64, 4) for _ in range(3))
    fit = k.internal_function("fit", [POINTER, I64, I64, POINTER], _fit)
    write = k.internal_function("write", [POINTER, I64, I64, POINTER, POINTER], _write)
    split = k.internal_function("split", [POINTER, I64, I64, POINTER, POINTER], _split)
    at = k.variable(0, I64)
    with k.loop(0, messages) as number:
        low = spans.load(number * 2)
        count, begin = spans.load(number * 2 + 1) - low, reach.load(number * 2)
        mine = places.at(low)
        k.call(fit, mine, count, begin, plain)
        runs = k.variable(0, I64)
        # Runs have to be two places long on average to be worth their ends.
        with k.if_then(plain.load(_RUNS) * 2 < count):
            k.call(split, mine, count, begin, starts, stops)
            k.call(fit, starts, plain.load(_RUNS), k.constant(0, I64), first)
            k.call(fit, stops, plain.load(_RUNS), k.constant(0, I64), second)
            smaller = first.load(_SIZE) + second.load(_SIZE) < plain.load(_SIZE)
            runs.value = k.select(smaller, plain.load(_RUNS), 0)
        here = out.at(at.value)
        put_word(k, here, count)
        put_word(k, here.at(4), runs.value)
        strings = here.at(HEADER - STRING_HEADER)
        with k.if_else(runs.value.equals(0)) as (as_places, as_runs):
            with as_places:
                k.call(write, mine, count, begin, plain, strings)
                at.value = at.value + plain.load(_SIZE)
            with as_runs:
                k.call(write, starts, runs.value, k.constant(0, I64), first, strings)
                after = strings.at(first.load(_SIZE))
                k.call(write, stops, runs.value, k.constant(0, I64), second, after)
                at.value = at.value + first.load(_SIZE) + second.load(_SIZE)
        at.value = at.value + (HEADER - STRING_HEADER) + free.load(number)
        ends.store(number, at.value)


def _fit(
    k: Emitter,
    places: RegisterValue,
    count: RegisterValue,
    begin: RegisterValue,
    found: RegisterValue,
) -> None:
    """The r for which some places take fewest bytes, its unary bits, these bytes, and the runs."""
    source, result = Pointer(k, places.raw, I32), Pointer(k, found.raw, I64)
    last = k.variable(begin - 1)
    with k.if_then(count > 0):
        last.value = k.convert(source.load(count - 1), I64)
    span = last.value - begin + 1
    # r = 0 is a bitmap, and never more than one bit an element.
    for index, value in ((_REST, 0), (_UNARY, span), (_SIZE, (span + 7) // 8)):
        result.store(index, k.constant(value, I64))
    mean = span // k.maximum(count, 1) | 1
    logarithm = 63 - RegisterValue(k, k.ir.ctlz(mean.raw, I1(0)))
    guess = k.minimum(k.maximum(logarithm - 1, 0), _WIDEST)
    sums, runs = _gaps(k, source, count, begin, guess)
    for turn, total in enumerate(sums):
        unary, rest = total + count, guess + turn
        size = (unary + 7) // 8 + (count * rest + 7) // 8
        with k.if_then(size < result.load(_SIZE)):
            for index, value in ((_REST, rest), (_UNARY, unary), (_SIZE, size)):
                result.store(index, value)
    result.store(_SIZE, result.load(_SIZE) + STRING_HEADER)
    result.store(_RUNS, runs)


def _gaps(
    k: Emitter, places: Pointer, count: RegisterValue, begin: RegisterValue, guess: RegisterValue
) -> tuple[list[RegisterValue], RegisterValue]:
    """Return the sum of gap // 2**r for each candidate r, and the number of runs.

    No sum is larger than the last index.
    """
    lanes = natural_lanes(I32)
    several = [k.variable(0, vector(I32, lanes)) for _ in range(_TRIED + 1)]
    single = [k.variable(0, I32) for _ in range(_TRIED + 1)]

    def add(gap: RegisterValue, totals: list[MutableRegister]) -> None:
        *sums, runs = totals
        for turn, total in enumerate(sums):
            total.value = total.value + k.shift_right(gap, k.convert(guess + turn, I32))
        runs.value = runs.value + k.convert(gap.differs(0), I32)

    with k.if_then(count > 0):
        add(places.load(0) - k.convert(begin, I32), single)
        # The first index starts a run even without a gap before it.
        first = k.convert(places.load(0), I64).equals(begin)
        single[-1].value = single[-1].value + k.convert(first, I32)
    for i, width in k.vectors(1, count, lanes, 1):
        gap = places.load(i, width) - places.load(i - 1, width) - 1
        add(gap, several if width > 1 else single)
    *sums, runs = (
        k.convert(one.value + k.reduce_lanes(all_lanes.value, lambda a, b: a + b), I64)
        for one, all_lanes in zip(single, several, strict=True)
    )
    return sums, runs


def _write(
    k: Emitter,
    places: RegisterValue,
    count: RegisterValue,
    begin: RegisterValue,
    fitted: RegisterValue,
    out: RegisterValue,
) -> None:
    """Write indices as a bit string."""
    source, known = Pointer(k, places.raw, I32), Pointer(k, fitted.raw, I64)
    target = Pointer(k, out.raw, I8)
    rest, unary = known.load(_REST), known.load(_UNARY)
    put_word(k, target, rest)
    put_word(k, target.at(4), unary)
    low = target.at(STRING_HEADER)
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
        with k.while_loop(lambda: word.value < k.shift_right(one, 6)):
            store_wide(k, ones.at(word.value << 3), held.value)
            word.value = word.value + 1
            held.value = 0
        held.value = held.value | (k.constant(1, I64) << (one & 63))
        lower.value = lower.value | ((gap & mask) << filled.value)
        filled.value = filled.value + rest
        with k.if_then(filled.value >= 32):
            put_word(k, low.at(written.value), lower.value)
            lower.value = k.shift_right(lower.value, 32)
            written.value = written.value + 4
            filled.value = filled.value - 32
    # The last bytes: what follows them is not ours, or has been written already.
    end = k.alloca(I64, 1)
    done = word.value << 3
    end.store(0, held.value)
    k.copy_bytes(ones.at(done), end, (unary + 7) // 8 - done)
    end.store(0, lower.value)
    k.copy_bytes(low.at(written.value), end, low_size - written.value)


def _split(
    k: Emitter,
    places: RegisterValue,
    count: RegisterValue,
    begin: RegisterValue,
    starts: RegisterValue,
    stops: RegisterValue,
) -> None:
    """Split indices into runs of consecutive ones.

    `starts` receives the start of each run as if every previous run were a single index long.
    `stops` receives the number of the last index in each run. Both increase as indices do.
    """
    source = Pointer(k, places.raw, I32)
    first, last = Pointer(k, starts.raw, I32), Pointer(k, stops.raw, I32)
    runs = k.variable(0, I64)
    before = k.variable(begin - 2)
    with k.loop(0, count) as i:
        place = k.convert(source.load(i), I64)
        with k.if_then(place.differs(before.value + 1)):
            first.store(runs.value, k.convert(place - begin - i + runs.value, I32))
            runs.value = runs.value + 1
        last.store(runs.value - 1, k.convert(i, I32))
        before.value = place


# --- words in memory that begin anywhere


def get_word(k: Emitter, place: Pointer) -> RegisterValue:
    """Return four bytes as a number that is not negative."""
    return k.convert(RegisterValue(k, k.ir.load(place.raw, typ=I32, align=1)), I64, unsigned=True)


def put_word(k: Emitter, place: Pointer, value: RegisterValue) -> None:
    """Write the lowest four bytes of a number."""
    k.ir.store(k.convert(value, I32).raw, place.raw, align=1)


def load_wide(k: Emitter, place: Pointer) -> RegisterValue:
    """Return eight bytes."""
    return RegisterValue(k, k.ir.load(place.raw, typ=I64, align=1))


def store_wide(k: Emitter, place: Pointer, value: RegisterValue) -> None:
    """Write eight bytes."""
    k.ir.store(value.raw, place.raw, align=1)
