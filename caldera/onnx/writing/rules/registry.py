"""Registry of ONNX export rules, and the rules of leaves and loops.

    @writes("reshape")
    def _reshape(write, pair):
        return write.add("Reshape", write.name(pair.inputs[0]), write.shape(pair.sizes("shape")))

A rule returns the name of the output, a tuple of names, or NotImplemented: then a composite op is
written by its components. It reads attributes from the graph for the first number of samples.
Attributes that may differ in the second graph, and that the rule supports, are named:

    @writes("reshape", by_samples=("shape",))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph.opdef import parameter
from caldera.onnx.writing.dynamic_batch import Pair, array_by_samples, counting

Function = Callable[..., Any]
RULES: dict[str, ExportRule] = {}
"""Rules by the name of Caldera's op."""


@dataclass(frozen=True)
class ExportRule:
    """Rule to write an op, and the attributes that may depend on the number of samples."""

    function: Function
    by_samples: frozenset[str]


def writes(*names: str, by_samples: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Register a rule under these names of ops."""

    def register(function: Function) -> Function:
        for name in names:
            if name in RULES:
                raise ValueError(f"op {name!r} has two rules")
            RULES[name] = ExportRule(function, frozenset(by_samples))
        return function

    return register


def inputs(write: Any, pair: Any) -> list[str]:
    """Return the names of a node's inputs."""
    return [write.name(given) for given in pair.inputs]


@writes("constant", by_samples=("value",))
def _constant(write: Any, pair: Any) -> str:
    values = (each.attrs["value"] for each in (pair.node, pair.twin))
    first, second = (np.array(value, pair.spec.dtype) for value in values)
    return array_by_samples(write, (first, second), pair.node)


@writes("array", by_samples=("symbol",))
def _array(write: Any, pair: Any) -> str:
    symbols = (each.attrs["symbol"] for each in (pair.node, pair.twin))
    first, second = (np.array(symbol.value.numpy()) for symbol in symbols)
    return array_by_samples(write, (first, second), pair.node)


@writes("variable", "tensor", by_samples=("symbol",))
def _held(write: Any, pair: Any) -> str:
    symbol = pair.attrs["symbol"]
    if symbol is not pair.twin.attrs["symbol"]:
        # The array was created during tracing, separately in each trace.
        return _array(write, pair)
    return write.held(np.array(symbol.value.numpy()), symbol.name or "tensor")


@writes("iota", by_samples=("shape",))
def _iota(write: Any, pair: Any) -> str:
    shape, axis = pair.shape, pair.attrs["axis"]
    numbers = counting(write, shape[axis], axis, len(shape), pair.spec.dtype)
    return write.add("Expand", numbers, write.shape(shape))


@writes("item")
def _item(write: Any, pair: Any) -> str:
    return write.find(pair.inputs[0])[pair.attrs["index"]]


@writes("cast")
def _cast(write: Any, pair: Any) -> str:
    return write.add("Cast", *inputs(write, pair), to=write.element_type(pair.spec.dtype))


@writes("scan", by_samples=("body", "length"))
def _scan(write: Any, pair: Any) -> Any:
    attrs = pair.attrs
    carries, sequences = attrs["carries"], attrs["sequences"]
    if not sequences:
        return NotImplemented
    given = inputs(write, pair)
    bodies = attrs["body"], pair.twin.attrs["body"]
    arguments = [
        Pair(*[parameter(i, body.parameters[i]) for body in bodies])
        for i in range(len(bodies[0].parameters))
    ]
    roots = [Pair(*each) for each in zip(*[body.outputs for body in bodies], strict=True)]
    body = write.body(arguments, given[carries + sequences :], carries + sequences, roots)
    directions = {}
    if attrs["reverse"]:
        counts = {
            "scan_input_directions": sequences,
            "scan_output_directions": len(roots) - carries,
        }
        # ONNX takes no empty list.
        directions = {name: [1] * count for name, count in counts.items() if count}
    return write.add(
        "Scan",
        *given[: carries + sequences],
        outputs=len(roots),
        body=body,
        num_scan_inputs=sequences,
        **directions,
    )
