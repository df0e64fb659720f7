"""How operands of a convolution are read, and split-K: sums that are cut into parts, which a second
launch adds up."""

from __future__ import annotations

from caldera.core.graph.node import Spec
from caldera.core.memory.device_array import address_of
from caldera.kernels.common.geometry import steps
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.codegen.merged_axes import blocks_for
from caldera.kernels.cuda.convolution.parameters import Steps, Window
from caldera.kernels.cuda.convolution.source import SPLIT_K_REDUCE, text
from caldera.kernels.cuda.product.tiling import Tile, Tiling
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.cuda.runtime.launch import Launch
from caldera.kernels.table import Array

THREADS = 256
FEW = 8
"""Channels or results of a group below which tiles would be mostly empty."""
WIDEST = 16
"""Bytes that a thread reads at once."""


def access(array: Array, axis: int, extent: int, tile: Tile, *, along: bool) -> tuple[bool, int]:
    """`along`, and how many neighbours along `axis` are read at once: all others begin at such
    places."""
    many = min(WIDEST // array.itemsize, tile.carried)
    own = steps(array)
    fits = (
        own[axis] == 1
        and extent % many == 0
        and address_of(array) % (many * array.itemsize) == 0
        and all(step % many == 0 for i, step in enumerate(own) if i != axis and array.shape[i] > 1)
    )
    return along, many if fits else 1


def most_splits(scratch: Array, out: Array) -> int:
    """Into how many parts sums may be cut with this much workspace."""
    return scratch.nbytes // max(1, out.size * compute_dtype(out.dtype).itemsize)


def split_k_partials(cut: Tiling, scratch: Array, out: Array) -> Array | None:
    """Where partial sums lie; None if no sum is cut."""
    if cut.splits == 1:
        return None
    return Scratch(scratch).array((cut.splits, out.size), compute_dtype(out.dtype))


def split_k_workspace(splits: int, out: Array) -> int:
    """The workspace for them."""
    return 0 if splits == 1 else workspace_bytes(Spec((splits, out.size), compute_dtype(out.dtype)))


def split_k_reduction(
    out: Array, sums: Array, window: Window, places: Steps, kind: str, shape: tuple[int, int]
) -> Launch:
    """The launch that adds up partial sums (rows, columns) and stores the results."""
    source = text(SPLIT_K_REDUCE, out.dtype.name, places=kind)
    blocks = blocks_for(out.size, THREADS, driver().multiprocessors)
    signature = SPLIT_K_REDUCE.bind(
        out=out,
        terms=sums,
        splits=sums.shape[0],
        count=out.size,
        window=window,
        places=places,
        rows=shape[0],
        columns=shape[1],
    )
    return Launch(source, SPLIT_K_REDUCE.name, blocks, THREADS, signature)
