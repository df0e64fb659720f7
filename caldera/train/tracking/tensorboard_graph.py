"""The graph of a network with each node inside of the box of its layer, as TensorBoard draws it."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from caldera import op
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.io.events import GraphNode
from caldera.nn.tracing import trace
from caldera.train.step_graph import named_outputs
from caldera.train.tracking.work_depth import layer_nodes

if TYPE_CHECKING:
    from caldera.train.model import Model

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-/]")
_SAMPLES = 2


def network_graph(model: Model) -> list[GraphNode]:
    """What the network computes for a batch, in evaluation.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> [(node.name, node.inputs) for node in network_graph(model)][-1]
    ('output', ('1-Dense/add',))
    """
    inputs = [
        op.input(f"x{i}", (_SAMPLES, *shape), dtype=dtype)
        for i, (shape, dtype) in enumerate(model.signature.inputs)
    ]
    with trace(dtype=model.dtype, device=model.device) as traced:
        outputs = named_outputs(model(*inputs))
    scopes: dict[Node, str] = {}
    for call in traced.calls:
        for node in layer_nodes(call.inputs, call.outputs):
            # The innermost layer has the longest path.
            scopes[node] = max(scopes.get(node, ""), call.layer.path, key=len)
    return _drawn(scopes, {name: each.node for name, each in outputs.items()})


def _drawn(scopes: dict[Node, str], outputs: dict[str, Node]) -> list[GraphNode]:
    names: dict[Node, str] = {}
    used: Counter[str] = Counter()
    drawn = []
    for node in topological(list(outputs.values())):
        names[node] = _unused(_name(node, scopes.get(node, "")), used)
        drawn.append(
            GraphNode(
                names[node],
                node.op.name,
                tuple(names[given] for given in node.inputs),
                tuple(spec.shape for spec in node.outputs),
            )
        )
    for name, node in outputs.items():
        drawn.append(GraphNode(_unused(name, used), "output", (names[node],)))
    return drawn


def _name(node: Node, scope: str) -> str:
    symbol = node.attrs.get("symbol")
    if symbol is not None and symbol.name:
        name = symbol.name
    else:
        name = f"{scope}/{node.op.name}" if scope else node.op.name
    return _FORBIDDEN.sub("_", name)


def _unused(name: str, used: Counter[str]) -> str:
    used[name] += 1
    return name if used[name] == 1 else f"{name}_{used[name] - 1}"
