"""Cases for reading and adding at computed positions, and sorting."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers


def _scatter(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
    """One index after the other, with both axes moved to the front."""
    result = np.moveaxis(x.copy(), axis, 0)
    flat = updates.reshape(*x.shape[:axis], indices.size, *x.shape[axis + 1 :])
    added = np.moveaxis(flat, axis, 0)
    for place, part in zip(indices.ravel(), added, strict=True):
        result[place] += part
    return np.moveaxis(result, 0, axis)


def _put(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
    result = x.copy()
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = indices[at]
        result[tuple(place)] += updates[at]
    return result


def _distinct(*shape: int) -> np.ndarray:
    """Numbers in a random order whose distances are larger than a finite difference."""
    size = int(np.prod(shape))
    return np.random.default_rng(7).permutation(size).reshape(shape) * 0.25 - 1.0


_REPEATED = np.array([2, 0, -1, 2])
_MATRIX = np.array([[1, 0, -3], [0, 0, 2]])
_NOWHERE = np.zeros((0,), np.int64)

_GATHERS = (
    ("vector", numbers(3), _REPEATED, 0),
    ("scalar index", numbers(3), np.array(-2), 0),
    ("rows", numbers(3, 2), _REPEATED, 0),
    ("columns", numbers(2, 3), _REPEATED, 1),
    ("matrix of indices", numbers(2, 3, 2), _MATRIX, 1),
    ("bytes as indices", numbers(3, 2), np.array([2, 0, 2], np.uint8), 0),
    ("no index", numbers(2, 3), _NOWHERE, 1),
    ("empty axis", numbers(2, 0), _NOWHERE, 1),
    ("empty beside", numbers(0, 3), _REPEATED, 1),
)
CASES = [
    Case(
        "gather",
        lambda x, i, a=axis: op.gather(x, i, a),
        (x, indices),
        lambda x, i, a=axis: np.take(x, i, a),
        name=name,
        order=2,
    )
    for name, x, indices, axis in _GATHERS
]
# The square makes the second derivative depend on what was read.
CASES += [
    Case(
        "gather",
        lambda x, i: op.gather(x, i, 0) * op.gather(x, i, 0),
        (numbers(3), _REPEATED),
        lambda x, i: np.take(x, i) ** 2,
        name="squared",
        order=2,
    ),
]
CASES += [
    Case(
        "scatter_add",
        lambda x, i, u, a=axis: op.scatter_add(x, i, u * u, a),
        (x, indices, numbers(*np.take(x, indices, axis).shape, seed=1)),
        lambda x, i, u, a=axis: _scatter(x, i, u * u, a),
        name=name,
        order=2,
    )
    for name, x, indices, axis in _GATHERS
]
CASES += [
    Case(
        "scatter_add",
        lambda x, i, u: op.scatter_add(x, i, u),
        (numbers(3, 2), _REPEATED, numbers(2)),
        lambda x, i, u: _scatter(x, i, np.broadcast_to(u, (4, 2)), 0),
        name="broadcast updates",
    ),
]

_ALONG = (
    ("rows", numbers(3, 3), np.array([[2, 0, -1]]), 0),
    ("columns", numbers(2, 3), _MATRIX[:, :2], 1),
    ("more than there are", numbers(2, 3), np.array([[0, 0, 1, 2, -1], [2, 2, 2, 2, 1]]), 1),
    ("three axes", numbers(2, 2, 2), np.array([[[1, 0]], [[0, 0]]]), 1),
    ("no index", numbers(2, 3), np.zeros((2, 0), np.int64), 1),
    ("empty beside", numbers(0, 3), np.zeros((0, 2), np.int64), 1),
)
CASES += [
    Case(
        "take_along_axis",
        lambda x, i, a=axis: op.take_along_axis(x * x, i, a),
        (x, indices),
        lambda x, i, a=axis: np.take_along_axis(x * x, i, a),
        name=name,
        order=2,
    )
    for name, x, indices, axis in _ALONG
]
CASES += [
    Case(
        "take_along_axis",
        lambda x, i: op.take_along_axis(x, i, 1),
        (x, indices),
        lambda x, i: np.take_along_axis(x, i, 1),
        name="broadcast",
    )
    for x, indices in ((numbers(2, 3), np.array([[2, 0]])), (numbers(1, 3), _MATRIX))
]
CASES += [
    Case(
        "put_along_axis_add",
        lambda x, i, u, a=axis: op.put_along_axis_add(x, i, u * u, a),
        (x, indices, numbers(*indices.shape, seed=1)),
        lambda x, i, u, a=axis: _put(x, i, u * u, a),
        name=name,
        order=2,
    )
    for name, x, indices, axis in _ALONG
]

CASES += [
    Case(
        "one_hot",
        lambda i, x: op.one_hot(i, 4, x.dtype) * x,
        (np.array([[3, 0], [1, 1], [-1, 4]]), numbers(3, 2, 4)),
        lambda i, x: (i[..., None] == np.arange(4)) * x,
        name="matrix",
    ),
    Case(
        "one_hot",
        lambda i: op.one_hot(i, 3, "int64"),
        (np.array(2),),
        lambda i: np.array([0, 0, 1]),
        differentiable=False,
        name="scalar",
    ),
    Case(
        "one_hot",
        lambda i: op.one_hot(i, 0),
        (np.array([0, 1]),),
        lambda i: np.zeros((2, 0)),
        differentiable=False,
        name="no classes",
    ),
]

_SORTED = (
    (_distinct(5), 0),
    (_distinct(3, 4), 0),
    (_distinct(2, 3, 2), 1),
    (numbers(2, 0), 1),
    (numbers(0, 3), 1),
    (numbers(2, 1), 1),
)
CASES += [
    Case(
        "sort",
        lambda x, a=axis, d=descending: op.sort(x * x * x, a, d),
        (x,),
        lambda x, a=axis, d=descending: -np.sort(-(x**3), a) if d else np.sort(x**3, a),
        name=f"descending {descending}",
        order=2,
    )
    for x, axis in _SORTED
    for descending in (False, True)
]
CASES += [
    Case(
        "sort",
        lambda x, a=axis: op.argsort(x, a),
        (x,),
        lambda x, a=axis: np.argsort(x, a),
        name="argsort",
        differentiable=False,
    )
    for x, axis in _SORTED
]
CASES += [
    Case(
        "top_k",
        lambda x, a=axis, k=k: op.top_k(x * x * x, k, a),
        (x,),
        lambda x, a=axis, k=k: (
            np.take(-np.sort(-(x**3), a), range(k), a),
            np.take(np.argsort(-x, a), range(k), a),
        ),
        name=f"k {k}",
        order=2,
    )
    for x, axis, k in (
        (_distinct(5), 0, 3),
        (_distinct(2, 3, 2), 1, 2),
        (_distinct(2, 3), 1, 3),
        (_distinct(2, 3), 0, 0),
    )
]
