"""Pooling and its adjoints: one kernel each, a thread for a few channels of each window.

Window sizes are part of the source, so that loops can be unrolled and all reads of a thread are in
flight simultaneously.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera.core.graph.node import Node
from caldera.core.graph.ops.epilogue import max_pool2d_epilogue
from caldera.core.tensor.shape import Shape
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    const_pointer,
    divisor,
    flags,
    header_launch,
    index,
    index_type,
    indices,
    is_large,
    neighbours,
    pointer,
    strides_of,
    type_of,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_THREADS = 256
_MOST_ELEMENTS = 16
"""Elements of a window, or between the corners of two, that a thread looks at without a loop."""
_MOST_HOLDING = 9
"""Maximum number of windows per element for which a thread keeps the values it has read."""
_BANDS = (4, 2)
"""Numbers of window rows that a block may combine, so that it reads their shared rows once."""


@dataclass(frozen=True)
class _Axis:
    """The windows along rows or columns: the Axis of pooling.cuh, with the padding before."""

    size: int
    stride: int
    dilation: int
    before: int

    @property
    def text(self) -> str:
        """C++ type of the axis."""
        return f"Axis<{self.size}, {self.stride}, {self.dilation}>"

    @property
    def holding(self) -> int:
        """Maximum number of windows that contain an element."""
        return -(-((self.size - 1) * self.dilation + 1) // self.stride)

    def corners(self, length: int) -> int:
        """Corners of windows before which elements of an image lie, or would if there were more."""
        return (self.before + length - 1) // self.stride - self.before // self.stride + 1


def _axes(node: Node) -> tuple[_Axis, _Axis]:
    attrs = node.attrs
    dilation = attrs.get("dilation", (1, 1))
    rows, columns = (
        _Axis(attrs["size"][i], attrs["stride"][i], dilation[i], attrs["padding"][i][0])
        for i in (0, 1)
    )
    return rows, columns


def _is_small(rows: _Axis, columns: _Axis, *, adjoint: bool) -> bool:
    if not adjoint:
        return rows.size * columns.size <= _MOST_ELEMENTS
    within = rows.stride * columns.stride <= _MOST_ELEMENTS
    return within and rows.holding * columns.holding <= _MOST_HOLDING


def _launch(
    function: str,
    node: Node,
    arrays: Sequence[Array],
    outputs: int,
    *,
    adjoint: bool,
    bias: Array | None = None,
) -> Runner:
    """Return a function of pooling.cuh on these arrays, the last `outputs` of which it writes; a
    bias is added to the first of these."""
    written, read = arrays[-outputs], arrays[0]
    if written.size == 0:
        return CudaRunner([])
    image, pooled = (written, read) if adjoint else (read, written)
    steps = [strides_of(array) for array in arrays]
    channels = written.shape[1]
    biases = [] if bias is None else [bias]
    together = _together(channels, arrays, biases)
    last = channels > 1 and abs(written.strides[1]) < abs(written.strides[3])
    rows, columns = _axes(node)
    small = _is_small(rows, columns, adjoint=adjoint)
    tall, wide = written.shape[2:]
    if adjoint and small:
        tall, wide = rows.corners(tall), columns.corners(wide)
    # Number of rows combined: only few of the last band's rows may be missing.
    bands = next((n for n in _BANDS if -(-tall // n) * n * 8 <= tall * 9), 1) if last else 1
    large = is_large(*arrays)
    kinds = f"Window<{rows.text}, {columns.text}, {flags(small)}>, {together}, {flags(last)}"
    integer = index_type(large)
    groups, down = channels // together, -(-tall // bands)
    threads = written.shape[0] * groups * down * bands * wide
    numbers = _windows(node, image.shape, pooled.shape, (rows.before, columns.before))
    numbers += [threads, tall, *_divisors((groups, wide, down), large)]
    kinds_of = [const_pointer] * (len(arrays) - outputs) + [pointer] * outputs
    pointers = {f"a{i}": kinds_of[i](array) for i, array in enumerate(arrays)}
    pixels = {f"p{i}": indices(f"Pixels<{integer}>", own, large) for i, own in enumerate(steps)}
    given = [*pointers, *pixels, "in"]
    if node.op is max_pool2d_epilogue:
        applied = flags(bool(biases), node.attrs["activated"])
        kind = f"PoolEpilogue<{applied}, {type_of(read)}, {integer}>"
        given.append(f"{kind}{{bias, step}}" if biases else f"{kind}{{}}")
    return CudaRunner(
        [
            header_launch(
                "pooling_backward.cuh" if adjoint else "pooling.cuh",
                f"{function}_pixels",
                -(-threads // _THREADS),
                _THREADS,
                {
                    **pointers,
                    **({} if bias is None else {"bias": const_pointer(bias)}),
                    **pixels,
                    "in": indices(f"Windows<{integer}>", numbers, large),
                    **({} if bias is None else {"step": index(strides_of(bias)[0], large)}),
                },
                f"{function}<{kinds}, {bands}>({', '.join(given)});",
            )
        ]
    )


def _together(channels: int, arrays: Sequence[Array], biases: Sequence[Array]) -> int:
    """Return the number of neighbouring channels that a thread moves per access."""
    steps = [strides_of(array) for array in arrays]
    if any(own[1] != 1 for own in steps) or any(strides_of(each)[0] != 1 for each in biases):
        return 1
    beside = zip(arrays, steps, strict=True)
    lying: list[tuple[Array, Sequence[int]]] = [(each, (n, y, x)) for each, (n, _, y, x) in beside]
    return neighbours(channels, [*lying, *((each, ()) for each in biases)])


def _windows(node: Node, image: Shape, pooled: Shape, before: tuple[int, int]) -> list[int]:
    rows, columns = node.attrs["size"]
    counted = rows * columns if node.attrs.get("count_padding") else 0
    return [*image[2:], *pooled[2:], *before, counted]


def _divisors(lengths: Sequence[int], large: bool) -> list[int]:
    if large:
        return list(lengths)
    return [number for length in lengths for number in divisor(length)]


def _bind(function: str, outputs: int, *, adjoint: bool) -> Callable[[Call], Runner]:
    def bind(call: Call) -> Runner:
        return _launch(function, call.node, [*call.inputs, *call.outputs], outputs, adjoint=adjoint)

    return bind


def _bind_epilogue(call: Call) -> Runner:
    image, *biases = call.inputs
    bias = biases[0].reshape(-1, copy=False) if biases else None
    return _launch("max_pool", call.node, [image, *call.outputs], 2, adjoint=False, bias=bias)


TABLE.add(Kernel("max_pool2d_epilogue", "cuda", "pixels", _bind_epilogue))
for _op, _function, _outputs, _adjoint in (
    ("max_pool2d", "max_pool", 2, False),
    ("pool_gather", "pool_gather", 1, False),
    ("pool_scatter", "pool_scatter", 1, True),
    ("avg_pool2d", "mean_pool", 1, False),
    ("avg_pool2d_input", "mean_spread", 1, True),
):
    TABLE.add(Kernel(_op, "cuda", "pixels", _bind(_function, _outputs, adjoint=_adjoint)))
