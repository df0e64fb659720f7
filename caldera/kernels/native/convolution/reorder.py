"""The arrays of a convolution as its kernels want them: images channels last, not in halves.

Images that lie otherwise are copied before or after, in workspace if the node foretold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.core.graph.memory_format import NHWC, laid_out, same_memory
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import DType
from caldera.kernels.common.geometry import steps
from caldera.kernels.common.scratch import ALIGNMENT, Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import natural_lanes
from caldera.kernels.native.codegen.program import NativeCall, NativeRunner
from caldera.kernels.native.convolution.packing import Loop, gather, scatter
from caldera.kernels.native.movement import copying
from caldera.kernels.table import Call, Runner

IMAGES = {"conv2d": ((0,), True), "conv2d_input": ((0,), True), "conv2d_weight": ((0, 1), False)}
"""Which inputs of an op are images, and whether its output is one."""

Compute = Callable[["Workspace", list[np.ndarray]], list[NativeCall]]
"""Makes the calls of a kernel from its scratch memory and its arrays (inputs, then the output)."""


class Workspace:
    """Scratch memory from a call's workspace; new memory where that was not foreseen."""

    def __init__(self, workspace: np.ndarray | None) -> None:
        self._scratch = Scratch(workspace)

    def array(self, length: int, dtype: DType) -> np.ndarray:
        """The next `length` elements; what they hold is not defined."""
        if length * dtype.itemsize <= self._scratch.rest.nbytes:
            return self._scratch.array((length,), dtype)
        block = np.empty(length * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        return block[start : start + length * dtype.itemsize].view(dtype)


def scratch_bytes(lengths: Sequence[int], dtype: DType) -> int:
    """The workspace that arrays of these lengths take."""
    return workspace_bytes(*(Spec((length,), dtype) for length in lengths))


def staging_bytes(node: Node) -> int:
    """The workspace for images that will have to be copied, as far as the node says."""
    inputs, writes_image = IMAGES[node.op.name]
    specs = [node.inputs[index].outputs[0] for index in inputs]
    specs += [node.outputs[0]] if writes_image else []
    needed = [Spec(spec.shape, compute_dtype(spec.dtype)) for spec in specs if not _fits_spec(spec)]
    return workspace_bytes(*needed)


def _fits_spec(spec: Spec) -> bool:
    wide = spec.dtype == compute_dtype(spec.dtype)
    return wide and same_memory(spec.shape, spec.order, NHWC)


def _fits(image: np.ndarray) -> bool:
    wide = image.dtype == compute_dtype(image.dtype)
    return wide and (image.shape[1] == 1 or image.strides[1] == image.itemsize)


def is_uniform(image: np.ndarray) -> bool:
    """Whether pixels also follow each other in one piece, without gaps or repetition."""
    if not _fits(image) or image.size == 0:
        return _fits(image)
    _, channels, height, width = image.shape
    expected = (height * width * channels, 1, width * channels, channels)
    return all(
        length == 1 or step == wanted
        for length, step, wanted in zip(image.shape, steps(image), expected, strict=True)
    )


def bind_staged(
    call: Call,
    lengths: Sequence[int],
    compute: Compute,
    fits: Callable[[np.ndarray], bool] = _fits,
) -> Runner:
    """The calls that `compute` makes, with copies around them where images do not fit.

    `lengths` is the scratch memory that `compute` will take; images come after it.
    """
    if not all(array.size for array in call.inputs):
        # No images give no result, or a gradient of nothing: zeros.
        nothing = [np.broadcast_to(np.zeros((), out.dtype), out.shape) for out in call.outputs]
        return copying(list(zip(call.outputs, nothing, strict=True)))
    inputs, writes_image = IMAGES[call.node.op.name]
    dtype = compute_dtype(call.node.dtype)
    kept = scratch_bytes(lengths, dtype)
    workspace = call.workspace
    own = None if workspace is None else workspace[:kept]
    staging = Workspace(None if workspace is None else workspace[kept:])
    before: list[NativeCall] = []
    after: list[NativeCall] = []
    arrays = [*call.inputs, *call.outputs]
    for index in inputs:
        if not fits(arrays[index]):
            image = arrays[index]
            arrays[index] = _stand_in(image, staging)
            before.append(copy_image(image, arrays[index]))
    if writes_image and not fits(arrays[-1]):
        image = arrays[-1]
        arrays[-1] = _stand_in(image, staging)
        after.append(write_image(arrays[-1], image))
    return NativeRunner([*before, *compute(Workspace(own), arrays), *after])


def _stand_in(image: np.ndarray, workspace: Workspace) -> np.ndarray:
    memory = workspace.array(image.size, compute_dtype(image.dtype))
    return laid_out(memory, image.shape, NHWC)


def _image_loops(one: np.ndarray, other: np.ndarray) -> tuple[Loop, Loop, Loop]:
    shape, a, b = one.shape, steps(one), steps(other)
    image, row, column = (Loop(shape[axis], a[axis], b[axis]) for axis in (0, 2, 3))
    return image, row, column


def copy_image(source: np.ndarray, target: np.ndarray) -> NativeCall:
    """Images (N, C, H, W), however they lie, as images channels last."""
    image, row, column = _image_loops(source, target)
    width = natural_lanes(computed_type(target.dtype.name))
    return gather(
        source,
        target,
        (image, Loop(1, 0, 0), row, column),
        length=source.shape[1],
        neighbour=steps(source)[1],
        width=width,
        block_step=width,
        padded=False,
    )


def write_image(source: np.ndarray, target: np.ndarray) -> NativeCall:
    """Images channels last as images that lie as `target` does."""
    image, row, column = _image_loops(source, target)
    loops = (image, Loop(1, 0, 0), row, column)
    return scatter(
        source,
        target,
        loops,
        length=source.shape[1],
        neighbour=steps(target)[1],
        width=source.shape[1] or 1,
        block_step=0,
    )
