"""Matrix products on a GPU: strided operands, epilogue, tile size and split-K.

A GPU needs more blocks than it has multiprocessors. If the result has too few tiles for that,
tiles are made smaller, or sums are split into parts that a second launch adds up in a fixed
order. The number of multiprocessors decides, so results differ in their last bits between GPU
models. The epilogue is a bias along the columns, an activation, or a sum with earlier values.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caldera.core.graph import OPS, Body, Node, Spec, dense_strides, parameter
from caldera.core.graph.ops.base import widened
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.epilogue import Attributes, apply_epilogue
from caldera.core.tensor.dtype import BY_NAME, DType
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.loops import LoopBody, loop_body_of
from caldera.kernels.common.product import Epilogue, ProductArrays
from caldera.kernels.cuda.codegen import (
    HEADER,
    STORED,
    StridedAxis,
    axes_of,
    computed_type,
    elements,
    merged,
    statements,
)
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import Array, Call

MOST_BATCH_AXES = 4
"""Axes before the matrices' that one launch takes, once they are merged."""
NOTHING = Epilogue()
"""Neither bias nor activation."""
FIRST_OPERAND = {"matmul": 0, "matmul_epilogue": 0, "matmul_accumulate": 1}


def described(spec: Spec) -> np.ndarray:
    """Return an array with the layout of a value but no memory: only its strides are valid."""
    strides = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    return as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def described_call(node: Node) -> Call:
    """A node with arrays without memory: what its kernel will be given, as far as is known."""
    inputs = tuple(described(given.outputs[0]) for given in node.inputs)
    return Call(node, tuple(described(spec) for spec in node.outputs), inputs)


@dataclass(frozen=True)
class BetaAccumulation:
    """Operands of beta start + alpha (the product): alpha and beta are single-element arrays."""

    start: Array
    alpha: Array
    beta: Array


@dataclass(frozen=True, eq=False)
class Multiplication:
    """out = epilogue(left right + bias), or out = beta start + alpha left right."""

    left: Array
    right: Array
    out: Array
    epilogue: Epilogue = NOTHING
    bias: Array | None = None
    accumulation: BetaAccumulation | None = None
    compute: str | None = None
    """"tf32" allows tensor cores to round float32 operands; None does not."""

    @classmethod
    def of(cls, call: Call) -> Multiplication:
        """Return the product that a call of an op of the family of `matmul` computes."""
        node, first = call.node, FIRST_OPERAND[call.node.op.name]
        product = ProductArrays.of(call, *call.inputs[first : first + 2])
        found = cls(product.left, product.right, product.out, compute=node.attrs.get("compute"))
        if node.op.name == "matmul_accumulate":
            start, _, _, alpha, beta = call.inputs
            return replace(found, accumulation=BetaAccumulation(start, alpha, beta))
        if node.op.name == "matmul_epilogue":
            biases = [array.reshape(-1, copy=False) for array in call.inputs[2:]]
            return replace(found, epilogue=Epilogue.of(node), bias=biases[0] if biases else None)
        return found

    @property
    def extent(self) -> tuple[int, int, int]:
        """Rows, columns, and the length of each sum."""
        rows, columns = self.out.shape[-2:]
        return rows, columns, self.left.shape[-1]

    @property
    def dtype(self) -> DType:
        """The dtype of the result."""
        return self.out.dtype

    @cached_property
    def batch(self) -> tuple[StridedAxis, ...]:
        """The axes before the matrices', merged: strides of left, right and out."""
        shape: Shape = self.out.shape[:-2]
        arrays = (self.left, self.right, self.out)
        return tuple(merged(axes_of(shape, *(_batch_strides(each, shape) for each in arrays))))

    @property
    def count(self) -> int:
        """Number of products."""
        return elements(self.batch)

    def parts(self) -> list[Multiplication]:
        """Return the same product as products with few enough batch axes for one launch."""
        if len(self.batch) <= MOST_BATCH_AXES:
            return [self]
        return [part for entry in self.entries() for part in entry.parts()]

    def transposed(self) -> Multiplication:
        """Return the product of the transposed matrices, which is the transposed result."""
        left, right = (each.swapaxes(-1, -2) for each in (self.right, self.left))
        return replace(self, left=left, right=right, out=self.out.swapaxes(-1, -2))

    def entries(self) -> list[Multiplication]:
        """Return the products at each index of the first axis."""
        left, right = (_broadcast(each, self.out.shape[:-2]) for each in (self.left, self.right))
        return [
            replace(self, left=left[index], right=right[index], out=self.out[index])
            for index in range(self.out.shape[0])
        ]


def _batch_strides(array: Array, batch: Shape) -> tuple[int, ...]:
    """Return the distances along the batch axes, in elements: 0 where an array is repeated."""
    own = array.shape[:-2]
    strides = [
        0 if n == 1 else stride // array.itemsize
        for n, stride in zip(own, array.strides, strict=False)
    ]
    return (*[0] * (len(batch) - len(own)), *strides)


def _broadcast(array: Array, batch: Shape) -> Array:
    strides = [each * array.itemsize for each in _batch_strides(array, batch)]
    shape = (*batch, *array.shape[-2:])
    seen = as_strided(array.view(np.ndarray), shape, (*strides, *array.strides[-2:]))
    return seen.view(type(array))


FEWEST = 64
"""Steps that a part of a split sum has at least."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ENOUGH = 4
"""Tiles per multiprocessor from which sums are not split."""
LATENCY = 700
"""Cycles from the request for operands to the end of their use."""
SECOND_LAUNCH = 5000
"""Minimum cycles for adding up the parts."""
BYTES_A_CYCLE = 21
"""Bytes per cycle that a multiprocessor moves."""


@dataclass(frozen=True)
class ThreadTile:
    """A square of results, `per` x `per` a thread."""

    side: int
    per: int
    depth: int
    """Steps of the sum that are in shared memory simultaneously."""
    resident: int
    """Number of blocks that fit on a multiprocessor."""
    efficiency: float
    """Efficiency of its arithmetic."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.side // self.per) ** 2

    @property
    def carried(self) -> int:
        """Elements of each operand that a thread copies to shared memory per stage."""
        return self.side * self.depth // self.threads

    @property
    def text(self) -> str:
        """The tile in CUDA."""
        return f"Tile<{self.side}, {self.per}, {self.depth}>"

    def bounds(self, sums: str) -> str:
        """Return the launch bounds: threads of a block, and blocks that must fit with sums of this
        type.
        """
        resident = self.resident // 2 if sums == "double" else self.resident
        return f"__launch_bounds__({self.threads}, {resident})"


TILES = (
    ThreadTile(128, 8, 8, 2, 0.75),
    ThreadTile(64, 4, 16, 4, 0.5),
    ThreadTile(32, 4, 16, 8, 0.35),
)


class TileSchedulerNumbers(ctypes.Structure):
    """`TileScheduler` of tiled_product.cuh."""

    _fields_ = [(name, ctypes.c_int) for name in ("across", "down", "splits", "span", "length")]


@dataclass(frozen=True)
class ProductTiling:
    """Tiles of `count` products, and the number of parts of their sums."""

    tile: ThreadTile
    across: int
    down: int
    splits: int
    span: int
    length: int
    count: int

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.across * self.down * self.splits * self.count

    @property
    def scheduler(self) -> TileSchedulerNumbers:
        """Numbers of the tile scheduler that are passed to the kernel."""
        return TileSchedulerNumbers(
            across=self.across,
            down=self.down,
            splits=self.splits,
            span=self.span,
            length=self.length,
        )

    def cycles(self, itemsize: int, processors: int) -> float:
        """Return the approximate time on this number of multiprocessors."""
        steps = self.span // self.tile.depth
        rate = (128 if itemsize < 8 else 64) * self.tile.efficiency
        a_step = self.tile.side**2 * self.tile.depth / rate
        each = -(-self.blocks // processors)
        waiting = -(-each // self.tile.resident) * (steps + 1) * LATENCY
        cycles = max(waiting, each * steps * a_step)
        if self.splits > 1:
            results = self.count * self.across * self.down * self.tile.side**2
            moved = 2 * self.splits * results * itemsize
            cycles += SECOND_LAUNCH + moved / (BYTES_A_CYCLE * processors)
        return cycles


def tiling(
    rows: int, columns: int, length: int, count: int, itemsize: int, most_splits: int = SPLITS[-1]
) -> ProductTiling:
    """Return the tiling with the least estimated time on the GPU in use.

    `itemsize` is the item size of the sums.
    """
    return _tiling(rows, columns, length, count, itemsize, most_splits, driver().multiprocessors)


@lru_cache(maxsize=4096)
def _tiling(
    rows: int,
    columns: int,
    length: int,
    count: int,
    itemsize: int,
    most_splits: int,
    processors: int,
) -> ProductTiling:
    found = []
    for tile in TILES:
        if itemsize == 8 and tile.side == TILES[0].side:
            # Such tiles of doubles would not fit into shared memory.
            continue
        across, down = -(-columns // tile.side), -(-rows // tile.side)
        most = most_splits if across * down * count < ENOUGH * processors else 1
        for wanted in SPLITS:
            if wanted > 1 and (wanted > most or length < FEWEST * wanted):
                break
            span = max(1, -(-length // (wanted * tile.depth))) * tile.depth
            splits = max(1, -(-length // span))
            found.append(ProductTiling(tile, across, down, splits, span, length, count))
    return min(found, key=lambda each: each.cycles(itemsize, processors))


@dataclass(frozen=True)
class EpilogueCode:
    """Conversion of sums of products to stored results."""

    dtype: str
    epilogue: Epilogue = NOTHING
    accumulates: bool = False

    @classmethod
    def of(cls, product: Multiplication) -> EpilogueCode:
        """Return the epilogue of a product."""
        return cls(product.dtype.name, product.epilogue, product.accumulation is not None)

    def text(self) -> str:
        """Return types T (stored) and S (computed), and `epilogue(x, row, column, given)`."""
        kind = computed_type(self.dtype)
        lines = []
        if self.accumulates:
            # With beta = 0 the start is not read: a nan there has no influence.
            lines += [
                "S alpha = (S)wide(*given.alpha), beta = (S)wide(*given.beta);",
                "S before = beta == (S)0 ? (S)0 : beta * "
                "(S)wide(given.start[row * given.start_row + column * given.start_column]);",
                "x = before + (alpha == (S)0 ? (S)0 : alpha * x);",
            ]
        if self.epilogue.bias:
            lines.append("x = op_add(x, (S)wide(given.bias[column * given.bias_step]));")
        result = "x"
        if self.epilogue.activation is not None:
            more, result = activation_lines(
                self.epilogue.activation, self.epilogue.attributes, kind
            )
            lines += more
        body = "\n    ".join([*lines, f"return Stored<T>::from({result});"])
        return _EPILOGUE.format(header=HEADER, stored=STORED[self.dtype], computed=kind, body=body)


_EPILOGUE = """
#include "{header}"
typedef {stored} T;
typedef {computed} S;
struct EpilogueArguments {{
    const T *bias, *start, *alpha, *beta;
    i64 bias_step, start_row, start_column;
}};
__device__ __forceinline__ T epilogue(S x, i64 row, i64 column, const EpilogueArguments& given) {{
    {body}
}}
"""


@cache
def activation_lines(name: str, attributes: Attributes, kind: str) -> tuple[tuple[str, ...], str]:
    """Return the lines that compute an activation of x, and the name of their result."""
    dtype = {"float": "float32", "double": "float64"}[kind]
    x = parameter(0, Spec((), BY_NAME[dtype]))
    result = _in_parts(OPS[name](x, **dict(attributes)))
    found = statements(loop_body_of(fused.node(x, body=Body([x], [result]))), ["x"])
    return tuple(found.lines), found.outputs[0]


@cache
def epilogue_loop_body(dtype: DType, epilogue: Epilogue) -> LoopBody:
    """Return the loop that finishes results which are there: they are its first input, the bias, if
    there is one, the second."""
    given = [parameter(index, Spec((), dtype)) for index in range(1 + epilogue.bias)]

    @widened
    def end(result: Node, *bias: Node) -> Node:
        return apply_epilogue(result, bias, epilogue.activation, epilogue.attributes)

    return loop_body_of(fused.node(*given, body=Body(given, [_in_parts(end(*given))])))


def _in_parts(node: Node) -> Node:
    """Return an equivalent node of ops that have no decomposition."""
    inputs = tuple(_in_parts(given) for given in node.inputs)
    if node.op.decompose is not None:
        return _in_parts(node.op.decompose(*inputs, **node.attrs))
    return node.op.rebuild(node, inputs)
