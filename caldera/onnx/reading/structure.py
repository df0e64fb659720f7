"""What a model says, as plain values: graphs, the calls in them, functions of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.tensor.dtype import DType


@dataclass(frozen=True)
class Reference:
    """An attribute whose value is an attribute of the function that it stands in."""

    name: str


@dataclass(frozen=True)
class Declared:
    """An input or output: its name and, for a tensor, what the model says of it.

    A size that is not fixed is the name it has there, or None; `shape` is None where nothing is
    said. `kind` is "tensor", "sequence", "optional" or "other".
    """

    name: str
    kind: str = "tensor"
    dtype: DType | None = None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, eq=False)
class NodeCall:
    """One use of an operator: the names it reads and writes ("" is left out), its attributes."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}" if self.name else self.operator


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """Calls in an order in which they can run, and the arrays that the model brings along."""

    name: str
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    constants: Mapping[str, np.ndarray]
    calls: tuple[NodeCall, ...]


@dataclass(frozen=True, eq=False)
class ModelFunction:
    """An operator that the model itself defines."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    calls: tuple[NodeCall, ...]
    versions: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A whole model: its graph, the version of each set of operators, functions of its own."""

    graph: ModelGraph
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str], ModelFunction]
