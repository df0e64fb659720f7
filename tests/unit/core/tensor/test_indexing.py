"""Indexing a tensor gives and sets what NumPy would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import caldera as cd
from caldera.errors import CalderaError, DtypeError, IndexingError, ShapeError

PLACES = [(cd.MANAGED, "cpu"), (cd.MANAGED, "loopback"), (cd.DEVICE, "loopback")]
everywhere = pytest.mark.parametrize(
    ("kind", "device"), PLACES, ids=[f"{kind.name}-{device}" for kind, device in PLACES]
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def basic_keys(shape):
    return hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=8)


@st.composite
def array_keys(draw, shape):
    """Keys with one or two index arrays, or a mask, among slices."""
    if draw(st.booleans()):
        axes = draw(st.integers(1, len(shape)))
        return draw(hnp.arrays(bool, shape[:axes]))
    arrays = draw(st.integers(1, min(2, len(shape))))
    index = hnp.integer_array_indices(shape[:arrays], dtype=np.int64)
    rest = tuple(
        draw(st.sampled_from([slice(None), slice(None, None, -1), 0])) for _ in shape[arrays:]
    )
    return (*draw(index), *rest)


@st.composite
def shapes_that_broadcast_to(draw, shape):
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from([1, length])) for length in kept)


def same(result, expected):
    if isinstance(expected, np.ndarray) and expected.ndim:
        assert isinstance(result, cd.Tensor)
        assert result.shape == expected.shape
        assert (result.numpy() == expected).all()
    else:
        value = result.item() if isinstance(result, cd.Tensor) else result
        assert value == expected


def numbered(shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@everywhere
@settings(max_examples=60)
@given(data=st.data())
def test_basic_indices_give_views(kind, device, data):
    array = numbered(data.draw(shapes))
    t = cd.tensor(array, kind=kind, device=device)
    key = data.draw(basic_keys(array.shape))
    expected = array[key]
    same(t[key], expected)
    if isinstance(t[key], cd.Tensor):
        assert t[key].memory is t.memory
        # An index of an index, so that the first one's strides are not the plain ones.
        if expected.ndim:
            second = data.draw(basic_keys(expected.shape))
            same(t[key][second], expected[second])


@everywhere
@settings(max_examples=60)
@given(data=st.data())
def test_basic_indices_can_be_set(kind, device, data):
    array = numbered(data.draw(shapes))
    t = cd.tensor(array, kind=kind, device=device)
    key = data.draw(basic_keys(array.shape))
    shape = data.draw(shapes_that_broadcast_to(np.shape(array[key])))
    values = -1 - numbered(shape)
    array[key] = values
    # A list cannot say how long the axes after an empty one are.
    forms = [values, cd.tensor(values), values.tolist() if values.size else values]
    t[key] = data.draw(st.sampled_from(forms))
    assert (t.numpy() == array).all()


@everywhere
@settings(max_examples=50)
@given(data=st.data())
def test_index_arrays_give_copies(kind, device, data):
    array = numbered(data.draw(hnp.array_shapes(max_dims=3, max_side=4)))
    t = cd.tensor(array, kind=kind, device=device).T.T
    key = data.draw(array_keys(array.shape))
    result = t[key]
    same(result, array[key])
    if isinstance(result, cd.Tensor):
        assert result.memory is not t.memory
        assert (result.kind, result.device) == (t.kind, t.device)


@everywhere
@settings(max_examples=50)
@given(data=st.data())
def test_index_arrays_can_be_set(kind, device, data):
    array = numbered(data.draw(hnp.array_shapes(max_dims=3, max_side=4)))
    t = cd.tensor(array, kind=kind, device=device)
    key = data.draw(array_keys(array.shape))
    array[key] = -7
    t[key] = -7
    assert (t.numpy() == array).all()


def test_lists_and_tensors_are_index_arrays():
    t = cd.tensor([10, 20, 30, 40])
    assert t[[3, 0]].tolist() == [40, 10]
    assert t[cd.tensor([1, 1])].tolist() == [20, 20]
    assert t[[]].tolist() == []
    mask = cd.tensor([True, False, False, True])
    assert t[mask].tolist() == [10, 40]
    t[mask] = cd.tensor([1, 2])
    assert t.tolist() == [1, 20, 30, 2]
    assert t[np.int8(-1)] == 2


@everywhere
def test_overlapping_parts_are_copied_as_if_at_once(kind, device):
    t = cd.tensor(np.arange(6.0), kind=kind, device=device)
    t[1:] = t[:-1]
    assert t.tolist() == [0, 0, 1, 2, 3, 4]
    t[...] = t[::-1]
    assert t.tolist() == [4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, r"index 2 of axis 0: expected -2 to 1, got 2 for shape \(2, 3\)"),
        ((0, -4), "index -4 of axis 1: expected -3 to 2"),
        ((slice(None), 3), "index 3 of axis 1"),
        ((0, 0, 0), r"at most 2 indices for shape \(2, 3\), got \[0, 0, 0\]"),
        ((..., ...), r"at most one \.\.\., got \[\.\.\., \.\.\.\]"),
        (slice(None, None, 0), r"a step other than 0, got \[::0\]"),
        (slice(0.5, None), "a slice of ints"),
        (1.0, "got float 1.0"),
        ("a", "got str 'a'"),
        ([0, 5], "index 5 is out of bounds"),
        ([0.5], r"ints, slices, \.\.\., None, or arrays of ints or bools"),
        ([True, False, True], "boolean index did not match"),
    ],
)
def test_wrong_indices_are_refused(key, message):
    t = cd.Tensor((2, 3))
    with pytest.raises(IndexingError, match=message) as caught:
        t[key]
    assert isinstance(caught.value, CalderaError)
    assert isinstance(caught.value, IndexError)
    with pytest.raises(IndexError, match=message):
        t[key] = 1


@pytest.mark.parametrize("key", [..., 0, slice(1), [0, 1]])
def test_values_must_broadcast(key):
    t = cd.Tensor((2, 3))
    with pytest.raises(ShapeError, match=r"expected values that broadcast to .*3.*, got \(4,\)"):
        t[key] = [1, 2, 3, 4]
    with pytest.raises(ShapeError, match=r"expected values that broadcast to \(\), got \(2,\)"):
        t[0, 0] = [1, 2]


def test_leading_axes_of_size_one_may_be_surplus():
    t = cd.Tensor((3,))
    t[...] = np.array([[1, 2, 3]])
    assert t.tolist() == [1, 2, 3]
    t[0] = np.array([9.0])
    assert t[0] == 9


def test_values_must_fit_the_dtype():
    t = cd.Tensor((3,), dtype="int8")
    t[0] = np.int64(100)
    with pytest.raises(DtypeError, match="expected values that int8 can hold, got float64"):
        t[0] = 1.5
    with pytest.raises(DtypeError, match="integers from -128 to 127"):
        t[:] = [1, 2, 1000]
    assert t.tolist() == [100, 0, 0]


@everywhere
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_matrices_may_be_transposed(kind, device, dtype):
    """They are copied in stretches, of which the last is shorter."""
    values = np.random.default_rng(0).normal(size=(700, 401))
    target = cd.Tensor((401, 700), dtype=dtype, kind=kind, device=device)
    target[...] = values.T.astype(dtype, order="K")
    np.testing.assert_array_equal(target.numpy(), values.T.astype(dtype))
