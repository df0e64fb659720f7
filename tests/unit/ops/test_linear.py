"""Products with weights, biases and embeddings: how they are made, and misuse."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import op
from caldera.core.graph.program import topological
from caldera.errors import DataError, DtypeError, ShapeError


def test_a_batch_of_sequences_is_one_plain_product() -> None:
    y = op.linear(op.var("x", (4, 5, 3)), op.var("w", (3, 2)), op.var("b", (2,)))
    assert y.shape == (4, 5, 2)
    (product,) = [node for node in topological([y.node]) if node.op.name == "matmul"]
    assert product.shape == (20, 2)
    # The bias is added before the axes are restored, so it can join the product.
    (total,) = [node for node in topological([y.node]) if node.op.name == "add"]
    assert product in total.inputs


def test_operands_share_a_dtype() -> None:
    assert op.linear(np.ones((2, 3), np.int64), np.ones((3, 2), np.int64)).dtype.name == "float32"
    assert op.linear(np.ones((2, 3), "float32"), np.ones((3, 2))).dtype.name == "float64"
    assert op.bias_add(np.ones((2, 3), np.int64), [1, 2, 3]).dtype.name == "int64"


def test_a_row_used_twice_gets_both_gradients() -> None:
    table = op.var("table", (3, 2), fill=np.ones((3, 2)))
    y = op.embedding(table, np.array([[2, 0], [2, 2]], np.uint8))
    assert y.shape == (2, 2, 2)
    assert op.grad(op.sum(y), table).tolist() == [[1, 1], [0, 0], [3, 3]]


def test_a_row_that_is_not_there_is_an_error_when_it_is_read() -> None:
    for row, shown in {3: "3", -1: r"-1 \(18446744073709551615 without a sign\)"}.items():
        with pytest.raises(DataError, match=f"indices from 0 to 2, got {shown} into"):
            op.embedding(np.ones((3, 2)), [row]).eval()


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda x: op.linear(x, np.ones((2, 3))),
            ShapeError,
            r"op\.linear: expected x \(\.\.\., inputs\) and w \(inputs.*got .*X.*transpose",
        ),
        (lambda x: op.linear(x, np.ones(3)), ShapeError, r"op\.linear"),
        (lambda x: op.linear(x[0, 0], np.ones((3, 2))), ShapeError, r"op\.linear"),
        (
            lambda x: op.linear(x, np.ones((3, 2)), np.ones(3)),
            ShapeError,
            r"op\.linear: expected a bias of shape \(2,\)",
        ),
        (lambda x: op.linear(x, np.ones((3, 2)), np.ones((2, 2))), ShapeError, "a bias of shape"),
        (
            lambda x: op.bias_add(x, np.ones(2)),
            ShapeError,
            r"op\.bias_add: expected a bias of shape \(3,\), for axis 1",
        ),
        (lambda x: op.bias_add(x, np.ones(3), axis=0), ShapeError, r"shape \(2,\), for axis 0"),
        (lambda x: op.bias_add(x, np.ones(3), axis=2), ShapeError, r"op\.bias_add: .*axis"),
        (lambda x: op.embedding(x, [0.5]), DtypeError, r"op\.embedding: expected integers"),
        (lambda x: op.embedding(x[0, 0], [0]), ShapeError, r"op\.embedding: expected a table"),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write(op.var("X", (2, 3)))
