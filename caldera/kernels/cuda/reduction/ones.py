"""Sums of columns as products with a row of ones.

For these cuBLASLt has kernels that need one launch where a loop in parts needs two, and read a
matrix as fast as its memory gives it. They add up in float32, so that sums are not long.
"""

from __future__ import annotations

from functools import lru_cache, partial
from weakref import WeakValueDictionary

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import detached
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import DType, bfloat16, float16, float32
from caldera.kernels.common.binding import workspace_limit
from caldera.kernels.common.reduction import MOST_TERMS, lengths
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.product import cublas
from caldera.kernels.cuda.product.problem import Multiplication, described
from caldera.kernels.cuda.reduction import reduce
from caldera.kernels.cuda.runtime import device as libraries
from caldera.kernels.cuda.runtime.cublaslt import RANKS
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

FEWEST_ELEMENTS = 1 << 16
"""Below them every way is the time of a launch."""


class _Ones:
    """A row of ones on the card, which lives as long as somebody multiplies with it."""

    def __init__(self, terms: int, dtype: DType) -> None:
        # What plays a card has the host's memory.
        place = device(f"cuda:{libraries.current_card()}" if card_count() else "cpu")
        self._block = place.allocate(terms * dtype.itemsize, owner="ones")
        place.copy_in(self._block, 0, np.ones(terms, dtype).view(np.uint8), place.stream)
        place.stream.synchronize()
        self.array: Array = place.array(self._block, 0, (1, terms), dtype)


_known: WeakValueDictionary[tuple[int, int, str], _Ones] = WeakValueDictionary()


def _ones(terms: int, dtype: DType) -> _Ones:
    """Such a row; products of one length share it."""
    key = libraries.current_card(), terms, dtype.name
    found = _known.get(key)
    if found is None:
        found = _known[key] = _Ones(terms, dtype)
    return found


class _ProductRunner(CudaRunner):
    """A product, and the ones that it reads."""

    def __init__(self, ones: _Ones, product: Multiplication, call: Call, rank: int) -> None:
        calls = cublas.bind_product(product, call.workspace, rank)
        super().__init__([reduce.bind(call)] if calls is None else calls)
        self._ones = ones


def _sides(node: Node) -> tuple[int, int] | None:
    """Terms and results, where the terms of each result lie at the beginning of the shape."""
    found = lengths(node)
    if found is None:
        return None
    results, terms, is_last = found
    return None if is_last and results > 1 else (terms, results)


def _bind(rank: int, call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    sides = _sides(call.node)
    assert sides is not None
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return reduce.bind(call)
    ones = _ones(sides[0], x.dtype)
    product = Multiplication(ones.array, x.reshape(sides), out.reshape(1, sides[1]))
    return _ProductRunner(ones, product, call, rank)


@lru_cache(maxsize=4096)
def _found(node: Node, accuracy: str, limit: int) -> tuple[int, int]:
    """The library's workspace for a sum under these settings, and how many algorithms it has."""
    sides = _sides(node)
    if sides is None or node.dtype not in (float16, bfloat16, float32):
        return 0, 0
    terms, results = sides
    is_exact = terms <= MOST_TERMS or accuracy == "fast"
    if not is_exact or terms < 2 or terms * results < FEWEST_ELEMENTS:
        return 0, 0
    row, x, out = (
        described(Spec(shape, node.dtype)) for shape in ((1, terms), sides, (1, results))
    )
    return cublas.workspace(Multiplication(row, x, out))


def _supports(rank: int, node: Node) -> bool:
    if libraries.cublas_lt() is None or not libraries.may_measure():
        return False
    return _found(detached(node), settings.accuracy, workspace_limit())[1] > rank


def _workspace(node: Node) -> int:
    # Arrays that lie otherwise are reduced by a loop.
    own = _found(detached(node), settings.accuracy, workspace_limit())[0]
    return max(own, reduce.workspace(node))


for _rank in range(RANKS):
    # The library's first algorithm is seldom the fastest for a single row.
    _name = "product with ones" if _rank == 0 else f"product with ones {_rank + 1}"
    TABLE.add(
        Kernel(
            "sum",
            "cuda",
            _name,
            partial(_bind, _rank),
            partial(_supports, _rank),
            _workspace,
            priority=-1 - _rank,
            varies=True,
        )
    )
