"""Convolutions by cuDNN, as graphs of NVIDIA's cudnn-frontend.

A bias and an activation after a convolution belong to its graph. Filters have the layout of the
images: if these are channels last, filters are rearranged before the call, and gradients of filters
after it. Plans whose results differ from run to run are never used, nor are plans that round more
than requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.core.graph import NHWC, Node, Spec, dense_strides, same_memory
from caldera.core.graph.ops.epilogue import conv2d_epilogue
from caldera.core.memory.software import address_of
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.product import Epilogue
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen import CudaRunner, lies_dense
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.cuda.product.problem import NOTHING
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
from caldera.kernels.table import TABLE, Call, Kernel, Runner

RANKS = 3
"""Maximum number of plans to compare by time."""
IMAGE, FILTERS, OUTPUT, BIAS = 1, 2, 3, 4
"""Identifiers of the tensors, independent of which tensor is computed."""
ROLES = {
    "conv2d": (IMAGE, FILTERS, OUTPUT),
    "conv2d_epilogue": (IMAGE, FILTERS, OUTPUT),
    "conv2d_input": (OUTPUT, FILTERS, IMAGE),
    "conv2d_weight": (IMAGE, OUTPUT, FILTERS),
}
"""Roles of the first input, the second input and the result."""
ACTIVATIONS = frozenset({"relu", "leaky_relu", "sigmoid", "tanh"})
"""Activations that the library computes as Caldera does, including infinite arguments and nan."""


@dataclass(frozen=True)
class ConvolutionGraphKey:
    """Key of a graph: all properties that determine it and the choice of its plans."""

    op: str
    tensors: tuple[Spec, Spec, Spec]
    """The first input, the second one and the result."""
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]
    compute: str | None
    accuracy: str
    epilogue: Epilogue = NOTHING

    @classmethod
    def of(cls, node: Node) -> ConvolutionGraphKey:
        """Return the graph key for a node."""
        first, second = (given.outputs[0] for given in node.inputs[:2])
        attrs = node.attrs
        specs = tuple(
            _as_images(spec, first.order) if role == FILTERS else spec
            for role, spec in zip(ROLES[node.op.name], (first, second, node.spec), strict=True)
        )
        return cls(
            node.op.name,
            (specs[0], specs[1], specs[2]),
            attrs["stride"],
            attrs["padding"],
            attrs["dilation"],
            attrs.get("compute"),
            settings.accuracy,
            Epilogue.of(node) if node.op is conv2d_epilogue else NOTHING,
        )

    @property
    def dtype(self) -> str:
        """The name of the dtype of all tensors."""
        return self.tensors[0].dtype.name

    def spec(self, role: int) -> Spec:
        """Return the tensor that plays a role."""
        if role == BIAS:
            result = self.tensors[2]
            return Spec((1, result.shape[1], 1, 1), result.dtype, result.order)
        return self.tensors[ROLES[self.op].index(role)]


def _as_images(filters: Spec, order: tuple[int, ...] | None) -> Spec:
    return Spec(filters.shape, filters.dtype, order if order == NHWC else filters.order)


def _strides(spec: Spec) -> tuple[int, ...]:
    return dense_strides(spec.shape, spec.order, 1)


# --- graphs


class ConvolutionGraph(CudnnGraph):
    """cuDNN graph for a convolution and the operations after it."""

    _key: ConvolutionGraphKey

    def _built(self) -> Any:
        key, library = self._key, self._library
        kind = getattr(library.data_type, TYPES[key.dtype])
        graph = self._new_graph(key.dtype)

        def tensor(role: int) -> Any:
            spec = key.spec(role)
            return describe(graph, role, spec.shape, _strides(spec), kind)

        first, second, result = ROLES[key.op]
        one, other = tensor(first), tensor(second)
        how = {
            "pre_padding": [side[0] for side in key.padding],
            "post_padding": [side[1] for side in key.padding],
            "stride": list(key.stride),
            "dilation": list(key.dilation),
        }
        if key.op in ("conv2d", "conv2d_epilogue"):
            found = graph.conv_fprop(image=one, weight=other, **how)
        elif key.op == "conv2d_input":
            found = graph.conv_dgrad(loss=one, filter=other, **how)
        else:
            found = graph.conv_wgrad(image=one, loss=other, **how)
        if key.epilogue.bias:
            found = graph.bias(input=found, bias=tensor(BIAS))
        if key.epilogue.activation is not None:
            found = _activated(graph, found, key.epilogue)
        spec = key.spec(result)
        set_output(found, result, spec.shape, _strides(spec), kind)
        self._with_plans(graph)
        graph.deselect_numeric_notes(_refused(library.numerical_note, key))
        return graph


def _activated(graph: Any, values: Any, epilogue: Epilogue) -> Any:
    if epilogue.activation == "leaky_relu":
        return graph.relu(input=values, negative_slope=dict(epilogue.attributes)["slope"])
    return getattr(graph, str(epilogue.activation))(input=values)


def _refused(notes: Any, key: ConvolutionGraphKey) -> list[Any]:
    """Return the numerical notes that exclude a plan."""
    refused = [notes.NONDETERMINISTIC, notes.DOWN_CONVERT_INPUTS]
    if key.dtype in ("float16", "bfloat16"):
        # In half precision, all but the plain sum rounds too much.
        refused += [notes.REDUCED_PRECISION_REDUCTION]
        if key.accuracy != "fast":
            refused += [notes.WINOGRAD, notes.FFT]
    elif key.dtype == "float32" and key.compute != "tf32":
        refused.append(notes.TENSOR_CORE)
    if key.accuracy != "fast":
        refused += [notes.WINOGRAD_TILE_6x6, notes.WINOGRAD_TILE_13x13]
    return refused


@lru_cache(maxsize=1024)
def graph_of(key: ConvolutionGraphKey, card: int) -> ConvolutionGraph | None:
    """Return the graph for a key; None where cuDNN has no plan for it."""
    return supported(lambda: ConvolutionGraph(key, card))


# --- kernels


def _bind(rank: int, call: Call) -> Runner:
    key = ConvolutionGraphKey.of(call.node)
    graph = graph_of(key, device.current_card())
    assert graph is not None
    scratch = Scratch(call.workspace)
    workspace = scratch.array((graph.workspace(rank),), np.dtype(np.uint8))
    arrays = dict(zip(ROLES[key.op], (*call.inputs[:2], *call.outputs), strict=True))
    for bias in call.inputs[2:]:
        arrays[BIAS] = bias.reshape(1, -1, 1, 1, copy=False)
    before: list[Any] = []
    after: list[Any] = []
    if _is_rearranged(call.node):
        filters, spec = arrays[FILTERS], key.spec(FILTERS)
        results, channels, *taps = spec.shape
        packed = scratch.array((results, *taps, channels), spec.dtype).transpose(0, 3, 1, 2)
        arrays[FILTERS] = packed
        if key.op == "conv2d_weight":
            after = copy_calls(filters, packed)
        else:
            before = copy_calls(packed, filters)
    for role, array in arrays.items():
        spec = key.spec(role)
        if address_of(array) % ALIGNMENT or not lies_dense(array, spec.order):
            # Our own kernels take arrays as they lie.
            return CudaRunner(convolution.launches(call))
    return CudaRunner([*before, CudnnCall(graph, rank, arrays, workspace), *after])


def _filters_of(node: Node) -> Spec:
    """Return the filters, or their gradient, in the program's layout."""
    specs = (*(given.outputs[0] for given in node.inputs[:2]), node.spec)
    return specs[ROLES[node.op.name].index(FILTERS)]


def _is_rearranged(node: Node) -> bool:
    """Return True if filters have to be rearranged."""
    filters, wanted = _filters_of(node), ConvolutionGraphKey.of(node).spec(FILTERS)
    return not same_memory(filters.shape, filters.order, wanted.order)


def _supports(rank: int, node: Node) -> bool:
    if device.cudnn() is None or (rank and not device.may_measure()):
        return False
    if node.attrs.get("activation") not in (None, *ACTIVATIONS):
        return False
    if any(before != after for before, after in node.attrs["padding"]):
        # Some cuDNN engines then apply one side's padding to both, which produces wrong results.
        return False
    if any(0 in spec.shape for spec in (*(each.outputs[0] for each in node.inputs), node.spec)):
        return False
    graph = graph_of(ConvolutionGraphKey.of(node), device.current_card())
    return graph is not None and graph.plan(rank) is not None


def _workspace(rank: int, node: Node) -> int:
    graph = graph_of(ConvolutionGraphKey.of(node), device.current_card())
    assert graph is not None
    packed = workspace_bytes(_filters_of(node)) if _is_rearranged(node) else 0
    return workspace_bytes(Spec((graph.workspace(rank),), np.dtype(np.uint8))) + packed


for _rank in range(RANKS):
    for _op in ROLES:
        _name = "cudnn fused" if _op == "conv2d_epilogue" else "cudnn"
        TABLE.add(
            Kernel(
                _op,
                "cuda",
                _name + (f" {_rank + 1}" if _rank else ""),
                partial(_bind, _rank),
                partial(_supports, _rank),
                partial(_workspace, _rank),
                priority=10 - _rank,
                varies=True,
            )
        )
