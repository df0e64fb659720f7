"""Gradients of dense layers, some rows after the others.

The gradient of a weight is inputs.T @ output_gradient: some of its rows are the product for some of
the inputs.
"""

from __future__ import annotations

from caldera.comm.algorithms.parts import bounds, even_counts
from caldera.graph.ops.movement import narrow
from caldera.graph.ops.product import matmul
from caldera.lazy import Expr

PIECES = 4


def has_rows(gradient: Expr) -> bool:
    """Whether a gradient is a product that can be computed in pieces."""
    node = gradient.node
    is_product = node.op is matmul and node.attrs["ta"] and not node.attrs["tb"]
    return is_product and len(node.shape) == 2 and node.shape[0] >= PIECES


def in_rows(gradient: Expr) -> list[Expr]:
    """The gradient in pieces; one after the other they are all of it.

    >>> from caldera import op
    >>> from caldera.graph.ops.product import matmul
    >>> x, g = op.var("x", (3, 6)), op.var("g", (3, 2))
    >>> product = matmul(x.node, g.node, ta=True, tb=False)
    >>> [piece.shape for piece in in_rows(Expr(product))]
    [(2, 2), (2, 2), (1, 2), (1, 2)]
    """
    inputs, slopes = gradient.node.inputs
    rows = bounds(even_counts(inputs.shape[1], PIECES))
    return [
        Expr(matmul(narrow(inputs, 1, begin, end - begin), slopes, **gradient.node.attrs))
        for begin, end in rows
    ]
