"""Products of matrices whose sides are no multiples of 16 bytes, as those of 100 numbers in half
precision.

Tensor cores are fed by an engine that takes no others, and without it cuBLASLt needs several times
as long. Such operands are copied to the workspace with zeros beside them, and results from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import detached
from caldera.kernels.common.binding import Scratch, workspace_bytes, workspace_limit
from caldera.kernels.common.product import as_matrices
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.movement.copy import copy_calls
from caldera.kernels.cuda.movement.rearrange import placing_calls
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import Multiplication, described, described_call
from caldera.kernels.cuda.runtime import device
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

ALIGNMENT = 16
"""Bytes of which the sides that lie side by side in memory are a multiple."""
RANKS = 4
"""Algorithms that are tried."""
FEWEST_FLOPS = 1 << 27
"""Work below which two launches more are never worth it."""


@dataclass(frozen=True)
class _Padded:
    """Memory for an array of a product and what is beside it: its rows, or its columns if it is
    `transposed`."""

    spec: Spec
    transposed: bool

    def within(self, memory: Array) -> Array:
        """The array in such memory."""
        return memory.swapaxes(-1, -2) if self.transposed else memory


def _paddings(product: Multiplication) -> dict[str, _Padded]:
    """By their names, the arrays of a product that are made larger; none if the library cannot take
    one of them as it lies."""
    rows, columns, length = product.extent
    step = ALIGNMENT // product.out.itemsize
    sides = {"left": (rows, length), "right": (length, columns), "out": (rows, columns)}
    # Equal sides are one side here: to make one more of them longer does no harm.
    longer: dict[int, int] = {}
    transposed: dict[str, bool] = {}
    for name, (down, across) in sides.items():
        found = as_matrices(getattr(product, name))
        if found is None:
            return {}
        transposed[name] = found.transposed
        inner = down if found.transposed else across
        longer[inner] = -(-inner // step) * step
    made = {}
    for name, (down, across) in sides.items():
        shape = (longer.get(down, down), longer.get(across, across))
        if shape != (down, across):
            array = getattr(product, name)
            stored = shape[::-1] if transposed[name] else shape
            spec = Spec((*array.shape[:-2], *stored), array.dtype)
            made[name] = _Padded(spec, transposed[name])
    return made


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
    before = []
    for to, given in ((inside.left, product.left), (inside.right, product.right)):
        if to is not given:
            before += placing_calls(to, given, [0] * to.ndim, [1] * to.ndim, 0)
    after = []
    if inside.out is not product.out:
        rows, columns, _ = product.extent
        after = copy_calls(product.out, inside.out[..., :rows, :columns])
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
    if device.cublas_lt() is None or not device.may_measure():
        return False
    if node.op.count_flops(node) < FEWEST_FLOPS:
        return False
    return _found(detached(node), settings.accuracy, workspace_limit())[1] > rank


def _workspace(node: Node) -> int:
    return _found(detached(node), settings.accuracy, workspace_limit())[0]


for _rank in range(RANKS):
    _name = "cublas padded" if _rank == 0 else f"cublas padded {_rank + 1}"
    TABLE.add(
        Kernel(
            "matmul",
            "cuda",
            _name,
            partial(_bind, _rank),
            partial(_supports, _rank),
            _workspace,
            priority=1,
            varies=True,
        )
    )
