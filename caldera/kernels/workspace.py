"""Kernels within a workspace limit: sliced batches, and a workspace shared by layers.

The workspace of an algorithm often grows with the batch. A limit may then exclude the fastest
algorithm, unless it processes a part of the batch at a time. As in micro-cuDNN (Oyama et al., 2018)
the slices may differ in size and algorithm: `best_sizes` composes the batch of sizes with known
times, minimising the sum of their times. Results for images are written slice by slice; sums over
the batch are added up.

A limit shared by all layers is distributed by a multiple-choice knapsack. Every layer takes one of
its options, the workspaces add up to no more than the limit, and the total time is minimal. Dynamic
programming over the bytes spent solves it exactly, up to the unit in which bytes are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from caldera.base.config import settings
from caldera.core.graph import Node, Spec, detached, intern, parameter
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.common.binding import (
    at_most_workspace,
    restricted,
    workspace_bytes,
    workspace_limit,
)
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    in_sequence,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.table import Array, Call, Kernel, Runner

if TYPE_CHECKING:
    from caldera.kernels.tuning.choose import Choices
    from caldera.kernels.tuning.fixed import Fixed

ADDING_SPEED = 1e10
"""Bytes a second at which a term of a sum over the batch is read and added, roughly."""
UNITS = 1 << 14
"""Number of units of a shared limit. Options are rounded up to units, so the limit holds."""
MOST_OPTIONS = 12
"""Limits under which a node is tried."""
Slices = tuple[tuple[Kernel, int], ...]
"""Kernels with the number of batch entries that each processes, in order."""


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
"""Ops whose batch can be sliced."""


@dataclass(frozen=True)
class BatchedNode:
    """A node whose batch can be sliced; `BatchedNode.of` returns None for other nodes."""

    node: Node
    rule: Batched

    @classmethod
    def of(cls, node: Node) -> BatchedNode | None:
        """Return the batch of a node, if there is more than one entry in it."""
        rule = SLICED.get(node.op.name)
        if rule is None or (rule.is_sum and node.dtype not in (float32, float64)):
            return None
        batch = cls(detached(node), rule)
        return batch if batch.entries > 1 else None

    @property
    def entries(self) -> int:
        """Number of entries of the batch."""
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
        """Approximate seconds for adding a term."""
        return 3 * self.node.spec.nbytes / ADDING_SPEED if self.rule.is_sum else 0.0

    def part(self, entries: int) -> Node:
        """Return the node for `entries` entries of the batch."""
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
    """Return the slice sizes, largest first, that process the batch in the least time.

    `seconds` has the time of each size, and `between` the time between two slices. The list is
    empty if the sizes cannot add up to the batch.

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
    """Return a kernel that runs the batch in these slices, which were chosen for this limit."""
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
    """A batch, and the kernel and size of each of its slices, in order."""

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
        """Bind all slices to run in order, in the same workspace."""
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
"""Functions by family that bind a kernel for adding a term to a total."""


@native_kernel
def _add(k: Emitter, total: Pointer, term: Pointer, count: Integer) -> None:
    for i, some in k.vectors(*k.part_range(count), natural_lanes(total.type), 1):
        total.store(i, total.load(i, some) + term.load(i, some))


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


@lru_cache(maxsize=4096)
def keeping_to(kernel: Kernel, limit: int) -> Kernel:
    """Return the same kernel with this workspace limit in bytes, independent of the settings."""
    return restricted(kernel, partial(at_most_workspace, limit), limit=limit)


# --- one workspace for all layers


@dataclass(frozen=True)
class WorkspaceOption:
    """Option for running a layer: its bytes of workspace, and its time."""

    workspace: int
    seconds: float


def best_options(layers: Sequence[Sequence[WorkspaceOption]], limit: int) -> list[int]:
    """Return for each layer the index of its option.

    >>> small, large = WorkspaceOption(1, 3.0), WorkspaceOption(5, 1.0)
    >>> best_options([[small, large], [small, WorkspaceOption(5, 2.0)]], limit=6)
    [1, 0]
    """
    smallest = [min(range(len(row)), key=lambda i: (row[i].workspace, i)) for row in layers]
    unit = -(-limit // UNITS) or 1
    room = limit // unit
    least = np.zeros(room + 1)
    taken = np.zeros((len(layers), room + 1), np.int16)
    for index, row in enumerate(layers):
        best = np.full(room + 1, np.inf)
        for choice, option in enumerate(row):
            units = -(-option.workspace // unit)
            if units <= room:
                with_it = least[: room + 1 - units] + option.seconds
                better = with_it < best[units:]
                best[units:][better] = with_it[better]
                taken[index, units:][better] = choice
        least = best
    if not np.isfinite(least[room]):
        return smallest
    found = []
    for index in reversed(range(len(layers))):
        choice = int(taken[index, room])
        found.append(choice)
        room -= -(-layers[index][choice].workspace // unit)
    return found[::-1]


def shared_limits(
    choices: Choices,
    nodes: Sequence[Node],
    family: str,
    total: int,
    *,
    measure: bool = True,
    fixed: Fixed | None = None,
) -> dict[Node, int]:
    """Return the workspace limit of each of these nodes whose batch can be sliced.

    Together they use at most `total` bytes, and their total time is minimal.
    """
    layers = [node for node in nodes if node.op.name in SLICED]
    known: dict[Node, list[tuple[int, Kernel, float | None]]] = {}
    for node in layers:
        if detached(node) not in known:
            known[detached(node)] = _under_limits(choices, node, family, total, measure, fixed)
    is_timed = all(time is not None for row in known.values() for _, _, time in row)
    rows = [
        [
            WorkspaceOption(
                kernel.workspace(node), time if is_timed and time else kernel.estimate(node)
            )
            for _, kernel, time in known[detached(node)]
        ]
        for node in layers
    ]
    chosen = best_options(rows, total)
    return {
        node: known[detached(node)][position][0]
        for node, position in zip(layers, chosen, strict=True)
    }


def _under_limits(
    choices: Choices, node: Node, family: str, total: int, measure: bool, fixed: Fixed | None
) -> list[tuple[int, Kernel, float | None]]:
    """Return the kernels chosen for a node under decreasing limits, with their times if known."""
    found: list[tuple[int, Kernel, float | None]] = []
    limit = min(total, settings.workspace_limit)
    while len(found) < MOST_OPTIONS:
        choice = choices.choose(node, family, measure=measure, limit=limit, fixed=fixed)
        kernel, times = choice.kernel, choice.times
        if times is None:
            times = choices.seconds_within(node, kernel, limit, measure=measure)
        found.append((limit, kernel, None if times is None else times.get(kernel.name)))
        needed = kernel.workspace(node)
        if not needed or needed > limit:
            break
        limit = needed * 3 // 4
    return found
