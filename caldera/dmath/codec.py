"""Serialisation of graphs as plain data, sent by the master to its workers.

Nodes are written in order: the name of the op, the indices of its inputs, and its attributes.
Leaves are numbered, so that one program serves any arrays. On arrival, ops are taken from the table
of ops, attributes are restricted to the kinds listed here, and shapes are inferred again. Received
data is never executed, imported or trusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import CartesianLayout
from caldera.compiler.sharding.table_layout import TableLayout
from caldera.compiler.sharding.volume import Links
from caldera.core.graph import (
    ITEM,
    OPS,
    Body,
    Node,
    Spec,
    Symbol,
    catalogue,  # noqa: F401 - fills the table of ops
    item,
    parameter,
    topological,
)
from caldera.core.graph.ops.collective import Message
from caldera.core.tensor import Tensor, canonical
from caldera.errors import ConfigError, DataError

RECORDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Spec, Message, AxisSplit, CartesianLayout, TableLayout, Links)
}
"""Frozen dataclasses that attributes may be, by name."""


def register(kind: type) -> type:
    """Register a frozen dataclass as a type that messages may contain."""
    RECORDS[kind.__name__] = kind
    return kind


ROLES = ("tensor", "variable", "input", "array")
MOST_NODES = 1 << 22
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class LeafGraph:
    """Outputs, and the leaves that they are computed from in the order of their numbers."""

    outputs: tuple[Node, ...]
    leaves: tuple[Symbol, ...]


def encode_graph(outputs: Sequence[Node]) -> tuple[bytes, tuple[Symbol, ...]]:
    """Encode a graph as bytes; return them with the graph's leaves.

    Graphs that differ only in the values of their leaves have the same bytes. Constant arrays are
    included.
    """
    writer = _Writer()
    nodes, numbers = writer.nodes(topological(outputs), outputs)
    head = {
        "nodes": nodes,
        "outputs": numbers,
        "leaves": [
            [leaf.role, list(leaf.spec.shape), leaf.spec.dtype.name] for leaf in writer.leaves
        ],
    }
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *writer.constants]), tuple(
        writer.leaves
    )


def graph_key(outputs: Sequence[Node]) -> tuple[Hashable, tuple[Symbol, ...]]:
    """Return a key that is equal for graphs with equal encodings, and the leaves in order.

    The graph is encoded only if it has constant arrays or loops; the key then is the bytes.

    >>> from caldera.core.graph.ops.base import tensor
    >>> spec = Spec((2,), np.dtype("float32"))
    >>> first, second = (tensor(symbol=Symbol("", spec, "tensor")) for _ in range(2))
    >>> graph_key([first])[0] == graph_key([second])[0]
    True
    """
    order = topological(outputs)
    numbers = {node: number for number, node in enumerate(order)}
    leaves: dict[Symbol, int] = {}
    written: list[Hashable] = []
    for node in order:
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol) and len(node.attrs) == 1 and symbol.role != "array":
            number = leaves.setdefault(symbol, len(leaves))
            written.append((node.op, number, symbol.role, symbol.spec))
        elif all(map(_is_plain, node.attrs.values())):
            written.append((node.op, tuple([numbers[x] for x in node.inputs]), node.attrs_key))
        else:
            return encode_graph(outputs)
    return (tuple(written), tuple([numbers[node] for node in outputs])), tuple(leaves)


def _is_plain(value: Any) -> bool:
    """Return True if an attribute contains neither leaves nor graphs."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return not isinstance(value, Symbol | Body)


def decode_graph(content: bytes) -> LeafGraph:
    """Decode a graph over new leaves, which have no value yet."""
    length = int.from_bytes(content[:8], "little")
    try:
        head = json.loads(content[8 : 8 + length])
        reader = _Reader(head["leaves"], memoryview(content)[8 + length :])
        if len(head["nodes"]) > MOST_NODES:
            raise _refused(f"at most {MOST_NODES} nodes", len(head["nodes"]))
        outputs = reader.outputs(head["nodes"], head["outputs"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        if isinstance(problem, ConfigError | DataError):
            raise
        raise _refused("a graph as encode_graph writes it", repr(problem)) from problem
    return LeafGraph(tuple(outputs), tuple(reader.leaves))


def encode(value: Any) -> bytes:
    """Return a value of the kinds that attributes have, as bytes.

    >>> decode(encode((1, 2.5, None, "a", np.dtype("float32"), 1j)))
    (1, 2.5, None, 'a', dtype('float32'), 1j)
    """
    return json.dumps(_Writer().value(value), separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes) -> Any:
    """Decode a result of `encode`."""
    return _Reader([], memoryview(b"")).value(json.loads(content))


class _Writer:
    def __init__(self) -> None:
        self.leaves: list[Symbol] = []
        self.constants: list[bytes] = []
        self._numbers: dict[Symbol, int] = {}

    def nodes(
        self, order: Sequence[Node], outputs: Sequence[Node]
    ) -> tuple[list[list[Any]], list[int]]:
        """Return all nodes in order, and the indices of the outputs."""
        numbers = {node: number for number, node in enumerate(order)}
        written: list[list[Any]] = []
        for node in order:
            attrs = {name: self.value(value) for name, value in sorted(node.attrs.items())}
            written.append([node.op.name, [numbers[given] for given in node.inputs], attrs])
        return written, [numbers[node] for node in outputs]

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if type(value) is complex:
            return {"complex": [self.value(value.real), self.value(value.imag)]}
        if isinstance(value, tuple):
            return [self.value(part) for part in value]
        if isinstance(value, np.dtype):
            return {"dtype": value.name}
        if isinstance(value, Symbol):
            return {"leaf": self._leaf(value)}
        if isinstance(value, Body):
            return {"body": self._body(value)}
        record = RECORDS.get(type(value).__name__)
        if record is type(value):
            given = [self.value(getattr(value, each.name)) for each in fields(record) if each.init]
            return {record.__name__: given}
        raise ConfigError.build(
            "sending a graph to workers",
            expected="attributes that are plain data",
            got=f"{type(value).__name__} {str(value)[:80]}",
        )

    def _leaf(self, symbol: Symbol) -> int:
        number = self._numbers.get(symbol)
        if number is not None:
            return number
        require(
            symbol.role in ROLES,
            "sending a graph to workers",
            "values that exist outside of a loop",
            f"{symbol.name} {symbol.spec}",
        )
        if symbol.role == "array":
            self.constants.append(symbol.value.numpy().tobytes())
        number = self._numbers[symbol] = len(self.leaves)
        self.leaves.append(symbol)
        return number

    def _body(self, body: Body) -> list[Any]:
        specs = [self.value(spec) for spec in body.parameters]
        return [specs, *self.nodes(body.order(), body.outputs)]


class _Reader:
    def __init__(self, leaves: Sequence[Any], constants: memoryview) -> None:
        self.leaves = []
        for role, shape, dtype in leaves:
            if role not in ROLES:
                raise _refused("a leaf that is " + " or ".join(ROLES), role)
            spec = Spec(tuple(map(_whole, shape)), canonical(dtype))
            symbol = Symbol("", spec, role)
            if role == "array":
                # Before any memory is taken.
                if spec.nbytes > len(constants):
                    raise _refused(f"{spec.nbytes} bytes of a constant", len(constants))
                flat = np.frombuffer(constants[: spec.nbytes], np.uint8).copy().view(spec.dtype)
                symbol.value = Tensor.from_numpy(flat.reshape(spec.shape))
                constants = constants[spec.nbytes :]
            self.leaves.append(symbol)

    def outputs(self, written: list[Any], numbers: list[int]) -> list[Node]:
        """Decode nodes that were encoded in order; return the nodes with these indices."""
        nodes: list[Node] = []
        for name, inputs, attrs in written:
            nodes.append(self.node(name, inputs, attrs, nodes))
        return [nodes[number] for number in numbers]

    def node(self, name: str, inputs: list[int], attrs: dict[str, Any], nodes: list[Node]) -> Node:
        if name not in OPS:
            raise _refused("the name of an op", name)
        given = [nodes[_whole(number)] for number in inputs]
        read = {key: self.value(each) for key, each in attrs.items()}
        if OPS[name] is ITEM:
            return item(given[0], _whole(read["index"]))
        return OPS[name].node(*given, **read)

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple([self.value(part) for part in value])
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "float":
            return _NOT_IN_JSON[content]
        if kind == "complex":
            real, imaginary = (self.value(part) for part in content)
            return complex(real, imaginary)
        if kind == "dtype":
            return canonical(content)
        if kind == "leaf":
            return self.leaves[_whole(content)]
        if kind == "body":
            return self._body(*content)
        if kind in RECORDS:
            return RECORDS[kind](*self.value(content))
        raise _refused("a kind of attribute", kind)

    def _body(self, specs: Any, written: list[Any], outputs: list[int]) -> Body:
        arguments = [parameter(index, self.value(spec)) for index, spec in enumerate(specs)]
        return Body(arguments, self.outputs(written, outputs))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _refused("a number from 0", value)
    return value


def _refused(expected: str, got: Any) -> DataError:
    return DataError.build("a graph that was sent", expected=expected, got=str(got)[:200])
