"""Translation of a model to a graph of Caldera, call by call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.graph.opdef import scope as error_scope
from caldera.errors import ConfigError, DataError
from caldera.onnx.operators import OPERATORS
from caldera.onnx.operators.registry import CallContext, Value, apply, check_size
from caldera.onnx.reading import Call, Function, Graph, Program, Reference

MOST_CALLS = 1 << 20
"""Of operators: functions that call functions can be many more than a file has lines."""


@dataclass
class Budget:
    """Limits of a model's calls and memory, which grow with the size of its arrays and inputs."""

    held: int
    calls: int

    def spend(self, outputs: Sequence[Value]) -> None:
        """Refuse a call whose results are too large, or that is one too many."""
        self.calls -= 1
        require(self.calls >= 0, "onnx", f"at most {MOST_CALLS} calls", "more", error=DataError)
        for each in outputs:
            if isinstance(each, Expr):
                check_size(each.shape, each.dtype, held=self.held)


@dataclass
class Scope:
    """The values that calls can name: values of a graph, and of the enclosing graphs.

    `in_numpy` collects the operators that NumPy computed, over the whole model. `budget` is the
    remaining budget of the model.
    """

    program: Program
    versions: Mapping[str, int]
    values: dict[str, Value]
    budget: Budget
    outer: Scope | None = None
    in_numpy: set[str] = field(default_factory=set)
    given: Mapping[str, Any] = field(default_factory=dict)
    """The attributes of the function that this is the inside of."""
    calls: Sequence[Call] = ()
    """Calls performed in this scope."""

    def value(self, name: str) -> Value:
        """Return the value of a name; "" is an omitted input."""
        if not name:
            return None
        here: Scope | None = self
        while here is not None:
            if name in here.values:
                return here.values[name]
            here = here.outer
        raise DataError.build("onnx", expected="names that are defined before", got=repr(name))

    def run(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a graph that stands inside this one (the body of a loop, a branch)."""
        require(
            len(inputs) <= len(graph.inputs),
            f"onnx graph {graph.name!r}",
            f"at most {len(graph.inputs)} inputs",
            f"{len(inputs)}",
            error=DataError,
        )
        fed = {each.name: value for each, value in zip(graph.inputs, inputs, strict=False)}
        inside = replace(self, values={**graph.constants, **fed}, outer=self)
        return inside.perform(graph.calls, [each.name for each in graph.outputs])

    def perform(self, calls: Sequence[Call], results: Sequence[str] = ()) -> list[Value]:
        """Add the outputs of these calls; the values of some names then."""
        self.calls = calls
        for call in calls:
            attributes = _resolved(call.attributes, self.given)
            inputs = [self.value(name) for name in call.inputs]
            # A trailing omitted input may be an attribute, as in older versions.
            while inputs and inputs[-1] is None:
                inputs.pop()
            with error_scope(f"onnx {call}"):
                outputs = self._outputs(call, inputs, attributes)
            for name, value in zip(call.outputs, outputs, strict=False):
                if name:
                    self.values[name] = value
        return [self.value(name) for name in results]

    def computed_from(self, name: str, values: Mapping[str, Value]) -> Value:
        """Return the value of a name if some names are given other values."""
        wanted, needed = {name}, []
        for call in reversed(self.calls):
            if wanted & (set(call.outputs) - values.keys()):
                needed.append(call)
                wanted.update(call.inputs)
        return replace(self, values=dict(values), outer=self).perform(needed[::-1], [name])[0]

    def _outputs(
        self, call: Call, inputs: list[Value], attributes: dict[str, Any]
    ) -> Sequence[Value]:
        function = self.program.functions.get((call.domain, call.operator))
        if function is not None:
            return self._call_function(function, inputs, attributes)
        found = OPERATORS.get((call.domain, call.operator))
        if found is None:
            raise ConfigError.build(
                f"onnx {call}",
                expected="an operator that Caldera translates",
                got=f"{call.domain or 'ai.onnx'} {call.operator}",
            )
        now = CallContext(self.versions.get(call.domain, 1), len(call.outputs), self)
        outputs, in_numpy = apply(found, inputs, attributes, now)
        self.budget.spend(outputs)
        if in_numpy:
            self.in_numpy.add(call.operator)
        require(
            not any(call.outputs[len(outputs) :]),
            f"onnx {call}",
            f"at most {len(outputs)} outputs",
            f"{len(call.outputs)}",
            error=DataError,
        )
        return outputs

    def _call_function(
        self, function: Function, inputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        values = dict(zip_longest(function.inputs, inputs[: len(function.inputs)]))
        given = {**function.defaults, **attributes}
        inside = replace(self, versions=function.versions, values=values, outer=None, given=given)
        return inside.perform(function.calls, function.outputs)


def _resolved(attributes: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with references replaced by attributes of the enclosing function."""
    return {
        name: given[value.name] if isinstance(value, Reference) else value
        for name, value in attributes.items()
        if not isinstance(value, Reference) or value.name in given
    }


def _bytes_of(value: Value) -> int:
    if isinstance(value, list):
        return sum(_bytes_of(each) for each in value)
    return 0 if value is None else math.prod(value.shape) * value.dtype.itemsize


@dataclass(frozen=True)
class Translation:
    """The outputs of a model, and the operators among it that NumPy computed."""

    outputs: list[Value]
    in_numpy: frozenset[str]


def translate(program: Program, values: Mapping[str, Value]) -> Translation:
    """Return the outputs of a model; `values` are its inputs, and replacements for its arrays."""
    graph = program.graph
    known = {**graph.constants, **values}
    budget = Budget(sum(_bytes_of(each) for each in known.values()), MOST_CALLS)
    scope = Scope(program, program.versions, known, budget)
    missing = [each.name for each in graph.inputs if each.name not in scope.values]
    require(
        not missing,
        f"onnx graph {graph.name!r}",
        "a value for each input",
        "none for " + ", ".join(missing),
        error=DataError,
    )
    outputs = scope.perform(graph.calls, [each.name for each in graph.outputs])
    return Translation(outputs, frozenset(scope.in_numpy))
