"""A network as the blocks it is made of, and which of them reads what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from caldera.core.graph.node import Node
from caldera.nn.tracing import LayerCall
from caldera.train.tracking.run_record import BlockRecord

if TYPE_CHECKING:
    from caldera.train.model import Model

MOST_BLOCKS = 40
"""Of more layers, those inside another one are folded into it."""
_INPUT = -1


def blocks_of(model: Model) -> list[BlockRecord]:
    """The layers of a model for one sample, in the order in which they compute.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.ReLU()])
    >>> [(each.kind, each.reads) for each in blocks_of(model)]
    [('Dense', [-1]), ('ReLU', [0])]
    """
    _, _, traced = model.expressions(model.samples_traced)
    inner = [call for call in traced.calls if call.layer is not model]
    calls = [call for call in inner if not call.inside]
    if len(calls) > MOST_BLOCKS:
        calls = _outermost(inner)
    calls = [call for call in calls if type(call.layer).__name__ != "Input"]
    makers: dict[Node, int] = {}
    found = []
    for number, call in enumerate(calls):
        reads = sorted({each for given in call.inputs for each in _read(given.node, makers)})
        found.append(
            BlockRecord(
                call.layer.path,
                type(call.layer).__name__,
                list(call.outputs[0].shape[1:]),
                sum(each.size for each in call.layer.parameters()),
                reads or [_INPUT],
            )
        )
        # A layer may hand on what it was given: whoever reads that from now on reads it from here.
        makers |= {output.node: number for output in call.outputs}
    return found


def _outermost(calls: list[LayerCall]) -> list[LayerCall]:
    found, place = [], 0
    while place < len(calls):
        found.append(calls[place])
        place += 1 + calls[place].inside
    return found


def _read(node: Node, makers: Mapping[Node, int]) -> set[int]:
    """The blocks that a value comes from, past what the model itself does in between."""
    found: set[int] = set()
    seen: set[Node] = set()
    pending = [node]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        symbol = each.attrs.get("symbol")
        if each in makers:
            found.add(makers[each])
        elif symbol is not None and symbol.role == "input":
            found.add(_INPUT)
        else:
            pending += each.inputs
    return found
