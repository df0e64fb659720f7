"""What kernels that add at computed positions know on every device."""

from __future__ import annotations

from caldera.core.graph.node import Node


def may_overwrite(node: Node) -> bool:
    """x may be written over, but what is added must not be."""
    x, positions, updates = node.inputs
    return x.spec not in (positions.spec, updates.spec)
