"""Moving elements on a card: copies, transposes, reshapes, concatenation, padding, ranges."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.memory_format import NHWC, laid_out
from caldera.core.graph.node import Spec, intern
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops import base, movement
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.movement import copy_calls, copying
from caldera.kernels.table import TABLE
from tests.card.candidates import check, run_kernel, same_bits, stand_ins

SIZES = ["bool", "bfloat16", "float32", "int64"]
"""One dtype of each size."""


def _numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng([len(shape), *shape])
    return np.asarray(generator.integers(0, 100, shape)).astype(BY_NAME[dtype])


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 4), (2, 40, 6, 7), (1, 9, 1, 70), (3, 64, 8, 8), (0, 3, 2, 2)]
)
def test_images_change_their_layout(
    card: Device,
    shape: tuple[int, ...],
    dtype: str,
) -> None:
    x = _numbers(shape, dtype)
    to = movement.arrange(parameter(0, Spec(shape, x.dtype)), NHWC)
    assert check(card, to, (x,), by=np.testing.assert_array_equal)
    back = OPS["arrange"](parameter(0, Spec(shape, x.dtype, NHWC)), order=None)
    (kernel,) = TABLE.candidates(back, "cuda")
    memory = np.ascontiguousarray(x.transpose(NHWC))
    (found,) = run_kernel(card, kernel, back, (laid_out(memory, shape, NHWC),))
    same_bits(found, x)


def test_tiles_are_used(card: Device) -> None:
    x, y = np.zeros((2, 40, 30), "float32"), np.zeros((2, 30, 40), "float32")
    assert [each.name for each in copy_calls(y, x.transpose(0, 2, 1))] == ["transpose"]
    assert [each.name for each in copy_calls(y, x.reshape(2, 30, 40))] == ["loop"]
    # What is simple is copied together.
    parts = [(y[:, :10], x[:, :10, :]), (y[:, 10:], x[:, :20, :])]
    assert len(copying([(to[..., :30], given) for to, given in parts])) == 1
    assert card


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float64"])
def test_reshapes(card: Device, dtype: str) -> None:
    x = _numbers((4, 6, 5), dtype)
    for shape in ((24, 5), (120,), (2, 2, 30), (5, 24)):
        node = OPS["reshape"](*stand_ins(x), shape=shape)
        assert check(card, node, (x,), by=same_bits)


def test_a_reshape_into_another_order(card: Device) -> None:
    x = _numbers((4, 6, 5))
    plain = OPS["reshape"](*stand_ins(x), shape=(5, 8, 3))
    node = intern(plain.op, plain.inputs, dict(plain.attrs), (Spec((5, 8, 3), x.dtype, (2, 0, 1)),))
    assert check(card, node, (x,), by=np.testing.assert_array_equal)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parts_side_by_side(card: Device, axis: int, dtype: str) -> None:
    shapes = []
    for length in (1, 8, 0, 5):
        shape = [4, 3, 8]
        shape[axis] = length
        shapes.append(tuple(shape))
    parts = tuple(_numbers(shape, dtype) for shape in shapes)
    assert check(card, movement.concat(tuple(stand_ins(*parts)), axis), parts, by=same_bits)
    whole = np.concatenate(parts, axis)
    pieces = movement.split(stand_ins(whole)[0], tuple(part.shape[axis] for part in parts), axis)
    assert check(card, pieces[0].inputs[0], (whole,), by=same_bits)


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_padding(card: Device, dtype: str) -> None:
    for shape, widths in (
        ((3, 5), ((1, 2), (0, 3))),
        ((4, 8), ((1, 2), (0, 0))),
        ((2, 3, 4, 8), ((0, 0), (0, 0), (1, 1), (8, 8))),
        ((2, 4, 6), ((0, 0), (1, 0), (0, 0))),
        ((0, 2), ((1, 1), (0, 1))),
        ((1, 7), ((0, 0), (2, 2))),
    ):
        x = _numbers(shape, dtype)
        node = movement.pad(stand_ins(x)[0], widths, 1)
        assert check(card, node, (x,), by=np.testing.assert_array_equal)


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ((10,), ((1, 10, 3),)),
        ((6, 8), ((0, 6, 2), (4, 8, 1))),
        ((6, 8), ((2, 4, 1), (0, 8, 1))),
        ((5, 4), ((3, 4, 1), (0, 4, 4))),
        ((3, 4), ((1, 1, 1), (0, 4, 1))),
        ((2, 3, 16), ((0, 2, 1), (1, 3, 1), (4, 12, 1))),
    ],
)
def test_slices_back_in_place(
    card: Device,
    shape: tuple[int, ...],
    bounds: movement.Bounds,
) -> None:
    x = _numbers(tuple(len(range(*bound)) for bound in bounds))
    node = movement.unslice(*stand_ins(x), shape=shape, bounds=bounds)
    assert check(card, node, (x,), by=np.testing.assert_array_equal)


@pytest.mark.parametrize("dtype", SIZES)
def test_ranges(card: Device, dtype: str) -> None:
    longest = 2 if dtype == "bool" else 50
    for shape, axis in (((longest,), 0), ((3, longest), 1), ((longest, 4), 0), ((2, 2, 8), 1)):
        node = base.iota(shape=shape, axis=axis, dtype=BY_NAME[dtype])
        assert check(card, node, (), by=np.testing.assert_array_equal)


def test_complex_numbers_are_written_and_copied(card: Device) -> None:
    parts = _numbers((5, 3)), _numbers((5, 3)) + 1
    node = base.complex_(*stand_ins(*parts))
    assert check(card, node, parts, by=np.testing.assert_array_equal)
    for dtype in ("complex64", "complex128"):
        numbers = (parts[0] + 1j * parts[1]).astype(dtype)
        copied = movement.arrange(*stand_ins(numbers), (1, 0))
        assert check(card, copied, (numbers,), by=np.testing.assert_array_equal)
