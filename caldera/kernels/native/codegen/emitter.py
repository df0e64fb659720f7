"""Writing native kernels: Python that emits LLVM's instructions, with vectors made explicit.

    @native_kernel
    def double(k: Emitter, x: Pointer, y: Pointer, n: Integer) -> None:
        begin, end = k.share(n)                  # this worker's part of 0..n
        with k.loop(begin, end) as i:
            y.store(i, x.load(i) * 2.0)

The machine code of every kernel is `void kernel(int64 *slots, int64 part, int64 parts)`: pointers,
integers and numbers lie in 8-byte slots (`kernel.py` puts them there by name), and `parts` workers
call it with `part` = 0, 1, ...

Nothing is reordered or contracted behind the writer's back: floating-point instructions carry no
fast-math flags, `fma` is written where it is meant, and vectors are as wide as they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from caldera.kernels.native.codegen.target import machine, target_machine
from caldera.kernels.native.codegen.values import (
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    Number,
    Pointer,
    Value,
    Variable,
    element,
    is_floating,
    itemsize,
    lanes,
    line_lanes,
    natural_lanes,
    shrinking,
    vector,
)

__all__ = [
    "F16",
    "F32",
    "F64",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "POINTER",
    "Emitter",
    "Number",
    "Pointer",
    "Value",
    "Variable",
    "element",
    "is_floating",
    "itemsize",
    "kernel_module",
    "lanes",
    "line_lanes",
    "natural_lanes",
    "shrinking",
    "vector",
]


class Emitter:
    """Writes the instructions of one function."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.module = function.module
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))

    # --- what a kernel is given

    @property
    def part(self) -> Value:
        """Which worker this is: 0, 1, ..."""
        return Value(self, self.function.args[1])

    @property
    def parts(self) -> Value:
        """How many workers share the work."""
        return Value(self, self.function.args[2])

    def argument(self, slot: int, kind: ir.Type) -> Any:
        """What is in a slot, as LLVM's value. Kernels must not assume that two pointers differ."""
        place = self.ir.gep(self.function.args[0], [I64(slot)], inbounds=True, source_etype=I64)
        return self.ir.load(place, typ=kind)

    def share(self, count: Number, grain: int = 1) -> tuple[Value, Value]:
        """This worker's part of 0..count: begin and end, both multiples of `grain` but for the
        last end."""
        count = self.constant(count, I64)
        blocks = (count + (grain - 1)) // grain if grain > 1 else count
        begin = blocks * self.part // self.parts * grain
        end = blocks * (self.part + 1) // self.parts * grain
        return (begin, end) if grain == 1 else (begin, self.minimum(end, count))

    # --- numbers

    def constant(self, value: Number, kind: ir.Type) -> Value:
        """A Python number as a constant of this type; a scalar Value repeated to fit a vector."""
        if isinstance(value, Value):
            if lanes(kind) > 1 and value.lanes == 1:
                return self.splat(value, lanes(kind))
            return value
        if isinstance(kind, ir.VectorType):
            scalar = ir.Constant(kind.element, _literal(value, kind.element))
            return Value(self, ir.Constant(kind, [scalar] * kind.count))
        return Value(self, ir.Constant(kind, _literal(value, kind)))

    def bits(self, pattern: int, kind: ir.Type) -> Value:
        """A floating-point constant by the bits of its pattern."""
        integer = ir.IntType(8 * itemsize(kind))
        repeated = vector(integer, lanes(kind))
        return self.bitcast(self.constant(_signed(pattern, integer.width), repeated), kind)

    def splat(self, value: Value, count: int) -> Value:
        """A scalar in all lanes of a vector."""
        if count == 1:
            return value
        kind = ir.VectorType(value.type, count)
        single = self.ir.insert_element(ir.Constant(kind, ir.Undefined), value.raw, I32(0))
        mask = ir.Constant(ir.VectorType(I32, count), [0] * count)
        return Value(self, self.ir.shuffle_vector(single, ir.Constant(kind, ir.Undefined), mask))

    def vector_of(self, values: Sequence[Value]) -> Value:
        """Scalars as the lanes of a vector; the scalar itself if there is but one."""
        if len(values) == 1:
            return values[0]
        raw = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
        for index, value in enumerate(values):
            raw = self.ir.insert_element(raw, value.raw, I32(index))
        return Value(self, raw)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        """Lanes picked from `a` (0, 1, ...) and then `b`."""
        other = ir.Constant(a.type, ir.Undefined) if b is None else b.raw
        mask = ir.Constant(ir.VectorType(I32, len(picks)), list(picks))
        return Value(self, self.ir.shuffle_vector(a.raw, other, mask))

    def spread(self, a: Value, lane: int) -> Value:
        """One lane of a vector in all lanes."""
        return self.shuffle(a, None, [lane] * a.lanes)

    def pair(self, a: Number, b: Number) -> tuple[Value, Value]:
        """Both operands with the same type."""
        if not isinstance(a, Value):
            assert isinstance(b, Value)
            return self.constant(a, b.type), b
        if not isinstance(b, Value):
            return a, self.constant(b, a.type)
        if a.lanes != b.lanes:
            count = max(a.lanes, b.lanes)
            a = self.splat(a, count) if a.lanes == 1 else a
            b = self.splat(b, count) if b.lanes == 1 else b
        return a, b

    def binary(self, floating: str, integer: str, a: Number, b: Number) -> Value:
        """One instruction on two operands, by what their type is."""
        x, y = self.pair(a, b)
        name = floating if is_floating(x.type) else integer
        return Value(self, getattr(self.ir, name)(x.raw, y.raw))

    def compare(self, sign: str, a: Number, b: Number, *, unsigned: bool = False) -> Value:
        """A comparison, lane by lane."""
        x, y = self.pair(a, b)
        if is_floating(x.type):
            if sign == "!=":
                return Value(self, self.ir.fcmp_unordered(sign, x.raw, y.raw))
            return Value(self, self.ir.fcmp_ordered(sign, x.raw, y.raw))
        way = self.ir.icmp_unsigned if unsigned else self.ir.icmp_signed
        return Value(self, way(sign, x.raw, y.raw))

    def shift_right(self, a: Value, count: Number) -> Value:
        """Shift to the right that fills with zeros."""
        return self.binary("", "lshr", a, count)

    def select(self, condition: Value, yes: Number, no: Number) -> Value:
        """`yes` where the condition holds, else `no`."""
        x, y = self.pair(yes, no)
        if condition.lanes > x.lanes:
            x, y = self.splat(x, condition.lanes), self.splat(y, condition.lanes)
        return Value(self, self.ir.select(condition.raw, x.raw, y.raw))

    def is_nan(self, a: Value) -> Value:
        """Whether it is a nan."""
        return Value(self, self.ir.fcmp_unordered("uno", a.raw, a.raw))

    def above_or_nan(self, a: Value, b: Value) -> Value:
        """Whether a > b, or either is a nan."""
        return Value(self, self.ir.fcmp_unordered(">", a.raw, b.raw))

    def minimum(self, a: Number, b: Number) -> Value:
        """The smaller integer, or number (the second if one is a nan)."""
        x, y = self.pair(a, b)
        return self.select(x < y, x, y)

    def maximum(self, a: Number, b: Number) -> Value:
        """The larger integer, or number (the second if one is a nan)."""
        x, y = self.pair(a, b)
        return self.select(x > y, x, y)

    def fma(self, a: Number, b: Number, c: Number) -> Value:
        """a * b + c, rounded once where the machine has such an instruction."""
        x, y = self.pair(a, b)
        x, z = self.pair(x, c)
        y, z = self.pair(y, z)
        return self.intrinsic("llvm.fmuladd", x, y, z)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """A polynomial by Horner's rule, the highest power's coefficient first."""
        result = self.constant(coefficients[0], x.type)
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, coefficient)
        return result

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """One of LLVM's intrinsics that is overloaded on its (first) operand's type, such as
        `llvm.sqrt`, `llvm.fabs`, `llvm.floor`, `llvm.nearbyint`, `llvm.minimum`."""
        kind = operands[0].type
        repeated = f"v{lanes(kind)}" if lanes(kind) > 1 else ""
        suffix = f"{repeated}{element(kind).intrinsic_name}"
        function = self._declared(
            f"{name}.{suffix}", ir.FunctionType(kind, [each.type for each in operands])
        )
        return Value(self, self.ir.call(function, [each.raw for each in operands]))

    def _declared(self, name: str, kind: ir.FunctionType) -> ir.Function:
        return self.module.globals.get(name) or ir.Function(self.module, kind, name)

    def bitcast(self, a: Value, kind: ir.Type) -> Value:
        """The same bits as another type."""
        return Value(self, self.ir.bitcast(a.raw, kind))

    def convert(self, a: Value, kind: ir.Type, *, unsigned: bool = False) -> Value:
        """The same number in another type (with the same number of lanes).

        A float becomes an integer by cutting off what follows the point; the result is not defined
        if it does not fit.
        """
        source, wanted = element(a.type), element(kind)
        target = vector(wanted, a.lanes)
        if source == wanted:
            return a
        if is_floating(source) and is_floating(wanted):
            narrow = itemsize(wanted) < itemsize(source)
            return Value(self, (self.ir.fptrunc if narrow else self.ir.fpext)(a.raw, target))
        unsigned = unsigned or source == I1
        if is_floating(wanted):
            return Value(self, (self.ir.uitofp if unsigned else self.ir.sitofp)(a.raw, target))
        if is_floating(source):
            return Value(self, (self.ir.fptoui if unsigned else self.ir.fptosi)(a.raw, target))
        if wanted.width < source.width:
            return Value(self, self.ir.trunc(a.raw, target))
        return Value(self, (self.ir.zext if unsigned else self.ir.sext)(a.raw, target))

    def total(self, a: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """All lanes combined into one, by halves."""
        while a.lanes > 1:
            half = a.lanes // 2
            low = self.shuffle(a, None, range(half))
            high = self.shuffle(a, None, range(half, 2 * half))
            a = combine(low, high) if half > 1 else combine(low.lane(0), high.lane(0))
        return a

    # --- control

    @contextmanager
    def loop(self, begin: Number, end: Number, step: Number = 1) -> Iterator[Value]:
        """A loop over begin, begin + step, ... below `end`; gives the index."""
        first = self.constant(begin, I64)
        last = self.constant(end, I64)
        by = self.constant(step, I64)
        before = self.ir.block
        body = self.ir.append_basic_block("loop")
        after = self.ir.append_basic_block("after")
        self.ir.cbranch((first < last).raw, body, after)
        self.ir.position_at_end(body)
        index = self.ir.phi(I64)
        index.add_incoming(first.raw, before)
        yield Value(self, index)
        following = self.ir.add(index, by.raw, flags=("nsw",))
        index.add_incoming(following, self.ir.block)
        again = self.ir.icmp_signed("<", following, last.raw)
        self.ir.cbranch(again, body, after)
        self.ir.position_at_end(after)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """What is inside runs only where the (scalar) condition holds."""
        with self.ir.if_then(condition.raw):
            yield

    @contextmanager
    def either(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        """Two branches: `with k.either(c) as (yes, no):`, then `with yes: ...`, `with no: ...`."""
        with self.ir.if_else(condition.raw) as branches:
            yield branches

    @contextmanager
    def repeat_while(self, condition: Callable[[], Value]) -> Iterator[None]:
        """What is inside runs again and again as long as `condition()`, asked before each time."""
        head = self.ir.append_basic_block("head")
        body = self.ir.append_basic_block("body")
        after = self.ir.append_basic_block("after")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        self.ir.cbranch(condition().raw, body, after)
        self.ir.position_at_end(body)
        yield
        self.ir.branch(head)
        self.ir.position_at_end(after)

    def in_vectors(
        self, begin: Number, end: Number, count: int, body: Callable[[Value, int], None]
    ) -> None:
        """`body(index, lanes)` for vectors of `count` elements, then one by one for the rest."""
        first, last = self.constant(begin, I64), self.constant(end, I64)
        middle = first + (last - first) // count * count if count > 1 else first
        if count > 1:
            with self.loop(first, middle, count) as index:
                body(index, count)
        with self.loop(middle, last) as index:
            body(index, 1)

    def in_widths(
        self, begin: Number, end: Number, widths: Sequence[int], body: Callable[[Value, int], None]
    ) -> None:
        """`body(index, lanes)` for as many elements as the first width takes, then the next."""
        start, last = self.constant(begin, I64), self.constant(end, I64)
        for count in widths:
            middle = start + (last - start) // count * count
            with self.loop(start, middle, count) as index:
                body(index, count)
            start = middle

    # --- memory and functions

    def variable(self, start: Number, kind: ir.Type | None = None) -> Variable:
        """A register that may be written again, with what it holds at first."""
        if kind is None:
            assert isinstance(start, Value)
            kind = start.type
        variable = Variable(self, kind)
        variable.value = start
        return variable

    def stack(self, kind: ir.Type, count: int) -> Pointer:
        """Room for `count` elements (a fixed, small number) on the stack, aligned for vectors."""
        with self.ir.goto_entry_block():
            room = self.ir.alloca(kind, I64(count))
            room.align = 64
        # Untyped, as all other addresses are: vectors of elements are stored there as well.
        room.type = POINTER
        return Pointer(self, room, kind)

    def address(self, pointer: Pointer) -> Value:
        """A pointer as an integer."""
        return Value(self, self.ir.ptrtoint(pointer.raw, I64))

    def at_address(self, address: Value, kind: ir.Type) -> Pointer:
        """The pointer that an integer was."""
        return Pointer(self, self.ir.inttoptr(address.raw, POINTER), kind)

    def call(self, function: ir.Function, *arguments: Value | Pointer) -> Value:
        """Call another function of this module."""
        return Value(self, self.ir.call(function, [each.raw for each in arguments]))

    def call_address(self, address: Value, result: ir.Type, *arguments: Value | Pointer) -> Value:
        """Call a function by its address (one of a library, given in an integer slot)."""
        kind = ir.FunctionType(result, [each.raw.type for each in arguments])
        callee = _Callee(self.ir.inttoptr(address.raw, POINTER), kind)
        return Value(self, self.ir.call(callee, [each.raw for each in arguments]))

    def inner(
        self, name: str, arguments: Sequence[ir.Type], build: Callable[..., None]
    ) -> ir.Function:
        """A function of this module, made once for each name: `build(k, *arguments)` writes it.

        LLVM inlines it where that pays. It returns nothing.
        """
        known = self.module.globals.get(name)
        if known is not None:
            return known
        kind = ir.FunctionType(ir.VoidType(), list(arguments))
        function = ir.Function(self.module, kind, name)
        function.linkage = "internal"
        inside = Emitter(function)
        build(inside, *[Value(inside, each) for each in function.args])
        inside.ir.ret_void()
        return function

    def copy_bytes(self, target: Pointer, source: Pointer, count: Number) -> None:
        """memcpy."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I1])
        function = self._declared("llvm.memcpy.p0.p0.i64", kind)
        size = self.constant(count, I64).raw
        self.ir.call(function, [target.raw, source.raw, size, I1(0)])

    def clear_bytes(self, target: Pointer, count: Number) -> None:
        """Set `count` bytes to zero."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1])
        function = self._declared("llvm.memset.p0.i64", kind)
        size = self.constant(count, I64).raw
        self.ir.call(function, [target.raw, I8(0), size, I1(0)])


class _Callee:
    """An address together with the type of the function there, which plain pointers leave open."""

    def __init__(self, raw: Any, kind: ir.FunctionType) -> None:
        self.type = POINTER
        self.function_type = kind
        self.get_reference = raw.get_reference


def _literal(value: int | float, kind: ir.Type) -> Any:
    if is_floating(kind):
        return float(value)
    return _signed(int(value), kind.width)


def _signed(value: int, width: int) -> int:
    """The integer with these low bits, as LLVM writes it."""
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


def kernel_module(name: str, build: Callable[[Emitter], None]) -> ir.Module:
    """A module with one kernel in it, which `build` writes."""
    module = ir.Module(name)
    module.triple = machine().triple
    module.data_layout = str(target_machine().target_data)
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])
    k = Emitter(ir.Function(module, kind, name))
    build(k)
    k.ir.ret_void()
    return module
