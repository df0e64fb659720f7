"""The same node with its images in another order, and with results written over inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.core.graph.memory_format import NHWC, laid_out
from caldera.core.graph.node import Node, Spec, intern
from caldera.core.memory import Device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from tests.card.candidates import Arrays, check, fetched, placed, prepare, spoiled, stand_ins
from tests.unit.kernels.checking import compare


def channels_last(node: Node) -> Node:
    """The node with all images that it gives channels last."""
    outputs = tuple(
        Spec(spec.shape, spec.dtype, NHWC) if spec.rank == len(NHWC) else spec
        for spec in node.outputs
    )
    return intern(node.op, node.inputs, dict(node.attrs), outputs)


def check_both_orders(card: Device, node: Node, inputs: Arrays, *, mixed: bool = False) -> None:
    """Images that come and go in either order; `mixed`: also come in one and go in the other."""
    orders = ("dense", "channels last")
    for i, arranged in enumerate((node, channels_last(node))):
        prepare(card, arranged, inputs, layouts=orders if mixed else orders[i : i + 1])
    for i, arranged in enumerate((node, channels_last(node))):
        assert check(card, arranged, inputs, layouts=orders if mixed else orders[i : i + 1])


def check_in_place(card: Device, node: Node, inputs: Arrays) -> int:
    """Every output over every input of its kind, as far as the kernels allow it; how many."""
    count = 0
    with np.errstate(all="ignore"):
        expected = evaluate(node, inputs)
    for kernel in TABLE.candidates(node, "cuda"):
        for i, spec in enumerate(node.outputs):
            for j, array in enumerate(inputs):
                same = (array.shape, array.dtype) == (spec.shape, spec.dtype)
                if same and kernel.in_place(node):
                    _check_over(card, kernel, node, inputs, expected, i, j)
                    count += 1
    return count


def _check_over(
    card: Device, kernel: Kernel, node: Node, inputs: Arrays, expected: Arrays, i: int, j: int
) -> None:
    order = node.outputs[i].order
    given = [np.array(array) for array in inputs]
    memory = np.array(given[j].transpose(order) if order else given[j], order="C")
    given[j] = laid_out(memory.ravel(), given[j].shape, order)
    outputs = [spoiled(spec) for spec in node.outputs]
    outputs[i] = given[j]
    there: dict[int, Any] = {id(array): placed(card, array) for array in (*given, *outputs)}
    workspace = placed(card, np.full(kernel.workspace(node) or 1, 0xFF, np.uint8))
    call = Call(
        node,
        tuple(there[id(array)] for array in outputs),
        tuple(there[id(array)] for array in given),
        workspace,
    )
    card.stream.launch(lambda: kernel.bind(call)())
    card.stream.synchronize()
    for array, right in zip(outputs, expected, strict=True):
        compare(fetched(card, there[id(array)], array), right)


def node_of(op: Any, arrays: Arrays, **attrs: Any) -> Node:
    """The node of an op over stand-ins for arrays."""
    node: Node = op.node(*stand_ins(*arrays), **attrs)
    return node


def numbers(*shape: int, dtype: Any = "float32", seed: int = 0, low: float = -1.0) -> np.ndarray:
    """Random numbers, the same every time."""
    generator = np.random.default_rng([seed, *shape])
    return generator.uniform(low, 1.0, shape).astype(dtype)
