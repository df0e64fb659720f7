"""Fused bodies on a card: one pass over the data, reductions included."""

from __future__ import annotations

from caldera.graph.body import Body
from caldera.graph.node import Node
from caldera.kernels.common.loop_body import loop_body_of, loop_shape, without_outputs
from caldera.kernels.common.reduction import ReductionTask
from caldera.kernels.cuda.codegen.expression import is_known
from caldera.kernels.cuda.elementwise.loop import loop_runner
from caldera.kernels.cuda.reduction.reduce import (
    of_nothing,
    reduction_calls,
    with_axes,
    workspace_of,
)
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.shape import size


def _by_axes(body: Body) -> dict[tuple[int, ...], list[int]]:
    """The outputs that are reductions, by the axes they reduce."""
    found: dict[tuple[int, ...], list[int]] = {}
    for index, part in enumerate(body.outputs):
        if part.op.kind == "reduction":
            found.setdefault(part.attrs["axis"], []).append(index)
    return found


def _bind(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    if not size(shape):
        return CudaRunner(_of_nothing(call, body))
    outputs = [
        array
        for array, part in zip(call.outputs, body.outputs, strict=True)
        if part.op.kind != "reduction"
    ]
    groups = list(_by_axes(body).items())
    if not groups:
        return loop_runner(loop_body_of(call.node), shape, call.inputs, outputs)
    calls: list[Launch] = []
    for position, (axes, indices) in enumerate(groups):
        loop_body = loop_body_of(call.node, tuple(indices))
        written = outputs
        # One loop has one kind of reduction; the last of them also writes the other outputs.
        if position < len(groups) - 1:
            loop_body, written = without_outputs(loop_body), []
        results = [with_axes(call.outputs[index], axes, len(shape)) for index in indices]
        task = ReductionTask(loop_body, shape, axes, call.inputs, written, results)
        calls += reduction_calls(task, call.workspace)
    return CudaRunner(calls)


def _of_nothing(call: Call, body: Body) -> list[Launch]:
    """A loop over nothing still has to write what its reductions give."""
    return [
        launch
        for array, part in zip(call.outputs, body.outputs, strict=True)
        if part.op.kind == "reduction" and array.size
        for launch in of_nothing(part, array)
    ]


def _workspace(node: Node) -> int:
    body: Body = node.attrs["body"]
    shape = loop_shape(node)
    rooms = [
        workspace_of(shape, axes, [body.outputs[index].op.name for index in indices])
        for axes, indices in _by_axes(body).items()
    ]
    # Loops follow each other, so the next may use the room of the one before.
    return max(rooms, default=0)


def _in_place(node: Node) -> bool:
    return all(output.op.kind == "elementwise" for output in node.attrs["body"].outputs)


TABLE.add(
    Kernel(
        "fused", "cuda", "loop", _bind, supports=is_known, workspace=_workspace, in_place=_in_place
    )
)
