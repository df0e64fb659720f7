"""Matrix products, and what can be written as one."""

from __future__ import annotations

from typing import Any

from caldera.errors import ShapeError
from caldera.graph.node import Node
from caldera.graph.ops import elementwise
from caldera.graph.ops.base import reshape
from caldera.graph.ops.product import matmul_any
from caldera.lazy import Expr, lift_all
from caldera.op.arguments import place
from caldera.op.einsum import contract


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Expr:
    """The matrix product, as `a @ b`: of matrices, of batches of them, and of vectors.

    `transpose_a` and `transpose_b` exchange the last two axes first, at no cost. A vector is a row
    on the left and a column on the right; axes before the last two broadcast.

    >>> import caldera as cd
    >>> from caldera import op
    >>> a = cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> op.matmul(a, cd.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    >>> op.matmul(a, a, transpose_a=True).tolist()
    [[10.0, 14.0], [14.0, 20.0]]
    """
    left, right = lift_all(a, b)
    return Expr(matmul_any(left, right, ta=transpose_a, tb=transpose_b))


def dot(a: Any, b: Any) -> Expr:
    """The inner product of two vectors; with matrices it is the matrix product, as in NumPy.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.dot(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).item()
    11.0
    """
    left, right = lift_all(a, b)
    _check_ranks("dot", (left, right), (1, 2), "vectors or matrices", "use op.matmul or op.einsum")
    return Expr(matmul_any(left, right))


def outer(a: Any, b: Any) -> Expr:
    """The product of each element of one vector with each element of another.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.outer(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    left, right = lift_all(a, b)
    _check_ranks("outer", (left, right), (1,), "two vectors", "flatten them with op.flatten")
    return Expr(elementwise.mul(reshape(left, (*left.shape, 1)), right))


def _check_ranks(
    name: str, nodes: tuple[Node, ...], ranks: tuple[int, ...], expected: str, hint: str
) -> None:
    if any(len(node.shape) not in ranks for node in nodes):
        shapes = " and ".join(str(node.shape) for node in nodes)
        raise ShapeError.build(place(name, *nodes), expected=expected, got=shapes, hint=hint)


def einsum(subscripts: str, *operands: Any) -> Expr:
    """Products summed over the axes that share a letter: "ij,jk->ik" is the matrix product.

    As in NumPy: each operand has a letter an axis, the result those after "->" (without it, the
    letters that occur once, in alphabetical order); the others are summed over. "..." stands for
    further axes, which broadcast. A letter twice in one operand is its diagonal: "ii->i".
    Sums of products become matrix products wherever that is possible.

    >>> import caldera as cd
    >>> from caldera import op
    >>> a = cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> op.einsum("ij,jk->ik", a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    >>> op.einsum("ij->j", a).tolist()
    [4.0, 6.0]
    """
    return Expr(contract(subscripts, lift_all(*operands)))
