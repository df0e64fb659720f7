"""Reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.onnx.writing.rules.registry import inputs, writes

_OPERATORS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


def _reduced(write: Any, pair: Any) -> str:
    axes = list(pair.attrs["axis"])
    (x,) = inputs(write, pair)
    if not axes:
        # Without axes ONNX would take all of them.
        return NotImplemented
    return write.add(
        _OPERATORS[pair.name], x, write.integers(axes), keepdims=int(pair.attrs["keepdims"])
    )


writes(*_OPERATORS)(_reduced)


def _position(operator: str) -> Any:
    def rule(write: Any, pair: Any) -> str:
        keepdims = int(pair.attrs["keepdims"])
        return write.add(operator, *inputs(write, pair), axis=pair.attrs["axis"], keepdims=keepdims)

    return rule


writes("argmax")(_position("ArgMax"))
writes("argmin")(_position("ArgMin"))


@writes("cumsum")
def _cumsum(write: Any, pair: Any) -> str:
    axis = write.scalar(pair.attrs["axis"], np.dtype(np.int64))
    return write.add("CumSum", *inputs(write, pair), axis, reverse=int(pair.attrs["reverse"]))
