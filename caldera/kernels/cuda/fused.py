"""Fused bodies on a card: one pass over the data, reductions included."""

from __future__ import annotations

from caldera.graph.body import Body
from caldera.graph.node import Node
from caldera.kernels.cuda.elementwise import loop_runner
from caldera.kernels.cuda.expression import is_known
from caldera.kernels.cuda.launch import CudaRunner, Launch
from caldera.kernels.cuda.reduction import (
    of_nothing,
    reduction_calls,
    with_axes,
    workspace_of,
)
from caldera.kernels.recipe import loop_shape, recipe_of, without_outputs
from caldera.kernels.reduction_task import Task
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
        return loop_runner(recipe_of(call.node), shape, call.inputs, outputs)
    calls: list[Launch] = []
    for position, (axes, indices) in enumerate(groups):
        recipe = recipe_of(call.node, tuple(indices))
        written = outputs
        # One loop has one kind of reduction; the last of them also writes the other outputs.
        if position < len(groups) - 1:
            recipe, written = without_outputs(recipe), []
        results = [with_axes(call.outputs[index], axes, len(shape)) for index in indices]
        task = Task(recipe, shape, axes, call.inputs, written, results)
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
