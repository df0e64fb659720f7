"""Words in memory that begin anywhere."""

from __future__ import annotations

from caldera.kernels.native.codegen.emitter import I32, I64, Emitter, Pointer, Value


def get_word(k: Emitter, place: Pointer) -> Value:
    """Four bytes as a number that is not negative."""
    word = Value(k, k.ir.load(place.raw, typ=I32, align=1))
    return k.convert(word, I64, unsigned=True)


def put_word(k: Emitter, place: Pointer, value: Value) -> None:
    """Write the lowest four bytes of a number."""
    k.ir.store(k.convert(value, I32).raw, place.raw, align=1)


def load_wide(k: Emitter, place: Pointer) -> Value:
    """Eight bytes."""
    return Value(k, k.ir.load(place.raw, typ=I64, align=1))


def store_wide(k: Emitter, place: Pointer, value: Value) -> None:
    """Write eight bytes."""
    k.ir.store(value.raw, place.raw, align=1)
