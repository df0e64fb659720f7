"""Element-wise loops and reductions as plain values: bodies, merged axes, dtypes of results.

A body is the same for all shapes, layouts, lengths and devices. Axes follow the order of memory
and are merged if possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from weakref import WeakKeyDictionary

import numpy as np

from caldera.core.graph import Body, Node
from caldera.core.tensor.dtype import NAMES
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.table import Call

Reference = tuple[str, int] | tuple[str, bool | int | float, str]
"""("in", index of an operand), ("step", index of a step) or ("number", value, dtype)."""
Step = tuple[str, str, tuple[str, ...], tuple[Reference, ...]]
"""The op, its dtype, and the dtypes and sources of its operands."""
Reduction = tuple[str, str, Reference]
"""The op, and the dtype and source of its operand."""

REDUCTIONS = frozenset({"sum", "max", "min", "prod"})
HEAVY = frozenset(
    {
        "pow",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sin",
        "cos",
        "tanh",
        "erf",
        "sigmoid",
        "erfc",
        "lgamma",
        "log2",
        "log10",
        "exp2",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
    }
)
"""Ops that take tens of instructions."""


@dataclass(frozen=True, repr=False)
class LoopBody:
    """Operands by their dtypes, steps in order, outputs, and reductions."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Reference], ...]
    reductions: tuple[Reduction, ...] = ()

    @cached_property
    def _text(self) -> str:
        fields = ("inputs", "steps", "outputs", "reductions")
        return f"LoopBody({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    def __repr__(self) -> str:
        # Kernels are found by it, over and over.
        return self._text

    @property
    def heavy(self) -> int:
        """Number of steps that take tens of instructions."""
        return sum(op in HEAVY for op, *_ in self.steps)


def loop_shape(node: Node) -> Shape:
    """Return the shape over which a node's loop runs: the shape of its element-wise nodes."""
    if node.op.kind == "reduction":
        return node.inputs[0].shape
    if node.op.name != "fused":
        return node.shape
    body: Body = node.attrs["body"]
    for part in body.order():
        if part.op.kind == "elementwise":
            return part.shape
    return body.outputs[0].inputs[0].shape


def loop_body_of(node: Node, reduced: tuple[int, ...] = ()) -> LoopBody:
    """Return the loop of an element-wise, reduction or fused node.

    Of a fused node's reductions it has those outputs whose indices are in `reduced`.
    """
    if node.op.name != "fused":
        return _loop_of_one(node)
    known = _known.setdefault(node.attrs["body"], {})
    if reduced not in known:
        known[reduced] = _loop_of_body(node.attrs["body"], reduced)
    return known[reduced]


_known: WeakKeyDictionary[Body, dict[tuple[int, ...], LoopBody]] = WeakKeyDictionary()


def _loop_of_one(node: Node) -> LoopBody:
    inputs = tuple(NAMES[given.dtype] for given in node.inputs)
    if node.op.kind == "reduction":
        return LoopBody(inputs, (), (), ((node.op.name, inputs[0], ("in", 0)),))
    operands = tuple(("in", index) for index in range(len(inputs)))
    step = (node.op.name, NAMES[node.dtype], inputs, operands)
    return LoopBody(inputs, (step,), ((NAMES[node.dtype], ("step", 0)),))


def _loop_of_body(body: Body, reduced: tuple[int, ...]) -> LoopBody:
    inputs = tuple(NAMES[spec.dtype] for spec in body.parameters)
    steps: list[Step] = []
    known: dict[Node, Reference] = {}
    for part in body.order():
        if part.op.name == "parameter":
            known[part] = ("in", part.attrs["index"])
        elif part.op.name == "constant":
            known[part] = ("number", part.attrs["value"], NAMES[part.dtype])
        elif part.op.name == "broadcast_to":
            known[part] = known[part.inputs[0]]
        elif part.op.kind != "reduction":
            sources = tuple(NAMES[given.dtype] for given in part.inputs)
            operands = tuple(known[given] for given in part.inputs)
            known[part] = ("step", len(steps))
            steps.append((part.op.name, NAMES[part.dtype], sources, operands))
    outputs = tuple(
        (NAMES[part.dtype], known[part]) for part in body.outputs if part.op.kind != "reduction"
    )
    reductions = tuple(
        (part.op.name, NAMES[part.inputs[0].dtype], known[part.inputs[0]])
        for part in (body.outputs[index] for index in reduced)
    )
    return LoopBody(inputs, tuple(steps), outputs, reductions)


def without_outputs(loop_body: LoopBody) -> LoopBody:
    """Return the loop body with only the steps that its reductions need."""
    needed: set[int] = set()
    waiting = [reference for *_, reference in loop_body.reductions]
    while waiting:
        reference = waiting.pop()
        if reference[0] == "step" and int(reference[1]) not in needed:
            needed.add(int(reference[1]))
            waiting.extend(loop_body.steps[int(reference[1])][3])
    places = {old: new for new, old in enumerate(sorted(needed))}

    def moved(reference: Reference) -> Reference:
        return ("step", places[int(reference[1])]) if reference[0] == "step" else reference

    steps = tuple(
        (op, dtype, sources, tuple(moved(each) for each in operands))
        for op, dtype, sources, operands in (loop_body.steps[old] for old in sorted(needed))
    )
    reductions = tuple((op, dtype, moved(each)) for op, dtype, each in loop_body.reductions)
    return LoopBody(loop_body.inputs, steps, (), reductions)


def is_computable(node: Node, can_apply: Callable[[str, str], bool]) -> bool:
    """Return True if a node's loop can be written.

    `can_apply(op, operand dtype)` returns True for supported ops.
    """
    if node.op.kind == "reduction":
        return node.op.name in REDUCTIONS
    if node.op.name != "fused":
        return all(can_apply(node.op.name, NAMES[given.dtype]) for given in node.inputs)
    shape = loop_shape(node)
    for part in node.attrs["body"].order():
        if part.op.kind == "elementwise":
            known = part.op.decompose is None and part.shape == shape
            known = known and all(can_apply(part.op.name, NAMES[x.dtype]) for x in part.inputs)
        elif part.op.kind == "reduction":
            known = part.op.name in REDUCTIONS and part.inputs[0].shape == shape
        else:
            known = part.op.name in ("parameter", "constant", "broadcast_to")
        if not known:
            return False
    return True


@dataclass(frozen=True)
class LoopAxes:
    """Axes of a loop, from the outermost to the innermost.

    They have their lengths, flags of reduced axes, and each operand's strides in bytes.
    """

    lengths: tuple[int, ...]
    reduced: tuple[bool, ...]
    strides: tuple[tuple[int, ...], ...]

    def modes(self, itemsizes: Sequence[int]) -> str:
        """Return each operand's mode along the innermost axis: "1" dense, "0" constant, "s"
        strided.
        """
        inner = [each[-1] for each in self.strides]
        return "".join(
            "0" if step == 0 else "1" if step == size else "s"
            for step, size in zip(inner, itemsizes, strict=True)
        )


def _strides(array: np.ndarray, shape: Shape) -> tuple[int, ...]:
    """Return the array's strides along the axes of a shape that it broadcasts to."""
    own = zip(array.shape, array.strides, strict=True)
    return (0,) * (len(shape) - array.ndim) + tuple(0 if n == 1 else step for n, step in own)


def axes_of(shape: Shape, arrays: Sequence[np.ndarray], reduced: Sequence[int] = ()) -> LoopAxes:
    """Return the loop over `shape`, with axes in the order of the first array that fills it."""
    views = [_strides(array, shape) for array in arrays]
    axes = [axis for axis, length in enumerate(shape) if length != 1]
    lead = next((each for each in views if all(each[axis] for axis in axes)), None)
    if lead is not None:
        axes.sort(key=lambda axis: -abs(lead[axis]))
    if not axes:
        return LoopAxes((1,), (bool(reduced),), ((0,),) * len(views))
    joined: list[tuple[int, bool, tuple[int, ...]]] = []
    for axis in reversed(axes):
        length, is_reduced = shape[axis], axis in reduced
        strides = tuple(each[axis] for each in views)
        if joined and is_reduced == joined[-1][1]:
            inner_length, _, inner_strides = joined[-1]
            # An axis is merged with the inner axis if all operands are contiguous across both.
            if strides == tuple(step * inner_length for step in inner_strides):
                joined[-1] = (length * inner_length, is_reduced, inner_strides)
                continue
        joined.append((length, is_reduced, strides))
    lengths, flags, columns = zip(*reversed(joined), strict=True)
    return LoopAxes(lengths, flags, tuple(zip(*columns, strict=True)))


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
    """Return results, terms of each, and whether the terms come last in memory; None if they lie
    neither at the beginning nor at the end of the shape, or there are none."""
    spec, axes = node.inputs[0].outputs[0], tuple(sorted(node.attrs["axis"]))
    if spec.order is not None or not axes or 0 in spec.shape:
        return None
    terms = size(tuple(spec.shape[axis] for axis in axes))
    results = size(spec.shape) // terms
    if axes == tuple(range(len(spec.shape) - len(axes), len(spec.shape))):
        return results, terms, True
    return (results, terms, False) if axes == tuple(range(len(axes))) else None


def with_axes(result: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    """Return a result with axes of length 1 where the loop has axes that are reduced."""
    if result.ndim == rank:
        return result
    return result[tuple(None if axis in axes else slice(None) for axis in range(rank))]


def reductions_by_axes(body: Body) -> dict[tuple[int, ...], list[int]]:
    """Return the outputs of a fused body that are reductions, by the axes they reduce."""
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
    """Return the dtype of partial results: sums and products of floats are kept in float64."""
    if op in ("sum", "prod") and dtype.startswith(("float", "bfloat")):
        return "float64"
    return "float32" if dtype in ("float16", "bfloat16") else dtype
