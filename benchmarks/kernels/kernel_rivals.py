"""What `special_kernels.py` compares a kernel with: the other candidates of its op, what the op is
made of, and CuPy."""

from __future__ import annotations

from functools import partial
from typing import Any

from caldera.base.config import settings
from caldera.compiler.passes.pipeline import passes
from caldera.compiler.plan.loop import loop_kernel
from caldera.compiler.plan.order import grouped
from caldera.compiler.plan.schedule import Buffer, Root, StepSchedule
from caldera.compiler.plan.scheduling import schedule_steps
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import as_tuple, parameter
from caldera.core.graph.program import Program
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count, cupy
from caldera.core.tensor import Tensor
from caldera.kernels.cuda.runtime.device import cupy_array
from caldera.kernels.native.codegen.program import in_sequence
from caldera.kernels.reference import FUNCTIONS, evaluate
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices

PARTS, CUPY = "its parts", "CuPy"
OUTSIDE = frozenset({ORACLE, PARTS, CUPY})
"""Those that are only there to be compared with."""


def parts_kernel(node: Node, place: Device) -> Kernel | None:
    """The general kernels that what a composite op is made of would run on."""
    if node.op.decompose is None:
        return None
    family = place.kernels
    arguments = [parameter(index, given.outputs[0]) for index, given in enumerate(node.inputs)]
    program = Program(as_tuple(node.op.decompose(*arguments, **node.attrs)))

    def has_kernel(name: str) -> bool:
        return name != node.op.name and TABLE.has(name, family)

    without = frozenset({"fuse"} if node.op.name == "fused" else ())
    for _, run in passes(has_kernel, without, in_loop=True):
        program = run(program)

    def choose(part: Node) -> Kernel:
        if part.op.name == "scan":
            return loop_kernel(part, choose, partial(_constant, place), family, in_place=True)
        return choices.kernel(part, family)

    roots = [Root(output, ("result", index)) for index, output in enumerate(program.outputs)]
    schedule = schedule_steps(roots, choose, _argument, family=family)
    return Kernel(
        node.op.name,
        family,
        PARTS,
        partial(_bind_parts, schedule, place),
        workspace=lambda _: schedule.arena_bytes,
        capturable=all(step.kernel.capturable for step in schedule.steps),
    )


def _argument(node: Node) -> Any:
    return ("argument", node.attrs["index"]) if node.op.name == "parameter" else None


def _constant(place: Device, node: Node) -> Any:
    (value,) = evaluate(node, ())
    return Tensor.from_numpy(value, device=place).device_array()


def _bind_parts(schedule: StepSchedule, place: Device, call: Call) -> Runner:
    def lookup(buffer: Buffer) -> Any:
        root = buffer.root
        if root.place == "constant":
            return _constant(place, root.key)
        if root.place == "external":
            kind, index = root.key
            return (call.inputs if kind == "argument" else call.outputs)[index]
        memory = call.workspace[root.offset : root.offset + buffer.spec.nbytes]
        return laid_out(memory.view(buffer.spec.dtype), buffer.spec.shape, buffer.spec.order)

    return in_sequence(piece.run for piece in grouped(schedule.family, schedule.bind(lookup)))


def cupy_kernel(node: Node) -> Kernel | None:
    """The oracle's NumPy function on CuPy's arrays, where CuPy has what it calls."""
    function = FUNCTIONS.get(node.op.name)
    if function is None or not card_count():
        return None

    def bind(call: Call) -> Runner:
        inputs = [cupy_array(array) for array in call.inputs]
        outputs = [cupy_array(array) for array in call.outputs]

        def run() -> None:
            results = as_tuple(function(*inputs, **node.attrs))
            for output, result in zip(outputs, results, strict=True):
                cupy().copyto(output, result)

        return run

    return Kernel(node.op.name, "cuda", CUPY, bind, capturable=False)


def contestants(node: Node, place: Device) -> list[Kernel]:
    """All that computes this node."""
    found = TABLE.candidates(node, place.kernels, settings.workspace_limit)
    for make in (partial(parts_kernel, place=place), cupy_kernel):
        try:
            other = make(node)
        except Exception as problem:
            print(f"<!-- {node.op.name}: {type(problem).__name__}: {problem} -->", flush=True)
            continue
        if other is not None and not (other.name == CUPY and len(found) > 1):
            found.append(other)
    return found
