"""Cases for linear algebra, on well conditioned matrices with distinct values."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

Arrays = tuple[np.ndarray, ...]


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def _regular(*shape: int) -> np.ndarray:
    """Matrices far from singular, whose singular values are far from each other."""
    *_, m, n = shape
    diagonal = np.eye(m, n) * 2 * np.arange(1.0, n + 1.0)
    return numbers(*shape, low=-0.7, high=0.7) + diagonal


def _positive(*shape: int) -> np.ndarray:
    """Symmetric positive definite matrices."""
    root = _regular(*shape)
    return root @ _transposed(root) + np.eye(shape[-1])


def _symmetric_part(x: np.ndarray) -> np.ndarray:
    return (x + _transposed(x)) / 2


def _column_signs(vectors: np.ndarray) -> np.ndarray:
    """A plain loop over the columns of one matrix; the first of the largest is made positive."""
    signs = np.ones(vectors.shape[1])
    for column in range(vectors.shape[1]):
        largest = max(abs(vectors[:, column]))
        deciding = next(x for x in vectors[:, column] if abs(x) >= 0.99 * largest)
        signs[column] = -1.0 if deciding < 0 else 1.0
    return signs


def _each(function, x: np.ndarray) -> Arrays:  # type: ignore[no-untyped-def]
    """`function`, which gives several arrays, on each matrix of a batch."""
    if x.ndim == 2:
        return function(x)
    results = [_each(function, part) for part in x]
    return tuple(np.stack(parts) for parts in zip(*results, strict=True))


def _qr(x: np.ndarray) -> Arrays:
    q, r = np.linalg.qr(x)
    signs = np.array([-1.0 if r[i, i] < 0 else 1.0 for i in range(r.shape[0])])
    return q * signs, r * signs[:, None]


def _svd(x: np.ndarray) -> Arrays:
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    signs = _column_signs(u)
    return u * signs, s, vt * signs[:, None]


def _eigh(x: np.ndarray) -> Arrays:
    w, v = np.linalg.eigh(_symmetric_part(x))
    return w, v * _column_signs(v)


_SQUARE = ((1, 1), (2, 2), (3, 3), (2, 2, 2), (1, 2, 2, 2))
_EMPTY = ((0, 0), (0, 2, 2), (2, 0, 0))
_TALL_AND_WIDE = ((1, 1), (2, 2), (3, 2), (2, 3), (2, 3, 2), (1, 2, 2, 3))

CASES = [
    Case("inverse", op.inverse, (_regular(*shape),), np.linalg.inv, order=2)
    for shape in _SQUARE + _EMPTY
]
CASES += [
    Case("solve", op.solve, (_regular(*a), numbers(*b)), np.linalg.solve, order=2)
    for a, b in (
        ((2, 2), (2,)),
        ((3, 3), (3, 2)),
        ((2, 2, 2), (2, 2, 1)),
        ((2, 2), (3, 2, 1)),
        ((2, 1, 2, 2), (2, 2, 1)),
        ((2, 2, 2), (2,)),
        ((2, 2), (2, 0)),
        ((0, 0), (0, 2)),
        ((0, 2, 2), (0, 2, 1)),
    )
]
CASES += [
    Case("determinant", op.determinant, (_regular(*shape),), np.linalg.det, order=2)
    for shape in _SQUARE + _EMPTY
]
# Rows exchanged: a negative determinant.
CASES += [
    Case(
        "determinant",
        op.determinant,
        (_regular(3, 3)[[1, 0, 2]],),
        np.linalg.det,
        name="negative",
        order=2,
    ),
    Case(
        "slogdet",
        op.slogdet,
        (_regular(3, 3)[[1, 0, 2]],),
        lambda x: tuple(np.linalg.slogdet(x)),
        name="negative",
        order=2,
    ),
    Case(
        "slogdet", op.slogdet, (_regular(2, 2, 2),), lambda x: tuple(np.linalg.slogdet(x)), order=2
    ),
]

CASES += [
    Case("cholesky", op.cholesky, (_positive(*shape),), np.linalg.cholesky, order=2)
    for shape in _SQUARE + _EMPTY
]
CASES += [
    Case(
        "cholesky",
        op.cholesky,
        (_positive(3, 3) + np.triu(numbers(3, 3), 1),),
        lambda x: np.linalg.cholesky(_symmetric_part(x)),
        name="symmetric part",
        order=2,
    ),
]

CASES += [
    Case("qr", op.qr, (_regular(*shape),), lambda x: _each(_qr, x), order=2)
    for shape in _TALL_AND_WIDE
]
CASES += [
    Case(
        "qr",
        lambda x, part=part: op.qr(x)[part],
        (_regular(*shape),),
        lambda x, part=part: _qr(x)[part],
        name=f"only {'qr'[part]}",
        order=2,
    )
    for shape in ((3, 2), (2, 3))
    for part in (0, 1)
]
CASES += [
    Case("qr", op.qr, (numbers(*shape),), lambda x: tuple(np.linalg.qr(x)), order=2)
    for shape in ((0, 0), (3, 0), (0, 3), (0, 2, 2))
]

CASES += [
    Case("svd", op.svd, (_regular(*shape),), lambda x: _each(_svd, x), order=2)
    for shape in _TALL_AND_WIDE
]
CASES += [
    Case(
        "svd",
        lambda x, part=part: op.svd(x)[part],
        (_regular(*shape),),
        lambda x, part=part: _svd(x)[part],
        name=f"only {('u', 's', 'vt')[part]}",
        order=2,
    )
    for shape in ((3, 2), (2, 3))
    for part in (0, 1, 2)
]
CASES += [
    Case(
        "svd",
        op.svd,
        (numbers(*shape),),
        lambda x: tuple(np.linalg.svd(x, full_matrices=False)),
        order=2,
    )
    for shape in ((0, 0), (3, 0), (0, 3), (0, 2, 2))
]

CASES += [
    Case("eigh", op.eigh, (_regular(*shape),), lambda x: _each(_eigh, x), order=2)
    for shape in _SQUARE
]
CASES += [
    Case(
        "eigh",
        lambda x, part=part: op.eigh(x)[part],
        (_regular(3, 3),),
        lambda x, part=part: _eigh(x)[part],
        name=f"only {'wv'[part]}",
        order=2,
    )
    for part in (0, 1)
]
CASES += [
    Case("eigh", op.eigh, (numbers(*shape),), lambda x: tuple(np.linalg.eigh(x)), order=2)
    for shape in _EMPTY
]

_ANY = ((2, 2), (2, 3), (3, 2), (2, 2, 3), (0, 2), (2, 0))
CASES += [
    Case(
        name,
        lambda x, f=ours, k=offset: f(x * x, k),
        (numbers(*shape),),
        lambda x, f=numpys, k=offset: f(x * x, k),
        name=f"offset {offset}",
        order=2,
    )
    for name, ours, numpys in (("tril", op.tril, np.tril), ("triu", op.triu, np.triu))
    for shape in _ANY
    for offset in ((0,) if 0 in shape else (-4, -1, 0, 1))
]
CASES += [
    Case(
        "slice",
        lambda x, k=offset: op.diagonal(x * x, k),
        (numbers(*shape),),
        lambda x, k=offset: np.diagonal(x * x, k, -2, -1),
        name=f"diagonal {offset}",
        order=2,
    )
    for shape in ((2, 2), (2, 3), (3, 2), (2, 2, 3))
    for offset in (0, -1, 1, 4)
]
CASES += [
    Case(
        "slice",
        lambda x: op.trace(x * x),
        (numbers(*shape),),
        lambda x: np.trace(x * x, axis1=-2, axis2=-1),
        name="trace",
        order=2,
    )
    for shape in ((2, 2), (2, 3), (2, 3, 2))
]
CASES += [
    Case(
        "unslice",
        lambda x: op.diagonal_matrix(x * x),
        (numbers(*shape),),
        lambda x: (x * x)[..., None] * np.eye(x.shape[-1]),
        name="diagonal_matrix",
        order=2,
    )
    for shape in ((3,), (2, 2), (0,), (2, 0))
]
