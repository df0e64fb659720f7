"""Matrix products by cuBLASLt, and their epilogues by custom kernels.

Only the bias is left to the library. Its relu turns a nan into 0, and its gelu an infinite argument
into a nan; they are used only with `settings.accuracy = "fast"`.

The engine that feeds tensor cores supports only sides that are multiples of 16 bytes, and without
it cuBLASLt takes several times as long. Other operands, such as 100 numbers in half precision, can
be copied to the workspace and padded with zeros, and results from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from caldera.base.config import settings
from caldera.core.graph import Node, Spec, detached
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import DType, float64
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes, workspace_limit
from caldera.kernels.common.product import Epilogue, as_matrices
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.elementwise.loop import loop_calls
from caldera.kernels.cuda.movement import copy_calls, placing_calls
from caldera.kernels.cuda.product import tiled
from caldera.kernels.cuda.product.problem import (
    Multiplication,
    described,
    described_call,
    epilogue_loop_body,
)
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.cublaslt import (
    ALIGNMENT,
    RANKS,
    LtCall,
    Problem,
    algorithms,
    problem_of,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

MOST_CALLS = 16
"""Maximum number of calls for a product whose batch has several axes."""
MOST_WORKSPACE = 32 << 20
"""Workspace that NVIDIA recommends for Hopper."""
WORKSPACE_ALIGNMENT = 256
"""Alignment of a workspace in bytes, required by the library."""
EPILOGUES = {"relu": "RELU", "gelu": "GELU"}
"""The library's names for activations."""


@dataclass(frozen=True)
class LibraryPlan:
    """Part of a product that the library computes, and the remainder for a custom launch."""

    epilogue: str = "DEFAULT"
    rest: Multiplication | None = None
    """Epilogue of the product, computed after its terms."""
    terms: DType | None = None
    """Dtype of terms in the workspace; None if the terms are stored in the result's memory."""


def library_plan(product: Multiplication) -> LibraryPlan:
    """Return the division of a product between the library and custom kernels."""
    sums = compute_dtype(product.dtype)
    if product.accumulation is not None:
        return LibraryPlan(rest=product, terms=sums)
    epilogue = product.epilogue
    if not epilogue.changes:
        return LibraryPlan()
    bias_fits = product.dtype != float64 and (
        product.bias is None or product.bias.strides[0] == product.bias.itemsize
    )
    if bias_fits and (epilogue.activation is None or _is_fast(epilogue)):
        words = [] if epilogue.activation is None else [EPILOGUES[epilogue.activation]]
        return LibraryPlan("_".join([*words, "BIAS"] if epilogue.bias else words))
    if bias_fits and epilogue.activation == "relu":
        # Rounding to half precision and relu may change places.
        only = replace(product, epilogue=Epilogue(activation="relu"), bias=None)
        return LibraryPlan("BIAS" if epilogue.bias else "DEFAULT", only)
    is_dense = product.out.flags.c_contiguous
    return LibraryPlan(rest=product, terms=None if sums == product.dtype and is_dense else sums)


def _is_fast(epilogue: Epilogue) -> bool:
    if settings.accuracy != "fast" or epilogue.activation not in EPILOGUES:
        return False
    return epilogue.activation == "relu" or dict(epilogue.attributes)["approximate"]


def _turned(product: Multiplication) -> Multiplication:
    """Transpose a product whose result is column-major: the library requires row-major results."""
    found = as_matrices(product.out)
    is_plain = not product.epilogue.changes and product.accumulation is None
    return product.transposed() if found is not None and found.transposed and is_plain else product


def _by_call(product: Multiplication) -> list[Multiplication] | None:
    """Return the products of single calls: the library takes one batch axis.

    None if these are many.
    """
    if len(product.batch) <= 1:
        return [product]
    if product.count // product.batch[-1].length > MOST_CALLS:
        return None
    return [call for entry in product.entries() for call in _by_call(entry) or ()]


def bind_product(product: Multiplication, workspace: Array, rank: int = 0) -> list[Any] | None:
    """Return the calls that compute a product; None where the library cannot."""
    if product.out.size == 0:
        return []
    product = _turned(product)
    plan = library_plan(product)
    scratch = Scratch(workspace)
    target, terms = product, product.out
    if plan.terms is not None:
        if workspace_bytes(Spec(product.out.shape, plan.terms)) > scratch.rest.nbytes:
            return None
        terms = scratch.array(product.out.shape, plan.terms)
        target = replace(product, out=terms)
    elif plan.rest is not None and not product.out.flags.c_contiguous:
        return None
    parts = _by_call(target)
    if parts is None:
        return None
    calls: list[Any] = []
    spare = aligned_part(scratch.rest)
    # A limit of exactly this size would select other algorithms than when the workspace was
    # measured.
    limit = _limit(0 if plan.terms is None else workspace_bytes(Spec(terms.shape, plan.terms)))
    for part in parts:
        problem = problem_of(part, plan.epilogue, limit)
        if problem is None:
            return None
        found = algorithms(problem, device.current_card())
        found = found[found["workspace"] <= spare.nbytes]
        if not len(found):
            return None
        last = min(rank + 1, len(found))
        calls.append(LtCall(part, problem, found[last - 1 : last], spare))
    if plan.rest is not None:
        calls += _rest_calls(plan.rest, terms)
    return calls


def _rest_calls(rest: Multiplication, terms: Array) -> list[Any]:
    """Return the calls of the epilogue, after the terms have been computed."""
    if rest.accumulation is not None or terms.dtype != rest.dtype:
        return [tiled.epilogue_launch(rest, terms.reshape(1, -1))]
    biases = [] if rest.bias is None else [rest.bias]
    body = epilogue_loop_body(rest.dtype, rest.epilogue)
    return list(loop_calls(body, rest.out.shape, [rest.out, *biases], [rest.out]))


# --- kernels


def _bind(rank: int, call: Call) -> Runner:
    product = Multiplication.of(call)
    found = bind_product(product, call.workspace, rank)
    # Arrays that the library cannot take as they lie are our own kernels' business.
    return CudaRunner(tiled.launches(product, call.workspace) if found is None else found)


def workspace(product: Multiplication) -> tuple[int, int]:
    """Return the workspace for a product, and the number of its algorithms."""
    product = _turned(product)
    plan = library_plan(product)
    terms = 0
    if plan.terms is not None:
        spec = Spec(product.out.shape, plan.terms)
        terms, product = workspace_bytes(spec), replace(product, out=described(spec))
    parts = _by_call(product)
    problem = None if not parts else problem_of(parts[0], plan.epilogue, _limit(terms))
    if problem is None:
        return 0, 0
    found = algorithms(aligned(problem), device.current_card())
    most = int(found["workspace"].max(initial=0))
    # 16 bytes more, as nvmath does: an epilogue has been seen to use them.
    return terms + most + (16 + WORKSPACE_ALIGNMENT if most else 0), len(found)


def aligned(problem: Problem) -> Problem:
    """Return the problem with the operands' alignment in plans.

    Arrays that only describe operands have arbitrary addresses.
    """
    a, b, d = (replace(each, alignment=ALIGNMENT) for each in (problem.a, problem.b, problem.d))
    return replace(problem, a=a, b=b, d=d)


def aligned_part(workspace: Array) -> Array:
    """Return the workspace from the first address on that the library takes."""
    skipped = -address_of(workspace) % WORKSPACE_ALIGNMENT if workspace.size else 0
    return workspace[skipped:]


def _limit(taken: int) -> int:
    return max(0, min(MOST_WORKSPACE, workspace_limit() - taken))


# --- padded operands

SIDE_ALIGNMENT = 16
"""Alignment in bytes of the contiguous sides of matrices."""
PADDED_RANKS = 4
"""Number of algorithms to try."""
FEWEST_FLOPS = 1 << 27
"""Minimum operations for which two additional launches can pay."""


@dataclass(frozen=True)
class _Padded:
    """Memory for an array of a product with padded rows, or columns if `transposed`."""

    spec: Spec
    transposed: bool

    def within(self, memory: Array) -> Array:
        """Return the array in memory of this spec, transposed if necessary."""
        return memory.swapaxes(-1, -2) if self.transposed else memory


def _paddings(product: Multiplication) -> dict[str, _Padded]:
    """Return the arrays of a product that are padded, by name.

    The result is empty if the library does not support the layout of an array.
    """
    rows, columns, length = product.extent
    step = SIDE_ALIGNMENT // product.out.itemsize
    sides = {"left": (rows, length), "right": (length, columns), "out": (rows, columns)}
    # Equal sides are treated as the same side: padding an additional side does no harm.
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
            made[name] = _Padded(Spec((*array.shape[:-2], *stored), array.dtype), transposed[name])
    return made


def _bytes(padded: dict[str, _Padded]) -> int:
    return workspace_bytes(*(each.spec for each in padded.values()))


def _in_memory(
    product: Multiplication, padded: dict[str, _Padded], place: Callable[[Spec], Array]
) -> Multiplication:
    """Return the same product with arrays in the memory that `place` returns."""
    arrays = {name: each.within(place(each.spec)) for name, each in padded.items()}
    return replace(product, **arrays)


def _bind_padded(rank: int, call: Call) -> Runner:
    product = Multiplication.of(call)
    scratch, padded = Scratch(call.workspace), _paddings(product)
    if _bytes(padded) > scratch.rest.nbytes:
        # An operand that is part of a larger array may lie otherwise than its node said.
        padded = {}
    inside = _in_memory(product, padded, lambda spec: scratch.array(spec.shape, spec.dtype))
    calls = bind_product(inside, scratch.rest, rank)
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


# --- registration


@lru_cache(maxsize=4096)
def _found(padded: bool, node: Node, accuracy: str, limit: int) -> tuple[int, int]:
    """Return the workspace for a node under these settings, and the number of algorithms."""
    product = Multiplication.of(described_call(node))
    if 0 in (*product.extent, product.count):
        return 0, 0
    if not padded:
        return workspace(product)
    paddings = _paddings(product)
    if not paddings:
        return 0, 0
    nbytes, count = workspace(_in_memory(product, paddings, described))
    return _bytes(paddings) + nbytes, count


def _supports(rank: int, padded: bool, node: Node) -> bool:
    if device.cublas_lt() is None or ((rank or padded) and not device.may_measure()):
        return False
    if padded and node.op.count_flops(node) < FEWEST_FLOPS:
        return False
    return _found(padded, detached(node), settings.accuracy, workspace_limit())[1] > rank


def _workspace(padded: bool, node: Node) -> int:
    return _found(padded, detached(node), settings.accuracy, workspace_limit())[0]


def _kernel(op: str, rank: int, *, padded: bool) -> Kernel:
    """Return the kernel that runs the library's algorithm of this rank."""
    name = "cublas padded" if padded else "cublas"
    return Kernel(
        op,
        "cuda",
        name if rank == 0 else f"{name} {rank + 1}",
        partial(_bind_padded if padded else _bind, rank),
        partial(_supports, rank, padded),
        partial(_workspace, padded),
        priority=1 if padded else 10 - rank,
        varies=True,
    )


for _rank in range(RANKS):
    for _op in ("matmul", "matmul_epilogue"):
        TABLE.add(_kernel(_op, _rank, padded=False))
    _accumulating = _kernel("matmul_accumulate", _rank, padded=False)
    TABLE.add(replace(_accumulating, in_place=tiled.accumulates_in_place))
for _rank in range(PADDED_RANKS):
    TABLE.add(_kernel("matmul", _rank, padded=True))
