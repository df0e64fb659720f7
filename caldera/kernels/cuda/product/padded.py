"""Products of matrices whose rows do not begin at multiples of 16 bytes, as those of 100 numbers in
half precision.

Tensor cores are fed by an engine that takes no others, and without it cuBLASLt needs several times
as long. Such operands are copied to the workspace with longer rows, and such results from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from caldera.config import settings
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import detached
from caldera.kernels.common.matrices import as_matrices
from caldera.kernels.common.scratch import Scratch, workspace_bytes, workspace_limit
from caldera.kernels.cuda.movement.copy import copy_calls, copying
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import Multiplication, described, described_call
from caldera.kernels.cuda.runtime import libraries
from caldera.kernels.cuda.runtime.launch import CudaRunner
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

ALIGNMENT = 16
"""Bytes between rows, or a multiple of them."""
RANKS = 4
"""Algorithms that are tried."""
FEWEST_FLOPS = 1 << 27
"""Work below which two launches more are never worth it."""


@dataclass(frozen=True)
class _Padded:
    """An array that lies in the workspace with longer rows: its memory there, and the part of it
    that the array is."""

    spec: Spec
    length: int
    transposed: bool

    @classmethod
    def of(cls, array: Array) -> _Padded | None:
        """How an array would lie there; None if it is fine as it is, or nothing helps it."""
        found = as_matrices(array)
        if found is None:
            return None
        rows, columns = array.shape[-2:]
        lines, length = (columns, rows) if found.transposed else (rows, columns)
        if lines <= 1 or found.leading * array.itemsize % ALIGNMENT == 0:
            return None
        step = ALIGNMENT // array.itemsize
        shape = (*array.shape[:-2], lines, -(-length // step) * step)
        return cls(Spec(shape, array.dtype), length, found.transposed)

    def within(self, memory: Array) -> Array:
        """The array in such memory."""
        part = memory[..., : self.length]
        return part.swapaxes(-1, -2) if self.transposed else part


def _paddings(product: Multiplication) -> dict[str, _Padded]:
    """By their names, the arrays of a product that are better off in the workspace."""
    names = ["left", "right"]
    if product.accumulation is None and product.epilogue.activation is None:
        names.append("out")
    found = {name: _Padded.of(getattr(product, name)) for name in names}
    return {name: padded for name, padded in found.items() if padded is not None}


def _bytes(padded: dict[str, _Padded]) -> int:
    return workspace_bytes(*(each.spec for each in padded.values()))


def _in_memory(
    product: Multiplication, padded: dict[str, _Padded], place: Callable[[Spec], Array]
) -> Multiplication:
    """The same product with arrays that lie where `place` puts them."""
    arrays = {name: each.within(place(each.spec)) for name, each in padded.items()}
    return replace(product, **arrays)


def _bind(rank: int, call: Call) -> Runner:
    product = Multiplication.of(call)
    scratch, padded = Scratch(call.workspace), _paddings(product)
    if _bytes(padded) > scratch.rest.nbytes:
        # An operand that is part of a larger array may lie otherwise than its node said.
        padded = {}
    inside = _in_memory(product, padded, lambda spec: scratch.array(spec.shape, spec.dtype))
    calls = cublas.bind_product(inside, scratch.rest, rank)
    if calls is None:
        # Arrays that the library cannot take as they lie are our own kernels' business.
        return CudaRunner(tiled.launches(product, call.workspace))
    pairs = [(inside.left, product.left), (inside.right, product.right)]
    before = copying([(to, given) for to, given in pairs if to is not given])
    after = [] if inside.out is product.out else copy_calls(product.out, inside.out)
    return CudaRunner([*before, *calls, *after])


@lru_cache(maxsize=4096)
def _found(node: Node, accuracy: str, limit: int) -> tuple[int, int]:
    """The workspace for a node under these settings, and how many algorithms there are for it."""
    product = Multiplication.of(described_call(node))
    padded = _paddings(product)
    if not padded or 0 in (*product.extent, product.count):
        return 0, 0
    nbytes, count = cublas.workspace(_in_memory(product, padded, described))
    return _bytes(padded) + nbytes, count


def _supports(rank: int, node: Node) -> bool:
    if libraries.cublas_lt() is None or not libraries.may_measure():
        return False
    if node.op.count_flops(node) < FEWEST_FLOPS:
        return False
    return _found(detached(node), settings.accuracy, workspace_limit())[1] > rank


def _workspace(node: Node) -> int:
    return _found(detached(node), settings.accuracy, workspace_limit())[0]


for _rank in range(RANKS):
    _name = "cublas padded" if _rank == 0 else f"cublas padded {_rank + 1}"
    for _op in ("matmul", "matmul_epilogue"):
        TABLE.add(Kernel(
            _op, "cuda", _name, partial(_bind, _rank), partial(_supports, _rank), _workspace,
            priority=1,
        ))  # fmt: skip
