"""Kernels that are slow, wrong or fail, and a table that counts how often each was bound."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import float32
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel, KernelTable, Runner
from caldera.kernels.tuning.choose import Choices


def product_node(rows: int = 64) -> Node:
    """A node that is large enough to be measured."""
    node: Node = matmul(
        parameter(0, Spec((rows, 64), float32)),
        parameter(1, Spec((64, 64), float32)),
        ta=False,
        tb=False,
    )
    return node


def compute(call: Call) -> None:
    for output, value in zip(call.outputs, evaluate(call.node, call.inputs), strict=True):
        np.copyto(output, value)


class FakeKernels:
    """Makes kernels for the tests, and counts how often each was bound."""

    def __init__(self) -> None:
        self.bound: dict[str, int] = {}
        self.table = KernelTable()

    def add(
        self,
        name: str,
        work: Callable[[Call], object] = compute,
        priority: int = 0,
        workspace: int = 0,
    ) -> Kernel:
        def bind(call: Call) -> Runner:
            self.bound[name] = self.bound.get(name, 0) + 1
            return lambda: work(call)

        kernel = Kernel(
            "matmul", "cpu", name, bind, workspace=lambda node: workspace, priority=priority
        )
        self.table.add(kernel)
        return kernel

    def measured(self) -> bool:
        return bool(self.bound)


def slowly(call: Call) -> None:
    time.sleep(0.003)
    compute(call)


def wrongly(call: Call) -> None:
    compute(call)
    call.outputs[0][0, 0] += 1.0


def fail(call: Call) -> None:
    raise RuntimeError("no such instruction")


def nothing(call: Call) -> None:
    """A kernel that forgets to write its result."""


def race(kernels: FakeKernels) -> Choices:
    """A slow kernel of high priority against a fast one."""
    kernels.add("slow", slowly, priority=5)
    kernels.add("fast")
    return Choices(kernels.table)
