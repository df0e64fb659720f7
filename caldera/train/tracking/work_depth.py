"""Work and depth of layers: how many multiplications, and how long the longest chain of them is.

The formulas for convolutions are those of Ben-Nun and Hoefler, "Demystifying Parallel and
Distributed Deep Learning" (table of convolution methods): work W and depth D of the direct method,
im2col, FFT and Winograd with m x m tiles. Two slips of the printed table are mended: a tile has
alpha = m + r - 1 rows (Lavin and Gray), and each of its alpha**2 elements costs a multiplication
for each pair of channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.lazy import Expr


@dataclass(frozen=True)
class Work:
    """Work (multiplications) and depth (steps, with as many processors as one could want)."""

    method: str
    work: int
    depth: int


def _log2(n: int) -> int:
    return math.ceil(math.log2(n)) if n > 1 else 0


def convolution_work(node: Node, tile: int = 4) -> list[Work]:
    """The table's four rows for a convolution; Winograd only for square kernels, stride 1."""
    images, out_channels, out_height, out_width = node.shape
    _, channels, kernel_height, kernel_width = node.inputs[1].shape
    in_channels = node.inputs[0].shape[1]
    (top, bottom), (left, right) = node.attrs["padding"]
    height = node.inputs[0].shape[2] + top + bottom
    width = node.inputs[0].shape[3] + left + right
    groups = node.attrs["groups"]
    direct = node.spec.size * channels * kernel_height * kernel_width
    depth = _log2(channels) + _log2(kernel_height) + _log2(kernel_width)
    transforms = out_channels * channels + images * in_channels + images * out_channels
    area = height * width
    fourier = round(area * math.log2(max(area, 2)) * transforms)
    fourier += area * images * channels * out_channels
    rows = [
        Work("direct", direct, depth),
        Work("im2col", direct, depth),
        Work("FFT", fourier, 2 * _log2(area) + _log2(channels)),
    ]
    plain = node.attrs["stride"] == (1, 1) and node.attrs["dilation"] == (1, 1)
    if plain and kernel_height == kernel_width > 1 and groups == 1:
        r, m = kernel_height, tile
        alpha = m + r - 1
        tiles = images * math.ceil(out_height / m) * math.ceil(out_width / m)
        moved = alpha * (r * r + alpha * r + 2 * alpha * alpha + alpha * m + m * m)
        winograd = moved + out_channels * channels * tiles * alpha * alpha
        rows.append(Work("Winograd", winograd, 2 * _log2(r) + 4 * _log2(alpha) + _log2(channels)))
    return rows


def layer_nodes(inputs: tuple[Expr, ...], outputs: tuple[Expr, ...]) -> list[Node]:
    """The nodes that a layer added between its inputs and its outputs."""
    before = set(topological([given.node for given in inputs]))
    return [node for node in topological([e.node for e in outputs]) if node not in before]


def layer_flops(nodes: list[Node]) -> int:
    """The floating-point operations of these nodes."""
    return sum(node.op.count_flops(node) for node in nodes)


def layer_work(nodes: list[Node]) -> list[Work]:
    """Work and depth of a layer: by method for convolutions, directly for products."""
    for node in nodes:
        if node.op.name == "conv2d":
            return convolution_work(node)
    products = [node for node in nodes if node.op.name == "matmul"]
    if not products:
        return []
    inner = max(n.inputs[0].shape[-2 if n.attrs["ta"] else -1] for n in products)
    return [Work("direct", sum(n.op.count_flops(n) for n in products) // 2, _log2(inner))]
