"""Attention and its gradient: see include/attention/.

Heads may share queries, keys, values or masks, in whatever way these broadcast: a gradient is then
the sum over those that share, which one block takes one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.common.scratch import compute_dtype
from caldera.kernels.cuda.codegen.dtypes import computed_type
from caldera.kernels.cuda.codegen.signature import (
    Parameter,
    Signature,
    const_pointer,
    i32,
    pointer,
    real,
    type_of,
)
from caldera.kernels.cuda.codegen.source import flags, header_launch
from caldera.kernels.cuda.codegen.strided import (
    StridedLayout,
    Strides,
    index,
    index_type,
    indices,
    is_large,
    strided_layout,
    strides_of,
)
from caldera.kernels.cuda.runtime.launch import CudaRunner, Launch
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.shape import Shape, size

_SIDE = 16
_THREADS = _SIDE * _SIDE
_VECTOR = 16
"""Bytes of a tile's row that a thread has."""


@dataclass(frozen=True)
class _Operand:
    """An array with its name in the text; the last `axes` of its axes are those of a head.

    A single one counts queries, or keys if this `is_mask`.
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


def _mask_operands(masks: Sequence[Array]) -> list[_Operand]:
    return [
        _Operand(f"mask{i}", mask, min(mask.ndim, 2), is_mask=True) for i, mask in enumerate(masks)
    ]


@dataclass(frozen=True)
class _Work:
    """Operands (masks last), and the one whose heads blocks have for their own."""

    node: Node
    operands: Sequence[_Operand]
    target: int
    sizes: tuple[int, int, int, int]

    @cached_property
    def batch(self) -> Shape:
        return tuple(np.broadcast_shapes(*(each.batch for each in self.operands)))

    def _strided_layout(self, *, own: bool) -> StridedLayout:
        """Over heads of the target, or over those that share one of them."""
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

    @property
    def item(self) -> int:
        return compute_dtype(self.operands[1].array.dtype).itemsize

    @property
    def tile(self) -> int:
        """Queries or keys of a tile."""
        return _SIDE * _VECTOR // self.item

    def columns(self, width: int) -> int:
        """Columns of a result that a thread has, at most 8."""
        return 4 if width <= 4 * _SIDE else 8

    # --- text

    def place(self, name: str) -> int:
        """Which of the operands has this name."""
        return next(i for i, each in enumerate(self.operands) if each.name == name)

    def matrix(self, name: str, head: str = "at") -> str:
        """The matrix of an operand for a head."""
        return f"matrix({name}, {head}, steps, {self.place(name)})"

    def vector(self, name: str) -> str:
        """Where an operand of one number a query begins for the head at hand."""
        return f"{name} + at[{self.place(name)}]"

    def step(self, name: str) -> str:
        """The elements from one query of an operand to the next."""
        return f"steps.row[{self.place(name)}]"

    @property
    def matrices(self) -> str:
        """Declares the masks."""
        return "".join(
            f"auto {each.name}_here = {self.matrix(each.name)};\n    "
            for each in self.operands if each.is_mask and not each.is_written
        )  # fmt: skip

    @property
    def masked(self) -> str:
        """A function that says what the masks make of a score."""
        lines = []
        for each in self.operands:
            if each.is_mask and not each.is_written:
                found = f"*{each.name}_here.at(query, key)"
                lines.append(
                    f"if (!{found}) score = -infinity_like(score);" if each.array.dtype == np.bool_
                    else f"score += ({self.computed})wide({found});"
                )  # fmt: skip
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
        """Begins the loop over heads that share what is summed up."""
        return (
            f"for ({self.integer} other = 0; other < sharers; other++) {{\n"
            "    sharing.at(other, at);\n"
            f"    for (int a = 0; a < {len(self.operands)}; a++) at[a] += own[a];\n    "
        )

    # --- launch

    def launch(
        self, header: str, name: str, tiles: int, parts: int, columns: int, body: str
    ) -> Launch:
        """A block for each tile and part of the result of each head."""
        steps = [pair[i] for i in (0, 1) for pair in (each.steps for each in self.operands)]
        signature = Signature({
            **{each.name: each.parameter for each in self.operands},
            "steps": indices(f"Steps<{len(self.operands)}, {self.integer}>", steps, self.large),
            "heads": self.heads.parameter(self.large),
            "sharing": self.sharing.parameter(self.large),
            "sharers": index(size(self.sharing.sizes), self.large),
            "in": indices("AttentionSizes", self.sizes, large=False),
            "scale": real(self.computed, self.node.attrs["scale"]),
            "tiles": i32(tiles), "parts": i32(parts),
        })  # fmt: skip
        pitch = self.tile + _VECTOR // self.item
        shared = (3 * self.tile * pitch + self.tile * columns * _SIDE) * self.item
        blocks = size(self.heads.sizes) * tiles * parts
        return header_launch(header, name, blocks, _THREADS, signature, body, shared=shared)

    def tiles(self, length: int) -> int:
        """Tiles along so many queries or keys."""
        return -(-length // self.tile)


# --- forward


def _bind(call: Call) -> Runner:
    q, key, v, *masks = call.inputs
    y, logarithm = call.outputs
    if logarithm.size == 0:
        return CudaRunner([])
    operands = [
        _Operand("y", y, is_written=True), _Operand("q", q), _Operand("key", key),
        _Operand("v", v), _Operand("logarithm", logarithm, 1, is_written=True),
        *_mask_operands(masks),
    ]  # fmt: skip
    work = _Work(call.node, operands, 0, (q.shape[-2], key.shape[-2], q.shape[-1], v.shape[-1]))
    width = v.shape[-1]
    columns = work.columns(width)
    body = (
        f"{work.begin}sharing.at(0, at);\n"
        f"    for (int a = 0; a < {len(operands)}; a++) at[a] += own[a];\n    {work.matrices}"
        f"block_attention<{columns}, {flags(call.node.attrs['causal'])}, {work.computed}>(\n"
        f"        {work.matrix('q')}, {work.matrix('key')}, {work.matrix('v')},\n"
        f"        {work.matrix('y')}, {work.vector('logarithm')}, {work.step('logarithm')}, in, "
        "scale,\n"
        f"        tile * Tile<{work.computed}>::SIZE, part * {columns * _SIDE},\n"
        f"        {work.masked});"
    )
    parts = max(1, -(-width // (columns * _SIDE)))
    return CudaRunner([work.launch(
        "attention.cuh", "attention", work.tiles(q.shape[-2]), parts, columns, body
    )])  # fmt: skip


# --- backward


class _Gradient:
    """What the kernels of the gradient share."""

    def __init__(self, call: Call) -> None:
        self.call = call
        g, q, key, v, common, logarithm, *masks = call.inputs
        self.given = [
            _Operand("g", g), _Operand("q", q), _Operand("key", key), _Operand("v", v),
            _Operand("common", common, 1), _Operand("logarithm", logarithm, 1),
        ]  # fmt: skip
        self.masks = _mask_operands(masks)
        self.queries, self.keys = q.shape[-2], key.shape[-2]
        self.depth, self.width = q.shape[-1], v.shape[-1]

    def work(self, *results: _Operand) -> _Work:
        """With these results, the first of which is the target."""
        operands = [*self.given, *results, *self.masks]
        sizes = (self.queries, self.keys, self.depth, self.width)
        return _Work(self.call.node, operands, len(self.given), sizes)

    def attended(self, work: _Work) -> str:
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

    def of_queries(self, dq: Array) -> Launch:
        """The gradients of queries."""
        work = self.work(_Operand("dq", dq, is_written=True))
        columns, kind = work.columns(self.depth), work.computed
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, columns, 'results')}"
            f"int top = tile * Tile<{kind}>::SIZE, left = part * {columns * _SIDE};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_query_gradients<{columns}, {self.causal}>(\n"
            f"        of, in, scale, top, left, shared, {work.masked}, results);\n    }}\n"
            f"    for (int m = 0; m < Tile<{kind}>::M; m++)\n"
            f"        for (int n = 0; n < {columns}; n++) results[m][n] *= scale;\n"
            f"    deliver<{columns}>({work.matrix('dq', 'own')}, top, in.queries, left, "
            "in.depth, results);"
        )
        parts = -(-self.depth // (columns * _SIDE))
        return work.launch("attention_backward.cuh", "attention_query_gradients",
                           work.tiles(self.queries), parts, columns, body)  # fmt: skip

    def of_keys(self, dk: Array | None, dv: Array | None) -> Launch:
        """The gradients of keys, of values, or of both where they are shared alike."""
        results = [
            _Operand(name, array, is_written=True)
            for name, array in (("dk", dk), ("dv", dv))
            if array is not None
        ]
        work = self.work(*results)
        width = max(self.depth if dk is not None else 0, self.width if dv is not None else 0)
        columns, kind = work.columns(width), work.computed
        options = f"{flags(dk is not None, dv is not None)}, {self.causal}"
        deliver = "".join(
            f"deliver<{columns}>({work.matrix(name, 'own')}, side, in.keys, left, {length}, "
            f"{found});\n    "
            for name, array, length, found in (
                ("dk", dk, "in.depth", "for_keys"), ("dv", dv, "in.width", "for_values"),
            ) if array is not None
        )  # fmt: skip
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, columns, 'for_keys')}"
            f"{_cleared(kind, columns, 'for_values')}"
            f"int side = tile * Tile<{kind}>::SIZE, left = part * {columns * _SIDE};\n    "
            f"{work.each_sharer}{self.attended(work)}"
            f"block_key_gradients<{columns}, {options}>(\n"
            f"        of, in, scale, side, left, shared, {work.masked}, for_keys, for_values);\n"
            f"    }}\n    {deliver}"
        )
        parts = -(-width // (columns * _SIDE))
        return work.launch("attention_backward.cuh", "attention_key_gradients",
                           work.tiles(self.keys), parts, columns, body)  # fmt: skip

    def of_mask(self, added: Array) -> Launch:
        """The gradient of a mask that was added."""
        result = _Operand("gradients", added, min(added.ndim, 2), is_written=True, is_mask=True)
        work = self.work(result)
        lengths = (1, 1, *added.shape)[-2:]
        rows, columns = lengths[0] == self.queries, lengths[1] == self.keys
        tiles = (work.tiles(self.queries), work.tiles(self.keys))
        down, across = (n if has else 1 for n, has in zip(tiles, (rows, columns), strict=True))
        kind = work.computed
        size_ = f"Tile<{kind}>::SIZE"
        body = (
            f"{_workspace(kind)}{work.begin}{_cleared(kind, f'Tile<{kind}>::M', 'results')}"
            f"int top = {'tile * ' + size_ if rows else '0'}, "
            f"side = {'part * ' + size_ if columns else '0'};\n    {work.each_sharer}"
            f"{self.attended(work)}"
            f"for (int t = top; t < {'top + 1' if rows else 'in.queries'}; t += {size_})\n"
            f"    for (int s = side; s < {'side + 1' if columns else 'in.keys'}; s += {size_})\n"
            f"        block_mask_gradients<{self.causal}>(of, in, scale, t, s, shared, "
            f"{work.masked}, results);\n    }}\n"
            f"    block_deliver_mask<{flags(rows, columns)}>("
            f"{work.matrix('gradients', 'own')}, in, top, side, shared.tile, results);"
        )
        return work.launch(
            "attention_backward.cuh", "attention_mask_gradients", down, across, 4, body
        )


def _workspace(kind: str) -> str:
    return f"DYNAMIC_SHARED({kind}, memory);\n    Places<{kind}> shared = places_in(memory);\n    "


def _cleared(kind: str, columns: int | str, name: str) -> str:
    return f"{kind} {name}[Tile<{kind}>::M][{columns}];\n    clear({name});\n    "


def _bind_gradient(call: Call) -> Runner:
    dq, dk, dv, *added = call.outputs
    gradient = _Gradient(call)
    calls = [gradient.of_queries(dq)] if dq.size else []
    if dk.shape[:-2] == dv.shape[:-2] and dk.size and dv.size:
        calls.append(gradient.of_keys(dk, dv))
    else:
        calls += [gradient.of_keys(dk, None)] if dk.size else []
        calls += [gradient.of_keys(None, dv)] if dv.size else []
    calls += [gradient.of_mask(each) for each in added if each.size]
    return CudaRunner(calls)


TABLE.add(Kernel("scaled_dot_product_attention", "cuda", "tiles", _bind))
TABLE.add(Kernel("scaled_dot_product_attention_grad", "cuda", "tiles", _bind_gradient))
