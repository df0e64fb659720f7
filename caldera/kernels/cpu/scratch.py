"""Cutting a kernel's workspace into arrays, and computing halves in float32 there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from caldera.graph.node import Node, Spec
from caldera.graph.order import laid_out, stored_shape
from caldera.kernels.table import Array, Call, Runner
from caldera.tensor.dtype import HALVES, DType, float32
from caldera.tensor.shape import Shape

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of any CPU in use."""

Bind = Callable[[Call], Runner]
Bytes = Callable[[Node], int]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def room_for(*specs: Spec) -> int:
    """The workspace that arrays like these take."""
    return sum(_aligned(spec.nbytes) for spec in specs)


class Scratch:
    """Hands out arrays from a workspace, one after the other."""

    def __init__(self, workspace: Array) -> None:
        # A plan gives no workspace to a kernel that asks for 0 bytes of it.
        self.rest: Array = np.empty(0, np.uint8) if workspace is None else workspace

    def array(self, shape: Shape, dtype: DType) -> Array:
        """The next array; what it holds is not defined."""
        nbytes = Spec(shape, dtype).nbytes
        part = self.rest[:nbytes].view(dtype).reshape(shape)
        self.rest = self.rest[_aligned(nbytes) :]
        return part


def computed_in(dtype: DType) -> DType:
    """The dtype that arithmetic on values of this dtype uses."""
    return float32 if dtype in HALVES else dtype


def _wide(node: Node) -> list[Spec]:
    """What stands in for each half-precision input and output."""
    specs = [given.spec for given in node.inputs] + list(node.outputs)
    return [Spec(spec.shape, float32) for spec in specs if spec.dtype in HALVES]


def through_float32(bind: Bind, workspace: Bytes) -> tuple[Bind, Bytes]:
    """A kernel for float32 and float64, made to take halves: widen, compute, round once.

    `bind` must go by the dtypes of the call's arrays, not by those of its node.
    """

    def bind_any(call: Call) -> Runner:
        if not _wide(call.node):
            return bind(call)
        scratch = Scratch(call.workspace)

        def stand_in(array: Array, spec: Spec) -> Array:
            if array.dtype not in HALVES:
                return array
            memory = scratch.array(stored_shape(spec.shape, spec.order), float32)
            return laid_out(memory, spec.shape, spec.order)

        given_specs = [given.spec for given in call.node.inputs]
        inputs = tuple(map(stand_in, call.inputs, given_specs))
        outputs = tuple(map(stand_in, call.outputs, call.node.outputs))
        compute = bind(replace(call, inputs=inputs, outputs=outputs, workspace=scratch.rest))
        widened = list(zip(inputs, call.inputs, strict=True))
        rounded = list(zip(call.outputs, outputs, strict=True))

        def run() -> None:
            for wide, given in widened:
                if wide is not given:
                    np.copyto(wide, given)
            compute()
            for wanted, wide in rounded:
                if wide is not wanted:
                    np.copyto(wanted, wide, casting="unsafe")

        return run

    return bind_any, lambda node: workspace(node) + room_for(*_wide(node))
