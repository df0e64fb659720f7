"""Cache of optimised programs, by structure.

Passes read the structure of a program, never the values of its variables. Many programs differ only
in their variables: the steps of two networks with the same layers, of the folds of a
cross-validation, or of ranks that are threads. Such a program is rewritten over stand-ins and
optimised unless one with the same structure was. Then it is written back over its own variables.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from caldera.compiler.passes.constants import array_node, value_of
from caldera.core.graph import Node, Nodes, Program, Spec, Symbol, intern, intern_like
from caldera.core.graph.ops.base import array as array_leaf

REMEMBERED = 64
"""Maximum number of cached structures."""
LARGEST_ARRAY = 1 << 12
"""Bytes: a program with a larger constant is not remembered, because the constant would be too."""
_BOUND_LATER = frozenset({"variable", "input", "tensor"})
"""Roles of symbols whose values no pass may know."""


@dataclass(frozen=True)
class _Constant:
    """Content of a constant array, copied, because the original's memory is on a device."""

    values: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.values


@lru_cache(maxsize=4096)
def _stand_in(role: str, spec: Spec, place: int) -> Symbol:
    return Symbol(f"{role} {place}", spec, role)


@lru_cache(REMEMBERED)
def _stand_in_array(spec: Spec, bits: bytes) -> Node:
    values = np.frombuffer(bits, spec.dtype).reshape(spec.shape)
    return array_leaf(symbol=Symbol("array", spec, "array", _Constant(values)))


class StructureCache:
    """Optimised programs by original structure and settings."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Program] = OrderedDict()
        # One for all: passes are Python, and threads that wait for the same program do not make it
        # twice.
        self._lock = threading.RLock()

    def optimised(
        self, program: Program, how: Hashable, optimise: Callable[[Program], Program]
    ) -> Program:
        """Return what `optimise` makes of a program.

        `how` names all that it depends on besides that.
        """
        if any(map(_is_large, program.order())):
            return optimise(program)
        stand_ins = _stand_ins(program)
        own = {other: symbol for symbol, other in stand_ins.items()}
        structure = _over(program, stand_ins, _without_tensor)
        key = (structure, how)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = optimise(structure)
                if any(map(_is_large, found.order())):
                    # A constant has been computed ahead.
                    return _over(found, own, _with_tensor)
                found = self._known[key] = _over(found, {}, _without_tensor)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return _over(found, own, _with_tensor)

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._known.clear()


def _is_large(node: Node) -> bool:
    """Return True if storing the node would keep large data or a communicator alive."""
    if node.op is array_leaf:
        return node.spec.nbytes > LARGEST_ARRAY
    message = node.attrs.get("message")
    # Who exchanges has buffers, and a communicator.
    return message is not None and message.exchange is not None


def _stand_ins(program: Program) -> dict[Symbol, Symbol]:
    """For each symbol whose value no pass may know, one that programs of a structure share."""
    symbols = [node.attrs.get("symbol") for node in program.order()]
    symbols += [symbol for symbol, _ in program.updates]
    unknown = [each for each in symbols if each is not None and each.role in _BOUND_LATER]
    return {
        symbol: _stand_in(symbol.role, symbol.spec, place)
        for place, symbol in enumerate(dict.fromkeys(unknown))
    }


def _without_tensor(node: Node) -> Node:
    """Return a constant array that keeps no memory of a device.

    Its values are part of the structure.
    """
    return _stand_in_array(node.spec, value_of(node).tobytes())


def _with_tensor(node: Node) -> Node:
    """Return the leaf of a constant array with a copy of the array; other nodes unchanged."""
    known = isinstance(node.attrs["symbol"].value, _Constant)
    return array_node(value_of(node).copy()) if known else node


def _over(
    program: Program, symbols: Mapping[Symbol, Symbol], array: Callable[[Node], Node]
) -> Program:
    """Return the program with its symbols and constant arrays replaced."""

    def convert(node: Node, inputs: Nodes) -> Node:
        symbol = node.attrs.get("symbol")
        if node.op is array_leaf:
            return array(node)
        if symbol is not None and symbol in symbols:
            return intern(node.op, inputs, {**node.attrs, "symbol": symbols[symbol]}, node.outputs)
        return node if inputs == node.inputs else intern_like(node, inputs, node.outputs)

    new = program.mapped(convert)
    updates = tuple((symbols.get(symbol, symbol), node) for symbol, node in new.updates)
    return Program(new.outputs, updates)
