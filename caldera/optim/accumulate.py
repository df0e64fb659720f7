"""Gradient accumulation: one step from the gradients of several micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.pins import pinned
from caldera.core.memory import Device
from caldera.core.tensor.dtype import DType


class Accumulation:
    """The weighted mean of the gradients of `count` micro-batches, collected in variables.

    The weight of a micro-batch is what its loss was divided by (its number of samples, say), so
    that micro-batches of different sizes give exactly the gradient of all their samples together.
    Sums are `apart` from their parameters if there is such a device.
    """

    def __init__(self, count: int, device: Device, apart: str | None = None) -> None:
        self.count = count
        self._apart = apart
        self.taken = op.var("micro-batches", (), dtype="int64", device=device)
        self.weight = op.var("weight of micro-batches", (), dtype="float64", device=device)
        self.sums: dict[Variable, Variable] = {}

    def variables(self) -> list[Variable]:
        """What a checkpoint keeps."""
        return [self.taken, self.weight, *self.sums.values()]

    def collected(
        self,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        weight: Expr | float,
        ok: Expr | None,
    ) -> tuple[list[Expr], Expr, list[Expr]]:
        """The mean gradients, whether it is time for a step, and the assignments that collect.

        A micro-batch that is not `ok` is left out, as if it had not been.
        """
        # A cast, so that a plain number becomes an expression as well.
        share = op.cast(weight, "float64")
        due = self.taken + 1 == self.count
        total = self.weight + share
        assignments = [
            self._keep(self.taken, self.taken + 1, due, ok),
            self._keep(self.weight, total, due, ok),
        ]
        means = []
        for variable, gradient in zip(variables, gradients, strict=True):
            kept = self.sum_of(variable, gradient.dtype)
            with nullcontext() if self._apart is None else pinned(self._apart):
                collected = kept + gradient * op.cast(share, gradient.dtype)
                assignments.append(self._keep(kept, collected, due, ok))
                means.append(collected / op.cast(total, gradient.dtype))
        return means, due if ok is None else op.logical_and(due, ok), assignments

    def sum_of(self, variable: Variable, dtype: DType) -> Variable:
        """Where the gradients of a parameter are collected, in this dtype."""
        if variable not in self.sums:
            self.sums[variable] = op.var(
                f"{variable.name}/gradient",
                variable.shape,
                dtype=dtype,
                device=self._apart or variable.tensor.device,
            )
        return self.sums[variable]

    def _keep(self, variable: Variable, new: Expr, due: Expr, ok: Expr | None) -> Expr:
        kept = op.where(due, 0, new)
        return op.assign(variable, kept if ok is None else op.where(ok, kept, variable))
