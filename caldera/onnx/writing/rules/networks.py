"""Pooling, normalisation and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.onnx.writing.dynamic_batch import Samples
from caldera.onnx.writing.rules.product import placing
from caldera.onnx.writing.rules.registry import inputs, writes


@writes("max_pool2d")
def _max_pool2d(write: Any, pair: Any) -> tuple[str]:
    # The second output, places inside of windows, is for gradients; ONNX counts them otherwise.
    return (
        write.add(
            "MaxPool",
            *inputs(write, pair),
            kernel_shape=list(pair.attrs["size"]),
            dilations=list(pair.attrs["dilation"]),
            **placing(pair),
        ),
    )


@writes("avg_pool2d")
def _avg_pool2d(write: Any, pair: Any) -> str:
    return write.add(
        "AveragePool",
        *inputs(write, pair),
        kernel_shape=list(pair.attrs["size"]),
        count_include_pad=int(pair.attrs["count_padding"]),
        **placing(pair),
    )


@writes("batch_norm_inference")
def _batch_norm_inference(write: Any, pair: Any) -> str:
    if pair.attrs["axis"] != 1:
        return NotImplemented
    return write.add("BatchNormalization", *inputs(write, pair), epsilon=pair.attrs["eps"])


@writes("layer_norm")
def _layer_norm(write: Any, pair: Any) -> Any:
    axes, rank = pair.attrs["axis"], len(pair.node.inputs[0].shape)
    if axes != tuple(range(axes[0], rank)):
        return NotImplemented
    # Mean and variance, the other two outputs, are for gradients.
    how = {"axis": axes[0], "epsilon": pair.attrs["eps"]}
    return (write.add("LayerNormalization", *inputs(write, pair), **how),)


@writes("local_response_norm")
def _local_response_norm(write: Any, pair: Any) -> str:
    if pair.attrs["window"] % 2 == 0:
        return NotImplemented
    return write.add(
        "LRN",
        *inputs(write, pair),
        size=pair.attrs["window"],
        alpha=pair.attrs["alpha"],
        beta=pair.attrs["beta"],
        bias=pair.attrs["k"],
    )


@writes("scaled_dot_product_attention")
def _attention(write: Any, pair: Any) -> Any:
    q, k, v = pair.inputs[:3]
    queries, keys = q.spec.shape[-2], k.spec.shape[-2]
    if any(isinstance(each.shape[-2], Samples) for each in (q, k)):
        return NotImplemented
    # With a mask of the model's own, or more queries than keys, a row may see nothing at all; its
    # result of 0 is part of the decomposition.
    if len(pair.inputs) > 3 or (pair.attrs["causal"] and queries > keys):
        return NotImplemented
    dtype, rank = q.spec.dtype, len(k.spec.shape)
    turned = write.add("Transpose", write.name(k), perm=[*range(rank - 2), rank - 1, rank - 2])
    scaled = write.add("Mul", write.name(q), write.scalar(pair.attrs["scale"], dtype))
    scores = write.add("MatMul", scaled, turned)
    if pair.attrs["causal"]:
        is_later = np.triu(np.ones((queries, keys), np.bool_), keys - queries + 1)
        mask = np.where(is_later, -np.inf, 0).astype(dtype)
        scores = write.add("Add", scores, write.array(mask))
    shares = write.add("Softmax", scores, axis=rank - 1)
    return (write.add("MatMul", shares, write.name(v)),)
