"""Copies between arrays that lie differently in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera.kernels.native.movement import copying, simplest

_DTYPES = st.sampled_from(["uint8", "float16", "float32", "float64"])


@st.composite
def _arrays(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A target and a source of one shape, permuted, with gaps, backwards or repeated."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=5)))
    dtype = draw(_DTYPES)

    def lying(repeats: bool) -> np.ndarray:
        order = draw(st.permutations(range(len(shape))))
        gap = draw(st.integers(1, 2))
        memory = np.zeros([shape[axis] * gap for axis in order], dtype)
        array = memory.transpose(np.argsort(order).astype(int)) if shape else memory
        array = array[(..., *[slice(None, None, gap)] * len(shape))]
        if shape and repeats and draw(st.booleans()):
            array = array[::-1]
        array[...] = np.random.default_rng(0).integers(1, 100, shape)
        if shape and repeats and draw(st.booleans()):
            array = np.broadcast_to(array[:1], shape)
        return array

    return lying(repeats=False), lying(repeats=True)


@given(_arrays(), st.integers(1, 3))
def test_any_copy_is_what_numpy_makes(arrays: tuple[np.ndarray, np.ndarray], threads: int) -> None:
    target, source = arrays
    with cd.settings.override(threads=threads):
        copying([(target, source)])()
    np.testing.assert_array_equal(target, source)


def test_large_copies_are_shared_out_and_complete() -> None:
    source = np.random.default_rng(0).standard_normal((5, 33, 41, 29)).astype(np.float32)
    target = np.zeros((5, 41, 29, 33), np.float32).transpose(0, 3, 1, 2)
    with cd.settings.override(threads=3):
        copying([(target, source)])()
        back = np.zeros_like(source)
        copying([(back, target)])()
    np.testing.assert_array_equal(back, source)


def test_a_dense_copy_is_one_loop() -> None:
    a = np.zeros((4, 5, 6, 7), np.float32)
    assert [axis.count for axis in simplest(a, a)] == [4 * 5 * 6 * 7]
    nhwc = np.zeros((4, 6, 7, 5), np.float32).transpose(0, 3, 1, 2)
    assert [axis.count for axis in simplest(nhwc, nhwc)] == [4 * 5 * 6 * 7]
    assert [axis.count for axis in simplest(nhwc, a)] == [4, 6 * 7, 5]


def test_more_axes_than_the_kernel_has_are_copied_all_the_same() -> None:
    source = np.arange(3**8, dtype=np.float64).reshape((3,) * 8)
    target = np.zeros((3,) * 8).transpose(7, 5, 3, 1, 6, 4, 2, 0)
    copying([(target, source)])()
    np.testing.assert_array_equal(target, source)
