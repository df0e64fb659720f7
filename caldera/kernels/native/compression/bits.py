"""Integers of a few bits, packed without a gap: the lowest bits of the first byte come first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.compression.run import kernel, run
from caldera.kernels.native.emit import I8, I32, I64, Emitter, Number, Pointer

_GROUP = 32
"""As many integers of any width fill whole words of 32 bits."""
_WORTH_SPLITTING = 1 << 16
_KINDS = {1: I8, 4: I32}


def pack_bits(integers: np.ndarray, width: int) -> np.ndarray:
    """The lowest `width` bits (1 to 32) of integers (uint8 or int32) as bytes.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import pack_bits, unpack_bits
    >>> packed = pack_bits(np.array([1, 2, 3, 4, 5], np.uint8), 3)
    >>> packed.nbytes, unpack_bits(packed, 5, 3, "uint8").tolist()
    (2, [1, 2, 3, 4, 5])
    """
    packed = np.empty(-(-integers.size * width // 8), np.uint8)
    address = kernel(_build_pack, width=width, size=integers.itemsize)
    run(address, integers, packed, integers.size, size=integers.size, worth=_WORTH_SPLITTING)
    return packed


def unpack_bits(packed: np.ndarray, count: int, width: int, dtype: str = "int32") -> np.ndarray:
    """The `count` integers that were packed; `dtype` is uint8 (up to 8 bits) or int32."""
    if packed.size * 8 < count * width:
        raise DataError.build(
            "unpack_bits", expected=f"{-(-count * width // 8)} bytes", got=f"{packed.size}"
        )
    integers = np.empty(count, dtype)
    address = kernel(_build_unpack, width=width, size=integers.itemsize)
    run(address, packed, integers, count, size=count, worth=_WORTH_SPLITTING)
    return integers


def _mask(width: int) -> int:
    return (1 << width) - 1


def _build_pack(k: Emitter, width: int, size: int) -> None:
    """Slots: integers, packed, count."""
    integers, packed = k.pointer(0, _KINDS[size]), k.pointer(1, I8)

    def pack(source: Pointer, target: Pointer) -> None:
        words = target.cast(I32)
        held = k.constant(0, I64)
        filled = written = 0
        for i in range(_GROUP):
            integer = k.convert(source.load(i), I64, unsigned=True)
            held = held | ((integer & _mask(width)) << filled)
            filled += width
            if filled >= 32:
                words.store(written, k.convert(held, I32))
                held = k.shift_right(held, 32)
                filled -= 32
                written += 1

    _in_groups(k, integers, packed, lambda n: n * size, lambda n: (n * width + 7) // 8, pack)


def _build_unpack(k: Emitter, width: int, size: int) -> None:
    """Slots: packed, integers, count."""
    packed, integers = k.pointer(0, I8), k.pointer(1, _KINDS[size])

    def unpack(source: Pointer, target: Pointer) -> None:
        words = source.cast(I32)
        held = k.constant(0, I64)
        filled = read = 0
        for i in range(_GROUP):
            if filled < width:
                held = held | (k.convert(words.load(read), I64, unsigned=True) << filled)
                filled += 32
                read += 1
            target.store(i, k.convert(held & _mask(width), target.type))
            held = k.shift_right(held, width)
            filled -= width

    _in_groups(k, packed, integers, lambda n: (n * width + 7) // 8, lambda n: n * size, unpack)


def _in_groups(
    k: Emitter,
    source: Pointer,
    target: Pointer,
    taken: Callable[[Number], Number],
    given: Callable[[Number], Number],
    act: Callable[[Pointer, Pointer], None],
) -> None:
    """`act(source, target)` on every group; `taken` and `given` are the bytes of n integers.

    The last group, if it is not whole, goes through memory of its own.
    """
    begin, end = k.share(k.integer(2), _GROUP)
    whole = begin + (end - begin) // _GROUP * _GROUP
    with k.loop(begin, whole, _GROUP) as first:
        act(source.bytes_on(taken(first)), target.bytes_on(given(first)))
    with k.when(whole < end):
        rest = end - whole
        before, after = k.stack(I64, _GROUP), k.stack(I64, _GROUP)
        k.clear_bytes(before, _GROUP * 8)
        k.copy_bytes(before, source.bytes_on(taken(whole)), taken(rest))
        act(before.cast(source.type), after.cast(target.type))
        k.copy_bytes(target.bytes_on(given(whole)), after, given(rest))
