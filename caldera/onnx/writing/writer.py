"""Collecting the nodes and arrays of a graph of ONNX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.core.graph.node import describe
from caldera.core.tensor.dtype import DType, is_float
from caldera.errors import ConfigError
from caldera.onnx.library import NUMBERS, helper, numpy_helper
from caldera.onnx.writing.dynamic_batch import BatchMultiple, Pair, Size, in_order, not_open
from caldera.onnx.writing.rules import RULES

OPSET = 18
"""The version of the operators: widely known, and the first with axes as inputs everywhere."""

_SMALL = 64
"""Elements: larger arrays are not compared with each other."""


class Writer:
    """A graph in the making. A graph inside another (`outer`) may name all that is outside."""

    def __init__(self, outer: Writer | None = None) -> None:
        self.outer = outer
        self.nodes: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {} if outer is None else outer.arrays
        self.names: dict[Pair, tuple[str, ...]] = {}
        self._taken: Counter[str] = Counter() if outer is None else outer._taken
        self._known: dict[Any, str] = {} if outer is None else outer._known
        self.sources: dict[str, Pair] = {}
        self._samples = ""
        self.absorbed: set[Pair] = set()

    # --- names

    def unique(self, stem: str) -> str:
        """Return a name that is not in use."""
        self._taken[stem] += 1
        count = self._taken[stem]
        return stem if count == 1 else self.unique(f"{stem}_{count - 1}")

    def find(self, pair: Pair) -> tuple[str, ...] | None:
        """Return the names of a node's outputs, if it has been written, here or outside."""
        here: Writer | None = self
        while here is not None:
            if pair in here.names:
                return here.names[pair]
            here = here.outer
        return None

    def name(self, pair: Pair) -> str:
        """Return the name of a node's only output."""
        found = self.find(pair)
        assert found is not None
        return found[0]

    # --- parts of the graph

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a call; return the name of its output, or the names of its outputs."""
        names = [self.unique(operator.lower()) for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, list(inputs), names, name=names[0], **attributes)
        )
        return names[0] if outputs == 1 else tuple(names)

    def array(self, value: np.ndarray) -> str:
        """Write an array that never changes, so it is not trainable."""
        if value.size > _SMALL:
            return self._constant(value)
        key = (value.dtype.name, value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = self._constant(value)
        return self._known[key]

    def _constant(self, value: np.ndarray) -> str:
        if self.outer is not None:
            return self.outer._constant(value)
        name = self.unique("constant")
        made = helper.make_node("Constant", [], [name], name=name, value=as_proto("", value))
        # Before everything else: graphs inside, written earlier, may name it as well.
        self.nodes.insert(0, made)
        return name

    def held(self, value: np.ndarray, stem: str) -> str:
        """Return an array that the file holds by name: a parameter, a running statistic."""
        name = self.unique(stem)
        self.arrays[name] = value
        return name

    def scalar(self, value: float, dtype: DType) -> str:
        """Return a number."""
        return self.array(np.array(value, dtype))

    def integers(self, values: Sequence[int]) -> str:
        """Add a vector of integers (axes, sizes, widths), and return its name."""
        return self.array(np.array(values, np.int64))

    def shape(self, wanted: Sequence[Size]) -> str:
        """Return a shape as a vector; parts that depend on the number of samples are computed."""
        if not any(isinstance(each, BatchMultiple) for each in wanted):
            return self.integers([each for each in wanted if isinstance(each, int)])
        parts = [
            self.samples(each.times) if isinstance(each, BatchMultiple) else self.integers([each])
            for each in wanted
        ]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def samples(self, times: int) -> str:
        """Write a multiple of the number of samples, as a vector with one element."""
        count = self._number_of_samples()
        return count if times == 1 else self.add("Mul", count, self.integers([times]))

    def _number_of_samples(self) -> str:
        """Return a size of an input that is the number of samples, read before everything else."""
        if self.outer is not None:
            return self.outer._number_of_samples()
        if not self._samples:
            source, axis = next(
                (name, pair.shape.index(BatchMultiple(1)))
                for name, pair in self.sources.items()
                if BatchMultiple(1) in pair.shape
            )
            self._samples = self.add("Shape", source, start=axis, end=axis + 1)
            self.nodes.insert(0, self.nodes.pop())
        return self._samples

    def source(self, name: str, pair: Pair) -> None:
        """An input of the graph."""
        own = self.unique(name)
        self.names[pair] = (own,)
        self.sources[own] = pair

    def element_type(self, dtype: DType) -> int:
        """Return the number of a dtype in ONNX."""
        return NUMBERS[dtype]

    def declared(self, name: str, pair: Pair) -> Any:
        """Return an input or output of a graph."""
        names: dict[Size, str] = {BatchMultiple(1): "samples"}
        shape = [each if isinstance(each, int) else names.get(each) for each in pair.shape]
        return helper.make_tensor_value_info(name, NUMBERS[pair.spec.dtype], shape)

    def body(
        self, arguments: Sequence[Pair], constants: Sequence[str], count: int, roots: Sequence[Pair]
    ) -> Any:
        """Write an inner graph: its first `count` arguments are fed, the rest are names outside."""
        inside = Writer(self)
        names = [self.unique("step_input") for _ in range(count)]
        for pair, name in zip(arguments, [*names, *constants], strict=True):
            inside.names[pair] = (name,)
        # Outputs need distinct names, even if they are inputs or the same value twice.
        results = [inside.add("Identity", name) for name in inside.write(roots)]
        return helper.make_graph(
            inside.nodes,
            self.unique("body"),
            [self.declared(*each) for each in zip(names, arguments[:count], strict=True)],
            [self.declared(*each) for each in zip(results, roots, strict=True)],
        )

    # --- nodes of Caldera

    def write(self, roots: Sequence[Pair]) -> list[str]:
        """Write these nodes and all that they depend on; the names of their outputs."""
        order = in_order(roots)
        self._absorb(order, set(roots))
        for pair in order:
            if self.find(pair) is None and pair not in self.absorbed:
                self.names[pair] = self._written(pair)
        return [self.name(root) for root in roots]

    def _written(self, pair: Pair) -> tuple[str, ...]:
        rule = RULES.get(pair.name)
        different = [] if rule is None else sorted(set(pair.different()) - rule.by_samples)
        result = NotImplemented if rule is None or different else rule.function(self, pair)
        if result is NotImplemented and pair.node.op.decompose is not None:
            return tuple(self.write(pair.parts()))
        if different:
            first, second = (
                {name: each.attrs[name] for name in different} for each in (pair.node, pair.twin)
            )
            expected = "attributes that are the same for every number of samples"
            raise not_open(expected, first, second, pair.node)
        if result is NotImplemented:
            raise ConfigError.build(
                "onnx export", expected="ops that ONNX has a form for", got=describe(pair.node)
            )
        return result if isinstance(result, tuple) else (result,)

    def _absorb(self, order: Sequence[Pair], roots: set[Pair]) -> None:
        """Products and convolutions that only a bias is added to are written together with it."""
        users: Counter[Pair] = Counter(given for pair in order for given in pair.inputs)
        for pair in order:
            if pair.name != "add":
                continue
            for product, bias in (pair.inputs, pair.inputs[::-1]):
                is_free = users[product] == 1 and product not in roots
                if is_free and self.find(product) is None and _takes_bias(product, bias):
                    self.absorbed.add(product)
                    break


def _takes_bias(product: Pair, bias: Pair) -> bool:
    """Return True if this sum has a specific operator: Gemm, or Conv with a bias."""
    if product.name == "matmul":
        is_matrix = len(product.spec.shape) == 2 and len(bias.spec.shape) == 1
        return is_matrix and is_float(product.spec.dtype)
    if product.name != "conv2d":
        return False
    filters = product.spec.shape[1]
    is_column = bias.name == "reshape" and bias.spec.shape == (filters, 1, 1)
    return is_column and bias.inputs[0].spec.shape == (filters,)


def as_proto(name: str, array: np.ndarray) -> Any:
    """Convert an array to a TensorProto."""
    # Not `ascontiguousarray`, which adds an axis to a scalar.
    return numpy_helper.from_array(np.asarray(array, order="C"), name)
