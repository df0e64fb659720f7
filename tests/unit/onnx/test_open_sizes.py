"""Files with axes of any size: each size has a plan, and the numbers are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import caldera as cd
from caldera.errors import DataError
from tests.unit.onnx.files import by_onnxruntime, declared, made, written
from tests.unit.onnx.test_export import numbers


def convolutional() -> object:
    """Images (n, 3, height, width) to a mean by channel, past a reshape that reads the sizes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "two", "zero"], ["kept"]),
        helper.make_node("Concat", ["kept", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["c", "flat"], ["r"]),
        helper.make_node("ReduceMean", ["r", "two"], ["y"], keepdims=0),
    ]
    arrays = {"w": numbers(4, 3, 3, 3), "zero": np.array([0]), "two": np.array([2])}
    arrays["rest"] = np.array([-1])
    given = declared("x", ["n", 3, "height", "width"])
    return made(nodes, [given], [declared("y", ["n", 4])], arrays)


def recurrent() -> object:
    """Sequences (n, steps, 3) through a GRU."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(
            "GRU", ["t", "w", "r"], ["", "last"], hidden_size=2, linear_before_reset=1
        ),
        helper.make_node("Squeeze", ["last", "zero"], ["y"]),
    ]
    arrays = {"w": numbers(1, 6, 3), "r": numbers(1, 6, 2), "zero": np.array([0])}
    given = declared("x", ["n", None, 3])
    return made(nodes, [given], [declared("y", ["n", 2])], arrays)


@pytest.mark.parametrize("kind", ["convolutional", "recurrent"])
def test_axes_that_a_file_leaves_open_stay_open(kind: str, tmp_path: Path) -> None:
    path = written(globals()[kind](), tmp_path)
    model = cd.onnx.load(path, loss="mean_squared")
    for sizes in ((5, 6), (9, 4), (1, 1), (5, 6)):
        shape = (2, 3, *sizes) if kind == "convolutional" else (2, sizes[0], 3)
        x = numbers(*shape)
        np.testing.assert_allclose(model.predict(x), by_onnxruntime(path, x)[0], atol=1e-5)
    for wrong in ((2, 4, 5, 6), (2, 5, 4), (2, 3)):
        with pytest.raises(DataError, match=r"samples of shape \((3, any, any|any, 3)\), got"):
            model.predict(np.zeros(wrong, "float32"))
    before, y = model.parameters()[0].numpy(), np.zeros(model.predict(x).shape, "float32")
    model.fit(x, y, verbose=0)
    assert (model.parameters()[0].numpy() != before).any()
