"""Execution of ONNX models: sessions, and Caldera as an `onnx.backend.base.Backend`.

A model runs as one plan for each set of shapes, or call by call where that is not possible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Symbol
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.errors import CalderaError, DataError
from caldera.onnx.library import backend_base, helper, is_ours, onnx
from caldera.onnx.operators import OPERATORS
from caldera.onnx.operators.registry import NeedsValue, Value, all_known, mapped
from caldera.onnx.reading import Program
from caldera.onnx.reading.parser import parse, plain_domain
from caldera.onnx.translate import translate

_SMALL = 64
"""Number of elements up to which an input's values may be fixed in a plan."""
_REMEMBERED = 64
"""Maximum number of cached plans."""


@dataclass(frozen=True)
class Compiled:
    """A plan, and the model's outputs, in which numbers are indices of the plan's outputs."""

    plan: Plan
    outputs: list[Value]
    in_numpy: frozenset[str]

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the outputs for these inputs."""
        needed = {name: feeds[name] for name in self.plan.inputs}
        found = [tensor.numpy().copy() for tensor in self.plan.run(needed)]
        filled = partial(mapped, lambda value: found[value] if isinstance(value, int) else value)
        return [filled(each) for each in self.outputs]


def _is_small(symbol: Symbol, feeds: Mapping[str, np.ndarray]) -> bool:
    return symbol.role == "input" and feeds[symbol.name].size <= _SMALL


class InferenceSession:
    """A model that can be run.

    Shapes are fixed in a plan, so each set of shapes gets a separate plan. A small input whose
    values determine shapes (axes, sizes) counts as a shape. If shapes depend on larger inputs, or
    an input has a dtype unknown to Caldera, the calls are computed in order with Caldera's
    reference functions. The same happens with `compiled=False`. `in_numpy` names the operators that
    NumPy computed in the last run, and `was_compiled` is true if a plan was used.
    """

    def __init__(
        self, program: Program, *, compiled: bool = True, device: Device | str | None = None
    ) -> None:
        self.program = program
        self.compiled = compiled
        self.device = device
        self.in_numpy: frozenset[str] = frozenset()
        self.was_compiled = False
        self._by_value: set[str] = set()
        self._plans: OrderedDict[Hashable, Compiled | None] = OrderedDict()
        constants = program.graph.constants
        self.names = [each.name for each in program.graph.inputs if each.name not in constants]

    def run(self, feeds: Mapping[str, Any]) -> list[Value]:
        """Return the outputs for these inputs."""
        compiled = self._compiled_for(feeds) if self.compiled else None
        self.was_compiled = compiled is not None
        if compiled is not None:
            self.in_numpy = compiled.in_numpy
            return compiled.run(feeds)
        translation = translate(self.program, feeds)
        self.in_numpy = translation.in_numpy
        return [all_known(each) for each in translation.outputs]

    def _compiled_for(self, feeds: Mapping[str, Any]) -> Compiled | None:
        if not all(isinstance(each, np.ndarray) and is_ours(each.dtype) for each in feeds.values()):
            return None
        while True:
            key = tuple(
                (name, each.shape, each.dtype, each.tobytes() if name in self._by_value else b"")
                for name, each in feeds.items()
            )
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
            try:
                self._plans[key] = self._compile(feeds)
            except NeedsValue as needed:
                if all(_is_small(each, feeds) for each in needed.symbols):
                    self._by_value |= {each.name for each in needed.symbols}
                    continue
                self._plans[key] = None
            while len(self._plans) > _REMEMBERED:
                self._plans.popitem(last=False)

    def _compile(self, feeds: Mapping[str, np.ndarray]) -> Compiled | None:
        """Compile a plan for inputs like these; return None if no computation is left."""
        inputs = {
            name: each if name in self._by_value else op.input(name, each.shape, dtype=each.dtype)
            for name, each in feeds.items()
        }
        translation = translate(self.program, inputs)
        expressions: list[Expr] = []

        def numbered(value: Value) -> Value:
            if not isinstance(value, Expr):
                return value
            expressions.append(value)
            return len(expressions) - 1

        outputs = [mapped(numbered, each) for each in translation.outputs]
        if not expressions:
            return None
        plan = compile(expressions, device=self.device, remember=False)
        return Compiled(plan, outputs, translation.in_numpy)


class Prepared(backend_base.BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Return the outputs for these inputs: one array, several in order, or by name."""
        return tuple(self.session.run(self._feeds(inputs)))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        names = self.session.names
        if isinstance(inputs, Mapping):
            return {name: _as_value(each) for name, each in inputs.items()}
        given = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        require(
            len(given) <= len(self.session.program.graph.inputs),
            "onnx backend",
            f"inputs {', '.join(names)}",
            f"{len(given)} values",
            error=DataError,
        )
        if len(given) > len(names):
            names = [each.name for each in self.session.program.graph.inputs]
        return {name: _as_value(each) for name, each in zip(names, given, strict=False)}


def _as_value(given: Any) -> Any:
    if given is None or isinstance(given, np.ndarray):
        return given
    return (
        [_as_value(each) for each in given]
        if isinstance(given, list | tuple)
        else np.asarray(given)
    )


class Backend(backend_base.Backend):
    """Runs models of ONNX with Caldera, through the interface that ONNX's own tests use.

    >>> import numpy as np
    >>> from onnx import TensorProto, helper
    >>> from caldera.onnx import Backend
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "small", [x], [y])
    >>> prepared = Backend.prepare(helper.make_model(graph))
    >>> prepared.run([np.zeros(2, np.float32)])[0].tolist()
    [1.0, 1.0]
    """

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **options: Any) -> bool:
        """Return True if Caldera translates every operator of the model's graph."""
        own = {(each.domain, each.name) for each in model.functions}
        return all(
            (plain_domain(node.domain), node.op_type) in OPERATORS
            or (node.domain, node.op_type) in own
            for node in model.graph.node
        )

    @classmethod
    def prepare(
        cls, model: Any, device: str = "CPU", compiled: bool = True, **options: Any
    ) -> Prepared:
        """Return a model that can be run many times; `compiled=False` computes call by call."""
        return Prepared(InferenceSession(parse(model), compiled=compiled, device=_device(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **options: Any) -> Any:
        """Return the outputs of a model, once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> Any:
        """Return the outputs of a single node."""
        unknown = onnx.TypeProto()
        names = [name for name in node.input if name]
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_value_info(name, unknown) for name in dict.fromkeys(names)],
            [helper.make_value_info(name, unknown) for name in node.output if name],
        )
        return cls.prepare(helper.make_model(graph), device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if the device is available: "CPU", or "CUDA" with a GPU."""
        try:
            _device(device)
        except CalderaError:
            return False
        return True


def _device(name: str) -> Device:
    """Return the device with this name in ONNX ("CPU", "CUDA:1"); raise if it is not available."""
    return find_device(name.lower())
