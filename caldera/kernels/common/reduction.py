"""Reductions on any device: loops with their arrays, and dtypes and identities of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from caldera.core.graph import Body, Node
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import LoopBody, loop_body_of, loop_shape, without_outputs
from caldera.kernels.table import Call

MOST_TERMS = 4096
"""Maximum number of terms of a sequential float32 sum; more terms lose digits."""


@dataclass(frozen=True)
class ReductionTask:
    """A loop with reductions. `results` have the rank of the loop, with 1 for reduced axes."""

    loop_body: LoopBody
    shape: Shape
    axes: tuple[int, ...]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    results: Sequence[np.ndarray]


def lengths(node: Node) -> tuple[int, int, bool] | None:
    """Results, terms of each, and whether the terms come last in memory; None if they lie neither
    at the beginning nor at the end of the shape, or there are none."""
    spec, axes = node.inputs[0].outputs[0], tuple(sorted(node.attrs["axis"]))
    if spec.order is not None or not axes or 0 in spec.shape:
        return None
    terms = size(tuple(spec.shape[axis] for axis in axes))
    results = size(spec.shape) // terms
    if axes == tuple(range(len(spec.shape) - len(axes), len(spec.shape))):
        return results, terms, True
    return (results, terms, False) if axes == tuple(range(len(axes))) else None


def with_axes(result: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """A result with axes of length 1 where the loop has axes that are reduced."""
    if result.ndim == rank:
        return result
    return result[tuple(None if axis in axes else slice(None) for axis in range(rank))]


def reductions_by_axes(body: Body) -> dict[tuple[int, ...], list[int]]:
    """The outputs of a fused body that are reductions, by the axes they reduce."""
    found: dict[tuple[int, ...], list[int]] = {}
    for index, part in enumerate(body.outputs):
        if part.op.kind == "reduction":
            found.setdefault(part.attrs["axis"], []).append(index)
    return found


def elementwise_outputs(call: Call) -> list[np.ndarray]:
    """Return the outputs of a fused body that are not reductions."""
    body: Body = call.node.attrs["body"]
    pairs = zip(call.outputs, body.outputs, strict=True)
    return [array for array, part in pairs if part.op.kind != "reduction"]


def fused_tasks(call: Call) -> list[ReductionTask]:
    """Return the loops of a fused body with reductions.

    Each loop has one kind of reduction; the last loop also writes the remaining outputs.
    """
    shape, groups = loop_shape(call.node), reductions_by_axes(call.node.attrs["body"])
    tasks = []
    for position, (axes, indices) in enumerate(groups.items(), 1):
        loop_body, written = loop_body_of(call.node, tuple(indices)), elementwise_outputs(call)
        if position < len(groups):
            loop_body, written = without_outputs(loop_body), []
        results = [with_axes(call.outputs[index], axes, len(shape)) for index in indices]
        tasks.append(ReductionTask(loop_body, shape, axes, call.inputs, written, results))
    return tasks


def identity(op: str, dtype: str) -> bool | int | float:
    """Return the neutral element of a reduction."""
    if op in ("sum", "prod"):
        return 1 if op == "prod" else 0
    if dtype.startswith(("float", "bfloat")):
        return -inf if op == "max" else inf
    if dtype == "bool":
        return op == "min"
    limits = np.iinfo(dtype)
    return int(limits.min if op == "max" else limits.max)


def accumulator_dtype(op: str, dtype: str) -> str:
    """The dtype of partial results: sums and products of floats are kept in float64."""
    if op in ("sum", "prod") and dtype.startswith(("float", "bfloat")):
        return "float64"
    return "float32" if dtype in ("float16", "bfloat16") else dtype
