"""Batch normalisation of small images, channels last, and its gradient: one launch each.

Three launches take longer than the work of a small network's layer. Here all blocks are resident
simultaneously and keep the elements they have read until a barrier of the whole grid, see
include/normalisation/batchnorm_cooperative.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from caldera.core.graph import NHWC, Node, Spec
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import HALVES, float32
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    Parameter,
    const_pointer,
    flags,
    i32,
    lies_dense,
    pointer,
    real,
    strides_of,
    u32,
)
from caldera.kernels.cuda.normalisation import channel_norms
from caldera.kernels.cuda.normalisation.channel_norms import has_relu, in_place, workspace
from caldera.kernels.cuda.normalisation.statistics import strided
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

THREADS = ((256, 4), (512, 8))
"""Threads of a block, and the maximum number of pieces of an image that each keeps.

Fewer threads are faster if they suffice, as measured on an H200.
"""
PIECE = 16
"""Number of bytes that a thread reads per access."""
_FEWEST = 1 << 10
"""Elements of an image."""
_BARRIERS = 4096
"""Number of barriers, the same as in batchnorm_cooperative.cuh."""
_KNOWN = 16 * 5 * 4
"""Bytes of the values stored for up to 16 channels."""
_places = count()


@dataclass(frozen=True)
class Shares:
    """Distribution of images with `rows` rows and `channels` channels among blocks."""

    rows: int
    channels: int
    many: int
    """Channels of a piece."""
    most: int
    """Number of blocks that are resident on the GPU simultaneously."""

    @property
    def across(self) -> int:
        """Pieces of a row that a block has: two pieces fill a memory transaction of the GPU."""
        return 1 if self.channels // self.many % 2 else 2

    @property
    def groups(self) -> int:
        """Blocks that share a row."""
        return self.channels // (self.many * self.across)

    def split(self, most: int) -> Split | None:
        """Return the split of the rows if no thread keeps more than `most` pieces of an image."""
        for threads, many in THREADS:
            kept = 1
            while kept <= min(most, many):
                chunks = -(-self.rows // (threads // self.across * kept))
                if chunks * self.groups <= self.most:
                    return Split(threads, kept, chunks)
                kept *= 2
        return None


@dataclass(frozen=True)
class Split:
    """Threads of a block, pieces that each keeps, and blocks that share the rows."""

    threads: int
    kept: int
    chunks: int


# --- which images

_MOST_KEPT = {
    "batch_norm": 8,
    "batch_norm_relu": 8,
    "batch_norm_grad": 4,
    "batch_norm_relu_grad": 4,
}
"""Pieces of each image that fit into registers."""


def _shares(image: Spec) -> Shares:
    channels = image.shape[1]
    many = PIECE // image.dtype.itemsize
    return Shares(image.size // channels, channels, many, driver().multiprocessors)


def _split(node: Node) -> Split | None:
    return _shares(node.outputs[0]).split(_MOST_KEPT[node.op.name])


def _is_small(node: Node) -> bool:
    """Return True if images are small and channels last."""
    image = node.outputs[0]
    if len(image.shape) != len(NHWC) or node.attrs["axis"] != 1 or image.order != NHWC:
        return False
    if image.dtype not in (*HALVES, float32) or image.size < _FEWEST:
        return False
    if any(len(each.shape) > 1 and each.dtype != image.dtype for each in node.inputs):
        return False
    return image.shape[1] * image.dtype.itemsize % PIECE == 0 and _split(node) is not None


def _partial(node: Node) -> Spec:
    """Return two numbers of each block for each of its channels."""
    split = _split(node)
    assert split is not None
    return Spec((split.chunks, node.outputs[0].shape[1], 2), float32)


def _lie_well(images: Sequence[Array]) -> bool:
    return all(lies_dense(each, NHWC) and address_of(each) % PIECE == 0 for each in images)


# --- kernels


def _launch(
    call: Call,
    name: str,
    images: dict[str, Parameter],
    vectors: dict[str, Parameter],
    options: Sequence[bool],
) -> Runner:
    """Return a launch of the function `name` of batchnorm_cooperative.cuh."""
    node = call.node
    shares, split, spec = _shares(node.outputs[0]), _split(node), _partial(node)
    assert split is not None
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    # A launch uses a barrier that no concurrent launch uses.
    signature = KernelSignature(
        {
            "partial": pointer(partial),
            **images,
            "rows": i32(shares.rows),
            "channels": i32(shares.channels),
            "eps": real("double", node.attrs["eps"]),
            "barrier": u32(next(_places) * shares.groups % _BARRIERS),
        }
    )
    for each, vector in vectors.items():
        assert isinstance(vector.argument, np.ndarray)
        signature |= {each: vector, f"{each}_step": i32(strides_of(vector.argument)[0])}
    source = (
        '#include "batchnorm_cooperative.cuh"\n'
        "struct S { static const int "
        f"THREADS = {split.threads}, ACROSS = {shares.across}, KEPT = {split.kept}; }};\n"
        f'extern "C" __global__ void __launch_bounds__(S::THREADS, 1) {name}('
        f"{signature.declaration}) {{\n    DYNAMIC_SHARED(char, shared);\n"
        f"    grid_{name}<{flags(*options)}, S>("
        f"{', '.join(images)}, rows, channels, eps, {strided(*vectors)}, partial, barrier, "
        "shared);\n}\n"
    )
    # A sum per thread, and the values of the channels.
    shared = 8 * split.threads + _KNOWN
    grid = (split.chunks, shares.groups, 1)
    return CudaRunner(
        [KernelLaunch(source, name, grid, split.threads, signature, shared, cooperative=True)]
    )


def _bind(call: Call) -> Runner:
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    if not _lie_well([x, y, *more]):
        return channel_norms.bind(call)
    vectors = {
        "scale": const_pointer(scale),
        "shift": const_pointer(shift),
        "mean": pointer(mean),
        "variance": pointer(variance),
    }
    images = {"x": pointer(x), "y": pointer(y), "more": pointer(more[0] if more else x)}
    return _launch(call, "batch_norm", images, vectors, [has_relu(call.node), bool(more)])


def _bind_gradient(call: Call) -> Runner:
    g, x, scale, *shifts, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    if not _lie_well([x, g, dx]):
        return channel_norms.bind_gradient(call)
    # The shift is read only with a relu.
    shift = shifts[0] if shifts else scale
    vectors = {
        "scale": const_pointer(scale),
        "shift": const_pointer(shift),
        "mean": const_pointer(mean),
        "variance": const_pointer(variance),
        "for_scale": pointer(for_scale),
        "for_shift": pointer(for_shift),
    }
    images = {"x": pointer(x), "g": pointer(g), "dx": pointer(dx)}
    return _launch(call, "batch_gradients", images, vectors, [bool(shifts)])


for _op in _MOST_KEPT:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "at once",
            _bind_gradient if _op.endswith("grad") else _bind,
            _is_small,
            # Two concurrent launches might each wait for blocks that do not fit on the GPU.
            lambda node: max(workspace_bytes(_partial(node)), workspace(node)),
            priority=1,
            in_place=in_place,
            shares=frozenset({"barriers"}),
        )
    )
