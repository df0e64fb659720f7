"""The operands of a loop in CUDA text: where they lie, how they are read and written.

Text says only how a loop is built: how many axes, which operands are dense, what moves together.
Lengths and strides are numbers that are passed at the launch, so that one compiled kernel serves
all sizes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import STORED, Parameter

NARROW = 1 << 31
"""From so many elements or bytes on, indices take 64 bits."""


def divisor(by: int) -> tuple[int, int, int]:
    """The Divisor of fast_division.cuh, as signed numbers: what it divides by, a factor, a shift.

    >>> divisor(8)
    (8, 1, 3)
    """
    shift = (by - 1).bit_length()
    factor = ((1 << 32) * ((1 << shift) - by)) // by + 1
    # A factor may have its highest bit set, which a signed number keeps as a sign.
    return by, factor - (1 << 32) if factor >= NARROW else factor, shift


@dataclass
class LaunchIntegers:
    """The numbers of a launch: one parameter, a struct of integers of one width."""

    wide: bool
    values: list[int] = field(default_factory=list)

    def add(self, value: int) -> str:
        """Pass a number; what it is called in the text."""
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
        """The statement that writes V neighbours from an offset on."""
        apart = "" if self.mode == "1" else f", {step}"
        return f"put({pointer} + {offset}, {value}{apart});"


def operand(array: np.ndarray, strides: Sequence[int], length: int) -> LoopOperand:
    """An array whose strides along the loop's axes are given in bytes; `length` is that of the
    innermost axis."""
    steps = tuple(stride // array.itemsize for stride in strides)
    inner = steps[-1] if length > 1 else 1
    mode = "1" if inner == 1 else "0" if inner == 0 else "s"
    return LoopOperand(array.dtype.name, steps if length > 1 else (*steps[:-1], 1), mode)


def lanes_for(
    arrays: Sequence[np.ndarray], operands: Sequence[LoopOperand], length: int, *, exact: bool
) -> int:
    """How many neighbours along the innermost axis are read at once: 16 bytes of the widest dense
    operand, if all of them lie on such a border everywhere. Those that are read again and again,
    such as a bias, come from a cache, and may take more than 16 bytes.

    `exact` says that the innermost axis must come out even.
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
    """Whether a loop over so many elements needs indices or offsets of 64 bits."""
    return total >= NARROW or any(
        sum(abs(stride) * (n - 1) for stride, n in zip(each.strides, lengths, strict=True))
        >= NARROW
        for each in operands
    )


class OffsetEmitter:
    """Splits the number of an item into places along axes, and adds up each operand's offset.

    Operands that lie alike share an offset. `lanes` is the text for how many elements of the
    last axis an item has; "" if that is an axis like the others.
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
        """Lines that split `index`, and for each group the expression of its offset."""
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
    """Statements below each other, where the first one is indented already."""
    return ("\n" + " " * indent).join(statements)
