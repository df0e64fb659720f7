"""Cases for matrix products and Einstein sums."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

_PRODUCTS = (
    ((2, 3), (3, 2)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((3,), (2, 3, 2)),
    ((2, 2, 3), (3,)),
    ((2, 2, 3), (3, 2)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((2, 0), (0, 2)),
    ((0, 2), (2, 2)),
)
_TRANSPOSED = (
    ((3, 2), (3, 2), True, False),
    ((2, 3), (2, 3), False, True),
    ((3, 2), (2, 3), True, True),
    ((2, 3, 2), (3, 2), True, False),
    ((3,), (2, 3), True, True),
)
_SUMS = (
    ("ij,jk->ik", (2, 3), (3, 2)),
    ("ij,jk", (2, 3), (3, 2)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("ji,jk->ik", (3, 2), (3, 2)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bij,bkj->bki", (2, 2, 3), (2, 2, 3)),
    ("bhid,bhjd->bhij", (1, 2, 2, 3), (1, 2, 2, 3)),
    ("i,j->ij", (2,), (3,)),
    ("i,i->", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("ij,ij->j", (2, 3), (2, 3)),
    ("ij,ij", (2, 3), (2, 3)),
    ("ijk,jkl->il", (2, 2, 3), (2, 3, 2)),
    ("ijk,kj->i", (2, 2, 3), (3, 2)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ba", (2, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 2), (2, 3)),
    ("ik,jk,lk->ijl", (2, 2), (3, 2), (2, 2)),
    ("ij,j,i->", (2, 3), (3,), (2,)),
    ("ij,k->ik", (2, 3), (2,)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
    ("...ij,jk", (2, 2, 3), (3, 2)),
    ("i...,i...->...", (2, 3), (2, 1)),
    (",i->i", (), (3,)),
    ("ij,jk->ik", (2, 0), (0, 2)),
    ("ij,jk->ik", (0, 2), (2, 2)),
)


def _by_numpy(a: np.ndarray, b: np.ndarray, ta: bool, tb: bool) -> np.ndarray:
    left = a.swapaxes(-1, -2) if ta and a.ndim > 1 else a
    right = b.swapaxes(-1, -2) if tb and b.ndim > 1 else b
    return left @ right


CASES = [
    Case(
        "matmul",
        lambda a, b: a @ b,
        (numbers(*first), numbers(*second, seed=1)),
        np.matmul,
        order=2,
        name="operator",
    )
    for first, second in _PRODUCTS
]
CASES += [
    Case(
        "matmul",
        lambda a, b, ta=ta, tb=tb: op.matmul(a, b, transpose_a=ta, transpose_b=tb),
        (numbers(*first), numbers(*second, seed=1)),
        lambda a, b, ta=ta, tb=tb: _by_numpy(a, b, ta, tb),
        order=2,
        name=f"{ta} {tb}",
    )
    for first, second, ta, tb in _TRANSPOSED
]
CASES += [
    Case(
        "matmul",
        lambda x: x @ op.transpose(x) @ x,
        (numbers(2, 2),),
        lambda x: x @ x.T @ x,
        order=2,
        name="with itself",
    ),
    Case("matmul", op.dot, (numbers(3), numbers(3, seed=1)), np.dot, order=2, name="dot"),
    Case("matmul", op.dot, (numbers(2, 3), numbers(3, seed=1)), np.dot, order=2, name="dot"),
    Case("mul", op.outer, (numbers(3), numbers(2, seed=1)), np.outer, order=2, name="outer"),
    Case(
        "matmul",
        lambda a, b: op.einsum("ij,jk->ik", a, b),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
        lambda a, b: a @ b,
        differentiable=False,
        name="einsum of integers",
    ),
]


def _op_of(subscripts: str) -> str:
    """Whether a sum of products must become a matrix product."""
    operands = subscripts.partition("->")[0]
    if "," not in operands:
        return {"ij->ji": "transpose", "ij->": "sum", "ba": "transpose"}[subscripts]
    return "mul" if subscripts in ("i,j->ij", "i,i->i", "ij,k->ik", ",i->i") else "matmul"


CASES += [
    Case(
        _op_of(subscripts),
        lambda *xs, s=subscripts: op.einsum(s, *xs),
        tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)),
        lambda *xs, s=subscripts: np.einsum(s, *xs),
        order=2,
        name=f"einsum {subscripts}",
    )
    for subscripts, *shapes in _SUMS
]

_DIAGONALS = [
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iji->ji", (2, 3, 2)),
    ("iii->i", (2, 2, 2)),
    ("iijj->ij", (2, 2, 3, 3)),
    ("...ii->...", (2, 3, 3)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("ii->i", (0, 0)),
    ("ii->i", (1, 1)),
]
CASES += [
    Case(
        "slice" if size else "reshape",
        lambda *xs, s=subscripts: op.einsum(s, *xs),
        tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)),
        lambda *xs, s=subscripts: np.einsum(s, *xs),
        order=2,
        name=f"einsum {subscripts}",
    )
    for subscripts, *shapes in _DIAGONALS
    for size in [shapes[0][0] > 1]
]
