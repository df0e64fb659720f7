"""Reference kernels: registration of NumPy functions, and evaluation of nodes and graphs.

`@reference("exp")` registers `function(*arrays, **attrs) -> array or tuple of arrays`. Composite
ops need none: their decomposition is interpreted. The functions favour correctness over speed.
Half-precision inputs are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

import caldera.core.graph.catalogue  # noqa: F401 - makes the ops known
from caldera.core.graph import ITEM, Node, as_tuple, parameter, topological
from caldera.core.tensor.dtype import HALVES, float32
from caldera.kernels.table import TABLE, Call, Kernel

Function = Callable[..., Any]
Arrays = tuple[np.ndarray, ...]
FUNCTIONS: dict[str, Function] = {}
"""The plain NumPy function of each op; see `registry`."""


def evaluate(node: Node, inputs: Sequence[np.ndarray]) -> Arrays:
    """Return the outputs of a single node for these inputs."""
    return evaluator(node)(inputs)


def evaluator(node: Node) -> Callable[[Sequence[np.ndarray]], Arrays]:
    """Return the outputs of a single node as a function of its inputs.

    Work that does not depend on the inputs is done once for many calls.
    """
    function = FUNCTIONS.get(node.op.name)
    if function is None:
        return _evaluator_of_parts(node)
    attrs = dict(node.attrs)
    dtypes = [spec.dtype for spec in node.outputs]
    exact = node.op.kind == "movement" or node.op.name == "cast"
    # To ask each array takes as long as to compute with small ones.
    widens = not exact and any(given.spec.dtype in HALVES for given in node.inputs)

    def outputs_of(inputs: Sequence[np.ndarray]) -> Arrays:
        if widens:
            inputs = [x.astype(float32) if x.dtype in HALVES else x for x in inputs]
        results = function(*inputs, **attrs)
        if not isinstance(results, tuple):
            results = (results,)
        return tuple(map(np.asarray, results, dtypes))

    return outputs_of


def _evaluator_of_parts(node: Node) -> Callable[[Sequence[np.ndarray]], Arrays]:
    assert node.op.decompose is not None, f"op {node.op.name} has no reference function"
    stand_ins = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
    parts = as_tuple(node.op.decompose(*stand_ins, **node.attrs))
    run = interpreter(parts, stand_ins)
    return lambda inputs: tuple(run(inputs))


def interpret(outputs: Sequence[Node], values: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a graph, node by node; `values` has the values of its leaves."""
    return interpreter(outputs, list(values))(list(values.values()))


def interpreter(
    outputs: Sequence[Node], given: Sequence[Node]
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return the outputs of a graph as a function of the values of the nodes in `given`."""
    places = {node: place for place, node in enumerate(given)}
    steps = []
    for node in _between(outputs, places):
        sources = [places[each] for each in node.inputs]
        places[node] = len(places)
        steps.append((None if node.op is ITEM else evaluator(node), sources, node.attrs))
    wanted = [places[node] for node in outputs]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        results: list[Arrays] = [(array,) for array in arrays]
        for outputs_of, sources, attrs in steps:
            if outputs_of is None:
                results.append((results[sources[0]][attrs["index"]],))
            else:
                results.append(outputs_of([results[place][0] for place in sources]))
        return [results[place][0] for place in wanted]

    return run


def _between(outputs: Sequence[Node], given: Collection[Node]) -> list[Node]:
    """Return the nodes between the given nodes and the outputs, in topological order."""
    order = topological(outputs)
    needed = set(outputs)
    for node in reversed(order):
        if node in needed and node not in given:
            needed.update(node.inputs)
    return [node for node in order if node in needed and node not in given]


def reference(name: str) -> Callable[[Function], Function]:
    """Register the NumPy function of an op, and with it a kernel that every CPU can run."""

    def register(function: Function) -> Function:
        FUNCTIONS[name] = function
        TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))
        return function

    return register


def references(table: Mapping[str, Function]) -> None:
    """Register a NumPy function for each of these ops."""
    for name, function in table.items():
        reference(name)(function)


def by_decomposition(*names: str) -> None:
    """Register kernels that interpret the decompositions of composite ops.

    They serve if an op has a separate kernel that cannot run every node.
    """
    for name in names:
        TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))


def _bind(call: Call) -> Callable[[], None]:
    """Compute with the oracle, then copy into the planned memory."""
    outputs_of = evaluator(call.node)

    def run() -> None:
        for output, value in zip(call.outputs, outputs_of(call.inputs), strict=True):
            np.copyto(output, value)

    return run
