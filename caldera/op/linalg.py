"""Linear algebra on matrices or batches: the last two axes are the rows and columns.

Signs that a factorisation leaves open are fixed: R of a QR has no negative number on its diagonal;
of each column of U and of each eigenvector the first component within 1% of its largest is
positive. A matrix that cannot be inverted or factorised is an error when the value is computed.

For complex matrices the factorisations have the conjugate transpose in place of aᵀ. Hermitian
matrices take the place of symmetric ones, and U, V and Q are unitary.
"""

from __future__ import annotations

from operator import index
from typing import Any

from ml_dtypes import finfo

from caldera.compiler.lazy import Expr, as_float, lift, lift_all, wrap
from caldera.core.graph.node import Node, describe
from caldera.core.graph.ops import (
    cast,
    elementwise,
    factorisation,
    flip,
    full,
    linalg,
    matmul_any,
    reshape,
    swap_last,
)
from caldera.core.tensor.dtype import complex_of, is_complex, part_of
from caldera.errors import ShapeError
from caldera.op.arguments import as_number

__all__ = [
    "cholesky",
    "determinant",
    "diagonal",
    "diagonal_matrix",
    "eig",
    "eigh",
    "eigvals",
    "expm",
    "inverse",
    "lstsq",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "trace",
    "triangular_solve",
    "tril",
    "triu",
]


def inverse(a: Any) -> Expr:
    """Return the inverse of each matrix.

    >>> from caldera import op
    >>> op.inverse([[2.0, 0.0], [0.0, 4.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return Expr(linalg.inverse(as_float(lift(a))))


def solve(a: Any, b: Any) -> Expr:
    """Return the x of a x = b; `b` with one axis is a vector, with more a (batch of) matrices.

    >>> from caldera import op
    >>> op.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).tolist()
    [1.0, 0.5]
    """
    first, second = lift_all(a, b)
    left, right = as_float(first), as_float(second)
    if len(right.shape) != 1:
        return Expr(linalg.solve(left, right))
    result = linalg.solve(left, reshape(right, (*right.shape, 1)))
    return Expr(reshape(result, result.shape[:-1]))


def triangular_solve(
    a: Any, b: Any, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> Expr:
    """Return the x of a x = b (or aᵀ x = b), for triangular matrices.

    The opposite triangle is not read. With `unit_diagonal` the diagonal counts as ones. `b` is as
    for `op.solve`.

    >>> from caldera import op
    >>> op.triangular_solve([[2.0, 9.0], [1.0, 4.0]], [2.0, 5.0]).tolist()
    [1.0, 1.0]
    """
    matrix, right = (as_float(each) for each in lift_all(a, b))
    matrix = _matrix(Expr(matrix), "op.triangular_solve")
    away = 1 if unit_diagonal else 0
    half = linalg.tril(matrix, offset=-away) if lower else linalg.triu(matrix, offset=away)
    if unit_diagonal:
        ones = full(matrix.shape[-1:], 1, matrix.dtype)
        half = elementwise.add(half, linalg.diagonal_matrix(ones))
    if transpose:
        half, lower = swap_last(half), not lower
    vector = len(right.shape) == 1
    right = reshape(right, (*right.shape, 1)) if vector else right
    if not lower:
        result = linalg.solve(half, right)
    else:
        # Reversed, it is upper triangular: elimination has no work, and never pivots.
        axes = len(half.shape) - 2, len(half.shape) - 1
        turned = linalg.solve(flip(half, axes), flip(right, (len(right.shape) - 2,)))
        result = flip(turned, (len(turned.shape) - 2,))
    return Expr(reshape(result, result.shape[:-1]) if vector else result)


def pinv(a: Any, rtol: float | None = None) -> Expr:
    """Return the (Moore-Penrose) pseudo-inverse of each matrix, which need not be square.

    Singular values up to `rtol` times the largest count as 0; without it, that is the larger size
    times the dtype's precision. The derivative is valid for matrices of constant rank.

    >>> from caldera import op
    >>> op.pinv([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]]).tolist()
    [[0.5, 0.0, 0.0], [0.0, 0.0, 0.25]]
    """
    node = as_float(lift(a))
    if rtol is None:
        rtol = max((1, *node.shape[-2:])) * float(finfo(part_of(node.dtype)).eps)
    return Expr(factorisation.pinv(node, rtol=as_number(rtol, "rtol", "pinv")))


def lstsq(a: Any, b: Any, rtol: float | None = None) -> Expr:
    """Return the x with the least squares of a x - b; if there are several, the shortest x.

    `b` with one axis is a vector, with more a matrix or a batch; `rtol` is as for `op.pinv`.

    >>> from caldera import op
    >>> [round(x, 4) for x in op.lstsq([[1.0], [1.0], [1.0]], [1.0, 2.0, 6.0]).tolist()]
    [3.0]
    """
    left, right = (as_float(each) for each in lift_all(a, b))
    return Expr(matmul_any(pinv(Expr(left), rtol).node, right))


def expm(a: Any) -> Expr:
    """Return the exponential of each matrix, 1 + a + a^2 / 2 + ...

    By a Padé approximant of a / 2^s, squared s times (Higham, 2005), with s of at most 16.

    >>> from caldera import op
    >>> op.expm([[0.0, 3.0], [0.0, 0.0]]).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    return Expr(factorisation.expm(as_float(lift(a))))


def determinant(a: Any) -> Expr:
    """Return the determinant of each matrix. Its derivative exists where the matrix is invertible.

    >>> from caldera import op
    >>> op.determinant([[2.0, 1.0], [0.0, 4.0]]).tolist()
    8.0
    """
    return Expr(linalg.determinant(as_float(lift(a))))


def slogdet(a: Any) -> tuple[Expr, Expr]:
    """Return the sign of each determinant and the logarithm of its magnitude, without overflow.

    >>> from caldera import op
    >>> sign, logarithm = op.slogdet([[0.0, 1.0], [1.0, 0.0]])
    >>> sign.tolist(), logarithm.tolist()
    (-1.0, 0.0)
    """
    return wrap(linalg.slogdet.outputs(as_float(lift(a))))


def cholesky(a: Any) -> Expr:
    """Return the lower triangular L with L Lᵀ = a, for symmetric positive definite matrices.

    The antisymmetric part of `a` is ignored: (a + aᵀ) / 2 is factorised.

    >>> from caldera import op
    >>> op.cholesky([[4.0, 2.0], [2.0, 10.0]]).tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """
    return Expr(factorisation.cholesky(as_float(lift(a))))


def qr(a: Any) -> tuple[Expr, Expr]:
    """Return Q with orthonormal columns and R upper triangular, a = Q R (reduced).

    For m x n matrices Q is m x k and R is k x n, with k = min(m, n). The diagonal of R is not
    negative. The derivative needs the first k columns to be linearly independent.

    >>> from caldera import op
    >>> q, r = op.qr([[0.0, 2.0], [3.0, 1.0]])
    >>> [[round(abs(x), 4) for x in row] for row in q.tolist()]
    [[0.0, 1.0], [1.0, 0.0]]
    >>> [[round(abs(x), 4) for x in row] for row in r.tolist()]
    [[3.0, 1.0], [0.0, 2.0]]
    """
    return wrap(factorisation.qr.outputs(as_float(lift(a))))


def svd(a: Any) -> tuple[Expr, Expr, Expr]:
    """Return U, s and Vᵀ with a = U diag(s) Vᵀ (reduced); the singular values s descend.

    For m x n matrices U is m x k and Vᵀ is k x n, with k = min(m, n). The derivative of U and Vᵀ
    needs distinct singular values (all nonzero, unless m = n); the derivative of s does not.

    >>> from caldera import op
    >>> u, s, vt = op.svd([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    >>> [round(x, 4) for x in s.tolist()]
    [3.0, 2.0]
    """
    return wrap(factorisation.svd.outputs(as_float(lift(a))))


def eigh(a: Any) -> tuple[Expr, Expr]:
    """Return eigenvalues, ascending, and eigenvectors (columns) of symmetric matrices.

    The antisymmetric part of `a` is ignored: the result is for (a + aᵀ) / 2. The derivative of the
    eigenvectors needs distinct eigenvalues; the derivative of the eigenvalues does not.

    >>> from caldera import op
    >>> w, v = op.eigh([[2.0, 1.0], [1.0, 2.0]])
    >>> [round(x, 4) for x in w.tolist()]
    [1.0, 3.0]
    >>> [[round(x, 4) for x in row] for row in v.tolist()]
    [[0.7071, 0.7071], [-0.7071, 0.7071]]
    """
    return wrap(factorisation.eigh.outputs(as_float(lift(a))))


def eig(a: Any) -> tuple[Expr, Expr]:
    """Return complex eigenvalues and eigenvectors (columns of length 1) of square matrices.

    They are in the order in which the library finds them. The derivative of the eigenvectors needs
    distinct eigenvalues and is not finite elsewhere. The derivative of the eigenvalues needs
    linearly independent eigenvectors, and grows without bound as they become dependent. For
    symmetric (Hermitian) matrices use `op.eigh`.

    >>> from caldera import op
    >>> w, v = op.eig([[0.0, -2.0], [2.0, 0.0]])
    >>> sorted(w.tolist(), key=lambda each: each.imag)
    [-2j, 2j]
    """
    return wrap(factorisation.eig.outputs(_wide(a)))


def eigvals(a: Any) -> Expr:
    """Return the eigenvalues of `op.eig`.

    >>> from caldera import op
    >>> op.eigvals([[2.0, 1.0], [0.0, 3.0]]).tolist()
    [(2+0j), (3+0j)]
    """
    return eig(a)[0]


def tril(x: Any, offset: int = 0) -> Expr:
    """Return the elements on and below a diagonal, with zeros above.

    `offset` moves it to the right.

    >>> from caldera import op
    >>> op.tril([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    """
    return Expr(linalg.tril(_matrix(x, "op.tril"), offset=_whole(offset, "op.tril")))


def triu(x: Any, offset: int = 0) -> Expr:
    """Return the elements on and above a diagonal, with zeros below.

    `offset` moves it to the right.

    >>> from caldera import op
    >>> op.triu([[1.0, 2.0], [3.0, 4.0]], offset=1).tolist()
    [[0.0, 2.0], [0.0, 0.0]]
    """
    return Expr(linalg.triu(_matrix(x, "op.triu"), offset=_whole(offset, "op.triu")))


def diagonal(x: Any, offset: int = 0) -> Expr:
    """Return a diagonal of each matrix: the main diagonal, or the one `offset` further right.

    >>> from caldera import op
    >>> op.diagonal([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [1.0, 4.0]
    """
    return Expr(linalg.diagonal(_matrix(x, "op.diagonal"), _whole(offset, "op.diagonal")))


def diagonal_matrix(x: Any) -> Expr:
    """Return square matrices with the last axis of `x` on their diagonal, and zeros elsewhere.

    >>> from caldera import op
    >>> op.diagonal_matrix([1.0, 2.0]).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    node = lift(x)
    if not node.shape:
        raise ShapeError.build(
            "op.diagonal_matrix", expected="a vector, or a batch of vectors", got=describe(node)
        )
    return Expr(linalg.diagonal_matrix(node))


def trace(x: Any) -> Expr:
    """Return the sum of the main diagonal of each matrix.

    >>> from caldera import op
    >>> op.trace([[1.0, 2.0], [3.0, 4.0]]).tolist()
    5.0
    """
    return Expr(linalg.trace(_matrix(x, "op.trace")))


def _wide(a: Any) -> Node:
    """Return a matrix of numbers that have a complex kind: halves become float32."""
    node = as_float(lift(a))
    return node if is_complex(node.dtype) else cast(node, part_of(complex_of(node.dtype)))


def _matrix(x: Any, where: str) -> Node:
    node = lift(x)
    if len(node.shape) < 2:
        raise ShapeError.build(
            where,
            expected="a matrix, or a batch of matrices: shape (..., rows, columns)",
            got=describe(node),
        )
    return node


def _whole(offset: int, where: str) -> int:
    try:
        return index(offset)
    except TypeError:
        raise ShapeError.build(where, expected="an integer as offset", got=repr(offset)) from None
