"""Emit the LLVM instructions of native kernels, with explicit vectors.

    @native_kernel
    def double(k: Emitter, x: Pointer, y: Pointer, n: Integer) -> None:
        begin, end = k.part_range(n)                  # this worker's part of 0..n
        with k.loop(begin, end) as i:
            y.store(i, x.load(i) * 2.0)

The machine code of every kernel is `void kernel(int64 *slots, int64 part, int64 parts)`. The 8-byte
slots contain pointers, integers and floating-point numbers, which `kernel.py` assigns by name.
`parts` workers call the kernel with `part` = 0, 1, ...

The emitter never reorders or contracts instructions: floating-point instructions carry no fast-math
flags, `fma` is written explicitly, and vectors have the width with which they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from caldera.kernels.native.codegen.arithmetic import Arithmetic
from caldera.kernels.native.codegen.target import host_target, target_machine
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
    MutableRegister,
    Number,
    Pointer,
    RegisterValue,
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
    "MutableRegister",
    "Number",
    "Pointer",
    "RegisterValue",
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


class Emitter(Arithmetic):
    """Emitter of the instructions of a function: arithmetic, loops, branches, memory and calls."""

    # --- what a kernel is given

    @property
    def part(self) -> RegisterValue:
        """Index of this worker: 0, 1, ..."""
        return RegisterValue(self, self.function.args[1])

    @property
    def parts(self) -> RegisterValue:
        """Number of workers that share the work."""
        return RegisterValue(self, self.function.args[2])

    def argument(self, slot: int, kind: ir.Type) -> Any:
        """Return the LLVM value in a slot. Kernels must not assume that two pointers differ."""
        place = self.ir.gep(self.function.args[0], [I64(slot)], inbounds=True, source_etype=I64)
        return self.ir.load(place, typ=kind)

    def part_range(self, count: Number, grain: int = 1) -> tuple[RegisterValue, RegisterValue]:
        """Return the begin and end of this worker's part of 0..count.

        Both are multiples of `grain`, except for the last end.
        """
        count = self.constant(count, I64)
        blocks = (count + (grain - 1)) // grain if grain > 1 else count
        begin = blocks * self.part // self.parts * grain
        end = blocks * (self.part + 1) // self.parts * grain
        return (begin, end) if grain == 1 else (begin, self.minimum(end, count))

    # --- control

    @contextmanager
    def loop(self, begin: Number, end: Number, step: Number = 1) -> Iterator[RegisterValue]:
        """Emit a loop over begin, begin + step, ... below `end`; yield the index."""
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
        yield RegisterValue(self, index)
        following = self.ir.add(index, by.raw, flags=("nsw",))
        index.add_incoming(following, self.ir.block)
        self.ir.cbranch(self.ir.icmp_signed("<", following, last.raw), body, after)
        self.ir.position_at_end(after)

    @contextmanager
    def if_then(self, condition: RegisterValue) -> Iterator[None]:
        """Emit the body of the `with` statement under a (scalar) condition."""
        with self.ir.if_then(condition.raw):
            yield

    @contextmanager
    def if_else(self, condition: RegisterValue) -> Iterator[tuple[Any, Any]]:
        """Two branches: `with k.if_else(c) as (yes, no):`, then `with yes: ...`, `with no: ...`."""
        with self.ir.if_else(condition.raw) as branches:
            yield branches

    @contextmanager
    def while_loop(self, condition: Callable[[], RegisterValue]) -> Iterator[None]:
        """Emit the body of the `with` statement as a loop that runs while `condition()` holds.

        The condition is evaluated before each iteration.
        """
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

    def vectors(
        self, begin: Number, end: Number, *widths: int
    ) -> Iterator[tuple[RegisterValue, int]]:
        """Emit loops over `begin` to `end` for a `for` statement; yield (index, lanes).

        The first loop handles all full vectors of the first width, the next one full vectors of the
        second width, and so on. A width of 1 handles all remaining elements.
        """
        start, last = self.constant(begin, I64), self.constant(end, I64)
        for count in dict.fromkeys(widths):
            stop = last if count == 1 else start + (last - start) // count * count
            with self.loop(start, stop, count) as index:
                yield index, count
            start = stop

    def masked_vectors(
        self, end: RegisterValue, widths: Sequence[int], *, masked: bool = True
    ) -> Iterator[tuple[RegisterValue, int, RegisterValue | None]]:
        """Yield loops like `vectors` from 0 on: (index, lanes, mask).

        If `masked`, vectors of the first width, then one for the elements left before `end`, with a
        mask of the lanes that count: one vector instead of single elements.
        """
        if not masked:
            for index, count in self.vectors(0, end, *widths):
                yield index, count, None
            return
        lanes = widths[0]
        whole = end // lanes * lanes
        with self.loop(0, whole, lanes) as index:
            yield index, lanes, None
        with self.if_then(whole < end):
            numbers = RegisterValue(
                self, ir.Constant(vector(I64, lanes), [I64(i) for i in range(lanes)])
            )
            yield whole, lanes, numbers < self.splat(end - whole, lanes)

    # --- memory and functions

    def variable(self, start: Number, kind: ir.Type | None = None) -> MutableRegister:
        """Return a register that may be written again, with its initial value."""
        if kind is None:
            assert isinstance(start, RegisterValue)
            kind = start.type
        variable = MutableRegister(self, kind)
        variable.value = start
        return variable

    def alloca(self, kind: ir.Type, count: int) -> Pointer:
        """Room for `count` elements (a fixed, small number) on the stack, aligned for vectors."""
        with self.ir.goto_entry_block():
            block = self.ir.alloca(kind, I64(count))
            block.align = 64
        # Untyped, as all other addresses are: vectors of elements are stored there as well.
        block.type = POINTER
        return Pointer(self, block, kind)

    def pointer_to_int(self, pointer: Pointer) -> RegisterValue:
        """Return a pointer as an integer."""
        return RegisterValue(self, self.ir.ptrtoint(pointer.raw, I64))

    def int_to_pointer(self, address: RegisterValue, kind: ir.Type) -> Pointer:
        """Convert an integer to a pointer."""
        return Pointer(self, self.ir.inttoptr(address.raw, POINTER), kind)

    def either(self, condition: RegisterValue, yes: Pointer, no: Pointer) -> Pointer:
        """Select one of two pointers."""
        return Pointer(self, self.ir.select(condition.raw, yes.raw, no.raw), yes.type)

    def in_register(self, place: Pointer) -> Pointer:
        """Return the same address in a separate register.

        Otherwise LLVM repeats the sum of a base and an index in every instruction. x86 then splits
        an instruction that multiplies a value from memory into two.
        """
        same = ir.InlineAsm(ir.FunctionType(POINTER, [POINTER]), "", "=r,0")
        return Pointer(self, self.ir.call(same, [place.raw]), place.type)

    def call(self, function: ir.Function, *arguments: RegisterValue | Pointer) -> RegisterValue:
        """Call another function of this module."""
        return RegisterValue(self, self.ir.call(function, [each.raw for each in arguments]))

    def call_address(
        self, address: RegisterValue, result: ir.Type, *arguments: RegisterValue | Pointer
    ) -> RegisterValue:
        """Call a function by its address (one of a library, given in an integer slot)."""
        kind = ir.FunctionType(result, [each.raw.type for each in arguments])
        callee = _Callee(self.ir.inttoptr(address.raw, POINTER), kind)
        return RegisterValue(self, self.ir.call(callee, [each.raw for each in arguments]))

    def internal_function(
        self, name: str, arguments: Sequence[ir.Type], build: Callable[..., None]
    ) -> ir.Function:
        """Return a function of this module, created once per name: `build(k, *arguments)` writes
        it.

        LLVM inlines it where that pays. It has no return value.
        """
        known = self.module.globals.get(name)
        if known is not None:
            return known
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), list(arguments)), name)
        function.linkage = "internal"
        inside = Emitter(function)
        build(inside, *[RegisterValue(inside, each) for each in function.args])
        inside.ir.ret_void()
        return function

    def copy_bytes(self, target: Pointer, source: Pointer, count: Number) -> None:
        """memcpy."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I1])
        function = self.declared("llvm.memcpy.p0.p0.i64", kind)
        self.ir.call(function, [target.raw, source.raw, self.constant(count, I64).raw, I1(0)])

    def prefetch(self, place: Pointer, *, to_write: bool = False, soon: bool = False) -> None:
        """Have the line of memory that holds this element brought nearer: to the nearest cache if
        it is to be written, or read `soon`, else to the second one. It may lie anywhere, even
        outside of all arrays."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
        function = self.declared("llvm.prefetch.p0", kind)
        nearness = 3 if to_write or soon else 2
        self.ir.call(function, [place.raw, I32(int(to_write)), I32(nearness), I32(1)])

    def clear_bytes(self, target: Pointer, count: Number) -> None:
        """Set `count` bytes to zero."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1])
        function = self.declared("llvm.memset.p0.i64", kind)
        self.ir.call(function, [target.raw, I8(0), self.constant(count, I64).raw, I1(0)])


class _Callee:
    """An address together with the type of the function there, which plain pointers leave open."""

    def __init__(self, raw: Any, kind: ir.FunctionType) -> None:
        self.type = POINTER
        self.function_type = kind
        self.get_reference = raw.get_reference


def kernel_module(name: str, build: Callable[[Emitter], None]) -> ir.Module:
    """Return a module with one kernel in it, which `build` writes."""
    module = ir.Module(name)
    module.triple = host_target().triple
    module.data_layout = str(target_machine().target_data)
    k = Emitter(ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, I64, I64]), name))
    build(k)
    k.ir.ret_void()
    return module
