"""Convolutions that also compute the sums for batch normalisation of their result.

These are the mean and the variance of each channel or, for the input gradient, the gradients of
scale and shift. Every convolution method is offered. Winograd's algorithm adds up a block of rows
as soon as it is written, while it is in the worker's cache. After all other methods, a separate
call computes the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from caldera.core.graph import NHWC, Node, Spec, intern
from caldera.core.graph.ops.product import conv2d, conv2d_input
from caldera.core.tensor.dtype import float64
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeRunner,
    any_layout,
    in_sequence,
    parts_for,
    shares_for,
)

# All convolution methods register first, as they are offered here as well.
from caldera.kernels.native.convolution import (
    fourier,  # noqa: F401
    planes,  # noqa: F401
    products,  # noqa: F401
    winograd,
)
from caldera.kernels.native.normalisation import batchnorm_kernels as kernels
from caldera.kernels.native.normalisation.layout import batch_layout, vector
from caldera.kernels.native.normalisation.loops import (
    BLOCK_ROWS,
    FACTORS,
    SUMS,
    rows_of_image,
    sums_of_blocks,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

CONVOLUTIONS = {"conv2d_moments": conv2d, "conv2d_input_norm_reduce": conv2d_input}
"""Convolution ops on which the fused ops are based."""
_OWN = ("added", "mask", "eps")
"""Attributes that are not the convolution's."""
Convolve = Callable[[Call, "_Sums"], tuple[Runner, bool]]
"""Function that convolves and returns True if it also computed the sums."""


def convolution_of(node: Node) -> Node:
    """Return the convolution without the sums."""
    attrs = {name: value for name, value in node.attrs.items() if name not in _OWN}
    return intern(CONVOLUTIONS[node.op.name], node.inputs[:2], attrs, node.outputs[:1])


def _block_length(spec: Spec) -> int:
    """Return rows in a block."""
    _, _, height, width = spec.shape
    rows = rows_of_image(height, width)
    return BLOCK_ROWS if rows is None else rows * width


def _specs(node: Node) -> tuple[Spec, Spec, Spec]:
    """Return the specs of block sums, their totals, and the factors of a relu's mask."""
    image = node.outputs[0]
    channels = image.shape[1]
    dtype = compute_dtype(image.dtype)
    blocks = -(-(image.size // max(channels, 1)) // max(_block_length(image), 1))
    return (
        Spec((blocks * SUMS * channels,), dtype),
        Spec((2 * channels,), float64),
        Spec((FACTORS * channels,), dtype),
    )


class _Sums:
    """The sums of a call: arguments of kernels, and the calls before and after."""

    def __init__(self, call: Call, scratch: Scratch) -> None:
        self.call = call
        self.partial, self.totals, self.factors = (
            scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)
        )
        self.before: list[NativeCall] = []
        self.arguments: dict[str, Any] | None = None
        """Those of `BlockSums`; None if the arrays do not lie in rows."""
        self.is_gradient = call.node.op.name == "conv2d_input_norm_reduce"
        images = [call.outputs[0]]
        attrs = call.node.attrs
        if self.is_gradient:
            rest = list(call.inputs[6:])
            self.more = rest.pop(0) if attrs["added"] else None
            self.seen = rest.pop() if attrs["mask"] else None
            images += [call.inputs[2]]
            images += [self.more] if self.more is not None else []
            images += [self.seen] if attrs["mask"] == "y" else []
        vectors = call.outputs[1:] if not self.is_gradient else (call.inputs[4], *call.outputs[1:])
        layout = batch_layout(images, 1)
        if layout is None or not layout.last or not all(v.flags.c_contiguous for v in vectors):
            return
        rows = [layout.rows(index, image) for index, image in enumerate(images)]
        self.rows = layout.pixels
        self.arguments = {
            "values": rows.pop(0),
            "rows": layout.pixels,
            "channels": layout.channels,
            "length": _block_length(call.node.outputs[0]),
            "partial": self.partial,
            "slopes": self._slopes(rows) if self.is_gradient else None,
            "known": 0,
        }

    def _slopes(self, rows: list[dict[str, Array | int]]) -> dict[str, Any]:
        attrs = self.call.node.attrs
        _, _, _, scale, mean, variance = self.call.inputs[:6]
        given = None
        if attrs["mask"] == "x":
            given = self.factors
            self.before.append(
                kernels.given_statistics.call(
                    channels=mean.size,
                    eps=attrs["eps"],
                    factors=given,
                    scale=vector(scale),
                    shift=vector(self.seen),
                    mean=vector(mean),
                    variance=vector(variance),
                )
            )
        return {
            "x": rows.pop(0),
            "means": mean,
            "more": rows.pop(0) if attrs["added"] else None,
            "y": rows.pop() if attrs["mask"] == "y" else None,
            "given": given,
            "writes": True,
        }

    def taken(self) -> NativeCall:
        """Return a separate call that computes all sums."""
        return sums_of_blocks.call(sums=self.arguments, parts=shares_for(self.call.outputs[0].size))

    def after(self) -> NativeCall:
        """Return the call that computes the results from the sums."""
        how: dict[str, Any] = {
            "sums": self.arguments,
            "totals": self.totals,
            "factors": None,
            "parts": parts_for(self.partial.size),
        }
        one, two = self.call.outputs[1:]
        if not self.is_gradient:
            return kernels.statistics.call(
                means=one, variances=two, eps=0.0, scale=None, shift=None, **how
            )
        scale, mean, variance = self.call.inputs[3:6]
        return kernels.gradient_statistics.call(
            eps=self.call.node.attrs["eps"],
            scale=vector(scale),
            means=vector(mean),
            variances=vector(variance),
            for_scale=one,
            for_shift=two,
            **how,
        )


# --- ways to convolve


def _alone(call: Call, sums: _Sums, kernel: Kernel) -> tuple[Runner, bool]:
    return kernel.bind(call), False


def _winograd(call: Call, sums: _Sums, size: int) -> tuple[Runner, bool]:
    return winograd.bind(call, size, sums.arguments), winograd.takes_sums(call.node, size)


def _bind(call: Call, convolve: Convolve) -> Runner | None:
    scratch = Scratch(call.workspace)
    sums = _Sums(call, scratch)
    if sums.arguments is None:
        return None
    inner = Call(
        convolution_of(call.node),
        call.outputs[:1],
        call.inputs[:2],
        scratch.rest if scratch.rest.size else None,
    )
    convolved, is_done = convolve(inner, sums)
    last = [sums.after()] if is_done else [sums.taken(), sums.after()]
    return in_sequence([NativeRunner(sums.before), convolved, NativeRunner(last)])


def _offer(op: str, kernel: Kernel, convolve: Convolve) -> None:
    def workspace(node: Node) -> int:
        return workspace_bytes(*_specs(node)) + kernel.workspace(convolution_of(node))

    TABLE.add(
        replace(
            kernel,
            op=op,
            bind=any_layout(partial(_bind, convolve=convolve), lambda node: NHWC),
            supports=lambda node: kernel.supports(convolution_of(node)),
            workspace=workspace,
            estimate=lambda node: kernel.estimate(convolution_of(node)),
        )
    )


for _op, _inner in CONVOLUTIONS.items():
    for _kernel in TABLE.kernels(_inner.name, "cpu"):
        if _kernel.name in winograd.KERNELS:
            _offer(_op, _kernel, partial(_winograd, size=winograd.KERNELS[_kernel.name]))
        elif _kernel.name != "reference" and not _kernel.name.startswith("amx"):
            # These ops are for float32 and wider numbers, tile registers for bfloat16.
            _offer(_op, _kernel, partial(_alone, kernel=_kernel))
