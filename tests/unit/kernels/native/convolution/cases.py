"""A convolution and its gradients, as nodes that tests run kernels on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caldera.core.graph.memory_format import NHWC, Order
from caldera.core.graph.node import Node, Spec, intern
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import product
from caldera.core.tensor.dtype import BY_NAME


def convolution_nodes(
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Any = ((0, 0), (0, 0)),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    dtype: str = "float32",
    order: Order | None = NHWC,
) -> Iterator[Node]:
    """A convolution and its two gradients, all images in this order."""
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    image = parameter(0, Spec(x, BY_NAME[dtype], order))
    filters = parameter(1, Spec(w, BY_NAME[dtype]))
    forward = product.conv2d(image, filters, **how)
    outputs = parameter(2, Spec(forward.shape, BY_NAME[dtype], order))
    for node in (forward, product.conv2d_input(outputs, filters, shape=x, **how)):
        specs = tuple(Spec(spec.shape, spec.dtype, order) for spec in node.outputs)
        yield intern(node.op, node.inputs, dict(node.attrs), specs)
    yield product.conv2d_weight(image, outputs, shape=w, **how)
