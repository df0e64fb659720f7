"""Layout selection: images are channels last (NHWC) in memory if that reduces memory traffic.

Shapes stay (N, C, H, W): an order is a property of memory only. Where a value must change its
order, the graph has an `arrange` node. Convolution, pooling and normalisation require their images
channels last and return them so; variables, filters, results and all other ops are row major.
Between these, element-wise ops and ops that join or slice images accept both orders if all images
have the same one. Such ops form a region with a single order, the one with less copying at its
borders.

Attention writes its heads inside the steps of a sequence if they are read in this order: joining
the heads then needs no copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from caldera.core.graph import (
    ITEM,
    NHWC,
    Body,
    Node,
    Nodes,
    Order,
    Program,
    Spec,
    intern_like,
    item,
    same_memory,
)
from caldera.core.graph.ops.attention import HEADS_INSIDE
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.movement import arrange
from caldera.core.tensor import Shape, is_float

Use = Literal["rows", "last", "alike", "any"]
"""Order of an op's input or output: row major, channels last, the same for all images, or any."""

Uses = tuple[tuple[Use, ...], tuple[Use, ...]]
"""Orders of all inputs, and of all outputs."""

IMAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "conv2d": ((0,), (0,)),
    "conv2d_epilogue": ((0,), (0,)),
    "conv2d_input": ((0,), (0,)),
    "conv2d_weight": ((0, 1), ()),
    "max_pool2d": ((0,), (0, 1)),
    "max_pool2d_epilogue": ((0,), (0, 1)),
    "pool_scatter": ((0, 1), (0,)),
    "pool_gather": ((0, 1), (0,)),
    "avg_pool2d": ((0,), (0,)),
    "avg_pool2d_input": ((0,), (0,)),
    "batch_norm": ((0,), (0,)),
    "batch_norm_grad": ((0, 1), (0,)),
    "batch_norm_inference": ((0,), (0,)),
    "batch_norm_relu": ((0, 3), (0,)),
    "batch_norm_inference_relu": ((0, 5), (0,)),
    "batch_norm_relu_grad": ((0, 1), (0,)),
    "batch_norm_grad_elementwise": ((0, 1), (0,)),
    "conv2d_moments": ((0,), (0,)),
    "conv2d_input_norm_reduce": ((0, 2, 6, 7), (0,)),
    "int8_conv2d": ((0,), (0,)),
    "int8_conv2d_relu": ((0, 4), (0,)),
    "group_norm": ((0,), (0,)),
    "group_norm_grad": ((0, 1), (0,)),
    "local_response_norm": ((0,), (0,)),
    "local_response_norm_grad": ((0, 1), (0,)),
}
"""Ops that want images channels last: which of their inputs and outputs those are."""

ATTENTION = frozenset(
    {
        "scaled_dot_product_attention",
        "scaled_dot_product_attention_backward",
        "scaled_dot_product_attention_grad",
    }
)

FOLLOWING = frozenset({"concat", "split", "slice", "unslice", "pad", "flip", "dropout"})
"""Further ops whose images must all have the same order, as for element-wise ops."""

VIEWS = frozenset({"broadcast_to", "transpose", "reshape"})
"""Ops that read any order; their results, if copied, are row major."""

LOOKS = frozenset({"transpose", "slice", "flip"})
"""Ops that never copy; their results for a broadcast value take no memory either."""


def layout(program: Program) -> Program:
    """Choose the memory order of every image, and insert `arrange` nodes at changes of order."""
    program = _row_major(program)
    order = program.order()
    if any(node.op.name in IMAGES for node in order):
        program = _Layout(program, order).run()
    return _heads_inside(program)


def _row_major(program: Program) -> Program:
    """Return the program with all orders removed."""
    if not any(map(_has_order, program.order())):
        return program

    def convert(node: Node, inputs: Nodes) -> Node:
        if node.op.name == "arrange":
            return inputs[0]
        return _rebuilt(node, inputs, (None,) * len(node.outputs))

    return program.mapped(convert)


def _has_order(node: Node) -> bool:
    return node.op.name == "arrange" or any(spec.order is not None for spec in node.outputs)


def _rebuilt(node: Node, inputs: Nodes, orders: Sequence[Order | None]) -> Node:
    """Return the node over these inputs, with outputs in these orders."""
    if node.op is ITEM:
        return item(inputs[0], node.attrs["index"])
    outputs = tuple(
        [
            spec if spec.order == order else Spec(spec.shape, spec.dtype, order)
            for spec, order in zip(node.outputs, orders, strict=True)
        ]
    )
    if outputs == node.outputs and inputs == node.inputs:
        return node
    return intern_like(node, inputs, outputs)


def _heads_inside(program: Program) -> Program:
    """Make attention write (N, heads, T, D) as (N, T, heads, D) if its result is transposed so."""
    order = program.order()
    if not any(node.op.name in ATTENTION for node in order):
        return program
    turned = {
        _value(node.inputs[0])
        for node in order
        if node.op.name == "transpose" and tuple(node.attrs["axes"]) == HEADS_INSIDE
    } - {_value(root) for root in program.roots}

    def convert(node: Node, inputs: Nodes) -> Node:
        is_attention = node.op.name in ATTENTION
        orders = [
            HEADS_INSIDE if is_attention and (node, index) in turned else spec.order
            for index, spec in enumerate(node.outputs)
        ]
        return _rebuilt(node, inputs, orders)

    return program.mapped(convert)


# --- what ops want


def _uses(node: Node, spread: set[Node]) -> Uses:
    """Return the orders of a node's inputs and outputs; `spread` are broadcast values."""
    name, kind = node.op.name, node.op.kind
    if name in IMAGES:
        return _uses_of_images(node)
    if kind == "elementwise" or node.op is fused:
        return _uses_of_loop(node, spread)
    if name in FOLLOWING and node not in spread:
        images = [_alike(given.spec, given in spread) for given in node.inputs]
        return tuple(images), tuple(_alike(spec) for spec in node.outputs)
    if kind == "random" or name == "input":
        # The values are written by the host or a generator, which support any order.
        return _every("rows", node.inputs), tuple(_alike(spec) for spec in node.outputs)
    if kind == "reduction" or name in VIEWS or name in FOLLOWING:
        return _every("any", node.inputs), _every("rows", node.outputs)
    return _every("rows", node.inputs), _every("rows", node.outputs)


def _every(use: Use, values: Sequence[object]) -> tuple[Use, ...]:
    return (use,) * len(values)


def _alike(spec: Spec, is_spread: bool = False) -> Use:
    if is_spread:
        return "any"
    return "alike" if spec.rank == len(NHWC) else "rows"


def _uses_of_images(node: Node) -> Uses:
    inputs, outputs = IMAGES[node.op.name]
    image = node.inputs[inputs[0]].spec
    # Normalisation also takes vectors and volumes, and its channels may be elsewhere.
    if image.rank != len(NHWC) or node.attrs.get("axis", 1) != 1 or not is_float(image.dtype):
        inputs = outputs = ()
    # What may be an image or a vector is an image if it looks like one.
    images = {i for i, given in enumerate(node.inputs) if given.spec.rank == len(NHWC)}
    return (
        tuple("last" if i in images and i in inputs else "rows" for i in range(len(node.inputs))),
        tuple("last" if index in outputs else "rows" for index in range(len(node.outputs))),
    )


def _uses_of_loop(node: Node, spread: set[Node]) -> Uses:
    loop = _loop_shape(node)
    inputs: list[Use] = []
    for given in node.inputs:
        whole = len(loop) == len(NHWC) and given.shape == loop
        inputs.append("any" if given in spread else "alike" if whole else "rows")
    whole_loop: Use = "alike" if len(loop) == len(NHWC) else "rows"
    if node.op is not fused:
        return tuple(inputs), (whole_loop,)
    body: Body = node.attrs["body"]
    kinds = [output.op.kind for output in body.outputs]
    return tuple(inputs), tuple("rows" if kind == "reduction" else whole_loop for kind in kinds)


def _loop_shape(node: Node) -> Shape:
    if node.op is not fused:
        return node.shape
    body: Body = node.attrs["body"]
    return next(part.shape for part in body.order() if part.op.kind == "elementwise")


def _spread(order: Sequence[Node]) -> set[Node]:
    """Return the values in which one element of memory is seen several times."""
    found: set[Node] = set()
    for node in order:
        is_look = node.op.name in LOOKS and node.inputs[0] in found
        if node.op.name == "broadcast_to" or is_look:
            found.add(node)
    return found


# --- regions

Value = tuple[Node, int]
"""A node and an output index; -1 denotes the node itself."""


def _value(node: Node) -> Value:
    return (node.inputs[0], node.attrs["index"]) if node.op is ITEM else (node, 0)


@dataclass
class _Borders:
    """The values to arrange if a region is row major, and if it is channels last."""

    if_rows: set[Value] = field(default_factory=set)
    if_last: set[Value] = field(default_factory=set)

    def order(self) -> Order | None:
        """Return the cheaper order; channels last if both cost the same."""
        last, rows = _cost(self.if_last), _cost(self.if_rows)
        return NHWC if rows and last <= rows else None


def _cost(values: set[Value]) -> int:
    """Return the bytes to move; about 0 where both orders have the same memory layout."""
    specs = [node.outputs[index] for node, index in values]
    return sum(1 if same_memory(spec.shape, None, NHWC) else spec.nbytes for spec in specs)


class _Layout:
    def __init__(self, program: Program, order: Sequence[Node]) -> None:
        self.program = program
        self.order = order
        spread = _spread(order)
        self.uses = {node: _uses(node, spread) for node in order if node.op is not ITEM}
        self.parent: dict[Value, Value] = {}
        for node, given, use in self._reads():
            if use == "alike":
                self._join((node, -1), _value(given))
        for node in self.uses:
            for index in range(len(node.outputs)):
                self._join((node, -1), (node, index))
        self.orders = {region: found.order() for region, found in self._borders().items()}

    def _reads(self) -> Iterator[tuple[Node, Node, Use]]:
        """Yield each node, each of its inputs, and the order in which the node reads the input."""
        for node, (inputs, _) in self.uses.items():
            for given, use in zip(node.inputs, inputs, strict=True):
                yield node, given, use

    def _gives(self, value: Value) -> Use:
        node, index = value
        return self.uses[node][1][index]

    # --- which values lie alike

    def _join(self, one: Value, value: Value) -> None:
        if self._gives(value) == "alike":
            self.parent[self._region(one)] = self._region(value)

    def _region(self, value: Value) -> Value:
        while (above := self.parent.get(value, value)) != value:
            self.parent[value] = self.parent.get(above, above)
            value = above
        return value

    def _borders(self) -> dict[Value, _Borders]:
        found: dict[Value, _Borders] = {}

        def borders(value: Value) -> _Borders:
            return found.setdefault(self._region(value), _Borders())

        for node, given, use in self._reads():
            value = _value(given)
            gives = self._gives(value)
            if use == "alike" and gives == "rows":
                borders((node, -1)).if_last.add(value)
            elif use == "alike" and gives == "last":
                borders((node, -1)).if_rows.add(value)
            elif gives == "alike" and use == "rows":
                borders(value).if_last.add(value)
            elif gives == "alike" and use == "last":
                borders(value).if_rows.add(value)
        for root in self.program.roots:
            if self._gives(_value(root)) == "alike":
                borders(_value(root)).if_last.add(_value(root))
        return found

    # --- rebuilding

    def run(self) -> Program:
        """Return the program with an order for every value."""
        program = self.program.mapped(self._arranged)
        outputs = [
            root if same_memory(root.shape, root.spec.order, None) else arrange(root, None)
            for root in program.outputs
        ]
        updates = [arrange(root, None) for _, root in program.updates]
        return program.with_roots([*outputs, *updates])

    def _arranged(self, node: Node, inputs: Nodes) -> Node:
        if node.op is ITEM:
            return item(inputs[0], node.attrs["index"])
        takes, gives = self.uses[node]
        region = self.orders.get(self._region((node, -1)))
        arranged = tuple(
            given if use == "any" else arrange(given, _order(use, region))
            for given, use in zip(inputs, takes, strict=True)
        )
        return _rebuilt(node, arranged, [_order(use, region) for use in gives])


def _order(use: Use, region: Order | None) -> Order | None:
    if use == "alike":
        return region
    return NHWC if use == "last" else None
