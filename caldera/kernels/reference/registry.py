"""The oracle: every op as a plain NumPy function, right before it is fast.

`@reference("exp")` registers `function(*arrays, **attrs) -> array or tuple of arrays`. Composite
ops need none: their decomposition is interpreted (`evaluation`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import caldera.core.graph.catalogue  # noqa: F401 - makes the ops known
from caldera.kernels.reference.evaluation import FUNCTIONS, Function, evaluator
from caldera.kernels.table import TABLE, Call, Kernel


def reference(name: str) -> Callable[[Function], Function]:
    """Register the NumPy function of an op, and with it a kernel that every CPU can run."""

    def register(function: Function) -> Function:
        FUNCTIONS[name] = function
        TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))
        return function

    return register


def by_decomposition(name: str) -> None:
    """Register a kernel that interprets a composite op's decomposition.

    It serves where the op has a kernel of its own that cannot run every node.
    """
    TABLE.add(Kernel(name, "cpu", "reference", _bind, priority=-10))


def _bind(call: Call) -> Callable[[], None]:
    """Compute with the oracle, then copy into the planned memory."""
    outputs_of = evaluator(call.node)

    def run() -> None:
        for output, value in zip(call.outputs, outputs_of(call.inputs), strict=True):
            np.copyto(output, value)

    return run
