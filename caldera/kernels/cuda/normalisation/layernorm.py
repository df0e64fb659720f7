"""Layer normalisation and its gradient: a sample is a row, read once and kept in registers.

The gradients of scale and shift are sums over samples. Every block adds up the sums of its rows
while it computes the gradient of x, and a second kernel adds up the blocks. The addition of a
residual block to x, or to its gradient, is part of the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    Parameter,
    StridedLayout,
    Strides,
    ThreadGroup,
    const_pointer,
    flags,
    function_launch,
    i32,
    index,
    is_large,
    neighbours,
    pointer,
    real,
    strided_layout,
    strides_of,
    thread_group_for,
    unless_empty,
)
from caldera.kernels.cuda.normalisation.statistics import parameter_gradients
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_HEADER = "layernorm.cuh"
_MOST_KEPT, _MOST_KEPT_OF_BLOCK = 32, 16
"""Maximum number of elements of a row that a thread keeps, and for gradients in a large block.

For gradients, a thread keeps several numbers per element.
"""
_FEW_BLOCKS, _MOST_BLOCKS = 3, 8
"""Blocks per multiprocessor that share the rows of a gradient.

There are three, and more if a block would otherwise process many rows sequentially.
"""
_ROWS_IN_TURN = 8
"""Minimum number of rows of a group if there are more blocks.

Each group writes sums, which are read again.
"""

Axes = tuple[int, ...]


def _spread(array: Array, axes: Axes, rank: int) -> Strides:
    """Return the strides of an array that has only these axes of a shape."""
    own = dict(zip(axes, strides_of(array), strict=True))
    return tuple(own.get(axis, 0) for axis in range(rank))


@dataclass(frozen=True)
class _Rows:
    """Arrays as rows: the layout over rows, and the layout within a row."""

    rows: StridedLayout
    row: StridedLayout
    dense: bool
    group: ThreadGroup
    large: bool

    @property
    def options(self) -> str:
        """The first template arguments of the functions."""
        return f"{self.group.text}, {flags(self.dense)}"

    def parameters(
        self, row: StridedLayout, count: int, length: int, node: Node
    ) -> dict[str, Parameter]:
        """Return the parameters for `count` rows of this length, and eps."""
        return {
            "rows": self.rows.parameter(self.large),
            "row": row.parameter(self.large),
            "count": index(count, self.large),
            "length": i32(length),
            "eps": real("double", node.attrs["eps"]),
        }


def _rows(
    shape: Shape,
    axes: Axes,
    images: Sequence[Array],
    samples: Sequence[Array],
    parameters: Sequence[Array],
    most: int,
) -> _Rows:
    """Return the arrays as rows.

    `images` are whole arrays, `samples` have a number per row, and `parameters` have the length of
    a row.
    """
    rank = len(shape)
    others = tuple(axis for axis in range(rank) if axis not in axes)
    whole = [strides_of(array) for array in images]
    rows = strided_layout(
        shape, others, [*whole, *(_spread(each, others, rank) for each in samples)]
    )
    row = strided_layout(shape, axes, [*whole, *(_spread(each, axes, rank) for each in parameters)])
    length = size(row.sizes)
    dense = row.rank == 1 and (length <= 1 or all(step == 1 for step in row.inner))
    together = 1
    if dense:
        # The remaining strides belong to samples, whose rows are single numbers.
        whole_rows = zip(images, rows.strides[: len(images)], strict=True)
        together = neighbours(length, [*whole_rows, *((each, ()) for each in parameters)])
    large = is_large(*images)
    kept = most // (compute_dtype(images[0].dtype).itemsize // 4)
    return _Rows(rows, row, dense, thread_group_for(length, together, kept), large)


@unless_empty
def _bind(call: Call) -> Runner:
    x, *more, scale, shift = call.inputs
    *total, y, mean, variance = call.outputs
    # These two are read only if there is an addition.
    other, whole = (more[0], total[0]) if more else (x, x)
    axes = call.node.attrs["axis"]
    seen = _rows(x.shape, axes, [x, other, whole, y], [mean, variance], [scale, shift], _MOST_KEPT)
    return CudaRunner(
        [
            function_launch(
                _HEADER,
                "layer_norm_rows",
                seen.group.blocks(mean.size),
                seen.group.threads,
                f"layer_norm<{flags(bool(more))}, {seen.options}>",
                {
                    "x": const_pointer(x),
                    "more": const_pointer(other),
                    "total": pointer(whole),
                    "y": pointer(y),
                    "scale": const_pointer(scale),
                    "shift": const_pointer(shift),
                    "mean": pointer(mean),
                    "variance": pointer(variance),
                    **seen.parameters(seen.row, mean.size, scale.size, call.node),
                },
            )
        ]
    )


@unless_empty
def _bind_gradient(call: Call) -> Runner:
    g, x, scale, mean, variance, *more = call.inputs
    dx, for_scale, for_shift, *rest = call.outputs
    rounds, sums = _ending(call.node)
    # Placeholders replace absent operands and results, and are not accessed.
    other, rounded = more[0] if more else g, rest[0] if rounds else dx
    totals = [for_scale, for_shift, *(rest[-1:] if sums else ())]
    axes, length = call.node.attrs["axis"], scale.size
    arrays = [x, g, dx, other, rounded], [mean, variance], [scale, *totals]
    seen = _rows(x.shape, axes, *arrays, _MOST_KEPT)
    if seen.group.kind != "warp":
        seen = _rows(x.shape, axes, *arrays, _MOST_KEPT_OF_BLOCK)
    seen = replace(seen, group=seen.group.exactly(length))
    strides = seen.row.strides
    images_and_scale = len(arrays[0]) + 1
    row = StridedLayout(seen.row.sizes, strides[:images_and_scale])
    spec = _partial(call.node)
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    all_blocks = seen.group.blocks(mean.size)
    few = _FEW_BLOCKS * driver().multiprocessors
    blocks = min(all_blocks, max(all_blocks // _ROWS_IN_TURN, few), len(partial))
    adding = parameter_gradients(
        partial,
        blocks,
        len(totals) * length,
        StridedLayout(seen.row.sizes, strides[images_and_scale:]),
        *totals,
        large=seen.large,
    )
    if mean.size == 0:
        return CudaRunner([adding])
    main = function_launch(
        _HEADER,
        "layer_gradients",
        blocks,
        seen.group.threads,
        f"block_layer_gradients<{flags(bool(more), rounds, sums)}, {seen.options}>",
        {
            "x": const_pointer(x),
            "g": const_pointer(g),
            "dx": pointer(dx),
            "more": const_pointer(other),
            "rounded": pointer(rounded),
            "scale": const_pointer(scale),
            "mean": const_pointer(mean),
            "variance": const_pointer(variance),
            **seen.parameters(row, mean.size, length, call.node),
            "partial": pointer(partial),
        },
    )
    return CudaRunner([main, adding])


def _ending(node: Node) -> tuple[bool, bool]:
    """Return two flags: if a gradient is rounded as well, and if it is summed."""
    return node.attrs.get("dtype") is not None, node.attrs.get("summed", False)


def _partial(node: Node) -> Spec:
    """Return the sums of each block for shift and scale, and of the gradient if it is summed."""
    length = max(node.inputs[2].spec.size, 1)
    rows = node.outputs[0].size // length
    blocks = min(rows, _MOST_BLOCKS * driver().multiprocessors)
    _, sums = _ending(node)
    return Spec((blocks, (2 + sums) * length), compute_dtype(node.outputs[0].dtype))


for _op in ("layer_norm", "layer_norm_rounded", "layer_norm_residual"):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "rows",
            _bind,
            # A mean must not be written over a scale that later rows need, nor over elements.
            in_place=lambda node: (
                node.outputs[-1] not in (*(given.spec for given in node.inputs), node.outputs[0])
            ),
        )
    )
for _op in ("layer_norm_grad", "layer_norm_grad_residual"):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "rows",
            _bind_gradient,
            workspace=lambda node: workspace_bytes(_partial(node)),
            in_place=lambda node: True,
        )
    )
