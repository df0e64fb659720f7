"""Linear algebra on matrices, or batches of them: the last two axes are the rows and columns.

Contains parts of matrices and equations; factorisations have a separate file. Gradients follow
Giles (An extended collection of matrix derivative results, 2008). They consist of ops, so higher
derivatives exist as well. For complex matrices the conjugate transpose replaces the transpose. A
singular matrix is an error when a plan runs (NaN on a GPU, unless a library detects it), and so is
the derivative of its determinant.
"""

from __future__ import annotations

from collections.abc import Callable

from caldera.core.graph import (
    FlopsRule,
    Node,
    Nodes,
    Spec,
    composite,
    op,
    refuse_dtype,
    refuse_shape,
)
from caldera.core.graph.ops import (
    Gradient,
    add,
    broadcast,
    cast,
    complex_,
    conj,
    constant,
    exp,
    expand_reduced,
    full,
    imag,
    iota,
    less_equal,
    matmul,
    mul,
    neg,
    reshape,
    slice_,
    sum_,
    sum_to,
    swap_last,
    unslice,
    where,
)
from caldera.core.tensor import Shape, int64, is_complex, is_inexact, part_of, size

Cotangents = Gradient


def check_matrix(x: Spec) -> None:
    """Raise unless the inputs are matrices of floating-point numbers."""
    if x.rank < 2:
        refuse_shape("a matrix, or a batch of matrices: shape (..., rows, columns)")
    if not is_inexact(x.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")


def check_square(x: Spec) -> None:
    """Raise unless the inputs are square matrices of floating-point numbers."""
    check_matrix(x)
    if x.shape[-1] != x.shape[-2]:
        refuse_shape("square matrices: shape (..., n, n)")


def product(a: Node, b: Node, *, ta: bool = False, tb: bool = False) -> Node:
    """Return the product of matrices, each (conjugate) transposed where that is said."""
    return matmul(conj(a) if ta else a, conj(b) if tb else b, ta=ta, tb=tb)


def adjoint(x: Node) -> Node:
    """Return the conjugate transpose of each matrix."""
    return conj(swap_last(x))


def total(*terms: Node | None) -> Node:
    """Return the sum of the terms that are there; at least one is."""
    present = [term for term in terms if term is not None]
    result = present[0]
    for term in present[1:]:
        result = add(result, term)
    return result


# --- parts of matrices


def indices(shape: Shape) -> Nodes:
    """Return row and column of each element, for matrices with these last two sizes."""
    last = shape[-2:]
    return iota(shape=last, axis=0, dtype=int64), iota(shape=last, axis=1, dtype=int64)


@composite("tril")
def tril(x: Node, *, offset: int) -> Node:
    """Return the elements on and below a diagonal, the main one moved right by `offset`.

    Zeros above.
    """
    row, column = indices(x.shape)
    kept = less_equal(column, add(row, constant(offset, int64)))
    return where(kept, x, constant(0, x.dtype))


@composite("triu")
def triu(x: Node, *, offset: int) -> Node:
    """Return the elements on and above a diagonal, the main one moved right by `offset`.

    Zeros below.
    """
    row, column = indices(x.shape)
    kept = less_equal(add(row, constant(offset, int64)), column)
    return where(kept, x, constant(0, x.dtype))


def _diagonal_bounds(shape: Shape, offset: int) -> tuple[tuple[int, int, int], ...]:
    """Return the positions of a diagonal in matrices with concatenated rows."""
    *batch, rows, columns = shape
    start = offset if offset >= 0 else -offset * columns
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    last = (start, start + (length - 1) * (columns + 1) + 1, columns + 1) if length else (0, 0, 1)
    return (*[(0, n, 1) for n in batch], last)


def diagonal(x: Node, offset: int = 0) -> Node:
    """Return a diagonal of each matrix, the main one moved right by `offset`."""
    *batch, rows, columns = x.shape
    return slice_(reshape(x, (*batch, rows * columns)), _diagonal_bounds(x.shape, offset))


def diagonal_matrix(x: Node) -> Node:
    """Return square matrices with `x` on the diagonal and zeros elsewhere."""
    *batch, n = x.shape
    bounds = _diagonal_bounds((*batch, n, n), 0)
    return reshape(unslice(x, shape=(*batch, n * n), bounds=bounds), (*batch, n, n))


def trace(x: Node) -> Node:
    """Return the sum of the main diagonal."""
    return sum_(diagonal(x), (len(x.shape) - 2,))


def as_rows(x: Node) -> Node:
    """(..., n) as (..., 1, n): one number for each column."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def as_columns(x: Node) -> Node:
    """(..., n) as (..., n, 1): one number for each row."""
    return reshape(x, (*x.shape, 1))


def cost(rule: Callable[[int, int, int], int]) -> FlopsRule:
    """A rule of the number of matrices in the first input, their larger and their smaller size."""

    def flops(node: Node) -> int:
        *batch, m, n = node.inputs[0].shape
        return rule(size(tuple(batch)), max(m, n), min(m, n))

    return flops


# --- equations


@op(
    "inverse",
    gradient=lambda g, y, a: (neg(product(product(y, g, ta=True), y, tb=True)),),
    flops=cost(lambda batch, m, n: batch * 2 * n**3),
)
def inverse(a: Spec) -> Spec:
    """Return the inverse of each matrix."""
    check_square(a)
    return a


@op("solve")
def solve(a: Spec, b: Spec) -> Spec:
    """Return the x of a x = b, for matrices b of shape (..., n, k); batches broadcast."""
    check_square(a)
    check_matrix(b)
    if a.dtype != b.dtype:
        refuse_dtype("matrices of the same dtype", hint="cast one matrix with op.cast")
    if a.shape[-1] != b.shape[-2]:
        refuse_shape(f"a right side with {a.shape[-1]} rows")
    batch = broadcast(Spec(a.shape[:-2], a.dtype), Spec(b.shape[:-2], b.dtype))
    return Spec((*batch, *b.shape[-2:]), a.dtype)


@solve.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    gb = solve(adjoint(a), g)
    return sum_to(neg(product(gb, y, tb=True)), a.shape), sum_to(gb, b.shape)


@op("slogdet", flops=cost(lambda batch, m, n: batch * 2 * n**3 // 3))
def slogdet(a: Spec) -> tuple[Spec, Spec]:
    """Return the sign of the determinant (0 if singular) and the logarithm of its magnitude.

    The sign of a complex determinant is the number of length 1 in its direction.
    """
    check_square(a)
    return Spec(a.shape[:-2], a.dtype), Spec(a.shape[:-2], part_of(a.dtype))


@slogdet.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    terms = [] if g[1] is None else [cast(g[1], a.dtype)]
    if g[0] is not None and is_complex(a.dtype):
        # The direction turns by the imaginary part of tr(inverse(a) da).
        turn = neg(imag(mul(conj(g[0]), y[0])))
        terms.append(complex_(full(turn.shape, 0, turn.dtype), turn))
    if not terms:
        return (None,)
    axes = len(a.shape) - 2, len(a.shape) - 1
    return (mul(expand_reduced(total(*terms), a.shape, axes), adjoint(inverse(a))),)


@composite("determinant")
def determinant(a: Node) -> Node:
    """Return the determinant of each matrix."""
    check_square(a.spec)
    sign, logarithm = slogdet.outputs(a)
    return mul(sign, cast(exp(logarithm), a.dtype))


# --- cost, in the usual counts (Golub and Van Loan, Matrix Computations)


@solve.flops
def _(node: Node) -> int:
    *_, n, k = node.shape
    return size(node.shape[:-2]) * (2 * n**3 // 3 + 2 * n * n * k)
