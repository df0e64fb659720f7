"""Export rules of matrix products, convolutions, pooling, normalisation and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.onnx.writing.dynamic_batch import BatchMultiple
from caldera.onnx.writing.rules.registry import inputs, writes


@writes("add")
def _add(write: Any, pair: Any) -> str:
    for product, bias in (pair.inputs, pair.inputs[::-1]):
        if product in write.absorbed:
            if product.name == "conv2d":
                return _convolution(write, product, write.name(bias.inputs[0]))
            how = {"transA": int(product.attrs["ta"]), "transB": int(product.attrs["tb"])}
            return write.add("Gemm", *inputs(write, product), write.name(bias), **how)
    return write.add("Add", *inputs(write, pair))


@writes("matmul")
def _matmul(write: Any, pair: Any) -> str:
    operands = []
    for given, turned in zip(pair.inputs, (pair.attrs["ta"], pair.attrs["tb"]), strict=True):
        name = write.name(given)
        if turned:
            rank = len(given.spec.shape)
            name = write.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        operands.append(name)
    return write.add("MatMul", *operands)


def placing(pair: Any) -> dict[str, Any]:
    """Strides and padding, as ONNX writes them."""
    (top, bottom), (left, right) = pair.attrs["padding"]
    return {"strides": list(pair.attrs["stride"]), "pads": [top, left, bottom, right]}


def _convolution(write: Any, pair: Any, *bias: str) -> str:
    return write.add(
        "Conv",
        *inputs(write, pair),
        *bias,
        kernel_shape=list(pair.node.inputs[1].shape[2:]),
        dilations=list(pair.attrs["dilation"]),
        group=pair.attrs["groups"],
        **placing(pair),
    )


@writes("conv2d")
def _conv2d(write: Any, pair: Any) -> str:
    return _convolution(write, pair)


@writes("conv2d_input", by_samples=("shape",))
def _conv2d_input(write: Any, pair: Any) -> str:
    if any(isinstance(each, BatchMultiple) for each in pair.sizes("shape")[1:]):
        return NotImplemented
    small, kernel = pair.node.inputs
    extra = []
    for i in (0, 1):
        reach = pair.attrs["dilation"][i] * (kernel.shape[2 + i] - 1) + 1
        least = pair.attrs["stride"][i] * (small.shape[2 + i] - 1) + reach
        extra.append(pair.attrs["shape"][2 + i] - least + sum(pair.attrs["padding"][i]))
    return write.add(
        "ConvTranspose",
        *inputs(write, pair),
        kernel_shape=list(kernel.shape[2:]),
        dilations=list(pair.attrs["dilation"]),
        group=pair.attrs["groups"],
        output_padding=extra,
        **placing(pair),
    )


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
    if any(isinstance(each.shape[-2], BatchMultiple) for each in (q, k)):
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
