"""Shapes and axes are normalised as NumPy does it, and refused with a reason otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldera.core.tensor import shape as shapes
from caldera.errors import ShapeError

small_shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("given_shape", "expected"),
    [(3, (3,)), ((), ()), ([2, 0], (2, 0)), (np.int32(4), (4,)), (np.array([2, 3]), (2, 3))],
)
def test_as_shape(given_shape, expected):
    result = shapes.as_shape(given_shape)
    assert result == expected
    assert all(type(length) is int for length in result)


@pytest.mark.parametrize("wrong", [-1, (2, -3), 2.0, (2, 3.0), "23", None, True, (1, False)])
def test_as_shape_refuses(wrong):
    with pytest.raises(ShapeError, match=r"^op\.var: expected"):
        shapes.as_shape(wrong, "op.var")


@given(small_shapes)
def test_strides_are_numpys(shape):
    array = np.empty(shape, np.int8)
    if array.size:
        moving = [axis for axis, length in enumerate(shape) if length > 1]
        strides = shapes.row_major_strides(shape)
        assert [strides[axis] for axis in moving] == [array.strides[axis] for axis in moving]


def test_axes_count_from_both_ends():
    assert shapes.normalise_axis(-1, 3, "op.sum") == 2
    assert shapes.normalise_axes((-1, 0), 3, "op.sum") == (0, 2)
    assert shapes.normalise_axes(1, 3, "op.sum") == (1,)
    assert shapes.normalise_axes((), 3, "op.sum") == ()
    assert shapes.normalise_axes(None, 3, "op.sum") == (0, 1, 2)


@pytest.mark.parametrize("axis", [3, -4, (0, 5), (1, -2), 0.5, True])
def test_wrong_axes_are_refused(axis):
    with pytest.raises(ShapeError, match=r"op\.sum: expected"):
        shapes.normalise_axes(axis, 3, "op.sum")


def test_a_scalar_has_no_axis():
    with pytest.raises(ShapeError, match="scalar"):
        shapes.normalise_axis(0, 0, "op.sum")


def test_permutations():
    assert shapes.normalise_permutation(None, 3, "op.transpose") == (2, 1, 0)
    assert shapes.normalise_permutation((1, -1, 0), 3, "op.transpose") == (1, 2, 0)


@pytest.mark.parametrize("axes", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_what_is_no_permutation_is_refused(axes):
    with pytest.raises(ShapeError, match=r"op\.transpose"):
        shapes.normalise_permutation(axes, 3, "op.transpose")


@given(st.lists(small_shapes, max_size=3))
def test_broadcasting_is_numpys(given_shapes):
    try:
        expected = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"op\.add: expected shapes that broadcast"):
            shapes.broadcast_shapes(*given_shapes, where="op.add")
    else:
        assert shapes.broadcast_shapes(*given_shapes, where="op.add") == expected


@given(small_shapes, st.lists(st.integers(-1, 6), max_size=3).map(tuple))
def test_reshaping_with_an_unknown_size_is_numpys(old, new):
    try:
        expected = np.empty(old).reshape(new).shape
    except ValueError:
        with pytest.raises(ShapeError, match=r"^op\.reshape: expected"):
            shapes.reshape_with_unknown(old, new, "op.reshape")
    else:
        assert shapes.reshape_with_unknown(old, new, "op.reshape") == expected


def test_reshape_says_how_many_elements_there_are():
    with pytest.raises(ShapeError) as caught:
        shapes.reshape_with_unknown((2, 3), (4,), "op.reshape")
    assert str(caught.value) == (
        "op.reshape: expected a shape with the 6 elements of (2, 3), got (4,) with 4"
    )
