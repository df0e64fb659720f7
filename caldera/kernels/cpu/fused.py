"""Fused bodies in NumPy: a block of rows at a time, so that what lies between stays in cache.

The same body is compiled to native code by faster backends; this one needs nothing but NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from caldera.graph.body import Body
from caldera.graph.node import Node
from caldera.kernels.cpu.elementwise import into
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.shape import Shape, size

BLOCK = 1 << 15
"""Elements a block: a few arrays of this size fit into a core's own cache."""
MOST_BLOCKS = 64
"""Each block is bound ahead, so their number is bounded; beyond it blocks grow."""

_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip


def loop_shape(body: Body) -> Shape:
    """The shape over which a body's loop runs: that of its element-wise nodes."""
    for node in body.order():
        if node.op.kind == "elementwise":
            return node.shape
    return body.outputs[0].inputs[0].shape


def _last_use(body: Body) -> dict[Node, int]:
    """When each value is read for the last time; outputs are read after the end."""
    order = body.order()
    result: dict[Node, int] = {}
    for position, node in enumerate(order):
        for given in node.inputs:
            result[_source(given)] = position
    for output in body.outputs:
        result[_source(output)] = len(order)
    return result


def _registers(body: Body) -> tuple[dict[Node, int], int]:
    """A register for each computed node, taken over from values nobody reads any more."""
    order = body.order()
    last_use = _last_use(body)
    register: dict[Node, int] = {}
    free: list[int] = []
    count = 0
    for position, node in enumerate(order):
        if node.op.kind == "elementwise":
            if free:
                register[node] = free.pop()
            else:
                register[node] = count
                count += 1
        for given in {_source(given) for given in node.inputs}:
            if given in register and last_use[given] == position:
                free.append(register[given])
    return register, count


def _source(node: Node) -> Node:
    """The node whose memory a broadcast looks at."""
    while node.op.name == "broadcast_to":
        node = node.inputs[0]
    return node


def _rows_per_block(shape: Shape) -> int:
    if not shape or not shape[0]:
        return 1
    row = max(size(shape[1:]), 1)
    elements = max(BLOCK, size(shape) // MOST_BLOCKS)
    return max(1, min(shape[0], elements // row))


def _workspace(node: Node) -> int:
    body: Body = node.attrs["body"]
    shape = loop_shape(body)
    _, count = _registers(body)
    # Flattened loops take blocks of at most this many elements as well.
    block = max(_rows_per_block(shape) * size(shape[1:]), min(size(shape), BLOCK), 1)
    block = max(block, size(shape) // MOST_BLOCKS)
    return count * block * 8


def _bind(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(body)
    inputs, outputs = list(call.inputs), list(call.outputs)
    reduces = any(node.op.kind == "reduction" for node in body.outputs)
    if not reduces and len(shape) > 1 and _flat_enough(shape, inputs, outputs):
        inputs = [x.reshape(-1 if x.shape == shape else 1) for x in inputs]
        outputs = [x.reshape(-1) for x in outputs]
        shape = (size(shape),)
    rows = _rows_per_block(shape)
    starts = range(0, shape[0], rows) if shape else (0,)
    binder = _Binder(body, call, shape, inputs, outputs)
    program: list[tuple[Any, tuple[Any, ...]]] = []
    if size(shape):
        for start in starts:
            binder.block(program, start, min(rows, shape[0] - start) if shape else 0)
    binder.finish(program)

    def run() -> None:
        for function, arguments in program:
            function(*arguments)

    return run


def _flat_enough(shape: Shape, inputs: list[Any], outputs: list[Any]) -> bool:
    return all(x.size == 1 or (x.shape == shape and x.flags.c_contiguous) for x in inputs) and all(
        x.shape == shape and x.flags.c_contiguous for x in outputs
    )


class _Binder:
    """Turns a body into calls on one block after the other."""

    def __init__(
        self, body: Body, call: Call, shape: Shape, inputs: list[Any], outputs: list[Any]
    ) -> None:
        self.body = body
        self.call = call
        self.shape = shape
        self.inputs = inputs
        self.outputs = outputs
        self.order = body.order()
        last_use = _last_use(body)
        self.registers, self.count = _registers(body)
        self.direct = {
            node: self._is_direct(index, last_use)
            for index, node in enumerate(body.outputs)
            if node.op.kind == "elementwise"
        }
        self.first = True

    def block(self, program: list[Any], start: int, rows: int) -> None:
        """Add the calls for the rows from `start` on."""
        block_shape = (rows, *self.shape[1:]) if self.shape else ()
        values: dict[Node, Any] = {}
        for node in self.order:
            if node.op.name == "parameter":
                values[node] = self._rows(self.inputs[node.attrs["index"]], start, rows)
            elif node.op.kind == "leaf":
                (values[node],) = evaluate(node, ())
            elif node.op.name == "broadcast_to":
                values[node] = np.broadcast_to(values[node.inputs[0]], block_shape)
            elif node.op.kind == "elementwise":
                target = self._target(node, start, rows, block_shape)
                arguments = [values[given] for given in node.inputs]
                program.append((into(node), (*arguments, target)))
                values[node] = target
            else:
                self._reduce(program, node, values[node.inputs[0]], start, rows)
        for index, node in enumerate(self.body.outputs):
            if node.op.kind == "elementwise" and not self.direct[node]:
                destination = self._rows(self.outputs[index], start, rows)
                program.append((np.copyto, (destination, values[node])))
        self.first = False

    def _rows(self, array: Any, start: int, rows: int) -> Any:
        """The block's part of an array, which may be broadcast along the rows."""
        if array.ndim < len(self.shape) or not self.shape or array.shape[0] == 1 != self.shape[0]:
            return array
        return array[start : start + rows]

    def _is_direct(self, index: int, last_use: dict[Node, int]) -> bool:
        """Whether an output can be written at once: nothing that lies there is read later on."""
        node = self.body.outputs[index]
        made = self.order.index(node)
        for reader in self.order:
            if reader.op.name == "parameter":
                given = self.inputs[reader.attrs["index"]]
                if np.may_share_memory(given, self.outputs[index]) and not (
                    last_use[reader] <= made and _same_memory(given, self.outputs[index])
                ):
                    return False
        return True

    def _target(self, node: Node, start: int, rows: int, block_shape: Shape) -> Any:
        """Where a node's block goes: to its output if that is possible, else to a register."""
        if self.direct.get(node):
            return self._rows(self.outputs[self.body.outputs.index(node)], start, rows)
        room = self.call.workspace.size // max(self.count, 1)
        begin = self.registers[node] * room
        nbytes = size(block_shape) * node.dtype.itemsize
        return self.call.workspace[begin : begin + nbytes].view(node.dtype).reshape(block_shape)

    def _reduce(self, program: list[Any], node: Node, value: Any, start: int, rows: int) -> None:
        output = self.outputs[self.body.outputs.index(node)]
        if not self.shape or 0 not in node.attrs["axis"]:
            part = output[start : start + rows] if self.shape else output
            program.append((_reduction(node, part), (value,)))
        elif self.first:
            program.append((_reduction(node, output), (value,)))
        else:
            more = np.empty(output.shape, output.dtype)
            program.append((_reduction(node, more), (value,)))
            program.append((partial(_REDUCTIONS[node.op.name], out=output), (output, more)))

    def finish(self, program: list[Any]) -> None:
        """An empty loop still has to write what its reductions give for nothing."""
        if self.first:
            for index, node in enumerate(self.body.outputs):
                if node.op.kind == "reduction":
                    empty = np.empty(node.inputs[0].shape, node.inputs[0].dtype)
                    program.append((np.copyto, (self.outputs[index], evaluate(node, (empty,))[0])))


def _reduction(node: Node, out: Any) -> Callable[[Any], Any]:
    reduce = _REDUCTIONS[node.op.name].reduce
    return partial(reduce, dtype=out.dtype, out=out, **node.attrs)


def _same_memory(a: Any, b: Any) -> bool:
    return (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and a.shape == b.shape
        and a.strides == b.strides
    )


def _in_place(node: Node) -> bool:
    return all(output.op.kind == "elementwise" for output in node.attrs["body"].outputs)


TABLE.add(Kernel("fused", "cpu", "blocked", _bind, workspace=_workspace, in_place=_in_place))
