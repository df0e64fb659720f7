"""Layout conversion for convolutions: filters, gradients and channels-last images.

Images in another layout or in half precision are copied before or after, in workspace if the node
declared it. `gather` writes blocks of adjacent elements collected from anywhere; `scatter` reads
adjacent elements and distributes them, adding up partial sums. Both use the strides of their
arrays, so they support any layout, and both convert between stored and computed types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph import NHWC, Node, Spec, laid_out, same_memory
from caldera.core.tensor.dtype import DType
from caldera.kernels.common.binding import ALIGNMENT, Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Pointer,
    RegisterValue,
    computed_type,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.movement import LoopArgument, copying
from caldera.kernels.table import Call, Runner

WORTH_SPLITTING = 1 << 14
"""Elements from which on a second thread pays."""


@dataclass(frozen=True)
class CopyLoop:
    """One axis of a copy: its length, and the elements from one to the next on both sides."""

    count: int
    source: int
    target: int


ONCE = CopyLoop(1, 0, 0)


def _parts(elements: int) -> int:
    return thread_count() if elements >= WORTH_SPLITTING else 1


def gather(
    source: np.ndarray,
    target: np.ndarray,
    loops: tuple[CopyLoop, CopyLoop, CopyLoop, CopyLoop],
    *,
    length: int,
    neighbour: int,
    width: int,
    block_step: int,
    padded: bool,
) -> NativeCall:
    """Gather `length` elements with a stride of `neighbour` into contiguous blocks of `width`.

    The stride between blocks is `block_step`; the last block is padded with zeros if it is
    `padded`.
    """
    return _gather.call(
        source=source,
        target=target,
        loops=[vars(loop) for loop in loops],
        length=length,
        neighbour=neighbour,
        blocks=-(-length // width),
        block_step=block_step,
        padded=padded,
        width=width,
        dense=neighbour == 1,
        parts=_parts(target.size),
    )


@native_kernel
def _gather(
    k: Emitter,
    source: ElementPointer,
    target: Pointer,
    loops: list[LoopArgument],
    length: Integer,
    neighbour: Integer,
    blocks: Integer,
    block_step: Integer,
    padded: Integer,
    width: int,
    dense: bool,
) -> None:
    lanes = min(natural_lanes(target.type), width)
    outermost, *inner = loops
    with k.loop(*k.part_range(outermost.count * blocks)) as index:
        outer, block = index // blocks, index % blocks
        first = source.at(outer * outermost.source + block * width * neighbour)
        place = target.at(outer * outermost.target + block * block_step)
        valid = k.minimum(length - block * width, width)
        whole = valid.equals(width)
        with _nested(k, inner) as (source_offset, target_offset):
            read, write = first.at(source_offset), place.at(target_offset)
            with k.if_else(whole) as (all_of_it, a_part):
                with all_of_it:
                    for start in range(0, width, lanes):
                        step = None if dense else neighbour
                        write.store(start, _collect(k, read, start, step, lanes))
                with a_part:
                    with k.loop(0, valid) as e:
                        write.store(e, read.load(e * neighbour))
                    with k.if_then(padded.differs(0)), k.loop(valid, width) as e:
                        write.store(e, 0.0)


@contextmanager
def _nested(
    k: Emitter, loops: Sequence[LoopArgument]
) -> Iterator[tuple[RegisterValue, RegisterValue]]:
    """Emit the three inner loops; yield the offsets in the source and in the target."""
    a, b, c = loops
    with k.loop(0, a.count) as i, k.loop(0, b.count) as j, k.loop(0, c.count) as m:
        yield (
            i * a.source + j * b.source + m * c.source,
            i * a.target + j * b.target + m * c.target,
        )


def _collect(
    k: Emitter, read: ElementPointer, start: int, step: RegisterValue | None, count: int
) -> RegisterValue:
    """Load elements `start`, `start + 1`, ... with a stride of `step` (None: contiguous)."""
    if step is None:
        return read.load(start, count)
    return k.vector_of([read.load(step * (start + lane)) for lane in range(count)])


def scatter(
    source: np.ndarray,
    target: np.ndarray,
    loops: tuple[CopyLoop, CopyLoop, CopyLoop, CopyLoop],
    *,
    length: int,
    neighbour: int,
    width: int,
    block_step: int,
    sums: int = 1,
    sum_step: int = 0,
) -> NativeCall:
    """Scatter `length` elements from blocks of `width` to a target with a stride of `neighbour`.

    Blocks consist of whole vectors, with a stride of `block_step`. Each element is the sum of
    `sums` elements with a stride of `sum_step`, added in their order.
    """
    return _scatter.call(
        source=source,
        target=target,
        loops=[vars(loop) for loop in loops],
        length=length,
        neighbour=neighbour,
        width=width,
        block_step=block_step,
        sums=sums,
        sum_step=sum_step,
        parts=_parts(target.size),
    )


@native_kernel
def _scatter(
    k: Emitter,
    source: Pointer,
    target: ElementPointer,
    loops: list[LoopArgument],
    length: Integer,
    neighbour: Integer,
    width: Integer,
    block_step: Integer,
    sums: Integer,
    sum_step: Integer,
) -> None:
    lanes = natural_lanes(source.type)
    outermost, *inner = loops
    blocks = (length + (lanes - 1)) // lanes

    def total(read: Pointer, count: int) -> RegisterValue:
        """Return the sum of vectors of `count` elements."""
        value = k.variable(k.constant(0.0, vector(read.type, count)))
        with k.loop(0, sums) as term:
            value.value = value.value + read.load(term * sum_step, count)
        return value.value

    with k.loop(*k.part_range(outermost.count * blocks)) as index:
        outer, start = index // blocks, index % blocks * lanes
        block = start // width * block_step + start % width
        first = source.at(outer * outermost.source + block)
        place = target.at(outer * outermost.target + start * neighbour)
        valid = k.minimum(length - start, lanes)
        with _nested(k, inner) as (source_offset, target_offset):
            read, write = first.at(source_offset), place.at(target_offset)
            with k.if_else(valid.equals(lanes)) as (all_of_it, a_part):
                with all_of_it:
                    values = total(read, lanes)
                    for lane in range(lanes):
                        write.store(neighbour * lane, values.lane(lane))
                with a_part, k.loop(0, valid) as e:
                    write.store(neighbour * e, total(read.at(e), 1))


IMAGES = {
    "conv2d": ((0,), True),
    "conv2d_input": ((0,), True),
    "conv2d_weight": ((0, 1), False),
    "int8_conv2d": ((0,), True),
    "int8_conv2d_relu": ((0, 4), True),
}
"""Indices of an op's inputs that are images, and True if its output is an image."""

Compute = Callable[["ScratchMemory", list[np.ndarray]], list[NativeCall]]
"""Makes the calls of a kernel from its scratch memory and its arrays (inputs, then the output)."""


class ScratchMemory:
    """Scratch memory from a call's workspace; new memory where that was not foreseen."""

    def __init__(self, workspace: np.ndarray | None) -> None:
        self._scratch = Scratch(workspace)

    def array(self, length: int, dtype: DType) -> np.ndarray:
        """Return the next `length` elements, with undefined content."""
        if length * dtype.itemsize <= self._scratch.rest.nbytes:
            return self._scratch.array((length,), dtype)
        block = np.empty(length * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        return block[start : start + length * dtype.itemsize].view(dtype)


def scratch_bytes(lengths: Sequence[int], dtype: DType) -> int:
    """Return the bytes of workspace for arrays of these lengths."""
    return workspace_bytes(*(Spec((length,), dtype) for length in lengths))


def staging_bytes(node: Node) -> int:
    """Return the workspace for copies of images, as far as specs show that copies are needed."""
    inputs, writes_image = IMAGES[node.op.name]
    specs = [given.outputs[0] for i, given in enumerate(node.inputs) if i in inputs]
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
    """Return True if pixels are also contiguous, without gaps or repetition."""
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
    """Return the calls that `compute` makes, with copies around them where images do not fit.

    `lengths` is the scratch memory that `compute` will take; images come after it.
    """
    if not all(array.size for array in call.inputs):
        # Without images, the result is empty, or a gradient of zeros.
        nothing = [np.broadcast_to(np.zeros((), out.dtype), out.shape) for out in call.outputs]
        return copying(list(zip(call.outputs, nothing, strict=True)))
    inputs, writes_image = IMAGES[call.node.op.name]
    dtype = compute_dtype(call.node.dtype)
    kept = scratch_bytes(lengths, dtype)
    workspace = call.workspace
    own = None if workspace is None else workspace[:kept]
    staging = ScratchMemory(None if workspace is None else workspace[kept:])
    before: list[NativeCall] = []
    after: list[NativeCall] = []
    arrays = [*call.inputs, *call.outputs]
    for index in range(len(call.inputs)):
        if index in inputs and not fits(arrays[index]):
            image = arrays[index]
            arrays[index] = _stand_in(image, staging)
            before.append(copy_image(image, arrays[index]))
    if writes_image and not fits(arrays[-1]):
        image = arrays[-1]
        arrays[-1] = _stand_in(image, staging)
        after.append(write_image(arrays[-1], image))
    return NativeRunner([*before, *compute(ScratchMemory(own), arrays), *after])


def _stand_in(image: np.ndarray, workspace: ScratchMemory) -> np.ndarray:
    return laid_out(workspace.array(image.size, compute_dtype(image.dtype)), image.shape, NHWC)


def _image_loops(one: np.ndarray, other: np.ndarray) -> tuple[CopyLoop, CopyLoop, CopyLoop]:
    shape, a, b = one.shape, steps(one), steps(other)
    image, row, column = (CopyLoop(shape[axis], a[axis], b[axis]) for axis in (0, 2, 3))
    return image, row, column


def copy_image(source: np.ndarray, target: np.ndarray) -> NativeCall:
    """Return images (N, C, H, W), however they lie, as images channels last."""
    image, row, column = _image_loops(source, target)
    width = natural_lanes(computed_type(target.dtype.name))
    return gather(
        source,
        target,
        (image, CopyLoop(1, 0, 0), row, column),
        length=source.shape[1],
        neighbour=steps(source)[1],
        width=width,
        block_step=width,
        padded=False,
    )


def write_image(source: np.ndarray, target: np.ndarray) -> NativeCall:
    """Return images channels last as images that lie as `target` does."""
    image, row, column = _image_loops(source, target)
    return scatter(
        source,
        target,
        (image, CopyLoop(1, 0, 0), row, column),
        length=source.shape[1],
        neighbour=steps(target)[1],
        width=source.shape[1] or 1,
        block_step=0,
    )
