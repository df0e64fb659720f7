"""Caldera as a backend of ONNX: `onnx.backend.base.Backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.errors import CalderaError, DataError
from caldera.onnx.library import backend_base, helper, onnx
from caldera.onnx.operators import OPERATORS
from caldera.onnx.reading.parse import parse, plain_domain
from caldera.onnx.session import Session


class Prepared(backend_base.BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """The outputs for these inputs: one array, several in order, or by name."""
        return tuple(self.session.run(self._feeds(inputs)))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        names = self.session.names
        if isinstance(inputs, Mapping):
            return {name: _as_value(each) for name, each in inputs.items()}
        given = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        if len(given) > len(self.session.program.graph.inputs):
            raise DataError.build(
                "onnx backend", expected=f"inputs {', '.join(names)}", got=f"{len(given)} values"
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
        """Whether every operator of the model's graph is one that Caldera translates."""
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
        """A model that can be run many times; `compiled=False` computes call by call."""
        program = parse(model)
        return Prepared(Session(program, compiled=compiled, device=_device(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **options: Any) -> Any:
        """The outputs of a model, once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> Any:
        """The outputs of a single node."""
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
        """Whether the device is there: "CPU", or "CUDA" with a card."""
        try:
            _device(device)
        except CalderaError:
            return False
        return True


def _device(name: str) -> Device:
    """The device that a name of ONNX ("CPU", "CUDA:1") stands for; an error if it is not there."""
    return find_device(name.lower())
