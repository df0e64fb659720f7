"""CUDA source of loop bodies, element types and kernel parameters.

The body of a loop becomes statements over registers for one element. Every op is a function
`op_<name>` of math.cuh or elementary.cuh. Values have the computed type of their dtype: operands
are widened after reading, results narrowed before writing. Halves are computed as floats; a
result of half precision is rounded immediately, so that it does not depend on which ops were
fused.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from caldera.core.graph.node import Node
from caldera.kernels.common.loops import LoopBody, Reference, Step, is_computable
from caldera.kernels.cuda.codegen.kernel import HALVES, STORED, computed_type
from caldera.kernels.cuda.runtime.driver import headers


def literal(value: bool | int | float, dtype: str) -> str:
    """A number of a dtype, to the last bit, in the computed type.

    >>> literal(0.1, "float64"), literal(True, "bool"), literal(-3, "int8")
    ('0x1.999999999999ap-4', 'true', '(i8)-3')
    """
    kind = computed_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("float", "double"):
        return _floating(float(value), kind)
    if kind in ("i64", "u64"):
        # The smallest number has no literal of its own.
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
"""What a source that uses `statements` includes."""
_ELEMENTARY = "elementary.cuh"


@dataclass(frozen=True)
class Statements:
    """Lines of CUDA, and the names (or numbers) of what they compute, in the computed types."""

    lines: list[str]
    outputs: list[str]
    reductions: list[str]


def statements(loop_body: LoopBody, operands: Sequence[str], prefix: str = "v") -> Statements:
    """The loop body for operands of these names; values in between are named by the prefix.

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
    """A step as an expression over operands of these names."""
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
    """The loop body as the function `element` of one element: operands, then what is written, then
    what is reduced, all in the computed types.
    """
    # Not i0, i1, ...: i8 to i64 are types, and a loop may have as many operands.
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
    """The line that includes what these statements use beyond math.cuh, if they use any of it.

    >>> include_for("float v0 = op_tan(x);"), include_for("float v0 = op_exp(x);")
    ('#include "elementary.cuh"\\n', '')
    """
    used = _functions_of(_ELEMENTARY).intersection(re.findall(r"\bop_(\w+)", text))
    return f'#include "{_ELEMENTARY}"\n' if used else ""


@cache
def _functions_of(header: str) -> frozenset[str]:
    return frozenset(re.findall(r"\bop_(\w+)", headers()[header]))


def can_apply(op: str, source: str) -> bool:
    """Whether there is a function of an op for operands of this dtype.

    >>> can_apply("exp", "float32"), can_apply("matmul", "float32")
    (True, False)
    """
    return op in _functions_of(HEADER) | _functions_of(_ELEMENTARY) and source in STORED


def is_known(node: Node) -> bool:
    """Whether a node's loop can be written in CUDA."""
    return is_computable(node, can_apply)
