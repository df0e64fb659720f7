"""A batch in slices, because the workspace of a kernel for all of it would be too large.

What an algorithm needs beside its inputs often grows with the batch. With a limit on the workspace,
the fastest one may then be out of reach, unless it is given a part of the batch at a time. As in
micro-cuDNN (Oyama et al., 2018) the slices may differ in size and algorithm: `best_sizes` composes
the batch of the sizes whose time is known, so that the sum of their times is least. Results for
images are written slice by slice; sums over the batch are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from caldera.core.graph.node import Node, Spec, intern
from caldera.core.graph.opdef import detached, parameter
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.common.binding import at_most_workspace, workspace_bytes, workspace_limit
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner, in_sequence
from caldera.kernels.table import Array, Call, Kernel, Runner

ADDING_SPEED = 1e10
"""Bytes a second at which a term of a sum over the batch is read and added, roughly."""
Slices = tuple[tuple[Kernel, int], ...]
"""Which kernel takes how many entries of the batch, in their order."""


@dataclass(frozen=True)
class Batched:
    """Which inputs of an op have the batch as their first axis, and whether its result is a sum
    over the batch or has that axis as well."""

    inputs: tuple[int, ...]
    is_sum: bool = False


SLICED = {
    "conv2d": Batched((0,)),
    "conv2d_epilogue": Batched((0,)),
    "conv2d_input": Batched((0,)),
    "conv2d_weight": Batched((0, 1), is_sum=True),
}
"""Ops whose batch can be cut."""


@dataclass(frozen=True)
class BatchedNode:
    """A node whose batch can be cut; `BatchedNode.of` gives none where it cannot."""

    node: Node
    rule: Batched

    @classmethod
    def of(cls, node: Node) -> BatchedNode | None:
        """The batch of a node, if there is more than one entry in it."""
        rule = SLICED.get(node.op.name)
        if rule is None or (rule.is_sum and node.dtype not in (float32, float64)):
            return None
        batch = cls(detached(node), rule)
        return batch if batch.entries > 1 else None

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.node.inputs[self.rule.inputs[0]].shape[0]

    @property
    def sizes(self) -> list[int]:
        """Sizes of slices to be tried: powers of two, of which every other size is composed."""
        return [1 << power for power in range((self.entries - 1).bit_length())]

    @property
    def term_bytes(self) -> int:
        """Workspace that a slice's term takes, where the result is a sum."""
        return workspace_bytes(self.node.spec) if self.rule.is_sum else 0

    @property
    def adding_seconds(self) -> float:
        """What it takes to add a term, roughly."""
        return 3 * self.node.spec.nbytes / ADDING_SPEED if self.rule.is_sum else 0.0

    def part(self, entries: int) -> Node:
        """The node for so many entries of the batch."""
        inputs = tuple(
            parameter(index, _cut(given.outputs[0], entries))
            if index in self.rule.inputs
            else given
            for index, given in enumerate(self.node.inputs)
        )
        attrs = dict(self.node.attrs)
        if self.rule.is_sum:
            return intern(self.node.op, inputs, attrs, self.node.outputs)
        if "shape" in attrs:
            attrs["shape"] = (entries, *attrs["shape"][1:])
        outputs = tuple(_cut(spec, entries) for spec in self.node.outputs)
        return intern(self.node.op, inputs, attrs, outputs)


def best_sizes(entries: int, seconds: Mapping[int, float], between: float = 0.0) -> list[int]:
    """The sizes, the largest first, that make up the batch in the least time by what each of them
    takes and what comes `between` two slices; none where they cannot make it up.

    >>> best_sizes(7, {1: 3.0, 2: 3.5, 4: 6.0})
    [4, 2, 1]
    >>> best_sizes(7, {4: 6.0})
    []
    """
    least = [0.0] + [math.inf] * entries
    last = [0] * (entries + 1)
    for count in range(1, entries + 1):
        for size, time in seconds.items():
            if size <= count:
                total = least[count - size] + time + (between if size < count else 0.0)
                if total < least[count]:
                    least[count], last[count] = total, size
    found: list[int] = []
    while entries and last[entries]:
        found.append(last[entries])
        entries -= last[entries]
    return [] if entries else sorted(found, reverse=True)


@lru_cache(maxsize=4096)
def divided(batch: BatchedNode, slices: Slices, limit: int) -> Kernel:
    """A kernel that runs the batch in these slices, which were chosen for this limit."""
    division = Division(batch, slices, limit)
    return Kernel(
        batch.node.op.name,
        slices[0][0].family,
        division.name,
        division.bind,
        lambda node: node is batch.node,
        lambda node: division.workspace(),
        max(kernel.priority for kernel, _ in slices),
        estimate=lambda node: sum(kernel.estimate(batch.part(size)) for kernel, size in slices),
        capturable=all(kernel.capturable for kernel, _ in slices),
        shares=frozenset().union(*(kernel.shares for kernel, _ in slices)),
    )


@dataclass(frozen=True)
class Division:
    """A batch, and which kernel takes how much of it, one after the other."""

    batch: BatchedNode
    slices: Slices
    limit: int

    @property
    def name(self) -> str:
        """`2 x 16 by winograd 2x2, 4 by direct`."""
        words = []
        for (kernel, size), run in groupby(self.slices):
            count = len(list(run))
            words.append(f"{size if count == 1 else f'{count} x {size}'} by {kernel.name}")
        return ", ".join(words)

    def workspace(self) -> int:
        """Bytes that the hungriest slice needs, and a place for its term if the result is a sum."""
        with at_most_workspace(self._rest):
            needed = {kernel.workspace(self.batch.part(size)) for kernel, size in set(self.slices)}
        return max(needed) + self.batch.term_bytes

    @property
    def _rest(self) -> int:
        return max(0, self.limit - self.batch.term_bytes)

    def bind(self, call: Call) -> Runner:
        """One slice after the other, all in the same workspace."""
        with at_most_workspace(self._rest):
            return in_sequence(self._runners(call))

    def _runners(self, call: Call) -> list[Runner]:
        batch, rule = self.batch, self.batch.rule
        workspace = None if call.workspace is None else call.workspace[batch.term_bytes :]
        runners: list[Runner] = []
        begin = 0
        for kernel, size in self.slices:
            end = begin + size
            inputs = tuple(
                array[begin:end] if position in rule.inputs else array
                for position, array in enumerate(call.inputs)
            )
            outputs = call.outputs
            if not rule.is_sum:
                outputs = tuple(array[begin:end] for array in outputs)
            elif begin:
                spec = batch.node.spec
                term = call.workspace[: spec.nbytes].view(spec.dtype).reshape(spec.shape)
                outputs = (term,)
            runners.append(
                kernel.bind(
                    replace(
                        call,
                        node=batch.part(size),
                        inputs=inputs,
                        outputs=outputs,
                        workspace=workspace,
                    )
                )
            )
            if rule.is_sum and begin:
                runners.append(ADDING[kernel.family](call.outputs[0], outputs[0]))
            begin = end
        return runners


def _cut(spec: Spec, entries: int) -> Spec:
    return Spec((entries, *spec.shape[1:]), spec.dtype, spec.order)


def _adding(total: np.ndarray, term: np.ndarray) -> Runner:
    """total += term."""
    if not total.flags.c_contiguous:
        return lambda: np.add(total, term, total)
    return NativeRunner([_add.call(total=total, term=term, count=total.size)])


ADDING: dict[str, Callable[[Array, Array], Runner]] = {"cpu": _adding}
"""How the kernels of a family add a term to a total."""


@native_kernel
def _add(k: Emitter, total: Pointer, term: Pointer, count: Integer) -> None:
    begin, end = k.part_range(count)
    k.vector_loop(
        begin,
        end,
        natural_lanes(total.type),
        lambda i, c: total.store(i, total.load(i, c) + term.load(i, c)),
    )


def least_workspace(node: Node, kernels: Sequence[Kernel]) -> int:
    """Bytes without which none of these kernels runs, not even an entry of the batch at a time."""
    found = [kernel.workspace(node) for kernel in kernels]
    batch = BatchedNode.of(node)
    if min(found) > workspace_limit() and batch is not None:
        one = batch.part(1)
        found += [
            kernel.workspace(one) + batch.term_bytes for kernel in kernels if kernel.supports(one)
        ]
    return min(found)
