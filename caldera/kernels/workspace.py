"""Kernels within a limit on their workspace: batches in slices, and one workspace shared by layers.

What an algorithm needs beside its inputs often grows with the batch. With a limit on the workspace,
the fastest one may then be out of reach, unless it is given a part of the batch at a time. As in
micro-cuDNN (Oyama et al., 2018) the slices may differ in size and algorithm: `best_sizes` composes
the batch of the sizes whose time is known, so that the sum of their times is least. Results for
images are written slice by slice; sums over the batch are added up.

One limit for all layers is shared out by a multiple-choice knapsack: every layer takes one of its
options, the workspaces add up to no more than the limit, and the times to as little as they can.
Dynamic programming over the bytes spent answers it exactly, up to the unit in which bytes are
counted.
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
    from caldera.kernels.tuning.choose import Choices, Fixed

ADDING_SPEED = 1e10
"""Bytes a second at which a term of a sum over the batch is read and added, roughly."""
UNITS = 1 << 14
"""Into how many units a shared limit is cut. Options are rounded up to them, so it is kept."""
MOST_OPTIONS = 12
"""Limits under which a node is tried."""
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
    """The same kernel with this many bytes of workspace, whatever the settings say."""
    return restricted(kernel, partial(at_most_workspace, limit), limit=limit)


# --- one workspace for all layers


@dataclass(frozen=True)
class WorkspaceOption:
    """One way to run a layer: its bytes of workspace, and what it takes."""

    workspace: int
    seconds: float


def best_options(layers: Sequence[Sequence[WorkspaceOption]], limit: int) -> list[int]:
    """For each layer the position of the option it gets.

    Where not even the smallest options fit together, each gets its smallest.

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
    """The bytes of workspace that each of these nodes whose batch can be cut may use, so that all
    of them use no more than `total` and take as little time as they can."""
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
    """What serves a node under ever smaller limits, and how long it takes, if that is known."""
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
