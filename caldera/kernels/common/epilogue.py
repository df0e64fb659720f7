"""What follows a matrix product while its block is at hand: adding a bias, then an activation."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.core.graph.node import Node
from caldera.core.graph.ops.epilogue import Attributes


@dataclass(frozen=True)
class Epilogue:
    """A bias along the columns or none, then an activation or none."""

    bias: bool = False
    activation: str | None = None
    attributes: Attributes = ()

    @classmethod
    def of(cls, node: Node) -> Epilogue:
        """What a `matmul_epilogue` node does to its product."""
        attrs = node.attrs
        return cls(len(node.inputs) > 2, attrs["activation"], attrs["attributes"])

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        return self.bias or self.activation is not None


NOTHING = Epilogue()
"""Neither a bias nor an activation."""
