"""What one rank runs, node by node in NumPy: nothing has to be compiled for a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera.compiler.sharding.propagation import Distributed
from caldera.core.graph.node import Symbol
from caldera.core.graph.opdef import ITEM
from caldera.core.graph.program import topological
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call


def interpret(
    program: Distributed, parts: Mapping[Symbol, np.ndarray], communicator: Any
) -> list[np.ndarray]:
    """This rank's parts of the outputs; `parts` has its parts of the leaves, by whole symbol."""
    bound = {own: parts[whole] for whole, own in program.leaves.items()}
    results: dict[Any, Any] = {}
    for node in topological(program.roots):
        symbol = node.attrs.get("symbol")
        if node.op is ITEM:
            results[node] = (results[node.inputs[0]][node.attrs["index"]],)
        elif symbol is not None:
            value = bound.get(symbol, symbol.value)
            results[node] = (value if isinstance(value, np.ndarray) else value.numpy(),)
        elif node.op.kind == "distributed":
            results[node] = _by_kernel(node, [results[x][0] for x in node.inputs], communicator)
        else:
            results[node] = evaluate(node, [results[given][0] for given in node.inputs])
    return [results[node][0] for node in program.outputs]


def _by_kernel(node: Any, inputs: list[np.ndarray], communicator: Any) -> tuple[np.ndarray, ...]:
    made = tuple(np.zeros(spec.shape, spec.dtype) for spec in node.outputs)
    (kernel, *_) = TABLE.candidates(node, "cpu")
    kernel.bind(Call(node, made, tuple(inputs), None, communicator))()
    return made
