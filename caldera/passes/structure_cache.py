"""Programs of one structure are optimised once.

Passes look at the structure of a program, never at what its variables hold. The steps of two
networks with the same layers, of the folds of a cross-validation, or of ranks that are threads,
differ only in whose variables they read: such a program is written over stand-ins, optimised if no
other of its structure was, and written back over its own variables.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache

from caldera.graph.node import Node, Spec, Symbol, intern
from caldera.graph.program import Program
from caldera.passes.constants import array_node, value_of

REMEMBERED = 64
"""Structures kept for the next program."""
LARGEST_ARRAY = 1 << 12
"""Bytes: a program with a larger constant is not remembered, because the constant would be too."""
_BOUND_LATER = frozenset({"variable", "input", "tensor"})
"""Roles of symbols whose values no pass may know."""


@lru_cache(maxsize=4096)
def _stand_in(role: str, spec: Spec, place: int) -> Symbol:
    return Symbol(f"{role} {place}", spec, role)


class StructureCache:
    """Optimised programs by the structure they were made of, and by how."""

    def __init__(self) -> None:
        self._recent: OrderedDict[Hashable, Program] = OrderedDict()
        # What holds arrays is known as long as a program made of it is there: the memory that a
        # model used must be free when the model is gone.
        self._in_use: weakref.WeakValueDictionary[Hashable, Program] = weakref.WeakValueDictionary()
        self._made_of: weakref.WeakKeyDictionary[Program, Program] = weakref.WeakKeyDictionary()
        # One for all: passes are Python, and threads that wait for the same program do not make it
        # twice.
        self._lock = threading.RLock()

    def optimised(
        self, program: Program, how: Hashable, optimise: Callable[[Program], Program]
    ) -> Program:
        """What `optimise` makes of a program; `how` names all that it depends on besides that."""
        if any(map(_is_large, program.order())):
            return optimise(program)
        stand_ins = _stand_ins(program)
        structure = _over(program, stand_ins)
        key = (structure, how)
        with self._lock:
            found = self._recent.get(key) or self._in_use.get(key)
            if found is None:
                found = optimise(structure)
            result = _over(found, {other: symbol for symbol, other in stand_ins.items()})
            if any(node.op.name == "array" for each in (structure, found) for node in each.order()):
                self._in_use[key] = self._made_of[result] = found
            else:
                self._recent[key] = found
                self._recent.move_to_end(key)
                while len(self._recent) > REMEMBERED:
                    self._recent.popitem(last=False)
        return result

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._recent.clear()
            self._in_use.clear()
            self._made_of.clear()


def _is_large(node: Node) -> bool:
    """Whether keeping the node would keep more than a node."""
    if node.op.name == "array":
        return node.spec.nbytes > LARGEST_ARRAY
    message = node.attrs.get("message")
    # Who exchanges has buffers, and a communicator.
    return message is not None and message.exchange is not None


def _stand_ins(program: Program) -> dict[Symbol, Symbol]:
    """For each symbol of a program one that programs of its structure share."""
    found: dict[Symbol, Symbol] = {}
    for symbol in [node.attrs.get("symbol") for node in program.order()]:
        if symbol is not None and symbol.role in _BOUND_LATER and symbol not in found:
            found[symbol] = _stand_in(symbol.role, symbol.spec, len(found))
    for symbol, _ in program.updates:
        if symbol not in found:
            found[symbol] = _stand_in(symbol.role, symbol.spec, len(found))
    return found


def _over(program: Program, symbols: Mapping[Symbol, Symbol]) -> Program:
    """The same program over other symbols."""
    new: dict[Node, Node] = {}
    for node in program.order():
        inputs = tuple([new[given] for given in node.inputs])
        symbol = symbols.get(node.attrs.get("symbol"))  # type: ignore[arg-type]
        if node.op.name == "array" and not _is_large(node):
            # Those with the same bits are one.
            new[node] = array_node(value_of(node))
        elif symbol is not None:
            new[node] = intern(node.op, inputs, {**node.attrs, "symbol": symbol}, node.outputs)
        elif inputs == node.inputs:
            new[node] = node
        else:
            new[node] = intern(node.op, inputs, dict(node.attrs), node.outputs)
    return Program(
        tuple(new[node] for node in program.outputs),
        tuple((symbols[symbol], new[node]) for symbol, node in program.updates),
    )
