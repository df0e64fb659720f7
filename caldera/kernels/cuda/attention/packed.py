"""Gradients of queries, keys and values side by side: by any kernel for the three, which writes
each of them where it belongs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from caldera.core.graph.node import Node
from caldera.core.graph.ops.attention import (
    HEADS_INSIDE,
    attention_backward,
    attention_backward_packed,
)
from caldera.kernels.cuda.attention import cudnn_sdpa, tiles
from caldera.kernels.table import TABLE, Call, Kernel, Runner

# These have registered their kernels before this module looks for them.
assert all((cudnn_sdpa, tiles))


def _apart(node: Node) -> Node:
    """The node with an output for each of the three."""
    return attention_backward.node(*node.inputs, **node.attrs)


def _bind(kernel: Kernel, call: Call) -> Runner:
    (whole,) = call.outputs
    node = _apart(call.node)
    views, begin = [], 0
    for spec in node.outputs:
        count, heads, steps, width = spec.shape
        part = whole[:, :, begin : begin + heads * width]
        begin += heads * width
        views.append(part.reshape((count, steps, heads, width), copy=False).transpose(HEADS_INSIDE))
    return kernel.bind(replace(call, node=node, outputs=tuple(views)))


def _supports(kernel: Kernel, node: Node) -> bool:
    return kernel.supports(_apart(node))


def _workspace(kernel: Kernel, node: Node) -> int:
    return kernel.workspace(_apart(node))


for _kernel in TABLE.kernels(attention_backward.name, "cuda"):
    TABLE.add(
        Kernel(
            attention_backward_packed.name,
            "cuda",
            _kernel.name,
            partial(_bind, _kernel),
            partial(_supports, _kernel),
            partial(_workspace, _kernel),
            _kernel.priority,
        )
    )
