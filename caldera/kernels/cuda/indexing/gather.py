"""Reading at computed positions: `gather`, also with its result rounded, and `take_along_axis`.

A run on a GPU cannot stop at an invalid position. Kernels never read outside the array; the result
for an invalid position is nan, -1 for integers, or False.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import is_float
from caldera.kernels.cuda.codegen import (
    Array,
    CudaRunner,
    StridedAxis,
    axes_of,
    blocks_for,
    const_pointer,
    counted,
    counter_type,
    element_strides,
    elements,
    function_launch,
    i64,
    merged,
    pointer,
    strided_axes,
    type_of,
    u32,
    unless_empty,
)
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_THREADS = 256
_UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "uint4"}
"""Types in which elements are moved, by size in bytes."""


def _gathered_axes(out: Array, x: Array, positions: Array, axis: int) -> list[StridedAxis]:
    """Return the axes of a gather's result, with strides of out, x and positions."""
    steps = element_strides(x)
    nowhere = (0,) * positions.ndim
    return axes_of(
        out.shape,
        element_strides(out),
        (*steps[:axis], *nowhere, *steps[axis + 1 :]),
        (*(0,) * axis, *element_strides(positions), *(0,) * (x.ndim - axis - 1)),
    )


@unless_empty
def _bind_gather(call: Call) -> Runner:
    (out,), (x, positions) = call.outputs, call.inputs
    axis = call.node.attrs["axis"]
    return _reading(out, x, positions, _gathered_axes(out, x, positions, axis), axis)


@unless_empty
def _bind_rounded(call: Call) -> Runner:
    (out,), (x, positions) = call.outputs, call.inputs
    axis = call.node.attrs["axis"]
    lines = merged(_gathered_axes(out, x, positions, axis))
    count = elements(lines)
    step = element_strides(x)[axis]
    row = lines.pop().length if lines and lines[-1].strides == (1, 1, 0) else 1
    rows_begin = [row, step, *[n for a in lines for n in a.strides[:2]]]
    places = [address_of(out) // out.itemsize, address_of(x) // x.itemsize, *rows_begin]
    together = next(many for many in (4, 2, 1) if all(place % many == 0 for place in places))
    index = counter_type(count)
    return CudaRunner(
        [
            function_launch(
                "gather_rounded.cuh",
                "gather_and_round",
                blocks_for(count // together, _THREADS),
                _THREADS,
                f"gather_rounded<{together}>",
                {
                    "out": pointer(out),
                    "x": const_pointer(x),
                    "positions": const_pointer(positions),
                    "lines": strided_axes(lines, 3),
                    "step": i64(step),
                    "length": i64(x.shape[axis]),
                    "units": counted(index, row // together),
                    "count": counted(index, count // together),
                },
                bounded=False,
            )
        ]
    )


@unless_empty
def _bind_take_along_axis(call: Call) -> Runner:
    (out,), (x, positions) = call.outputs, call.inputs
    axis = call.node.attrs["axis"]
    steps = element_strides(x)
    beside = (*steps[:axis], 0, *steps[axis + 1 :])
    axes = axes_of(out.shape, element_strides(out), beside, element_strides(positions))
    return _reading(out, x, positions, axes, axis)


def _reading(
    out: Array, x: Array, positions: Array, axes: Sequence[StridedAxis], axis: int
) -> Runner:
    """Return a gather; `axes` are the axes of `out`, with strides of out, x and positions."""
    lines = merged(axes)
    count = elements(lines)
    step = element_strides(x)[axis]
    row = 1
    if lines and lines[-1].strides == (1, 1, 0):
        row = lines.pop().length
    size = x.itemsize
    unit = _unit_bytes(out, x, [row, step, *[n for a in lines for n in a.strides[:2]]])
    scale = unit // size
    scaled = [
        StridedAxis(a.length, (a.strides[0] // scale, a.strides[1] // scale, a.strides[2]))
        for a in lines
    ]
    units, count = row // scale, count // scale
    index = counter_type(count)
    # All bits set are a nan in every floating-point dtype.
    missing = 0 if out.dtype.name == "bool" else 0xFF
    blocks = blocks_for(count, _THREADS)
    kind = _UNITS[unit]
    return CudaRunner(
        [
            function_launch(
                "gather.cuh",
                "gather",
                blocks,
                _THREADS,
                f"gather_lines<{kind}, {type_of(positions)}, {index}>",
                {
                    "out": pointer(out, kind),
                    "x": const_pointer(x, kind),
                    "positions": const_pointer(positions),
                    "lines": strided_axes(scaled, 3),
                    "step": i64(step // scale),
                    "length": i64(x.shape[axis]),
                    "units": counted(index, units),
                    "count": counted(index, count),
                    "missing": u32(missing),
                },
                bounded=False,
            )
        ]
    )


def _unit_bytes(out: Array, x: Array, distances: Sequence[int]) -> int:
    """Return the maximum number of bytes per access, to which all rows must be aligned."""
    size = x.itemsize
    places = [address_of(out), address_of(x), *[distance * size for distance in distances]]
    return next(
        unit
        for unit in (16, 8, 4, 2, 1)
        if unit == size or all(place % unit == 0 for place in places)
    )


TABLE.add(Kernel("gather", "cuda", "lines", _bind_gather))
TABLE.add(
    Kernel(
        "gather_rounded",
        "cuda",
        "lines",
        _bind_rounded,
        lambda node: is_float(node.inputs[0].dtype) and is_float(node.dtype),
    )
)
TABLE.add(Kernel("take_along_axis", "cuda", "lines", _bind_take_along_axis))
