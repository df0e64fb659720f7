"""Functions of matrices that are made of factorisations: the pseudo-inverse, the exponential."""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import composite
from caldera.core.graph.ops.base import broadcast_to, cast, full, reshape, sum_
from caldera.core.graph.ops.elementwise import (
    abs_,
    add,
    ceil,
    div,
    exp2,
    greater,
    isfinite,
    log2,
    logical_and,
    maximum,
    minimum,
    mul,
    neg,
    reciprocal,
    scalar,
    stop_gradient,
    sub,
    where,
)
from caldera.core.graph.ops.factorisation import svd
from caldera.core.graph.ops.linalg import (
    Gradient,
    adjoint,
    check_matrix,
    check_square,
    diagonal_matrix,
    product,
    solve,
)
from caldera.core.graph.ops.reduction import max_
from caldera.core.graph.ops.widening import widened
from caldera.core.tensor.dtype import float64, part_of


def _identity(like: Node) -> Node:
    return diagonal_matrix(full(like.shape[-1:], 1, like.dtype))


@composite("pinv")
def pinv(a: Node, *, rtol: float) -> Node:
    """The pseudo-inverse; singular values up to `rtol` times the largest count as 0."""
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


# The coefficients of the Padé approximants and how large a matrix may be, from N. J. Higham, The
# scaling and squaring method for the matrix exponential revisited, SIAM J. Matrix Anal. (2005).
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
        # What need not be squared any more is taken as 0, whose square cannot overflow.
        factor = where(goes_on, result, scalar(0, a))
        result = where(goes_on, product(factor, factor), result)
    return result


def _squarings(a: Node, largest: float) -> Node:
    """How often each matrix has to be halved, as a number beside its elements (..., 1, 1)."""
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
