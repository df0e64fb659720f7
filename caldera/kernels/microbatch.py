"""Kernels that take a batch in slices, because the workspace for all of it would be too large.

What an algorithm needs beside its inputs often grows with the batch. With a limit on the workspace,
the fastest one may then be out of reach, unless it is given a part of the batch at a time. Results
for images are written slice by slice; sums over the batch are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from caldera.graph.node import Node, Spec, intern
from caldera.graph.opdef import detached, parameter
from caldera.kernels.common.scratch import workspace_bytes
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner, in_sequence
from caldera.kernels.table import Array, Call, Kernel, Runner
from caldera.tensor.dtype import float32, float64

_WORD = " in {} slices"


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


def fitting(kernels: Sequence[Kernel], node: Node, limit: int) -> list[Kernel]:
    """The kernels that run this node within the limit, those in slices included, in their order."""
    found = (
        kernel
        if kernel.workspace(node) <= limit
        else in_microbatches(kernel, detached(node), limit)
        for kernel in kernels
    )
    return [kernel for kernel in found if kernel is not None]


def is_microbatching(kernel: Kernel, name: str) -> bool:
    """Whether this is the kernel of that name, in slices."""
    return kernel.name.startswith(name + _WORD.split("{}", maxsplit=1)[0])


@lru_cache(maxsize=4096)
def in_microbatches(kernel: Kernel, node: Node, limit: int) -> Kernel | None:
    """The kernel in as few slices as fit into the limit; None where there is no such number."""
    rule = SLICED.get(node.op.name)
    if rule is None or (rule.is_sum and node.dtype not in (float32, float64)):
        return None
    batch = node.inputs[rule.inputs[0]].shape[0]
    for count in _counts(batch):
        size = -(-batch // count)
        slices = Slices(kernel, node, rule, size)
        if slices.is_able() and slices.workspace() <= limit:
            return slices.kernel()
    return None


def _counts(batch: int) -> Iterator[int]:
    """2, 3, 4, 6, 8, 12, ... slices, up to one for each entry of the batch."""
    count = 2
    while count < batch:
        yield count
        if 3 * count // 2 < batch and count > 1 and not count & (count - 1):
            yield 3 * count // 2
        count *= 2
    if batch > 1:
        yield batch


@dataclass(frozen=True)
class Slices:
    """A kernel, and the node whose batch it is given `size` entries of at a time."""

    of: Kernel
    node: Node
    rule: Batched
    size: int

    @property
    def batch(self) -> int:
        """Entries of the whole batch."""
        return self.node.inputs[self.rule.inputs[0]].shape[0]

    def bounds(self) -> list[tuple[int, int]]:
        """First entry and end of each slice."""
        return [(at, min(at + self.size, self.batch)) for at in range(0, self.batch, self.size)]

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

    def parts(self) -> list[Node]:
        """The nodes of all slices; only the last may differ."""
        first = self.part(self.size)
        begin, end = self.bounds()[-1]
        last = first if end - begin == self.size else self.part(end - begin)
        return [first] * (len(self.bounds()) - 1) + [last]

    def is_able(self) -> bool:
        """Whether the kernel takes such slices."""
        return all(self.of.supports(part) for part in set(self.parts()))

    def workspace(self) -> int:
        """Bytes that the largest slice needs, and a place for its term if the result is a sum."""
        return max(self.of.workspace(part) for part in self.parts()) + self._term_bytes()

    def _term_bytes(self) -> int:
        return workspace_bytes(self.node.spec) if self.rule.is_sum else 0

    def kernel(self) -> Kernel:
        """The same as a kernel for this node."""
        return replace(
            self.of, name=self.of.name + _WORD.format(len(self.bounds())), bind=self.bind,
            supports=lambda node: node is self.node, workspace=lambda node: self.workspace(),
        )  # fmt: skip

    def bind(self, call: Call) -> Runner:
        """One slice after the other, all in the same workspace."""
        assert call.workspace is not None or self.workspace() == 0
        kept = self._term_bytes()
        workspace = None if call.workspace is None else call.workspace[kept:]
        runners: list[Runner] = []
        for index, ((begin, end), part) in enumerate(zip(self.bounds(), self.parts(), strict=True)):
            inputs = tuple(
                array[begin:end] if position in self.rule.inputs else array
                for position, array in enumerate(call.inputs)
            )
            outputs = call.outputs
            if not self.rule.is_sum:
                outputs = tuple(array[begin:end] for array in outputs)
            elif index:
                spec = self.node.spec
                term = call.workspace[: spec.nbytes].view(spec.dtype).reshape(spec.shape)
                outputs = (term,)
            runners.append(self.of.bind(replace(call, node=part, inputs=inputs, outputs=outputs,
                                                workspace=workspace)))  # fmt: skip
            if self.rule.is_sum and index:
                runners.append(ADDING[self.of.family](call.outputs[0], outputs[0]))
        return in_sequence(runners)


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
        begin, end, natural_lanes(total.type),
        lambda i, c: total.store(i, total.load(i, c) + term.load(i, c)),
    )  # fmt: skip
