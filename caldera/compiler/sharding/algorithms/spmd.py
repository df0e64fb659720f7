"""An algorithm on ranks as a node of the graph that one rank runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.comm import SingleProcess
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.algorithms.variant import Options, Variant
from caldera.compiler.sharding.layout import Layout
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import op, refuse_shape
from caldera.core.graph.ops.collective import TOKEN
from caldera.core.tensor.dtype import DType
from caldera.kernels.table import TABLE, Call, Kernel, Runner


@op("spmd", kind="distributed")
def spmd(
    *inputs: Spec,
    algorithm: str,
    given: tuple[Layout, ...],
    made: tuple[Layout, ...],
    dtypes: tuple[DType, ...],
    options: Options,
    rank: int,
    number: int,
) -> tuple[Spec, ...]:
    """A rank's parts of what an algorithm computes, and a token; perhaps a token comes last."""
    for part, layout in zip(inputs, given, strict=False):
        if part.shape != layout.local_shape(rank):
            refuse_shape(f"a part of shape {layout.local_shape(rank)}, that of rank {rank}")
    outputs = zip(made, dtypes, strict=True)
    return (*(Spec(layout.local_shape(rank), dtype) for layout, dtype in outputs), TOKEN)


def spmd_node(
    node: Node,
    variant: Variant,
    parts: Sequence[Node],
    tokens: Sequence[Node],
    *,
    rank: int,
    number: int,
) -> Node:
    """A node of whole values as one rank runs it, from its parts of the inputs, after a token."""
    return spmd.node(
        *parts,
        *tokens,
        algorithm=node.op.name,
        given=variant.inputs,
        made=variant.outputs,
        dtypes=tuple(spec.dtype for spec in node.outputs),
        options=variant.options,
        rank=rank,
        number=number,
    )


def _bind(call: Call) -> Runner:
    attrs = call.node.attrs
    algorithm, given, made = ALGORITHMS[attrs["algorithm"]], attrs["given"], attrs["made"]
    parts, places = call.inputs[: len(given)], call.outputs[: len(made)]

    def run() -> None:
        comm = SingleProcess() if call.communicator is None else call.communicator
        if algorithm.run_into is not None:
            algorithm.run_into(places, parts, given, made, attrs["options"], comm)
            return
        found = algorithm.run(parts, given, made, attrs["options"], comm)
        for place, part in zip(places, found, strict=True):
            np.copyto(place, part)

    return run


TABLE.add(Kernel("spmd", "cpu", "messages", _bind, capturable=False, measured=False))
