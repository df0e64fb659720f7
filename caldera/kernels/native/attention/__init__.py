"""Attention and its gradient as one native kernel each, head by head.

The keys and values of a head are copied once into the memory of the part that computes it: padded,
and in the dtype of the computation. Queries are then processed in blocks, and the matrix of scores
exists only for the current block. With `causal`, keys that are masked for all queries of a block
are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from caldera.base.threads import part_count, thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor import DType, Shape, size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.product import offsets_of, steps
from caldera.kernels.native.attention.head import BLOCK, HeadSizes
from caldera.kernels.native.attention.kernels import backward, forward
from caldera.kernels.native.codegen import (
    CACHE_LINE,
    NativeRunner,
    in_sequence,
    offer,
)
from caldera.kernels.table import Array, Call, Runner


def _dense_masks(masks: Sequence[Array], keys: int) -> tuple[list[Array], list[Runner]]:
    """Masks with one element for each key, side by side, and the copies that make them so."""
    ready: list[Array] = []
    copies: list[Runner] = []
    for mask in masks:
        given = mask.reshape((1,) * (2 - mask.ndim) + mask.shape)
        if given.shape[-1] == keys and (keys <= 1 or steps(given)[1] == 1):
            ready.append(given)
            continue
        copy = np.empty((*given.shape[:-1], keys), given.dtype)
        copies.append(partial(np.copyto, copy, given))
        ready.append(copy)
    return ready, copies


def _mask(mask: Array) -> dict[str, Array | int]:
    return {"base": mask, "down": steps(mask)[0] if mask.shape[-2] > 1 else 0}


def _matrix(array: Array) -> dict[str, Array | int]:
    down, right = steps(array)
    return {"pointer": array, "down": down, "right": right}


def _sizes(sizes: HeadSizes, dtype: DType) -> dict[str, int]:
    keys, depth, width = sizes.distances(dtype)
    return {
        "queries": sizes.queries,
        "keys": sizes.keys,
        "depth": sizes.depth,
        "width": sizes.width,
        "keys_apart": keys,
        "depth_apart": depth,
        "width_apart": width,
    }


def _offsets(batch: Shape, arrays: Sequence[Array]) -> np.ndarray:
    return np.stack([offsets_of(array, batch) for array in arrays], axis=1)


def _aligned_elements(elements: int, dtype: DType) -> int:
    """Return the number of elements of a part's memory, in whole cache lines."""
    step = CACHE_LINE // dtype.itemsize
    return -(-elements // step) * step


def _bind_forward(call: Call) -> Runner:
    q, key, v, *masks = call.inputs
    y, logarithm = call.outputs
    if logarithm.size == 0:
        return NativeRunner([])
    dtype = compute_dtype(q.dtype)
    sizes = HeadSizes.of(q.shape, v.shape)
    batch = y.shape[:-2]
    ready, before = _dense_masks(masks, sizes.keys)
    heads = size(batch)
    parts, chunks = _forward_parts(heads, sizes)
    elements = _aligned_elements(sizes.forward_elements(dtype), dtype)
    memory = Scratch(call.workspace).array((parts * elements,), dtype)
    column = logarithm[..., None]
    attend = NativeRunner(
        [
            forward.call(
                table=_offsets(batch, [q, key, v, y, column, *ready]),
                memory=memory,
                logarithms=logarithm,
                q=_matrix(q),
                key=_matrix(key),
                v=_matrix(v),
                y=_matrix(y),
                masks=[_mask(mask) for mask in ready],
                heads=heads,
                chunks=chunks,
                elements=elements,
                **_sizes(sizes, dtype),
                scale=call.node.attrs["scale"],
                dtype=q.dtype.name,
                causal=call.node.attrs["causal"],
                parts=parts,
            )
        ]
    )
    return in_sequence([*before, attend])


def _forward_parts(heads: int, sizes: HeadSizes) -> tuple[int, int]:
    """Return the number of parts, and the number of pieces into which each head is split."""
    blocks = -(-sizes.queries // BLOCK)
    chunks = max(1, min(blocks, -(-thread_count() // max(heads, 1))))
    return max(1, min(part_count(thread_count()), heads * chunks)), chunks


def _forward_workspace(node: Node) -> int:
    q, _, v, *_ = node.inputs
    sizes = HeadSizes.of(q.shape, v.shape)
    dtype = compute_dtype(q.dtype)
    parts, _ = _forward_parts(size(node.outputs[0].shape[:-2]), sizes)
    elements = _aligned_elements(sizes.forward_elements(dtype), dtype)
    return workspace_bytes(Spec((parts * elements,), dtype))


def _bind_backward(call: Call) -> Runner:
    g, q, key, v, common, logarithm, *masks = call.inputs
    dtype = compute_dtype(q.dtype)
    sizes = HeadSizes.of(q.shape, v.shape)
    batch = q.shape[:-2]
    ready, before = _dense_masks(masks, sizes.keys)
    heads = size(batch)
    parts = _backward_parts(node=call.node)
    elements = _aligned_elements(sizes.backward_elements(dtype), dtype)
    memory = Scratch(call.workspace).array((parts * elements,), dtype)
    added = call.outputs[3:]
    whole = (*batch, sizes.queries, sizes.keys) if added else (1, 1)
    score_gradients = np.zeros(whole, dtype)
    rows = [common[..., None], logarithm[..., None]]
    table = _offsets(batch, [g, q, key, v, *call.outputs[:3], *rows, score_gradients, *ready])
    dq, dk, dv = call.outputs[:3]
    differentiate = NativeRunner(
        [
            backward.call(
                table=table,
                memory=memory,
                common=common,
                logarithm=logarithm,
                common_step=steps(rows[0])[0],
                logarithm_step=steps(rows[1])[0],
                g=_matrix(g),
                q=_matrix(q),
                key=_matrix(key),
                v=_matrix(v),
                dq=_matrix(dq),
                dk=_matrix(dk),
                dv=_matrix(dv),
                score_gradients=_matrix(score_gradients),
                masks=[_mask(mask) for mask in ready],
                heads=heads,
                elements=elements,
                **_sizes(sizes, dtype),
                scale=call.node.attrs["scale"],
                dtype=q.dtype.name,
                causal=call.node.attrs["causal"],
                keeps_scores=bool(added),
                parts=parts,
            )
        ]
    )
    after = [partial(_mask_gradients, score_gradients, added)] if added else []
    return in_sequence([*before, differentiate, *after])


def _mask_gradients(score_gradients: Array, added: Sequence[Array]) -> None:
    """Compute the gradients of added masks from the gradients of the scores."""
    for out in added:
        extra = score_gradients.ndim - out.ndim
        axes = tuple(
            axis
            for axis in range(score_gradients.ndim)
            if axis < extra or (out.shape[axis - extra] == 1 and score_gradients.shape[axis] != 1)
        )
        np.copyto(out, score_gradients.sum(axes).reshape(out.shape), casting="same_kind")


def _backward_parts(node: Node) -> int:
    return max(1, min(part_count(thread_count()), size(node.inputs[1].shape[:-2])))


def _backward_workspace(node: Node) -> int:
    _, q, _, v, *_ = node.inputs
    dtype = compute_dtype(q.dtype)
    elements = _aligned_elements(HeadSizes.of(q.shape, v.shape).backward_elements(dtype), dtype)
    return workspace_bytes(Spec((_backward_parts(node) * elements,), dtype))


def _has_plain_heads(node: Node) -> bool:
    """Return True if no two heads share keys or values, whose gradients would have to be summed."""
    batches = {given.shape[:-2] for given in node.inputs[:4]}
    wide = compute_dtype(node.inputs[0].dtype)
    return len(batches) == 1 and all(given.dtype == wide for given in node.inputs[4:6])


offer(
    "scaled_dot_product_attention",
    "native",
    _bind_forward,
    workspace=_forward_workspace,
    priority=10,
)
offer(
    "scaled_dot_product_attention_grad",
    "native",
    _bind_backward,
    _has_plain_heads,
    _backward_workspace,
    priority=10,
)
