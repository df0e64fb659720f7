"""Gradients of dense layers, some rows after the others.

The gradient of a weight is inputs.T @ output_gradient: some of its rows are the product for some of
the inputs.
"""

from __future__ import annotations

from caldera.comm.algorithms.parts import bounds, even_counts
from caldera.graph.node import Node
from caldera.graph.ops.movement import narrow
from caldera.graph.ops.product import matmul
from caldera.lazy import Expr

PIECE_BYTES, MOST_PIECES = 1 << 18, 8
"""A piece has about so many bytes: what it costs to send a message is little beside them. Many
small products take longer than one large one."""


def has_rows(gradient: Expr) -> bool:
    """Whether a gradient is a product that is worth to be computed in pieces."""
    node = gradient.node
    is_product = node.op is matmul and node.attrs["ta"] and not node.attrs["tb"]
    return is_product and len(node.shape) == 2 and _pieces(node) > 1


def in_rows(gradient: Expr) -> list[Expr]:
    """The gradient in pieces; one after the other they are all of it.

    >>> from caldera import op
    >>> from caldera.graph.ops.product import matmul
    >>> x, g = op.var("x", (3, 784)), op.var("g", (3, 528))
    >>> product = matmul(x.node, g.node, ta=True, tb=False)
    >>> [piece.shape[0] for piece in in_rows(Expr(product))]
    [131, 131, 131, 131, 130, 130]
    """
    inputs, slopes = gradient.node.inputs
    rows = bounds(even_counts(inputs.shape[1], _pieces(gradient.node)))
    return [
        Expr(matmul(narrow(inputs, 1, begin, end - begin), slopes, **gradient.node.attrs))
        for begin, end in rows
    ]


def _pieces(gradient: Node) -> int:
    return min(gradient.spec.nbytes // PIECE_BYTES, gradient.shape[0], MOST_PIECES)
