"""Export rules of layers and of data movement."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.tensor.dtype import int32, int64, is_integer, uint64
from caldera.onnx.writing.dynamic_batch import BatchMultiple, sizes
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
    turns = zip(pair.inputs, (pair.attrs["ta"], pair.attrs["tb"]), strict=True)
    operands = [_turned(write, x) if turned else write.name(x) for x, turned in turns]
    dtype = pair.spec.dtype
    if is_integer(dtype) and dtype.itemsize < 4:
        # `MatMul` supports no such narrow integers; a wider sum has the same low bits.
        operands = [write.add("Cast", each, to=write.element_type(int32)) for each in operands]
        return write.add("Cast", write.add("MatMul", *operands), to=write.element_type(dtype))
    return write.add("MatMul", *operands)


def _turned(write: Any, pair: Any) -> str:
    """Transposed matrices."""
    rank = len(pair.spec.shape)
    return write.add("Transpose", write.name(pair), perm=[*range(rank - 2), rank - 1, rank - 2])


def placing(pair: Any) -> dict[str, Any]:
    """Return strides and padding as ONNX attributes."""
    (top, bottom), (left, right) = pair.attrs["padding"]
    return {"strides": list(pair.attrs["stride"]), "pads": [top, left, bottom, right]}


@writes("conv2d")
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
    # Mean and variance, its further outputs, are for gradients.
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
    # With the model's own mask, or more queries than keys, a row may have no visible key; its
    # result of 0 is part of the decomposition.
    if len(pair.inputs) > 3 or (pair.attrs["causal"] and queries > keys):
        return NotImplemented
    dtype, turned = q.spec.dtype, _turned(write, k)
    scaled = write.add("Mul", write.name(q), write.scalar(pair.attrs["scale"], dtype))
    scores = write.add("MatMul", scaled, turned)
    if pair.attrs["causal"]:
        is_later = np.triu(np.ones((queries, keys), np.bool_), keys - queries + 1)
        scores = write.add("Add", scores, write.array(np.where(is_later, -np.inf, 0).astype(dtype)))
    shares = write.add("Softmax", scores, axis=len(k.spec.shape) - 1)
    return (write.add("MatMul", shares, write.name(v)),)


_END = 2**63 - 1
"""End index of a slice that extends to the end of an axis of any length."""


@writes("reshape", by_samples=("shape",))
def _reshape(write: Any, pair: Any) -> str:
    wanted = pair.sizes("shape")
    open_sizes = [i for i, each in enumerate(wanted) if isinstance(each, BatchMultiple)]
    if len(open_sizes) == 1:
        # ONNX infers one size.
        wanted = tuple(-1 if i == open_sizes[0] else each for i, each in enumerate(wanted))
    return write.add("Reshape", *inputs(write, pair), write.shape(wanted), allowzero=0)


@writes("broadcast_to", by_samples=("shape",))
def _broadcast_to(write: Any, pair: Any) -> str:
    return write.add("Expand", *inputs(write, pair), write.shape(pair.sizes("shape")))


@writes("slice", by_samples=("bounds",))
def _slice(write: Any, pair: Any) -> str:
    given = pair.inputs[0]
    parts = []
    bounds = zip(pair.node.attrs["bounds"], pair.twin.attrs["bounds"], strict=True)
    for axis, (first, second) in enumerate(bounds):
        start, stop, step = sizes(first, second, pair.node)
        goes_to_end = first[1] == given.node.shape[axis] and second[1] == given.twin.shape[axis]
        if goes_to_end and start == 0 and step == 1:
            continue
        parts.append((start, _END if goes_to_end else stop, axis, step))
    vectors = [write.shape([part[i] for part in parts]) for i in range(4)]
    return write.add("Slice", *inputs(write, pair), *vectors)


@writes("flip")
def _flip(write: Any, pair: Any) -> str:
    axes = list(pair.attrs["axis"])
    vectors = ([-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes))
    return write.add("Slice", *inputs(write, pair), *[write.integers(each) for each in vectors])


@writes("pad")
def _pad(write: Any, pair: Any) -> str:
    widths = pair.attrs["widths"]
    flat = [before for before, _ in widths] + [after for _, after in widths]
    value = write.scalar(pair.attrs["value"], pair.spec.dtype)
    return write.add("Pad", *inputs(write, pair), write.integers(flat), value)


@writes("split", by_samples=("sizes",))
def _split(write: Any, pair: Any) -> Any:
    parts = pair.sizes("sizes")
    return write.add(
        "Split",
        *inputs(write, pair),
        write.shape(parts),
        outputs=len(parts),
        axis=pair.attrs["axis"],
    )


def _as_index(write: Any, pair: Any) -> str:
    """Return positions: ONNX takes int32 and int64 only."""
    name = write.name(pair)
    if pair.spec.dtype in (int32, int64):
        return name
    if pair.spec.dtype == uint64:
        # What int64 has not must not be counted from the end.
        name = write.add("Min", name, write.scalar(np.iinfo(np.int64).max, uint64))
    return write.add("Cast", name, to=write.element_type(int64))


@writes("gather", "take_along_axis")
def _gather(write: Any, pair: Any) -> str:
    x, indices = pair.inputs
    operator = "Gather" if pair.name == "gather" else "GatherElements"
    return write.add(operator, write.name(x), _as_index(write, indices), axis=pair.attrs["axis"])


@writes("put_along_axis_add")
def _put_along_axis_add(write: Any, pair: Any) -> str:
    x, indices, updates = pair.inputs
    names = write.name(x), _as_index(write, indices), write.name(updates)
    return write.add("ScatterElements", *names, axis=pair.attrs["axis"], reduction="add")


@writes("scatter_add")
def _scatter_add(write: Any, pair: Any) -> str:
    x, indices, updates = pair.inputs
    axis, rank, more = pair.attrs["axis"], len(x.spec.shape), len(indices.spec.shape)
    places = write.add("Unsqueeze", _as_index(write, indices), write.integers([-1]))
    if axis == 0:
        names = write.name(x), places, write.name(updates)
        return write.add("ScatterND", *names, reduction="add")
    # ONNX adds rows: the axis is moved to the front, and back afterwards.
    order = [axis, *range(axis), *range(axis + 1, rank)]
    rows = [*range(axis, axis + more), *range(axis), *range(axis + more, rank + more - 1)]
    turned = write.add("Transpose", write.name(x), perm=order)
    added = write.add("Transpose", write.name(updates), perm=rows)
    result = write.add("ScatterND", turned, places, added, reduction="add")
    return write.add("Transpose", result, perm=[order.index(each) for each in range(rank)])


@writes("sort")
def _sort(write: Any, pair: Any) -> Any:
    (x,) = inputs(write, pair)
    axis = pair.attrs["axis"]
    length = write.add("Shape", x, start=axis, end=axis + 1)
    largest = int(pair.attrs["descending"])
    return write.add("TopK", x, length, outputs=2, axis=axis, largest=largest, sorted=1)
