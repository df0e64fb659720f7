"""Values of native kernels: LLVM's types, numbers in registers, addresses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Union

from llvmlite import ir

from caldera.kernels.native.codegen.target import CACHE_LINE, host_target

if TYPE_CHECKING:
    from caldera.kernels.native.codegen.arithmetic import Arithmetic
    from caldera.kernels.native.codegen.emitter import Emitter

F16 = ir.HalfType()
F32 = ir.FloatType()
F64 = ir.DoubleType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()

Number = Union["RegisterValue", int, float]
_BYTES = {"half": 2, "float": 4, "double": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


def itemsize(kind: ir.Type) -> int:
    """Return the size in bytes of an element in memory."""
    return _BYTES[str(element(kind))]


def element(kind: ir.Type) -> ir.Type:
    """Return the type of a lane."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def lanes(kind: ir.Type) -> int:
    """Return the number of lanes of a type; 1 for a scalar."""
    return int(kind.count) if isinstance(kind, ir.VectorType) else 1


@cache
def vector(kind: ir.Type, count: int) -> ir.Type:
    """Return the type of `count` lanes; the scalar itself for one.

    Cached, because each new type object would format its name again.
    """
    return ir.VectorType(kind, count) if count > 1 else kind


def is_floating(kind: ir.Type) -> bool:
    """Return True if a type is floating point, or a vector of floating-point lanes."""
    return isinstance(element(kind), ir.HalfType | ir.FloatType | ir.DoubleType)


def natural_lanes(kind: ir.Type) -> int:
    """Return the number of elements that fit into a vector register of this machine."""
    return host_target().lanes(itemsize(kind))


def line_lanes(kind: ir.Type) -> int:
    """Return elements of a cache line, or of a vector register if that holds more: processors are
    slow to write lines in pieces."""
    return max(natural_lanes(kind), CACHE_LINE // itemsize(kind))


def shrinking(widest: int) -> tuple[int, ...]:
    """Return widths of vectors for `in_widths`: the widest, a quarter of that, and so on to 1.

    Every width needs separate code, which takes time to compile; a few iterations of a loop do not.

    >>> shrinking(16)
    (16, 4, 1)
    """
    widths = [widest]
    while widths[-1] > 1:
        widths.append(max(1, widths[-1] // 4))
    return tuple(widths)


class RegisterValue:
    """A number (or a vector of numbers) in a register, with Python's operators.

    The second operand may be a Python number, which becomes a constant of the same type. A scalar
    is broadcast to all lanes of a vector.
    """

    __slots__ = ("k", "raw")

    def __init__(self, k: Arithmetic, raw: Any) -> None:
        self.k = k
        self.raw = raw

    @property
    def type(self) -> ir.Type:
        """LLVM's type of the value."""
        return self.raw.type

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return lanes(self.raw.type)

    def __add__(self, other: Number) -> RegisterValue:
        return self.k.binary("fadd", "add", self, other)

    def __radd__(self, other: Number) -> RegisterValue:
        return self.k.binary("fadd", "add", other, self)

    def __sub__(self, other: Number) -> RegisterValue:
        return self.k.binary("fsub", "sub", self, other)

    def __rsub__(self, other: Number) -> RegisterValue:
        return self.k.binary("fsub", "sub", other, self)

    def __mul__(self, other: Number) -> RegisterValue:
        return self.k.binary("fmul", "mul", self, other)

    def __rmul__(self, other: Number) -> RegisterValue:
        return self.k.binary("fmul", "mul", other, self)

    def __truediv__(self, other: Number) -> RegisterValue:
        return self.k.binary("fdiv", "", self, other)

    def __rtruediv__(self, other: Number) -> RegisterValue:
        return self.k.binary("fdiv", "", other, self)

    def __floordiv__(self, other: Number) -> RegisterValue:
        """Return division of integers that are not negative."""
        return self.k.binary("", "sdiv", self, other)

    def __mod__(self, other: Number) -> RegisterValue:
        """Return remainder of integers that are not negative."""
        return self.k.binary("", "srem", self, other)

    def __neg__(self) -> RegisterValue:
        if is_floating(self.type):
            return RegisterValue(self.k, self.k.ir.fneg(self.raw))
        return RegisterValue(self.k, self.k.ir.neg(self.raw))

    def __and__(self, other: Number) -> RegisterValue:
        return self.k.binary("", "and_", self, other)

    def __or__(self, other: Number) -> RegisterValue:
        return self.k.binary("", "or_", self, other)

    def __xor__(self, other: Number) -> RegisterValue:
        return self.k.binary("", "xor", self, other)

    def __invert__(self) -> RegisterValue:
        return RegisterValue(self.k, self.k.ir.not_(self.raw))

    def __lshift__(self, other: Number) -> RegisterValue:
        return self.k.binary("", "shl", self, other)

    def __rshift__(self, other: Number) -> RegisterValue:
        """Shift to the right that keeps the sign; `k.shift_right` fills with zeros."""
        return self.k.binary("", "ashr", self, other)

    # Comparisons are ordered: with a nan all are false but `!=`.

    def __lt__(self, other: Number) -> RegisterValue:
        return self.k.compare("<", self, other)

    def __le__(self, other: Number) -> RegisterValue:
        return self.k.compare("<=", self, other)

    def __gt__(self, other: Number) -> RegisterValue:
        return self.k.compare(">", self, other)

    def __ge__(self, other: Number) -> RegisterValue:
        return self.k.compare(">=", self, other)

    def equals(self, other: Number) -> RegisterValue:
        """self == other, lane by lane (`==` itself stays Python's, so values can be keys)."""
        return self.k.compare("==", self, other)

    def differs(self, other: Number) -> RegisterValue:
        """self != other, lane by lane; true where either is a nan."""
        return self.k.compare("!=", self, other)

    def lane(self, index: int) -> RegisterValue:
        """Return a lane as a scalar; a scalar is returned unchanged."""
        if not isinstance(self.raw.type, ir.VectorType):
            return self
        return RegisterValue(self.k, self.k.ir.extract_element(self.raw, I32(index)))


class MutableRegister:
    """A register that may be written again: `total.value = total.value + x`."""

    __slots__ = ("_k", "_place", "type")

    def __init__(self, k: Emitter, kind: ir.Type) -> None:
        self._k = k
        self.type = kind
        with k.ir.goto_entry_block():
            self._place = k.ir.alloca(kind)

    @property
    def value(self) -> RegisterValue:
        """Current value."""
        return RegisterValue(self._k, self._k.ir.load(self._place, typ=self.type))

    @value.setter
    def value(self, value: Number) -> None:
        self._k.ir.store(self._k.constant(value, self.type).raw, self._place)


class Pointer:
    """An address of elements of a single type; indices count elements."""

    __slots__ = ("k", "raw", "type")

    def __init__(self, k: Emitter, raw: Any, kind: ir.Type) -> None:
        self.k = k
        self.raw = raw
        self.type = kind

    def at(self, index: Number) -> Pointer:
        """Return the address of the element with this index."""
        offset = self.k.constant(index, I64).raw
        return Pointer(
            self.k,
            self.k.ir.gep(self.raw, [offset], inbounds=True, source_etype=self.type),
            self.type,
        )

    def bytes_on(self, count: Number) -> Pointer:
        """Return the address `count` bytes further on."""
        offset = self.k.constant(count, I64).raw
        return Pointer(
            self.k, self.k.ir.gep(self.raw, [offset], inbounds=True, source_etype=I8), self.type
        )

    def cast(self, kind: ir.Type) -> Pointer:
        """Return the same address with another element type."""
        return Pointer(self.k, self.raw, kind)

    def load(
        self, index: Number = 0, count: int = 1, mask: RegisterValue | None = None
    ) -> RegisterValue:
        """Load the element with this index, or the vector of `count` elements that starts there.

        Only the alignment of an element is required. Lanes that a mask leaves out are 0, and their
        memory is not touched.
        """
        place, kind = self.at(index).raw, vector(self.type, count)
        if mask is None:
            raw = self.k.ir.load(place, typ=kind, align=itemsize(self.type))
            return RegisterValue(self.k, raw)
        signature = ir.FunctionType(kind, [POINTER, I32, mask.type, kind])
        function = self.k.declared(f"llvm.masked.load.{_mangled(kind)}.p0", signature)
        align, zeros = I32(itemsize(self.type)), ir.Constant(kind, None)
        return RegisterValue(self.k, self.k.ir.call(function, [place, align, mask.raw, zeros]))

    def store(self, index: Number, value: Number, mask: RegisterValue | None = None) -> None:
        """Write an element, or as many as the vector has lanes, from this index on; only the lanes
        of the mask, if there is one."""
        if not isinstance(value, RegisterValue):
            value = self.k.constant(value, self.type)
        place = self.at(index).raw
        if mask is None:
            self.k.ir.store(value.raw, place, align=itemsize(self.type))
            return
        signature = ir.FunctionType(ir.VoidType(), [value.type, POINTER, I32, mask.type])
        function = self.k.declared(f"llvm.masked.store.{_mangled(value.type)}.p0", signature)
        align = I32(itemsize(self.type))
        self.k.ir.call(function, [value.raw, place, align, mask.raw])


def _mangled(kind: ir.VectorType) -> str:
    """Return a vector's type as it is part of an intrinsic's name."""
    of = kind.element
    number = of.width if isinstance(of, ir.IntType) else 8 * itemsize(of)
    return f"v{kind.count}{'i' if isinstance(of, ir.IntType) else 'f'}{number}"
