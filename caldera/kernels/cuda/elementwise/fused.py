"""Fused bodies on a card: one pass over the data, reductions included."""

from __future__ import annotations

from caldera.core.graph.body import Body
from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.loop_body import loop_body_of, loop_shape
from caldera.kernels.common.reduction import elementwise_outputs, fused_tasks, reductions_by_axes
from caldera.kernels.cuda.codegen.expression import is_known
from caldera.kernels.cuda.elementwise.loop import loop_runner
from caldera.kernels.cuda.reduction.reduce import of_nothing, reduction_calls, workspace_of
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Call, Kernel, Runner


def _bind(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    if not size(shape):
        return CudaRunner(_of_nothing(call, body))
    tasks = fused_tasks(call)
    if not tasks:
        return loop_runner(loop_body_of(call.node), shape, call.inputs, elementwise_outputs(call))
    return CudaRunner(launch for task in tasks for launch in reduction_calls(task, call.workspace))


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
    busy = any(output.op.kind == "elementwise" for output in body.outputs)
    sizes = [
        workspace_of(shape, axes, [body.outputs[index].op.name for index in indices], busy=busy)
        for axes, indices in reductions_by_axes(body).items()
    ]
    # Loops follow each other, so the next may use the room of the one before.
    return max(sizes, default=0)


def _in_place(node: Node) -> bool:
    return all(output.op.kind == "elementwise" for output in node.attrs["body"].outputs)


TABLE.add(
    Kernel(
        "fused", "cuda", "loop", _bind, supports=is_known, workspace=_workspace, in_place=_in_place
    )
)
