"""Common parts of all attention kernels: operands, heads that share them, and their source text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.cuda.codegen import (
    KernelLaunch,
    Parameter,
    StridedLayout,
    Strides,
    computed_type,
    const_pointer,
    flags,
    header_launch,
    i32,
    index,
    index_type,
    indices,
    is_large,
    pointer,
    real,
    strided_layout,
    strides_of,
    type_of,
)
from caldera.kernels.table import Array, Call


@dataclass(frozen=True)
class AttentionOperand:
    """Array with its name in the source text; the last `axes` of its axes belong to a head.

    A single axis counts queries, or keys if `is_mask` is True.
    """

    name: str
    array: Array
    axes: int = 2
    is_written: bool = False
    is_mask: bool = False

    @property
    def batch(self) -> Shape:
        return tuple(self.array.shape[: self.array.ndim - self.axes])

    @property
    def steps(self) -> tuple[int, int]:
        """Along queries or keys, and along what these consist of."""
        own = (0, 0, *strides_of(self.array)[self.array.ndim - self.axes :])
        return (own[-1], 0) if self.axes == 1 and not self.is_mask else (own[-2], own[-1])

    def batch_strides(self, rank: int) -> Strides:
        own = strides_of(self.array)[: self.array.ndim - self.axes]
        return (0,) * (rank - len(own)) + own

    @property
    def parameter(self) -> Parameter:
        return pointer(self.array) if self.is_written else const_pointer(self.array)


def mask_operands(masks: Sequence[Array]) -> list[AttentionOperand]:
    return [
        AttentionOperand(f"mask{i}", mask, min(mask.ndim, 2), is_mask=True)
        for i, mask in enumerate(masks)
    ]


@dataclass(frozen=True)
class AttentionWork:
    """Operands (masks last), and the one whose heads blocks have for their own."""

    node: Node
    operands: Sequence[AttentionOperand]
    target: int
    sizes: tuple[int, int, int, int]

    @cached_property
    def batch(self) -> Shape:
        return tuple(np.broadcast_shapes(*(each.batch for each in self.operands)))

    def _strided_layout(self, *, own: bool) -> StridedLayout:
        """Return the layout over heads of the target, or over the heads that share one of its
        heads.
        """
        rank = len(self.batch)
        target = self.operands[self.target].batch
        aligned = (1,) * (rank - len(target)) + target
        axes = [a for a in range(rank) if (aligned[a] == self.batch[a]) == own]
        return strided_layout(
            self.batch, axes, [each.batch_strides(rank) for each in self.operands]
        )

    @cached_property
    def heads(self) -> StridedLayout:
        return self._strided_layout(own=True)

    @cached_property
    def sharing(self) -> StridedLayout:
        return self._strided_layout(own=False)

    # --- types

    @property
    def large(self) -> bool:
        return is_large(*(each.array for each in self.operands))

    @property
    def integer(self) -> str:
        return index_type(self.large)

    @property
    def computed(self) -> str:
        return computed_type(self.operands[1].array.dtype.name)

    # --- text

    def place(self, name: str) -> int:
        """Return the index of the operand with this name."""
        return next(i for i, each in enumerate(self.operands) if each.name == name)

    def matrix(self, name: str, head: str = "at") -> str:
        """Return the matrix of an operand for a head."""
        return f"matrix({name}, {head}, steps, {self.place(name)})"

    def vector(self, name: str) -> str:
        """Return the start, for the current head, of an operand with one number per query."""
        return f"{name} + at[{self.place(name)}]"

    def step(self, name: str) -> str:
        """Return the elements from one query of an operand to the next."""
        return f"steps.row[{self.place(name)}]"

    @property
    def matrices(self) -> str:
        """Declares the masks."""
        return "".join(
            f"auto {each.name}_here = {self.matrix(each.name)};\n    "
            for each in self.operands
            if each.is_mask and not each.is_written
        )

    @property
    def masked(self) -> str:
        """Source of a function that applies the masks to a score."""
        lines = []
        for each in self.operands:
            if each.is_mask and not each.is_written:
                found = f"*{each.name}_here.at(query, key)"
                lines.append(
                    f"if (!{found}) score = -infinity_like(score);"
                    if each.array.dtype == np.bool_
                    else f"score += ({self.computed})wide({found});"
                )
        text = " ".join([*lines, "return score;"])
        return f"[&](int query, int key, {self.computed} score) {{ {text} }}"

    @property
    def begin(self) -> str:
        """Finds out which head, tile and part of the result a block has."""
        return (
            f"int tile = blockIdx.x % tiles, part = blockIdx.x / tiles % parts;\n"
            f"    {self.integer} own[{len(self.operands)}], at[{len(self.operands)}];\n"
            f"    heads.at(({self.integer})(blockIdx.x / tiles / parts), own);\n    "
        )

    @property
    def each_sharer(self) -> str:
        """Start of the loop over the heads whose contributions are summed."""
        return (
            f"for ({self.integer} other = 0; other < sharers; other++) {{\n"
            "    sharing.at(other, at);\n"
            f"    for (int a = 0; a < {len(self.operands)}; a++) at[a] += own[a];\n    "
        )

    # --- launch

    def launch(
        self, header: str, name: str, tiles: int, parts: int, body: str, threads: int, shared: int
    ) -> KernelLaunch:
        """Return a block for each tile and part of the result of each head."""
        steps = [pair[i] for i in (0, 1) for pair in (each.steps for each in self.operands)]
        return header_launch(
            header,
            name,
            size(self.heads.sizes) * tiles * parts,
            threads,
            {
                **{each.name: each.parameter for each in self.operands},
                "steps": indices(f"Steps<{len(self.operands)}, {self.integer}>", steps, self.large),
                "heads": self.heads.parameter(self.large),
                "sharing": self.sharing.parameter(self.large),
                "sharers": index(size(self.sharing.sizes), self.large),
                "in": indices("AttentionSizes", self.sizes, large=False),
                "scale": real(self.computed, self.node.attrs["scale"]),
                "tiles": i32(tiles),
                "parts": i32(parts),
            },
            body,
            shared=shared,
        )


def forward_work(call: Call) -> AttentionWork:
    """Return the work of the forward pass; its blocks have heads of the result."""
    q, key, v, *masks = call.inputs
    y, logarithm = call.outputs
    operands = [
        AttentionOperand("y", y, is_written=True),
        AttentionOperand("q", q),
        AttentionOperand("key", key),
        AttentionOperand("v", v),
        AttentionOperand("logarithm", logarithm, 1, is_written=True),
        *mask_operands(masks),
    ]
    sizes = (q.shape[-2], key.shape[-2], q.shape[-1], v.shape[-1])
    return AttentionWork(call.node, operands, 0, sizes)


class GradientWork:
    """Common state of the gradient's kernels."""

    def __init__(self, call: Call) -> None:
        self.call = call
        g, q, key, v, common, logarithm, *masks = call.inputs
        self.given = [
            AttentionOperand("g", g),
            AttentionOperand("q", q),
            AttentionOperand("key", key),
            AttentionOperand("v", v),
            AttentionOperand("common", common, 1),
            AttentionOperand("logarithm", logarithm, 1),
        ]
        self.masks = mask_operands(masks)
        self.queries, self.keys = q.shape[-2], key.shape[-2]
        self.depth, self.width = q.shape[-1], v.shape[-1]

    def work(self, *results: AttentionOperand) -> AttentionWork:
        """Return the work with these results, the first of which is the target."""
        operands = [*self.given, *results, *self.masks]
        sizes = (self.queries, self.keys, self.depth, self.width)
        return AttentionWork(self.call.node, operands, len(self.given), sizes)

    def key_results(self, dk: Array | None, dv: Array | None) -> list[AttentionOperand]:
        """Return the gradients of keys and of values, as far as they are computed."""
        return [
            AttentionOperand(name, array, is_written=True)
            for name, array in (("dk", dk), ("dv", dv))
            if array is not None
        ]

    def attended(self, work: AttentionWork) -> str:
        """Declares the operands and masks of a head."""
        stored, wide = type_of(self.call.inputs[1]), type_of(self.call.inputs[4])
        matrices = ", ".join(work.matrix(name) for name in ("g", "q", "key", "v"))
        vectors = ", ".join(work.vector(name) for name in ("common", "logarithm"))
        steps = ", ".join(work.step(name) for name in ("common", "logarithm"))
        return (
            f"{work.matrices}Attended<{stored}, {wide}, {work.integer}> of = {{\n"
            f"        {matrices},\n        {vectors}, {steps}}};\n    "
        )

    @property
    def causal(self) -> str:
        return flags(self.call.node.attrs["causal"])
