"""C source of an image: slots, calls and relocations of its plans as constant tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caldera.base.arguments import require
from caldera.core.graph import dense_strides
from caldera.export.functions import KINDS
from caldera.export.image import FIRST_PORT, PlanImage, Port

MOST_AXES, MOST_PORTS = 8, 16
"""The limits of the runtime."""


@dataclass(frozen=True)
class TargetImage:
    """The plans of each function of a library for one target, and kernels as object code.

    `condition` is the body of a C function that returns 1 if a processor can run the code.
    """

    target: str
    condition: str
    functions: Mapping[str, Sequence[PlanImage]]
    kernels: int
    code: bytes

    @property
    def plans(self) -> list[PlanImage]:
        """The plans of all functions."""
        return [plan for plans in self.functions.values() for plan in plans]

    @property
    def own(self) -> bytes:
        """The arrays of all kernels, plan by plan."""
        return b"".join(aligned(bytes(each.own)) for each in self.plans)


def label(target: str) -> str:
    """Return the name of a target as part of C identifiers."""
    return target.replace("-", "_")


def aligned(content: bytes) -> bytes:
    """Return bytes filled up to a multiple of a cache line."""
    return content + bytes(-len(content) % 64)


def image_source(image: TargetImage, name: str) -> str:
    """Return the C source of an image whose symbols begin with `name`."""
    kernels = [f"{name}_k{number}" for number in range(image.kernels)]
    lines = ['#include "runtime.h"', "", f"extern const unsigned char {name}_own[];"]
    lines += [f"void {each}(int64_t *, int64_t, int64_t);" for each in kernels]
    lines += [_array("kernel_t", "kernels", kernels)]
    own = 0
    rows = []
    for number, plan in enumerate(image.plans):
        tables, row = _plan_tables(plan, f"{number}", own)
        lines += tables
        rows.append(row)
        own += len(aligned(bytes(plan.own)))
    lines.append(_array("plan_t", "plans", rows))
    functions, first = [], 0
    for function, plans in image.functions.items():
        numbers = [f"plans + {first}", len(plans), int(KINDS[function].is_whole)]
        functions.append(_braces([f'"{function}"', *numbers]))
        first += len(plans)
    lines.append(_array("function_t", "functions", functions))
    lines += [f"static int can_run(void) {{\n{image.condition}}}"]
    lines.append(
        f'const image_t {name}_image = {{"{image.target}", can_run, functions, plans, {len(rows)}, '
        f"kernels, {name}_own}};"
    )
    return "\n".join(lines) + "\n"


def _plan_tables(plan: PlanImage, name: str, own: int) -> tuple[list[str], str]:
    """Return the tables of a plan, and its row in the table of plans."""
    ports = [*((0, each) for each in plan.inputs), *((1, each) for each in plan.outputs)]
    require(
        len(ports) <= MOST_PORTS, "export", f"at most {MOST_PORTS} inputs and outputs", len(ports)
    )
    links = [each for each in plan.relocations if each.segment >= FIRST_PORT]
    fixed = [each for each in plan.relocations if each.segment < FIRST_PORT]
    calls = [(*each[:-1], f'"{each.op}"') for each in plan.calls]
    tables = {
        "slots": ("int64_t", [_word(each) for each in plan.slots]),
        "calls": ("call_t", map(_braces, calls)),
        "relocations": ("relocation_t", map(_braces, fixed)),
        "links": ("relocation_t", map(_braces, links)),
        "ports": ("port_t", [_port(*each) for each in ports]),
    }
    counts = [len(plan.slots), len(calls), len(fixed), len(links), len(ports)]
    numbers = [plan.rows, *counts, plan.arena_bytes, own, len(plan.own)]
    row = _braces([*numbers, *(f"{kind}_{name}" for kind in tables)])
    return [_array(of, f"{kind}_{name}", rows) for kind, (of, rows) in tables.items()], row


def _port(is_output: int, port: Port) -> str:
    spec = port.spec
    require(
        spec.rank <= MOST_AXES, f"export of {port.name}", f"at most {MOST_AXES} axes", spec.rank
    )
    strides = dense_strides(spec.shape, port.order, spec.dtype.itemsize) or (0,)
    numbers = [is_output, int(port.is_reordered), spec.dtype.itemsize, spec.rank]
    row_bytes = spec.nbytes // max(spec.shape[0], 1) if spec.rank else spec.nbytes
    return _braces(
        [*numbers, row_bytes, spec.nbytes, _braces(spec.shape or (1,)), _braces(strides or (0,))]
    )


def _word(value: int) -> str:
    return "INT64_MIN" if value == -(1 << 63) else f"{value}LL"


def _braces(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _array(kind: str, name: str, rows: Iterable[str]) -> str:
    """Return a table; C has no empty ones."""
    text = ",\n    ".join(rows)
    return f"static const {kind} {name}[] = {{\n    {text or '0'}\n}};"
