"""The kernel of `scan`: the body is scheduled once, then bound once for each step of the loop.

All addresses are fixed when the plan is bound, so a loop is captured and replayed like any other
sequence of calls. The carries alternate between two buffers, so a step never writes to its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera.compiler.plan.arena import aligned
from caldera.compiler.plan.order import grouped
from caldera.compiler.plan.schedule import Buffer, Chooser, Key, Root, StepSchedule
from caldera.compiler.plan.scheduling import schedule_steps
from caldera.core.graph import Body, Node, Spec, laid_out
from caldera.kernels.native.codegen.program import in_sequence
from caldera.kernels.table import COPY, Call, Kernel, Runner


def _argument(node: Node) -> Key | None:
    return ("argument", node.attrs["index"]) if node.op.name == "parameter" else None


@dataclass(frozen=True)
class LoopKernel(Kernel):
    """Kernel of a loop, with the schedule of its body."""

    schedule: StepSchedule = field(kw_only=True)


def not_capturable(schedule: StepSchedule) -> Iterator[Kernel]:
    """Yield the kernels of a schedule that cannot be captured, also those in loops."""
    for step in schedule.steps:
        if not step.kernel.capturable:
            yield step.kernel
        if isinstance(step.kernel, LoopKernel):
            yield from not_capturable(step.kernel.schedule)


def loop_kernel(
    node: Node, choose: Chooser, constant: Callable[[Node], Any], family: str, *, in_place: bool
) -> LoopKernel:
    """Return a kernel for this scan node; `constant` returns the array of a constant node."""
    body: Body = node.attrs["body"]
    roots = [Root(output, ("result", i)) for i, output in enumerate(body.outputs)]
    schedule = schedule_steps(roots, choose, _argument, in_place, family)
    carried = body.parameters[: node.attrs["carries"]]
    carry_bytes = sum(aligned(spec.nbytes) for spec in carried)

    def bind(call: Call) -> Runner:
        return _bind_loop(call, schedule, constant)

    return LoopKernel(
        "scan",
        family,
        "loop",
        bind,
        workspace=lambda _: schedule.arena_bytes + 2 * carry_bytes,
        shares=frozenset().union(*(step.kernel.shares for step in schedule.steps)),
        schedule=schedule,
    )


def _bind_loop(call: Call, schedule: StepSchedule, constant: Callable[[Node], Any]) -> Runner:
    attrs = call.node.attrs
    carries, sequences, length = attrs["carries"], attrs["sequences"], attrs["length"]
    stacks = call.inputs[carries : carries + sequences]
    constants = call.inputs[carries + sequences :]
    specs = attrs["body"].parameters[:carries]
    turns = _turning_places(call.workspace, specs, schedule.arena_bytes)
    current: Sequence[Any] = call.inputs[:carries]
    calls: list[Runner] = []
    order = range(length - 1, -1, -1) if attrs["reverse"] else range(length)
    for turn, t in enumerate(order):
        following = list(call.outputs[:carries] if turn == length - 1 else turns[turn % 2])
        if turn < length - 1 and schedule.family == "cpu":
            _put_where_kept(following, call, order[turn + 1])
        # stack[t, ...] rather than stack[t]: a scalar step must stay a view to read and write.
        arguments = [*current, *[stack[t, ...] for stack in stacks], *constants]
        results = [*following, *[stack[t, ...] for stack in call.outputs[carries:]]]

        def lookup(buffer: Buffer, arguments: Any = arguments, results: Any = results) -> Any:
            root = buffer.root
            if root.place == "constant":
                assert isinstance(root.key, Node)
                return constant(root.key)
            if root.place == "external":
                assert isinstance(root.key, tuple)
                kind, index = root.key
                return (arguments if kind == "argument" else results)[index]
            return _part(call.workspace, root.offset, buffer.spec)

        bound = [
            (each, kernel.bind(each))
            for kernel, each in schedule.calls(lookup, call.communicator)
            if not (kernel.op == COPY and _is_there(each))
        ]
        pieces = grouped(schedule.family, bound)
        calls += [piece.run for piece in pieces]
        current = following
    if length == 0:
        pairs = zip(call.outputs[:carries], current, strict=True)
        calls = [schedule.copy.bind(Call(call.node, (to,), (given,))) for to, given in pairs]
    return in_sequence(calls)


def _put_where_kept(following: list[Any], call: Call, t: int) -> None:
    """Write carries directly to their stacked outputs (step t, for the gradients), uncopied."""
    attrs = call.node.attrs
    carries, outputs = attrs["carries"], attrs["body"].outputs
    for stack, output in zip(call.outputs[carries:], outputs[carries:], strict=True):
        carry = output.attrs["index"] if output.op.name == "parameter" else carries
        if carry < carries and stack[t, ...].strides == following[carry].strides:
            following[carry] = stack[t, ...]


def _is_there(call: Call) -> bool:
    """Return True if source and target of a copy are the same memory."""
    (source,), (target,) = call.inputs, call.outputs
    same = source.__array_interface__["data"] == target.__array_interface__["data"]
    return bool(same and source.strides == target.strides)


def _turning_places(workspace: Any, specs: tuple[Spec, ...], start: int) -> list[list[Any]]:
    places: list[list[Any]] = []
    for _ in range(2):
        row = []
        for spec in specs:
            row.append(_part(workspace, start, spec))
            start += aligned(spec.nbytes)
        places.append(row)
    return places


def _part(workspace: Any, offset: int, spec: Spec) -> Any:
    memory = workspace[offset : offset + spec.nbytes].view(spec.dtype)
    return laid_out(memory, spec.shape, spec.order)
