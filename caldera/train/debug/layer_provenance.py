"""Which layer of a model a node of its training step belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from caldera.core.graph.body import topological
from caldera.core.graph.node import Node, Symbol, frozen
from caldera.data import Batch
from caldera.nn.tracing import trace
from caldera.train.step import Steps
from caldera.train.tracking.summary import layer_nodes


class LayerProvenance:
    """The layers of a model, and the nodes that each of them writes for a batch, or for so many
    samples."""

    def __init__(self, steps: Steps, like: int | Batch) -> None:
        model = steps.model
        with trace(
            training=True, dtype=model.dtype, device=model.device, random=steps.random
        ) as traced:
            model(*steps.graph(like).inputs())
        self._numbers = _Numbers()
        self._path: dict[int, str] = {}
        # Inner layers come after the ones they are in, and know better.
        for call in traced.calls:
            for output in call.outputs:
                self._numbers.of(output.node)
            path = call.layer.path or type(call.layer).__name__
            for node in layer_nodes(call.inputs, call.outputs):
                # Leaves belong to nobody.
                if node.inputs:
                    self._path[self._numbers.of(node)] = path

    def wrote(self, node: Node) -> bool:
        """Whether a layer wrote the node, and not the loss or a gradient."""
        return self._numbers.of(node) in self._path

    def layer_of(self, node: Node) -> str:
        """The path of the layer that wrote the node, else of the nearest one it depends on."""
        pending = deque([node])
        seen = {node}
        while pending:
            each = pending.popleft()
            if self.wrote(each):
                return self._path[self._numbers.of(each)]
            fresh = [given for given in each.inputs if given not in seen]
            seen.update(fresh)
            pending.extend(fresh)
        return ""


class _Numbers:
    """Equal numbers for nodes that compute the same.

    Mostly those are one node. But where a layer holds a constant array, writing it down again makes
    new nodes, and only what is in the array shows that they are the same.
    """

    def __init__(self) -> None:
        self._of_node: dict[Node, int] = {}
        self._of_key: dict[Hashable, int] = {}

    def of(self, node: Node) -> int:
        if node not in self._of_node:
            for each in topological([node]):
                if each not in self._of_node:
                    key = self._key(each)
                    self._of_node[each] = self._of_key.setdefault(key, len(self._of_key))
        return self._of_node[node]

    def _key(self, node: Node) -> Hashable:
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            return symbol.value.numpy().tobytes() if symbol.role == "array" else symbol
        attrs = tuple((name, frozen(node.attrs[name])) for name in sorted(node.attrs))
        return node.op, attrs, tuple(self._of_node[given] for given in node.inputs)
