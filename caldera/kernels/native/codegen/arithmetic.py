"""Arithmetic in native kernels: constants, comparisons, conversions and lanes of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from caldera.kernels.native.codegen.values import (
    I1,
    I32,
    MutableRegister,
    Number,
    RegisterValue,
    element,
    is_floating,
    itemsize,
    lanes,
    vector,
)


class Arithmetic:
    """Writes instructions that compute values from values, at the end of a function."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.module = function.module
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))

    # --- constants and vectors

    def constant(self, value: Number, kind: ir.Type) -> RegisterValue:
        """Return a Python number as a constant of this type.

        A scalar Value repeated to fit a vector.
        """
        if isinstance(value, RegisterValue):
            if lanes(kind) > 1 and value.lanes == 1:
                return self.splat(value, lanes(kind))
            return value
        if isinstance(kind, ir.VectorType):
            scalar = ir.Constant(kind.element, _literal(value, kind.element))
            return RegisterValue(self, _Splat(kind, scalar))
        return RegisterValue(self, ir.Constant(kind, _literal(value, kind)))

    def splat(self, value: RegisterValue, count: int) -> RegisterValue:
        """Return a scalar in all lanes of a vector."""
        if count == 1:
            return value
        kind = vector(value.type, count)
        single = self.ir.insert_element(ir.Constant(kind, ir.Undefined), value.raw, I32(0))
        mask = ir.Constant(vector(I32, count), None)
        return RegisterValue(
            self, self.ir.shuffle_vector(single, ir.Constant(kind, ir.Undefined), mask)
        )

    def vector_of(self, values: Sequence[RegisterValue]) -> RegisterValue:
        """Return scalars as the lanes of a vector; the scalar itself if there is but one."""
        if len(values) == 1:
            return values[0]
        raw = ir.Constant(vector(values[0].type, len(values)), ir.Undefined)
        for index, value in enumerate(values):
            raw = self.ir.insert_element(raw, value.raw, I32(index))
        return RegisterValue(self, raw)

    def shuffle(
        self, a: RegisterValue, b: RegisterValue | None, picks: Sequence[int]
    ) -> RegisterValue:
        """Lanes picked from `a` (0, 1, ...) and then `b`."""
        other = ir.Constant(a.type, ir.Undefined) if b is None else b.raw
        return RegisterValue(self, self.ir.shuffle_vector(a.raw, other, _mask(tuple(picks))))

    def broadcast_lane(self, a: RegisterValue, lane: int) -> RegisterValue:
        """Copy one lane of a vector to all lanes."""
        return self.shuffle(a, None, [lane] * a.lanes)

    def pair(self, a: Number, b: Number) -> tuple[RegisterValue, RegisterValue]:
        """Convert both operands to the same type."""
        if not isinstance(a, RegisterValue):
            assert isinstance(b, RegisterValue)
            return self.constant(a, b.type), b
        if not isinstance(b, RegisterValue):
            return a, self.constant(b, a.type)
        if a.lanes != b.lanes:
            count = max(a.lanes, b.lanes)
            a = self.splat(a, count) if a.lanes == 1 else a
            b = self.splat(b, count) if b.lanes == 1 else b
        return a, b

    # --- instructions

    def binary(self, floating: str, integer: str, a: Number, b: Number) -> RegisterValue:
        """Emit the instruction for floating-point or for integer operands."""
        x, y = self.pair(a, b)
        name = floating if is_floating(x.type) else integer
        return RegisterValue(self, getattr(self.ir, name)(x.raw, y.raw))

    def compare(self, sign: str, a: Number, b: Number, *, unsigned: bool = False) -> RegisterValue:
        """Return a comparison, lane by lane."""
        x, y = self.pair(a, b)
        if is_floating(x.type):
            if sign == "!=":
                return RegisterValue(self, self.ir.fcmp_unordered(sign, x.raw, y.raw))
            return RegisterValue(self, self.ir.fcmp_ordered(sign, x.raw, y.raw))
        way = self.ir.icmp_unsigned if unsigned else self.ir.icmp_signed
        return RegisterValue(self, way(sign, x.raw, y.raw))

    def shift_right(self, a: RegisterValue, count: Number) -> RegisterValue:
        """Shift to the right that fills with zeros."""
        return self.binary("", "lshr", a, count)

    def select(self, condition: RegisterValue, yes: Number, no: Number) -> RegisterValue:
        """Select `yes` where the condition holds, else `no`."""
        x, y = self.pair(yes, no)
        if condition.lanes > x.lanes:
            x, y = self.splat(x, condition.lanes), self.splat(y, condition.lanes)
        return RegisterValue(self, self.ir.select(condition.raw, x.raw, y.raw))

    def is_nan(self, a: RegisterValue) -> RegisterValue:
        """Return true for lanes that are NaN."""
        return RegisterValue(self, self.ir.fcmp_unordered("uno", a.raw, a.raw))

    def above_or_nan(self, a: RegisterValue, b: RegisterValue) -> RegisterValue:
        """Return true where a > b or either operand is a NaN."""
        return RegisterValue(self, self.ir.fcmp_unordered(">", a.raw, b.raw))

    def minimum(self, a: Number, b: Number) -> RegisterValue:
        """Return the smaller integer, or number (the second if one is a nan)."""
        x, y = self.pair(a, b)
        return self.select(x < y, x, y)

    def maximum(self, a: Number, b: Number) -> RegisterValue:
        """Return the larger integer, or number (the second if one is a nan)."""
        x, y = self.pair(a, b)
        return self.select(x > y, x, y)

    def fma(self, a: Number, b: Number, c: Number) -> RegisterValue:
        """a * b + c, rounded once where the machine has such an instruction."""
        x, y = self.pair(a, b)
        x, z = self.pair(x, c)
        y, z = self.pair(y, z)
        return self.intrinsic("llvm.fmuladd", x, y, z)

    def add_outer_product(
        self,
        sums: Sequence[Sequence[MutableRegister]],
        left: Iterable[RegisterValue],
        right: Sequence[RegisterValue],
    ) -> None:
        """sums[i][j] += left[i] * right[j]; values on the left may be loaded one by one."""
        for row, one in zip(sums, left, strict=True):
            for total, other in zip(row, right, strict=True):
                total.value = self.fma(one, other, total.value)

    def polynomial(self, x: RegisterValue, coefficients: Sequence[float]) -> RegisterValue:
        """Return a polynomial by Horner's rule, the highest power's coefficient first."""
        result = self.constant(coefficients[0], x.type)
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, coefficient)
        return result

    def intrinsic(self, name: str, *operands: RegisterValue) -> RegisterValue:
        """Return one of LLVM's intrinsics that is overloaded on its (first) operand's type, such as
        `llvm.sqrt`, `llvm.fabs`, `llvm.floor`, `llvm.nearbyint`, `llvm.minimum`."""
        kind = operands[0].type
        repeated = f"v{lanes(kind)}" if lanes(kind) > 1 else ""
        suffix = f"{repeated}{element(kind).intrinsic_name}"
        function = self.declared(
            f"{name}.{suffix}", ir.FunctionType(kind, [each.type for each in operands])
        )
        return RegisterValue(self, self.ir.call(function, [each.raw for each in operands]))

    def declared(self, name: str, kind: ir.FunctionType) -> ir.Function:
        """Return a function of another module, such as an intrinsic."""
        return self.module.globals.get(name) or ir.Function(self.module, kind, name)

    def bitcast(self, a: RegisterValue, kind: ir.Type) -> RegisterValue:
        """Reinterpret the bits as another type."""
        return RegisterValue(self, self.ir.bitcast(a.raw, kind))

    def convert(self, a: RegisterValue, kind: ir.Type, *, unsigned: bool = False) -> RegisterValue:
        """Return the same number in another type (with the same number of lanes).

        A float becomes an integer by cutting off what follows the point; the result is not defined
        if it does not fit.
        """
        source, wanted = element(a.type), element(kind)
        target = vector(wanted, a.lanes)
        if source == wanted:
            return a
        if is_floating(source) and is_floating(wanted):
            narrow = itemsize(wanted) < itemsize(source)
            return RegisterValue(
                self, (self.ir.fptrunc if narrow else self.ir.fpext)(a.raw, target)
            )
        unsigned = unsigned or source == I1
        if is_floating(wanted):
            return RegisterValue(
                self, (self.ir.uitofp if unsigned else self.ir.sitofp)(a.raw, target)
            )
        if is_floating(source):
            return RegisterValue(
                self, (self.ir.fptoui if unsigned else self.ir.fptosi)(a.raw, target)
            )
        if wanted.width < source.width:
            return RegisterValue(self, self.ir.trunc(a.raw, target))
        return RegisterValue(self, (self.ir.zext if unsigned else self.ir.sext)(a.raw, target))

    def reduce_lanes(
        self, a: RegisterValue, combine: Callable[[RegisterValue, RegisterValue], RegisterValue]
    ) -> RegisterValue:
        """Combine all lanes into one, by halves."""
        while a.lanes > 1:
            half = a.lanes // 2
            low = self.shuffle(a, None, range(half))
            high = self.shuffle(a, None, range(half, 2 * half))
            a = combine(low, high) if half > 1 else combine(low.lane(0), high.lane(0))
        return a


class _Splat(ir.Constant):
    """A number in all lanes of a vector, which LLVM reads once instead of lane by lane."""

    def __init__(self, kind: ir.VectorType, lane: ir.Constant) -> None:
        super().__init__(kind, [lane] * kind.count)

    def _get_reference(self) -> str:
        return f"splat ({self.constant[0]})"


def _literal(value: int | float, kind: ir.Type) -> Any:
    return float(value) if is_floating(kind) else _signed(int(value), kind.width)


def _signed(value: int, width: int) -> int:
    """Return the integer with these low bits, as LLVM writes it."""
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


@cache
def _mask(picks: tuple[int, ...]) -> ir.Constant:
    """Which lanes a shuffle takes: kernels repeat a few of these, and each is long to write."""
    return ir.Constant(ir.VectorType(I32, len(picks)), list(picks))
