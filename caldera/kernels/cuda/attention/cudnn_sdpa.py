"""Attention by cuDNN in half precision, with or without causality; our kernels handle masks.

Queries, keys, values and results are read and written in their own layouts, so the head axis may be
in the middle (views of a product) or in front. The library does not support rows without a key,
whose result has to be 0; such problems are never passed to it. Its backward pass runs in
deterministic mode: a resumed run ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from caldera.core.graph import Node, Spec, dense_strides
from caldera.core.memory.software import address_of
from caldera.core.tensor import HALVES, Shape
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.cuda.attention import tiles
from caldera.kernels.cuda.codegen import CudaRunner, strides_of
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.cudnn import (
    ALIGNMENT,
    TYPES,
    CudnnCall,
    CudnnGraph,
    describe,
    set_output,
    supported,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

RANK = 4
"""The axes of the library's tensors: batch, head, step, element."""
Q, KEY, V, RESULT, STATISTICS, G, DQ, DK, DV = range(1, 10)
"""Identifiers of the tensors."""
FORWARD, BACKWARD = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"
ROLES = {
    FORWARD: ((Q, KEY, V), (RESULT, STATISTICS)),
    BACKWARD: ((G, Q, KEY, V, RESULT, STATISTICS), (DQ, DK, DV)),
}
"""Roles of an op's inputs and of its outputs."""
Lie = tuple[Shape, tuple[int, ...]]
"""A shape and the strides, in elements, with four axes each."""


@dataclass(frozen=True)
class AttentionGraphKey:
    """Key of a graph: all properties that determine it."""

    op: str
    dtype: str
    causal: bool
    scale: float
    tensors: tuple[Lie, ...]

    @classmethod
    def of(cls, node: Node, arrays: Sequence[Array] | None = None) -> AttentionGraphKey:
        """Return the key for these arrays, or for the layouts of a plan."""
        specs = [*(given.outputs[0] for given in node.inputs), *node.outputs]
        strides = [
            dense_strides(spec.shape, spec.order, 1) if arrays is None else strides_of(arrays[i])
            for i, spec in enumerate(specs)
        ]
        tensors = tuple(
            _with_four_axes(spec.shape, steps, role)
            for spec, steps, role in zip(specs, strides, roles(node.op.name), strict=True)
        )
        attrs = node.attrs
        return cls(node.op.name, specs[0].dtype.name, attrs["causal"], attrs["scale"], tensors)

    def lie(self, role: int) -> Lie:
        """Return the layout of the tensor with this role."""
        return self.tensors[roles(self.op).index(role)]


def roles(op: str) -> tuple[int, ...]:
    """Return the roles of the inputs and outputs of an op."""
    given, results = ROLES[op]
    return (*given, *results)


def _with_four_axes(shape: Shape, strides: tuple[int, ...], role: int) -> Lie:
    """Return a shape and strides with four axes.

    A statistic is the only element of its row. Axes of length 1 get the stride that dense
    statistics would have, and the longest stride for other tensors, independent of the actual
    layout.
    """
    if role == STATISTICS:
        shape, strides = (*shape, 1), (*strides, 1)
    missing = RANK - len(shape)
    pairs = list(zip(shape, strides, strict=True))
    longest = max(n * step for n, step in pairs)
    four, steps = (1,) * missing + shape, (longest,) * missing + strides
    spare = dense_strides(four, None, 1) if role == STATISTICS else (longest,) * RANK
    outer = zip(four[:-1], steps, spare, strict=False)
    return four, (*(other if n == 1 else step for n, step, other in outer), strides[-1])


class AttentionGraph(CudnnGraph):
    """cuDNN graph for an attention or its gradient."""

    _key: AttentionGraphKey

    def _kind(self, role: int) -> Any:
        kinds = self._library.data_type
        return kinds.FLOAT if role == STATISTICS else getattr(kinds, TYPES[self._key.dtype])

    def _built(self) -> Any:
        key = self._key
        graph = self._new_graph(key.dtype)
        given, results = ROLES[key.op]
        tensors = [describe(graph, role, *key.lie(role), self._kind(role)) for role in given]
        how: dict[str, Any] = {"attn_scale": key.scale}
        if key.causal:
            queries, keys = (key.lie(role)[0][2] for role in (Q, KEY))
            # The last query and the last key come together.
            how["use_causal_mask" + "_bottom_right" * (queries != keys)] = True
        if key.op == FORWARD:
            q, k, v = tensors
            found = graph.sdpa(q=q, k=k, v=v, is_inference=False, **how)
        else:
            g, q, k, v, result, statistics = tensors
            found = graph.sdpa_backward(
                q=q,
                k=k,
                v=v,
                o=result,
                dO=g,
                stats=statistics,
                use_deterministic_algorithm=True,
                **how,
            )
        for tensor, role in zip(found, results, strict=True):
            set_output(tensor, role, *key.lie(role), self._kind(role))
        return self._with_plans(graph)


@lru_cache(maxsize=1024)
def graph_of(key: AttentionGraphKey, card: int) -> AttentionGraph | None:
    """Return the graph for a key; None where cuDNN has no plan for it."""
    return supported(lambda: AttentionGraph(key, card))


def _bind(call: Call) -> Runner:
    arrays = (*call.inputs, *call.outputs)
    key = AttentionGraphKey.of(call.node, arrays)
    graph = graph_of(key, device.current_card()) if _is_aligned(key, arrays) else None
    allowed = 0 if call.workspace is None else call.workspace.nbytes
    if graph is None or graph.workspace(0) > allowed:
        # Ours take arrays as they lie.
        own = next(each for each in TABLE.kernels(key.op, "cuda") if each.name == "tiles")
        return own.bind(call)
    workspace = Scratch(call.workspace).array((graph.workspace(0),), np.dtype(np.uint8))
    tensors = dict(zip(roles(key.op), arrays, strict=True))
    return CudaRunner([CudnnCall(graph, 0, tensors, workspace)])


def _is_aligned(key: AttentionGraphKey, arrays: Sequence[Array]) -> bool:
    """Return True if rows of elements have the alignment that the library expects."""
    step = ALIGNMENT // arrays[0].itemsize
    for role, array in zip(roles(key.op), arrays, strict=True):
        *outer, inner = key.lie(role)[1]
        if address_of(array) % ALIGNMENT or min(outer) <= 0:
            return False
        if role != STATISTICS and (inner != 1 or any(each % step for each in outer)):
            return False
    return True


def _supports(node: Node) -> bool:
    if device.cudnn() is None:
        return False
    if len(node.inputs) != len(ROLES[node.op.name][0]) or node.inputs[0].dtype not in HALVES:
        return False
    specs = [*(each.outputs[0] for each in node.inputs), *node.outputs]
    if any(spec.rank > RANK or 0 in spec.shape for spec in specs):
        return False
    shapes = dict(zip(roles(node.op.name), (spec.shape for spec in specs), strict=True))
    q, key, v = (shapes[role] for role in (Q, KEY, V))
    # Queries are not shared, and keys and values by all heads or by none.
    batch, several = q[:-2], (*q[:-3], 1)
    if key[:-2] not in (batch, several) or v[:-2] != key[:-2]:
        return False
    if node.attrs["causal"] and q[-2] > key[-2]:
        return False
    return graph_of(AttentionGraphKey.of(node), device.current_card()) is not None


def _workspace(node: Node) -> int:
    graph = graph_of(AttentionGraphKey.of(node), device.current_card())
    assert graph is not None
    needed = workspace_bytes(Spec((graph.workspace(0),), np.dtype(np.uint8)))
    return max(needed, tiles.common_bytes(node) if node.op.name == BACKWARD else 0)


for _op in (FORWARD, BACKWARD):
    TABLE.add(Kernel(_op, "cuda", "cudnn", _bind, _supports, _workspace, priority=10))
