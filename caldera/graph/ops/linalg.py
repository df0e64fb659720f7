"""Linear algebra on matrices, or batches of them: the last two axes are the rows and columns.

Gradients follow Giles (An extended collection of matrix derivative results, 2008) and, for QR,
Walter and Lehmann (Algorithmic differentiation of linear algebra functions, 2010). They are made of
ops, so higher derivatives exist as well.

Where a factorisation is not unique, these conventions make it so, on every device: R of a QR has no
negative number on its diagonal; of each column of U and of each eigenvector, the first component
within 1% of its largest is positive. Singular values descend, eigenvalues ascend.

Cholesky and eigh take the symmetric part of what they are given, (a + aᵀ) / 2. The derivative of
singular vectors and eigenvectors exists only where the values are distinct (and, for matrices that
are not square, none is 0), and is not finite elsewhere; that of the values always is. A matrix that
cannot be factorised or inverted is an error when a plan runs (nan on a card, unless a library finds
it out); so is the derivative of a determinant at a singular matrix.
"""

from __future__ import annotations

from caldera.graph.node import Node, Spec
from caldera.graph.opdef import Nodes, composite, op, refuse_dtype, refuse_shape
from caldera.graph.ops.base import expand_reduced, full, reshape, sum_, sum_to
from caldera.graph.ops.elementwise import (
    add,
    broadcast,
    div,
    equal,
    exp,
    less_equal,
    mul,
    neg,
    sub,
    where,
)
from caldera.graph.ops.leaf import constant, iota
from caldera.graph.ops.movement import concat, narrow, slice_, swap_last, unslice
from caldera.graph.ops.product import matmul
from caldera.tensor.dtype import int64, is_float
from caldera.tensor.shape import Shape, size

Gradient = tuple[Node | None, ...]
Cotangents = tuple[Node | None, ...]


def check_matrix(x: Spec) -> None:
    """Refuse what are not matrices of floating-point numbers."""
    if x.rank < 2:
        refuse_shape("a matrix, or a batch of them: shape (..., rows, columns)")
    if not is_float(x.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")


def check_square(x: Spec) -> None:
    """Refuse what are not square matrices of floating-point numbers."""
    check_matrix(x)
    if x.shape[-1] != x.shape[-2]:
        refuse_shape("square matrices: shape (..., n, n)")


def product(a: Node, b: Node, *, ta: bool = False, tb: bool = False) -> Node:
    """The product of matrices, each transposed where that is said."""
    node: Node = matmul(a, b, ta=ta, tb=tb)
    return node


def _total(*terms: Node | None) -> Node:
    """The sum of the terms that are there; at least one is."""
    present = [term for term in terms if term is not None]
    result = present[0]
    for term in present[1:]:
        result = add(result, term)
    return result


# --- parts of matrices


def _indices(shape: Shape) -> Nodes:
    """Row and column of each element, for matrices with these last two sizes."""
    last = shape[-2:]
    return iota(shape=last, axis=0, dtype=int64), iota(shape=last, axis=1, dtype=int64)


@composite("tril")
def tril(x: Node, *, offset: int) -> Node:
    """The elements on and below a diagonal, the main one moved right by `offset`; zeros above."""
    row, column = _indices(x.shape)
    kept = less_equal(column, add(row, constant(offset, int64)))
    node: Node = where(kept, x, constant(0, x.dtype))
    return node


@composite("triu")
def triu(x: Node, *, offset: int) -> Node:
    """The elements on and above a diagonal, the main one moved right by `offset`; zeros below."""
    row, column = _indices(x.shape)
    kept = less_equal(add(row, constant(offset, int64)), column)
    node: Node = where(kept, x, constant(0, x.dtype))
    return node


def _diagonal_bounds(shape: Shape, offset: int) -> tuple[tuple[int, int, int], ...]:
    """Where a diagonal lies in matrices whose rows are laid end to end."""
    *batch, rows, columns = shape
    start = offset if offset >= 0 else -offset * columns
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    last = (start, start + (length - 1) * (columns + 1) + 1, columns + 1) if length else (0, 0, 1)
    return (*[(0, n, 1) for n in batch], last)


def diagonal(x: Node, offset: int = 0) -> Node:
    """A diagonal of each matrix, the main one moved right by `offset`."""
    *batch, rows, columns = x.shape
    return slice_(reshape(x, (*batch, rows * columns)), _diagonal_bounds(x.shape, offset))


def diagonal_matrix(x: Node) -> Node:
    """Square matrices with `x` on the diagonal and zeros elsewhere."""
    *batch, n = x.shape
    bounds = _diagonal_bounds((*batch, n, n), 0)
    return reshape(unslice(x, shape=(*batch, n * n), bounds=bounds), (*batch, n, n))


def trace(x: Node) -> Node:
    """The sum of the main diagonal."""
    return sum_(diagonal(x), (len(x.shape) - 2,))


def _as_rows(x: Node) -> Node:
    """(..., n) as (..., 1, n): one number for each column."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def _as_columns(x: Node) -> Node:
    """(..., n) as (..., n, 1): one number for each row."""
    return reshape(x, (*x.shape, 1))


def _symmetric(x: Node) -> Node:
    node: Node = mul(add(x, swap_last(x)), constant(0.5, x.dtype))
    return node


def _over_differences(x: Node, values: Node) -> Node:
    """x_ij / (values_j - values_i), and x_ij itself on the diagonal."""
    row, column = _indices(x.shape)
    apart = sub(_as_rows(values), _as_columns(values))
    safe = where(equal(row, column), constant(1, x.dtype), apart)
    node: Node = div(x, safe)
    return node


# --- equations


@op("inverse")
def inverse(a: Spec) -> Spec:
    """The inverse of each matrix."""
    check_square(a)
    return a


@inverse.gradient
def _(g: Node, y: Node, a: Node) -> Gradient:
    return (neg(product(product(y, g, ta=True), y, tb=True)),)


@op("solve")
def solve(a: Spec, b: Spec) -> Spec:
    """The x of a x = b, for matrices b of shape (..., n, k); batches broadcast."""
    check_square(a)
    check_matrix(b)
    if a.dtype != b.dtype:
        refuse_dtype("matrices of one dtype", hint="cast one of them with op.cast")
    if a.shape[-1] != b.shape[-2]:
        refuse_shape(f"a right side with {a.shape[-1]} rows")
    batch = broadcast(Spec(a.shape[:-2], a.dtype), Spec(b.shape[:-2], b.dtype))
    return Spec((*batch, *b.shape[-2:]), a.dtype)


@solve.gradient
def _(g: Node, y: Node, a: Node, b: Node) -> Gradient:
    gb = solve(swap_last(a), g)
    return sum_to(neg(product(gb, y, tb=True)), a.shape), sum_to(gb, b.shape)


@op("slogdet")
def slogdet(a: Spec) -> tuple[Spec, Spec]:
    """The sign of the determinant (0 if singular) and the logarithm of its magnitude."""
    check_square(a)
    result = Spec(a.shape[:-2], a.dtype)
    return result, result


@slogdet.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    if g[1] is None:
        return (None,)
    rank = len(a.shape)
    return (mul(expand_reduced(g[1], a.shape, (rank - 2, rank - 1)), swap_last(inverse(a))),)


@composite("determinant")
def determinant(a: Node) -> Node:
    """The determinant of each matrix."""
    check_square(a.spec)
    sign, logarithm = slogdet(a)
    node: Node = mul(sign, exp(logarithm))
    return node


# --- factorisations


@op("cholesky")
def cholesky(a: Spec) -> Spec:
    """The lower triangular L with L Lᵀ = (a + aᵀ) / 2."""
    check_square(a)
    return a


@cholesky.gradient
def _(g: Node, y: Node, a: Node) -> Gradient:
    inner = product(y, g, ta=True)
    # The lower triangle, with half of the diagonal.
    halved = mul(constant(0.5, a.dtype), add(tril(inner, offset=0), tril(inner, offset=-1)))
    upper = swap_last(y)
    return (_symmetric(solve(upper, swap_last(solve(upper, halved)))),)


@op("qr")
def qr(a: Spec) -> tuple[Spec, Spec]:
    """Q with orthonormal columns and R upper triangular: a = Q R, of min(m, n) columns and rows."""
    check_matrix(a)
    *batch, m, n = a.shape
    k = min(m, n)
    return Spec((*batch, m, k), a.dtype), Spec((*batch, k, n), a.dtype)


@qr.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gq, gr = g
    q, r = y
    *_, m, n = a.shape
    if m >= n:
        return (_tall_qr_gradient(gq, gr, q, r),)
    if gr is None:
        gr = full(r.shape, 0, r.dtype)
    # Only the first m columns are factorised; the others are multiplied by Q transposed.
    column = len(a.shape) - 1
    rest = narrow(a, column, m, n - m)
    g_rest = narrow(gr, column, m, n - m)
    gq = _total(gq, product(rest, g_rest, tb=True))
    square = _tall_qr_gradient(gq, narrow(gr, column, 0, m), q, narrow(r, column, 0, m))
    return (concat((square, product(q, g_rest)), column),)


def _tall_qr_gradient(gq: Node | None, gr: Node | None, q: Node, r: Node) -> Node:
    inner = _total(
        None if gr is None else product(r, gr, tb=True),
        None if gq is None else neg(product(gq, q, ta=True)),
    )
    mirrored = add(tril(inner, offset=0), swap_last(tril(inner, offset=-1)))
    return swap_last(solve(r, swap_last(_total(gq, product(q, mirrored)))))


@op("svd")
def svd(a: Spec) -> tuple[Spec, Spec, Spec]:
    """U, s and Vᵀ with a = U diag(s) Vᵀ, reduced: min(m, n) singular values, descending."""
    check_matrix(a)
    *batch, m, n = a.shape
    k = min(m, n)
    return (
        Spec((*batch, m, k), a.dtype),
        Spec((*batch, k), a.dtype),
        Spec((*batch, k, n), a.dtype),
    )


@svd.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gu, gs, gvt = g
    u, s, vt = y
    squares = mul(s, s)
    terms: list[Node | None] = [None if gs is None else diagonal_matrix(gs)]
    if gu is not None:
        turned = _over_differences(_skew(product(u, gu, ta=True)), squares)
        terms.append(mul(turned, _as_rows(s)))
    if gvt is not None:
        turned = _over_differences(_skew(product(vt, gvt, tb=True)), squares)
        terms.append(mul(_as_columns(s), turned))
    result = product(product(u, _total(*terms)), vt)
    *_, m, n = a.shape
    if gu is not None and m > n:
        outside = sub(gu, product(u, product(u, gu, ta=True)))
        result = add(result, product(div(outside, _as_rows(s)), vt))
    if gvt is not None and n > m:
        outside = sub(gvt, product(product(gvt, vt, tb=True), vt))
        result = add(result, product(u, div(outside, _as_columns(s))))
    return (result,)


def _skew(x: Node) -> Node:
    node: Node = sub(x, swap_last(x))
    return node


@op("eigh")
def eigh(a: Spec) -> tuple[Spec, Spec]:
    """Eigenvalues, ascending, and eigenvectors (columns) of (a + aᵀ) / 2."""
    check_square(a)
    return Spec(a.shape[:-1], a.dtype), a


@eigh.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gw, gv = g
    w, v = y
    inner = _total(
        None if gw is None else diagonal_matrix(gw),
        None if gv is None else _over_differences(_off_diagonal(product(v, gv, ta=True)), w),
    )
    return (_symmetric(product(product(v, inner), v, tb=True)),)


def _off_diagonal(x: Node) -> Node:
    row, column = _indices(x.shape)
    node: Node = where(equal(row, column), constant(0, x.dtype), x)
    return node


# --- cost, in the usual counts (Golub and Van Loan, Matrix Computations)


def _matrices(node: Node) -> tuple[int, int, int]:
    """How many matrices the first input holds, their larger and their smaller size."""
    *_, m, n = node.inputs[0].shape
    return size(node.inputs[0].shape[:-2]), max(m, n), min(m, n)


@inverse.flops
def _(node: Node) -> int:
    batch, _, n = _matrices(node)
    return batch * 2 * n**3


@solve.flops
def _(node: Node) -> int:
    *_, n, k = node.shape
    return size(node.shape[:-2]) * (2 * n**3 // 3 + 2 * n * n * k)


@slogdet.flops
def _(node: Node) -> int:
    batch, _, n = _matrices(node)
    return batch * 2 * n**3 // 3


@cholesky.flops
def _(node: Node) -> int:
    batch, _, n = _matrices(node)
    return batch * n**3 // 3


@qr.flops
def _(node: Node) -> int:
    batch, m, n = _matrices(node)
    return batch * (4 * m * n * n - 4 * n**3 // 3)


@svd.flops
def _(node: Node) -> int:
    batch, m, n = _matrices(node)
    return batch * (6 * m * n * n + 20 * n**3)


@eigh.flops
def _(node: Node) -> int:
    batch, _, n = _matrices(node)
    return batch * 9 * n**3
