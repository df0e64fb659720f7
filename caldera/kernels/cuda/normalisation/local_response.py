"""Local response normalisation and its gradient: see include/normalisation/local_response.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import compute_dtype
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelSignature,
    StridedLayout,
    computed_type,
    const_pointer,
    flags,
    header_launch,
    index,
    index_type,
    indices,
    is_large,
    pointer,
    real,
    strided_layout,
    strides_of,
    unless_empty,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_HEADER = "local_response.cuh"
_THREADS = 256
_ROWS_OF_TILE, _CHANNELS_OF_TILE = (8, 32), (64, 16)
"""Rows and channels of a block's tile, for contiguous channels and for contiguous rows."""
_SHARED = 48 << 10
"""Bytes of shared memory that every kernel may have."""


@dataclass(frozen=True)
class _Work:
    """The arrays (x first) as rows by channels."""

    arrays: Sequence[Array]
    rows: StridedLayout
    steps: tuple[int, ...]
    last: bool
    large: bool

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> _Work:
        x = arrays[0]
        strides = [strides_of(array) for array in arrays]
        rows = strided_layout(x.shape, [a for a in range(x.ndim) if a != 1], strides)
        steps = tuple(own[1] for own in strides)
        last = abs(steps[0]) <= abs(rows.inner[0]) or size(rows.sizes) == 1
        return cls(arrays, rows, steps, last, is_large(*arrays))

    @property
    def flag(self) -> str:
        """The first template argument of the functions."""
        return flags(self.last)

    def signature(self, names: Sequence[str], node: Node, tile: tuple[int, int]) -> KernelSignature:
        """Return the signature for arrays of these names, and tiles of `tile` rows and channels.

        The last array is written.
        """
        attrs, channels = node.attrs, self.arrays[0].shape[1]
        before, after = _window(node)
        kind = computed_type(self.arrays[0].dtype.name)
        sizes = [size(self.rows.sizes), channels, before, after, *tile]
        pointers = {
            name: pointer(each) if name == names[-1] else const_pointer(each)
            for name, each in zip(names, self.arrays, strict=True)
        }
        return KernelSignature(
            {
                **pointers,
                "rows": self.rows.parameter(self.large),
                **{f"step{i}": index(step, self.large) for i, step in enumerate(self.steps)},
                "in": indices(f"Response<{index_type(self.large)}>", sizes, self.large),
                "alpha": real(kind, attrs["alpha"] / attrs["window"]),
                "beta": real(kind, attrs["beta"]),
                "k": real(kind, attrs["k"]),
            }
        )


def _window(node: Node) -> tuple[int, int]:
    """Return the numbers of channels below and above in the window, limited to existing ones."""
    window, channels = node.attrs["window"], node.outputs[0].shape[1]
    return min(window // 2, channels), min((window - 1) // 2, channels)


@unless_empty
def _bind(call: Call) -> Runner:
    (x,), (y,) = call.inputs, call.outputs
    work = _Work.of([x, y])
    signature = work.signature(["x", "y"], call.node, (1, 1))
    return CudaRunner(
        [
            header_launch(
                _HEADER,
                "local_response",
                -(-y.size // _THREADS),
                _THREADS,
                signature,
                f"respond<{work.flag}>({signature.names});",
            )
        ]
    )


@unless_empty
def _bind_gradient(call: Call) -> Runner:
    (g, x), (dx,) = call.inputs, call.outputs
    work = _Work.of([x, g, dx])
    each = 2 * compute_dtype(x.dtype).itemsize
    way = 0 if work.last else 1
    rows, channels = _ROWS_OF_TILE[way], _CHANNELS_OF_TILE[way]
    width = channels + sum(_window(call.node))
    while rows > 1 and rows * width * each > _SHARED:
        rows //= 2
    tiles = -(-size(work.rows.sizes) // rows) * -(-x.shape[1] // channels)
    signature = work.signature(["x", "g", "dx"], call.node, (rows, channels))
    return CudaRunner(
        [
            header_launch(
                _HEADER,
                "local_response_gradients",
                tiles,
                _THREADS,
                signature,
                f"block_response_gradients<{work.flag}>({signature.names});",
                shared=rows * width * each,
            )
        ]
    )


TABLE.add(Kernel("local_response_norm", "cuda", "rows", _bind))
TABLE.add(Kernel("local_response_norm_grad", "cuda", "tiles", _bind_gradient))
