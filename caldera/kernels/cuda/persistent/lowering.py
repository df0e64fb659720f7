"""The calls of a step as pieces that a persistent kernel can do; None where one cannot be done."""

from __future__ import annotations

from typing import Any

from caldera.core.graph.program import Body
from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopBody, loop_body_of, loop_shape, without_outputs
from caldera.kernels.cuda.codegen.expression import is_known
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.convolutions import (
    CONVOLUTIONS,
    TiledCorrelation,
    TiledFilterGradient,
    correlation,
)
from caldera.kernels.cuda.persistent.epilogue_fusion import FusedLoop, FusedProduct, Reduction
from caldera.kernels.cuda.persistent.gather import Gather, gather
from caldera.kernels.cuda.persistent.images import ImageSums, Pixelwise, image_sums
from caldera.kernels.cuda.persistent.pooling import pool
from caldera.kernels.cuda.persistent.products import is_product, operands
from caldera.kernels.cuda.persistent.row_ops import BUILDERS, RowWork
from caldera.kernels.runners import Fresh
from caldera.kernels.table import Call

Piece = (
    Gather
    | FusedLoop
    | Reduction
    | FusedProduct
    | RowWork
    | TiledCorrelation
    | TiledFilterGradient
    | ImageSums
    | Pixelwise
)


def lower_copy(call: Call) -> FusedLoop:
    """A plain copy of one array, of whatever shape."""
    (given,), (target,) = call.inputs, call.outputs
    if target.shape != given.shape:
        target = target.reshape(given.shape)
    name = given.dtype.name
    return FusedLoop(LoopBody((name,), (), ((name, ("in", 0)),)), target.shape, (given,), (target,))


def lower(call: Call, fresh: Fresh) -> list[Piece] | None:
    """What a call is made of, in order; None if a persistent kernel cannot do it.

    `fresh` gives memory for what is between the pieces of a call.
    """
    if not all(array.size for array in (*call.inputs, *call.outputs)):
        return None
    node = call.node
    if is_product(node):
        return (
            None if operands(call) is None else [FusedProduct(call.inputs, call.outputs[0], call)]
        )
    if node.op.name == "gather":
        found = gather(call)
        return None if found is None else [found]
    if node.op.name == "arrange" or (node.op.name == "reshape" and _is_dense(call.outputs[0])):
        return [lower_copy(call)]
    if node.op.name in CONVOLUTIONS:
        return correlation(call, fresh)
    if "pool" in node.op.name:
        pooled = pool(call)
        return None if pooled is None else [pooled]
    builder = BUILDERS.get(node.op.name)
    if builder is not None:
        work = builder(call)
        return None if work is None else [work]
    looping = node.op.kind in ("elementwise", "reduction") or node.op.name == "fused"
    if not looping or not is_known(node) or size(loop_shape(node)) >= 1 << 31:
        return None
    if node.op.kind != "reduction" and node.op.name != "fused":
        return [FusedLoop(loop_body_of(node), loop_shape(node), call.inputs, call.outputs)]
    pieces = _reduction(call) if node.op.kind == "reduction" else _fused(call)
    return None if pieces is None else [each for piece in pieces for each in _split(piece, fresh)]


def _split(piece: Piece, fresh: Fresh) -> list[Any]:
    """A reduction over images in two steps, everything else as it is."""
    found = image_sums(piece, fresh) if isinstance(piece, Reduction) else None
    return [piece] if found is None else found


def _is_dense(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


def _reduction(call: Call) -> list[Piece] | None:
    node = call.node
    loop_body = loop_body_of(node)
    if loop_body.reductions[0][1] == "bool":
        return None
    axes = node.attrs["axis"]
    output = _without(call.outputs[0], axes, node.attrs["keepdims"])
    return [Reduction(call.inputs, output, loop_body, node.inputs[0].shape, axes)]


def _fused(call: Call) -> list[Piece] | None:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    plain = loop_body_of(call.node)
    arrays = [
        array
        for array, part in zip(call.outputs, body.outputs, strict=True)
        if part.op.kind != "reduction"
    ]
    written = {
        reference: array for (_, reference), array in zip(plain.outputs, arrays, strict=True)
    }
    found: list[Piece] = []
    if written:
        found.append(FusedLoop(plain, shape, call.inputs, tuple(arrays)))
    for index, part in enumerate(body.outputs):
        if part.op.kind != "reduction":
            continue
        loop_body = without_outputs(loop_body_of(call.node, (index,)))
        op, dtype, _ = loop_body.reductions[0]
        if dtype == "bool":
            return None
        axes = part.attrs["axis"]
        output = _without(call.outputs[index], axes, part.attrs["keepdims"])
        inputs = call.inputs
        reference = loop_body_of(call.node, (index,)).reductions[0][2]
        if reference in written:
            # What the loop has written need not be computed again.
            loop_body = LoopBody((dtype,), (), (), ((op, dtype, ("in", 0)),))
            inputs = (written[reference],)
        found.append(Reduction(inputs, output, loop_body, shape, axes))
    return found


def _without(output: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """An output less the axes over which it was reduced."""
    if not keepdims:
        return output
    return output[tuple(0 if axis in axes else slice(None) for axis in range(output.ndim))]
