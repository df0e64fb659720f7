"""The oracle: every op as a plain NumPy function, right before it is fast.

`@reference("exp")` registers `function(*arrays, **attrs) -> array or tuple of arrays`. Composite
ops need none: their decomposition is interpreted. Half-precision inputs are computed in float32
and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import caldera.graph.catalogue  # noqa: F401 - makes the ops known
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.graph.opdef import ITEM, as_tuple, parameter
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.tensor.dtype import HALVES, float32

Function = Callable[..., Any]
FUNCTIONS: dict[str, Function] = {}


def reference(name: str) -> Callable[[Function], Function]:
    """Register the NumPy function of an op, and with it a kernel that every CPU can run."""

    def register(function: Function) -> Function:
        FUNCTIONS[name] = function
        TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))
        return function

    return register


def by_decomposition(name: str) -> None:
    """Register a kernel that interprets a composite op's decomposition.

    It serves where the op has a kernel of its own that cannot run every node.
    """
    TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))


def _bind(call: Call) -> Callable[[], None]:
    """Compute with the oracle, then copy into the planned memory."""

    def run() -> None:
        for output, value in zip(call.outputs, evaluate(call.node, call.inputs), strict=True):
            np.copyto(output, value)

    return run


def evaluate(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs of one node for these inputs."""
    function = FUNCTIONS.get(node.op.name)
    if function is None:
        return _evaluate_parts(node, inputs)
    if node.op.kind != "movement" and node.op.name != "cast":
        inputs = [x.astype(float32) if x.dtype in HALVES else x for x in inputs]
    results = function(*inputs, **node.attrs)
    if not isinstance(results, tuple):
        results = (results,)
    return tuple(
        np.asarray(result, dtype=spec.dtype)
        for result, spec in zip(results, node.outputs, strict=True)
    )


def _evaluate_parts(node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    assert node.op.decompose is not None, f"op {node.op.name} has no reference function"
    stand_ins = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
    parts = as_tuple(node.op.decompose(*stand_ins, **node.attrs))
    return tuple(interpret(parts, dict(zip(stand_ins, inputs, strict=True))))


def interpret(outputs: Sequence[Node], values: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph, node by node; `values` holds what its leaves stand for."""
    results: dict[Node, tuple[np.ndarray, ...]] = {node: (array,) for node, array in values.items()}
    for node in topological(outputs):
        if node in results:
            continue
        if node.op is ITEM:
            results[node] = (results[node.inputs[0]][node.attrs["index"]],)
        else:
            results[node] = evaluate(node, [results[given][0] for given in node.inputs])
    return [results[node][0] for node in outputs]
