"""Factorisations of matrices, or of batches of them: Cholesky, QR, singular values, eigenvalues.

Gradients follow Giles (An extended collection of matrix derivative results, 2008), for QR Walter
and Lehmann (Algorithmic differentiation of linear algebra functions, 2010), and for eig Boeddeker
et al. (On the computation of complex-valued gradients, 2017). They consist of ops, so higher
derivatives exist as well.

Where a factorisation is not unique, the following conventions apply on every device. R of a QR has
no negative number on its diagonal. In each column of U and each eigenvector, the first component
within 1% of the largest is positive. Singular values descend, eigenvalues of eigh ascend.

For complex matrices all of this holds with the conjugate transpose in place of the transpose: U, V
and Q are unitary, eigh is for Hermitian matrices, and positive components are real.

Cholesky and eigh use the symmetric part of their input, (a + aᵀ) / 2. The derivative of singular
vectors and eigenvectors exists only where the values are distinct (and, for rectangular matrices,
nonzero), and is not finite elsewhere. The derivative of the values is always finite, except for
eig, whose eigenvectors have to be linearly independent. A matrix that cannot be factorised is an
error when a plan runs (NaN on a GPU, unless a library detects it).

Functions based on factorisations: the pseudo-inverse, the exponential.
"""

from __future__ import annotations

from caldera.core.graph import Node, Nodes, Spec, composite, op
from caldera.core.graph.ops import (
    abs_,
    add,
    broadcast_to,
    cast,
    ceil,
    complex_,
    concat,
    conj,
    constant,
    cumsum,
    div,
    equal,
    exp2,
    full,
    greater,
    imag,
    isfinite,
    less_equal,
    log2,
    logical_and,
    max_,
    maximum,
    minimum,
    mul,
    narrow,
    neg,
    real,
    reciprocal,
    reshape,
    scalar,
    stop_gradient,
    sub,
    sum_,
    where,
    widened,
)
from caldera.core.graph.ops.linalg import (
    Cotangents,
    Gradient,
    adjoint,
    as_columns,
    as_rows,
    check_matrix,
    check_square,
    cost,
    diagonal,
    diagonal_matrix,
    indices,
    product,
    solve,
    total,
    tril,
)
from caldera.core.tensor.dtype import complex_of, float64, int64, is_complex, part_of

ABOUT_EQUAL = 0.99
"""The first component of a vector above this fraction of the largest determines its sign."""


def _symmetric(x: Node) -> Node:
    return mul(add(x, adjoint(x)), constant(0.5, x.dtype))


def _over_differences(x: Node, values: Node) -> Node:
    """x_ij / (values_j - values_i), and x_ij itself on the diagonal."""
    apart = sub(as_rows(values), as_columns(values))
    safe = where(_on_diagonal(x), constant(1, apart.dtype), apart)
    return div(x, cast(safe, x.dtype))


@op("cholesky", flops=cost(lambda batch, m, n: batch * n**3 // 3))
def cholesky(a: Spec) -> Spec:
    """Return the lower triangular L with L Lᵀ = (a + aᵀ) / 2."""
    check_square(a)
    return a


@cholesky.gradient
def _(g: Node, y: Node, a: Node) -> Gradient:
    inner = product(y, g, ta=True)
    # The lower triangle, with half of the diagonal.
    halved = mul(constant(0.5, a.dtype), add(tril(inner, offset=0), tril(inner, offset=-1)))
    upper = adjoint(y)
    return (_symmetric(solve(upper, adjoint(solve(upper, halved)))),)


@op("qr", flops=cost(lambda batch, m, n: batch * (4 * m * n * n - 4 * n**3 // 3)))
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
    # Only the first m columns are factorised; the rest is multiplied by Q transposed.
    column = len(a.shape) - 1
    rest = narrow(a, column, m, n - m)
    g_rest = narrow(gr, column, m, n - m)
    gq = total(gq, product(rest, g_rest, tb=True))
    square = _tall_qr_gradient(gq, narrow(gr, column, 0, m), q, narrow(r, column, 0, m))
    return (concat((square, product(q, g_rest)), column),)


def _tall_qr_gradient(gq: Node | None, gr: Node | None, q: Node, r: Node) -> Node:
    inner = total(
        None if gr is None else product(r, gr, tb=True),
        None if gq is None else neg(product(gq, q, ta=True)),
    )
    if is_complex(inner.dtype):
        # The diagonal of R stays real.
        inner = where(_on_diagonal(inner), cast(real(inner), inner.dtype), inner)
    mirrored = add(tril(inner, offset=0), adjoint(tril(inner, offset=-1)))
    return adjoint(solve(r, adjoint(total(gq, product(q, mirrored)))))


@op("svd", flops=cost(lambda batch, m, n: batch * (6 * m * n * n + 20 * n**3)))
def svd(a: Spec) -> tuple[Spec, Spec, Spec]:
    """U, s and Vᵀ with a = U diag(s) Vᵀ, reduced: min(m, n) singular values, descending."""
    check_matrix(a)
    *batch, m, n = a.shape
    k = min(m, n)
    return (
        Spec((*batch, m, k), a.dtype),
        Spec((*batch, k), part_of(a.dtype)),
        Spec((*batch, k, n), a.dtype),
    )


@svd.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gu, gs, gvt = g
    u, s, vt = y
    squares, lengths = mul(s, s), cast(s, a.dtype)
    terms: list[Node | None] = [None if gs is None else cast(diagonal_matrix(gs), a.dtype)]
    if is_complex(a.dtype) and not (gu is None and gvt is None):
        turns = neg(_turning(vt, gvt, axis=-1)) if gvt is not None else None
        gu = _with_fixed_phase(gu, u, turns)
        along = imag(diagonal(product(u, gu, ta=True)))
        phases = complex_(full(along.shape, 0, along.dtype), div(along, s))
        terms.append(diagonal_matrix(phases))
    if gu is not None:
        turned = _over_differences(_skew(product(u, gu, ta=True)), squares)
        terms.append(mul(turned, as_rows(lengths)))
    if gvt is not None:
        turned = _over_differences(_skew(product(vt, gvt, tb=True)), squares)
        terms.append(mul(as_columns(lengths), turned))
    result = product(product(u, total(*terms)), vt)
    *_, m, n = a.shape
    if gu is not None and m > n:
        outside = sub(gu, product(u, product(u, gu, ta=True)))
        result = add(result, product(div(outside, as_rows(lengths)), vt))
    if gvt is not None and n > m:
        outside = sub(gvt, product(product(gvt, vt, tb=True), vt))
        result = add(result, product(u, div(outside, as_columns(lengths))))
    return (result,)


def _skew(x: Node) -> Node:
    """x minus its (conjugate) transpose, without the diagonal, which is a phase."""
    node = sub(x, adjoint(x))
    return _off_diagonal(node) if is_complex(x.dtype) else node


@op("eigh", flops=cost(lambda batch, m, n: batch * 9 * n**3))
def eigh(a: Spec) -> tuple[Spec, Spec]:
    """Return eigenvalues, ascending, and eigenvectors (columns) of (a + aᵀ) / 2."""
    check_square(a)
    return Spec(a.shape[:-1], part_of(a.dtype)), a


@eigh.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gw, gv = g
    w, v = y
    if gv is not None and is_complex(a.dtype):
        gv = _with_fixed_phase(gv, v)
    inner = total(
        None if gw is None else cast(diagonal_matrix(gw), a.dtype),
        None if gv is None else _over_differences(_off_diagonal(product(v, gv, ta=True)), w),
    )
    return (_symmetric(product(product(v, inner), v, tb=True)),)


@op("eig", flops=cost(lambda batch, m, n: batch * 25 * n**3))
def eig(a: Spec) -> tuple[Spec, Spec]:
    """Eigenvalues, in no particular order, and eigenvectors (columns of length 1): complex."""
    check_square(a)
    dtype = complex_of(a.dtype)
    return Spec(a.shape[:-1], dtype), Spec(a.shape, dtype)


@eig.gradient
def _(g: Cotangents, y: Nodes, a: Node) -> Gradient:
    gw, gv = g
    w, v = y
    terms: list[Node | None] = [None if gw is None else diagonal_matrix(gw)]
    if gv is not None:
        inner = product(v, _with_fixed_phase(gv, v), ta=True)
        # The length stays 1: what points along an eigenvector is taken off.
        along = cast(real(diagonal(inner)), inner.dtype)
        inner = sub(inner, mul(product(v, v, ta=True), as_rows(along)))
        terms.append(_over_differences(_off_diagonal(inner), conj(w)))
    found = solve(adjoint(v), product(total(*terms), v, tb=True))
    return (found if is_complex(a.dtype) else cast(real(found), a.dtype),)


def _on_diagonal(x: Node) -> Node:
    row, column = indices(x.shape)
    return equal(row, column)


def _off_diagonal(x: Node) -> Node:
    return where(_on_diagonal(x), constant(0, x.dtype), x)


def _turning(x: Node, g: Node, axis: int) -> Node:
    """Return the derivative of the loss for turning each vector along `axis` by a phase."""
    return sum_(imag(mul(conj(x), g)), (len(x.shape) + axis,))


def _with_fixed_phase(g: Node | None, v: Node, turns: Node | None = None) -> Node:
    """Return the gradient for vectors (columns) of free phase, from the one for fixed phase.

    The phase is chosen such that the deciding component of each is positive. `turns` is the
    additional gradient of the loss for a rotation of the vectors (V rotates with U).
    """
    if v.spec.size == 0:
        return full(v.shape, 0, v.dtype) if g is None else g
    size_of = abs_(v)
    down = len(v.shape) - 2
    limit = mul(max_(size_of, axis=(down,), keepdims=True), constant(ABOUT_EQUAL, size_of.dtype))
    among_largest = cast(less_equal(limit, size_of), int64)
    before = cumsum(among_largest, axis=down, reverse=False)
    decides = equal(mul(among_largest, before), constant(1, int64))
    turning = total(None if g is None else _turning(v, g, axis=-2), turns)
    lengths = where(decides, size_of, constant(1, size_of.dtype))
    back = neg(div(as_rows(turning), lengths))
    fixed = complex_(full(back.shape, 0, back.dtype), back)
    return total(g, where(decides, fixed, constant(0, v.dtype)))


# --- cost, in the usual counts (Golub and Van Loan, Matrix Computations)


def _identity(like: Node) -> Node:
    return diagonal_matrix(full(like.shape[-1:], 1, like.dtype))


@composite("pinv")
def pinv(a: Node, *, rtol: float) -> Node:
    """Return the pseudo-inverse; singular values up to `rtol` times the largest count as 0."""
    check_matrix(a.spec)
    if 0 in a.shape[-2:]:
        return adjoint(a)
    u, s, vt = svd.outputs(a)
    axis = len(s.shape) - 1
    limit = mul(max_(s, axis=(axis,), keepdims=True), scalar(rtol, s))
    counts = greater(s, limit)
    inverses = where(counts, reciprocal(where(counts, s, scalar(1, s))), scalar(0, s))
    scaled = mul(u, cast(reshape(inverses, (*s.shape[:-1], 1, s.shape[-1])), a.dtype))
    return product(vt, scaled, ta=True, tb=True)


@pinv.gradient
def _(g: Node, y: Node, a: Node, *, rtol: float) -> Gradient:
    # Golub and Pereyra (1973), for matrices whose rank does not change.
    turned = adjoint(g)
    outside = sub(_identity(adjoint(a)), product(a, y))
    beside = sub(_identity(a), product(y, a))
    first = neg(product(product(y, g, ta=True), y, tb=True))
    second = product(outside, product(turned, product(y, y, tb=True)))
    third = product(product(product(y, y, ta=True), turned), beside)
    return (add(first, add(second, third)),)


# Coefficients of the Padé approximants and the limits of the norm, from N. J. Higham, The scaling
# and squaring method for the matrix exponential revisited, SIAM J. Matrix Anal. (2005).
_PADE_13 = (
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
)
_PADE_7 = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)
_LARGEST_13, _LARGEST_7 = 5.371920351148152, 3.925724783138660
_MOST_SQUARINGS = 16


@composite("expm")
@widened
def expm(a: Node) -> Node:
    """The exponential of each matrix, by a Padé approximant of a / 2^s that is squared s times."""
    check_square(a.spec)
    if a.shape[-1] == 0:
        return a
    wide = part_of(a.dtype) == float64
    largest, coefficients = (_LARGEST_13, _PADE_13) if wide else (_LARGEST_7, _PADE_7)
    squarings = _squarings(stop_gradient(a), largest)
    scaled = mul(a, cast(exp2(neg(squarings)), a.dtype))
    result = _pade(scaled, coefficients)
    for step in range(_MOST_SQUARINGS):
        goes_on = greater(squarings, scalar(step, squarings))
        # Finished matrices are replaced by 0, whose square cannot overflow.
        factor = where(goes_on, result, scalar(0, a))
        result = where(goes_on, product(factor, factor), result)
    return result


def _squarings(a: Node, largest: float) -> Node:
    """Return the number of halvings of each matrix, as an array (..., 1, 1)."""
    rank = len(a.shape)
    norm = max_(sum_(abs_(a), (rank - 2,), True), axis=(rank - 1,), keepdims=True)
    ratio = maximum(div(norm, scalar(largest, norm)), scalar(1, norm))
    known = logical_and(isfinite(ratio), greater(ratio, scalar(1, norm)))
    count = where(known, ceil(log2(ratio)), scalar(0, norm))
    return minimum(count, scalar(_MOST_SQUARINGS, norm))


def _pade(a: Node, coefficients: tuple[float, ...]) -> Node:
    """(V - U)^-1 (V + U), with the odd powers in U and the even ones in V."""
    identity = broadcast_to(_identity(a), a.shape)
    square = product(a, a)
    odd, even = mul(identity, scalar(coefficients[1], a)), mul(identity, scalar(coefficients[0], a))
    power = identity
    for k in range(2, len(coefficients), 2):
        power = product(power, square) if k > 2 else square
        even = add(even, mul(power, scalar(coefficients[k], a)))
        odd = add(odd, mul(power, scalar(coefficients[k + 1], a)))
    odd = product(a, odd)
    return solve(sub(even, odd), add(even, odd))
