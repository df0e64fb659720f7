"""Batch normalisation, its gradient, and the form with given statistics.

Each also with the relu that follows, and an image that is added before it; the gradient with relu
computes again where that let something through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import float64
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeRunner,
    any_layout,
    offer,
    parts_for,
    shares_for,
)
from caldera.kernels.native.normalisation import batchnorm_kernels as kernels
from caldera.kernels.native.normalisation.layout import RowLayout, batch_layout, vector
from caldera.kernels.native.normalisation.loops import FACTORS, SUMS, sums_of_blocks
from caldera.kernels.native.normalisation.statistics import BLOCK_ROWS
from caldera.kernels.table import Array, Call, Runner


class _Work:
    """State shared by the three ways to bind: layout, workspace, and arguments of kernels."""

    def __init__(self, call: Call, layout: RowLayout) -> None:
        self.layout = layout
        self.relu = call.node.op.name.endswith(("relu", "relu_grad"))
        self.eps = call.node.attrs["eps"]
        scratch = Scratch(call.workspace)
        self.partial, self.totals, self.factors, self.given = (
            scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)
        )
        self.parts = shares_for(layout.size)
        self.sums = {
            "rows": layout.pixels,
            "channels": layout.channels,
            "length": BLOCK_ROWS,
            "partial": self.partial,
            "known": 0,
        }
        self.planes = {
            "images": layout.images,
            "channels": layout.channels,
            "pixels": layout.pixels,
        }
        self.by_factors: dict[str, Any] = {
            **self.planes,
            "factors": self.factors,
            "last": layout.last,
            "parts": self.parts,
        }

    def given_statistics(
        self, target: Array, scale: Array, shift: Array, mean: Array, variance: Array
    ) -> NativeCall:
        """Return the call that computes factors from scale, shift, mean and variance."""
        return kernels.given_statistics.call(
            channels=self.layout.channels,
            eps=self.eps,
            factors=target,
            scale=vector(scale),
            shift=vector(shift),
            mean=vector(mean),
            variance=vector(variance),
        )

    def applied(self, x: Array, y: Array, more: list[Array]) -> dict[str, Any]:
        """Return the arrays of a forward pass and of the fused operations that follow it."""
        images = self.layout.images_of
        added = images(2, more[0]) if more else None
        return {"x": images(0, x), "y": images(1, y), "more": added, "relu": self.relu}

    def normalise(self, x: Array, y: Array, more: list[Array]) -> NativeCall:
        """Return the call that normalises all elements by factors."""
        return kernels.normalise.call(**self.applied(x, y, more), **self.by_factors)

    def differentiate(self, g: Array, x: Array, dx: Array, given: Array | None) -> NativeCall:
        """Return the call that computes the gradient of all elements by factors."""
        images = self.layout.images_of
        arrays: dict[str, Any] = {"g": images(1, g), "x": images(0, x), "dx": images(2, dx)}
        return kernels.differentiate.call(**arrays, **self.by_factors, given=given)


# --- tying kernels to arrays


def _bind(call: Call) -> Runner | None:
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    layout = batch_layout([x, y, *more], call.node.attrs["axis"])
    if layout is None or not all(each.flags.c_contiguous for each in (mean, variance)):
        return None
    work = _Work(call, layout)
    given: dict[str, Any] = {
        "eps": work.eps,
        "scale": vector(scale),
        "shift": vector(shift),
        "means": mean,
        "variances": variance,
    }
    if not layout.last:
        parts = min(work.parts, layout.channels)
        applied = work.applied(x, y, more)
        return NativeRunner(
            [kernels.normalise_planes.call(**applied, **given, **work.planes, parts=parts)]
        )
    sums = {**work.sums, "values": layout.rows(0, x), "slopes": None}
    statistics = kernels.statistics.call(
        sums=sums,
        totals=work.totals,
        factors=work.factors,
        **given,
        parts=parts_for(work.partial.size),
    )
    taken = sums_of_blocks.call(sums=sums, parts=work.parts)
    return NativeRunner([taken, statistics, work.normalise(x, y, more)])


def _bind_given(call: Call) -> Runner | None:
    x, scale, shift, mean, variance, *more = call.inputs
    (y,) = call.outputs
    layout = batch_layout([x, y, *more], call.node.attrs["axis"])
    if layout is None:
        return None
    work = _Work(call, layout)
    prepare = work.given_statistics(work.factors, scale, shift, mean, variance)
    return NativeRunner([prepare, work.normalise(x, y, more)])


def _bind_gradient(call: Call) -> Runner | None:
    g, x, scale, *shift, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = batch_layout([x, g, dx], call.node.attrs["axis"])
    vectors = (mean, variance, for_scale, for_shift)
    if layout is None or not all(each.flags.c_contiguous for each in vectors):
        return None
    work = _Work(call, layout)
    calls = []
    if work.relu:
        calls.append(work.given_statistics(work.given, scale, shift[0], mean, variance))
    given = work.given if work.relu else None
    statistics: dict[str, Any] = {
        "eps": work.eps,
        "scale": vector(scale),
        "for_scale": for_scale,
        "for_shift": for_shift,
    }
    if not layout.last:
        calls.append(
            kernels.differentiate_planes.call(
                g=layout.images_of(1, g),
                x=layout.images_of(0, x),
                dx=layout.images_of(2, dx),
                means=mean,
                variances=variance,
                **statistics,
                **work.planes,
                given=given,
                parts=min(work.parts, layout.channels),
            )
        )
        return NativeRunner(calls)
    slopes = {
        "x": layout.rows(0, x),
        "means": mean,
        "more": None,
        "y": None,
        "given": given,
        "writes": False,
    }
    sums = {**work.sums, "values": layout.rows(1, g), "slopes": slopes}
    calls += [
        sums_of_blocks.call(sums=sums, parts=work.parts),
        kernels.gradient_statistics.call(
            sums=sums,
            means=vector(mean),
            variances=vector(variance),
            **statistics,
            totals=work.totals,
            factors=work.factors,
            parts=parts_for(work.partial.size),
        ),
        work.differentiate(g, x, dx, given),
    ]
    return NativeRunner(calls)


def _bind_elementwise(call: Call) -> Runner | None:
    g, x, scale, mean, variance, for_scale, for_shift = call.inputs
    (dx,) = call.outputs
    layout = batch_layout([x, g, dx], call.node.attrs["axis"])
    if layout is None:
        return None
    work = _Work(call, layout)
    prepare = kernels.given_gradients.call(
        rows=layout.images * layout.pixels,
        channels=layout.channels,
        eps=work.eps,
        scale=vector(scale),
        mean=vector(mean),
        variance=vector(variance),
        for_scale=vector(for_scale),
        for_shift=vector(for_shift),
        factors=work.factors,
    )
    return NativeRunner([prepare, work.differentiate(g, x, dx, None)])


# --- workspace


def _specs(node: Node) -> tuple[Spec, Spec, Spec, Spec]:
    """Return the specs of block sums, totals, factors, and the factors of a relu's mask."""
    image = node.outputs[0]
    channels = image.shape[node.attrs["axis"]]
    rows = image.size // max(channels, 1)
    dtype = compute_dtype(image.dtype)
    return (
        Spec((-(-rows // BLOCK_ROWS) * SUMS * channels,), dtype),
        Spec((2 * channels,), float64),
        Spec((FACTORS * channels,), dtype),
        Spec((FACTORS * channels,), dtype),
    )


_BINDS: dict[str, Callable[[Call], Runner | None]] = {
    "batch_norm": _bind,
    "batch_norm_relu": _bind,
    "batch_norm_inference": _bind_given,
    "batch_norm_inference_relu": _bind_given,
    "batch_norm_grad": _bind_gradient,
    "batch_norm_relu_grad": _bind_gradient,
    "batch_norm_grad_elementwise": _bind_elementwise,
}
for _op, _its_bind in _BINDS.items():
    offer(
        _op,
        "native",
        any_layout(_its_bind),
        workspace=lambda node: workspace_bytes(*_specs(node)),
        priority=10,
        # Every element is read before it is written, and the vectors before any element is written.
        in_place=lambda node: len(node.outputs[0].shape) > 1,
    )
