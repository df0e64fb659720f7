"""Matrix products and convolutions, with the bias that is added to them."""

from __future__ import annotations

from typing import Any

from caldera.onnx.writing.dynamic_batch import Samples
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
    if any(isinstance(each, Samples) for each in pair.sizes("shape")[1:]):
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
