"""CUDA source of loops: bodies, operands and offsets.

The body of a loop becomes statements over registers for one element. Every op is a function
`op_<name>` of math.cuh or elementary.cuh. Values have the computed type of their dtype: operands
are widened after reading, results narrowed before writing. Halves are computed as floats; a
result of half precision is rounded immediately, so that it does not depend on which ops were
fused.

The text depends only on how a loop is built: the number of axes, which operands are dense, what
moves together. Lengths and strides are passed with the launch, so one compiled kernel serves all
sizes.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.memory.software import address_of
from caldera.kernels.common.loops import LoopBody, Reference, Step, is_computable
from caldera.kernels.cuda.codegen.kernel import HALVES, STORED, Parameter, computed_type
from caldera.kernels.cuda.runtime.driver import headers


def literal(value: bool | int | float, dtype: str) -> str:
    """Return a number of a dtype, to the last bit, in the computed type.

    >>> literal(0.1, "float64"), literal(True, "bool"), literal(-3, "int8")
    ('0x1.999999999999ap-4', 'true', '(i8)-3')
    """
    kind = computed_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("float", "double"):
        return _floating(float(value), kind)
    if kind in ("i64", "u64"):
        # There is no literal for the smallest number.
        return f"({kind}){int(value) & (2**64 - 1)}ULL"
    return f"({kind}){int(value)}"


def _floating(value: float, kind: str) -> str:
    if math.isfinite(value):
        return value.hex() + ("f" if kind == "float" else "")
    if kind == "float":
        return f"bits_to_float({_bits(value, '<f', '<I'):#x}u)"
    return f"__longlong_as_double({_bits(value, '<d', '<Q'):#x}LL)"


def _bits(value: float, form: str, integer: str) -> int:
    return struct.unpack(integer, struct.pack(form, value))[0]


HEADER = "math.cuh"
"""Header included by sources that use `statements`."""
_ELEMENTARY = "elementary.cuh"


@dataclass(frozen=True)
class Statements:
    """Lines of CUDA, and the names (or numbers) of their results, in the computed types."""

    lines: list[str]
    outputs: list[str]
    reductions: list[str]


def statements(loop_body: LoopBody, operands: Sequence[str], prefix: str = "v") -> Statements:
    """Return the loop body for operands of these names; values in between are named by the prefix.

    >>> from caldera.kernels.common.loops import LoopBody
    >>> step = ("add", "float32", ("float32", "float32"), (("in", 0), ("number", 1.0, "float32")))
    >>> found = statements(LoopBody(("float32",), (step,), (("float32", ("step", 0)),)), ["x"])
    >>> found.lines, found.outputs
    (['float v0 = op_add(x, 0x1.0000000000000p+0f);'], ['v0'])
    """

    def find(reference: Reference) -> str:
        if reference[0] == "in":
            return operands[int(reference[1])]
        if reference[0] == "step":
            return f"{prefix}{reference[1]}"
        _, value, dtype = reference  # type: ignore[misc]
        return literal(value, dtype)

    lines = [
        f"{computed_type(step[1])} {prefix}{index} = {applied(step, map(find, step[3]))};"
        for index, step in enumerate(loop_body.steps)
    ]
    return Statements(
        lines,
        [find(each) for _, each in loop_body.outputs],
        [find(each) for *_, each in loop_body.reductions],
    )


def applied(step: Step, operands: Iterable[str]) -> str:
    """Return a step as an expression over operands of these names."""
    op, dtype, *_ = step
    given = ", ".join(operands)
    if op == "cast" and dtype in HALVES:
        return f"op_cast_to_half<{STORED[dtype]}>({given})"
    if op == "cast":
        return f"op_cast<{computed_type(dtype)}>({given})"
    if dtype in HALVES:
        return f"rounded<{STORED[dtype]}>(op_{op}({given}))"
    return f"op_{op}({given})"


def element_function(loop_body: LoopBody) -> str:
    """Return the loop body as a function `element` that computes one element.

    Its parameters are the operands, the outputs and the reduced values, all in the computed types.
    """
    # Not i0, i1, ...: i8 to i64 are types, and a loop may have more than eight operands.
    names = [f"in{k}" for k in range(len(loop_body.inputs))]
    typed = zip(loop_body.inputs, names, strict=True)
    given = [f"{computed_type(dtype)} {name}" for dtype, name in typed]
    found = [f"{computed_type(dtype)}& o{k}" for k, (dtype, _) in enumerate(loop_body.outputs)]
    found += [
        f"{computed_type(dtype)}& t{k}" for k, (_, dtype, _) in enumerate(loop_body.reductions)
    ]
    body = statements(loop_body, names)
    lines = body.lines + [f"o{k} = {name};" for k, name in enumerate(body.outputs)]
    lines += [f"t{k} = {name};" for k, name in enumerate(body.reductions)]
    text = "\n    ".join(lines)
    parameters = ", ".join(given + found)
    function = f"__device__ __forceinline__ void element({parameters}) {{\n    {text}\n}}"
    return include_for(text) + function


def include_for(text: str) -> str:
    """Return the line that includes the functions these statements use beyond math.cuh, if any.

    >>> include_for("float v0 = op_tan(x);"), include_for("float v0 = op_exp(x);")
    ('#include "elementary.cuh"\\n', '')
    """
    used = _functions_of(_ELEMENTARY).intersection(re.findall(r"\bop_(\w+)", text))
    return f'#include "{_ELEMENTARY}"\n' if used else ""


@cache
def _functions_of(header: str) -> frozenset[str]:
    return frozenset(re.findall(r"\bop_(\w+)", headers()[header]))


def can_apply(op: str, source: str) -> bool:
    """Return True if an op has a function for operands of this dtype.

    >>> can_apply("exp", "float32"), can_apply("matmul", "float32")
    (True, False)
    """
    return op in _functions_of(HEADER) | _functions_of(_ELEMENTARY) and source in STORED


def is_known(node: Node) -> bool:
    """Return True if a node's loop can be written in CUDA."""
    return is_computable(node, can_apply)


NARROW = 1 << 31
"""Number of elements or bytes from which indices take 64 bits."""


def divisor(by: int) -> tuple[int, int, int]:
    """Return the Divisor of fast_division.cuh, as signed numbers: the divisor, a factor, a shift.

    >>> divisor(8)
    (8, 1, 3)
    """
    shift = (by - 1).bit_length()
    factor = ((1 << 32) * ((1 << shift) - by)) // by + 1
    # A factor may have its highest bit set, which a signed number keeps as a sign.
    return by, factor - (1 << 32) if factor >= NARROW else factor, shift


@dataclass
class LaunchIntegers:
    """Integers of a launch, passed as one parameter: a struct of integers of the same width."""

    wide: bool
    values: list[int] = field(default_factory=list)

    def add(self, value: int) -> str:
        """Add a number to pass, and return its name in the text."""
        self.values.append(value)
        return f"n.v[{len(self.values) - 1}]"

    def divisor(self, by: int) -> str:
        """Pass a number that indices are divided by."""
        if self.wide:
            return f"WideDivisor{{(u64){self.add(by)}}}"
        names = ", ".join(f"(u32){self.add(each)}" for each in divisor(by))
        return f"Divisor{{{names}}}"

    @property
    def declaration(self) -> str:
        """The types of the parameter, of indices and of offsets."""
        kinds = ("u64", "i64") if self.wide else ("u32", "i32")
        return (
            f"typedef {kinds[0]} Index;\ntypedef {kinds[1]} Offset;\n"
            f"struct Numbers {{ Offset v[{max(len(self.values), 1)}]; }};"
        )

    @property
    def parameter(self) -> Parameter:
        """The values as they are passed."""
        kind = ctypes.c_longlong if self.wide else ctypes.c_int
        values = (kind * max(len(self.values), 1))(*self.values)
        return Parameter("const Numbers", values)


@dataclass(frozen=True)
class LoopOperand:
    """An array in a loop: its dtype, the elements between neighbours along each axis, the
    innermost last, and how it runs along the innermost one.

    "1" is dense, "0" the same everywhere, "s" anything else; "#" is no array at all but the number
    of the element.
    """

    dtype: str
    strides: tuple[int, ...]
    mode: str

    @property
    def stored(self) -> str:
        """The type of an element in memory."""
        return STORED[self.dtype]

    def load(self, pointer: str, offset: str, step: str) -> str:
        """V neighbours from an offset on; `step` is the stride of the innermost axis."""
        return {
            "1": f"dense<V>({pointer} + {offset})",
            "0": f"repeated<V>({pointer} + {offset})",
            "s": f"strided<V>({pointer} + {offset}, {step})",
            "#": f"counted<V>({offset}, {step})",
        }[self.mode]

    def store(self, pointer: str, offset: str, value: str, step: str) -> str:
        """Return the statement that writes V neighbours from an offset on."""
        apart = "" if self.mode == "1" else f", {step}"
        return f"put({pointer} + {offset}, {value}{apart});"


def operand(array: np.ndarray, strides: Sequence[int], length: int) -> LoopOperand:
    """Return an operand for an array; `strides` along the loop's axes are in bytes.

    `length` is the length of the innermost axis.
    """
    steps = tuple(stride // array.itemsize for stride in strides)
    inner = steps[-1] if length > 1 else 1
    mode = "1" if inner == 1 else "0" if inner == 0 else "s"
    return LoopOperand(array.dtype.name, steps if length > 1 else (*steps[:-1], 1), mode)


def lanes_for(
    arrays: Sequence[np.ndarray], operands: Sequence[LoopOperand], length: int, *, exact: bool
) -> int:
    """Return the number of neighbours along the innermost axis that one access reads.

    An access covers 16 bytes of the widest dense operand, if all dense operands are aligned for it
    everywhere. Operands that are read repeatedly, such as a bias, come from a cache and may take
    more than 16 bytes.

    `exact` requires the length of the innermost axis to be a multiple of the result.
    """
    dense = [
        (array, each) for array, each in zip(arrays, operands, strict=True) if each.mode == "1"
    ]
    if not dense:
        return 1
    streamed = [array.itemsize for array, each in dense if 0 not in each.strides[:-1]]
    lanes = 16 // max(streamed or [array.itemsize for array, _ in dense])
    while lanes > 1:
        fits = not exact or length % lanes == 0
        if fits and all(
            address_of(array) % (lanes * array.itemsize) == 0
            and all(stride % lanes == 0 for stride in each.strides[:-1])
            for array, each in dense
        ):
            return lanes
        lanes //= 2
    return 1


def is_wide(total: int, operands: Sequence[LoopOperand], lengths: Sequence[int]) -> bool:
    """Return True if a loop over `total` elements needs indices or offsets of 64 bits."""
    return total >= NARROW or any(
        sum(abs(stride) * (n - 1) for stride, n in zip(each.strides, lengths, strict=True))
        >= NARROW
        for each in operands
    )


class OffsetEmitter:
    """Splits the index of an item into indices along axes, and computes each operand's offset.

    Operands with the same strides share an offset. `lanes` is the text for the number of elements
    of the last axis in an item; "" if the last axis is treated like the remaining axes.
    """

    def __init__(
        self,
        numbers: LaunchIntegers,
        lengths: Sequence[int],
        operands: Sequence[LoopOperand],
        lanes: str,
    ) -> None:
        self._numbers = numbers
        self._lanes = lanes
        self._divisors = [numbers.divisor(length) for length in lengths[1:]]
        self._known: dict[tuple[tuple[int, ...], str], int] = {}
        self.group: list[int] = []
        """For each operand, which offset is its own."""
        self._terms: list[list[str]] = []
        for each in operands:
            key = (each.strides, each.mode if lanes else "")
            if key not in self._known:
                self._known[key] = len(self._known)
                self._terms.append(self._steps(*key))
            self.group.append(self._known[key])

    def _steps(self, strides: Sequence[int], mode: str) -> list[str]:
        steps = [self._numbers.add(each) for each in strides]
        if self._lanes:
            steps[-1] = {"1": self._lanes, "0": "0"}.get(mode, f"{steps[-1]} * {self._lanes}")
        return steps

    def statements(self, index: str, prefix: str) -> tuple[list[str], list[str]]:
        """Return lines that split `index`, and for each group the expression of its offset."""
        lines: list[str] = []
        sums: list[list[str]] = [[] for _ in self._terms]
        rest = index
        for axis in reversed(range(len(self._divisors) + 1)):
            place = rest
            if axis:
                divisor, above, place = (f"{prefix}{kind}{axis}" for kind in ("d", "q", "r"))
                lines += [
                    f"const auto {divisor} = {self._divisors[axis - 1]};",
                    f"const Index {above} = {divisor}.quotient({rest});",
                    f"const Index {place} = {rest} - {above} * {divisor}.by;",
                ]
                rest = above
            for terms, found in zip(self._terms, sums, strict=True):
                if terms and terms[axis] != "0":
                    found.append(f"(Offset){place} * {terms[axis]}")
        return lines, [" + ".join(found) or "(Offset)0" for found in sums]


def lines(statements: Sequence[str], indent: int) -> str:
    """Return statements below each other, where the first one is indented already."""
    return ("\n" + " " * indent).join(statements)
