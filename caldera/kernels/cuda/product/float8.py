"""Products of 8-bit floating-point numbers: cuBLASLt on tensor cores that have them, or float32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.ops.float8 import LARGEST, LEAST
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import float32, uint32
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    Parameter,
    const_pointer,
    flags,
    function_launch,
    i32,
    i64,
    indices,
    pointer,
    real,
    strides_of,
    type_of,
    unless_empty,
)
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import Multiplication, described_call
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime.cublaslt import (
    ALIGNMENT,
    RANKS,
    LtCall,
    Problem,
    algorithms,
    problem_of,
)
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_HEADER = "float8.cuh"
_FORMATS = {"e4m3": "E4M3", "e5m2": "E5M2"}
"""CUDA type of each format."""
_THREADS, _SIDE, _TOGETHER = 256, 64, 8
"""Threads of a block, sides of its tile, and elements that a thread rounds together."""
_MOST_BLOCKS = 1 << 14


# --- rounding


def _bind_factor(call: Call) -> Runner:
    (x,), (factor,) = call.inputs, call.outputs
    aligned = x.flags.c_contiguous and address_of(x) % (_TOGETHER * x.itemsize) == 0
    together = _TOGETHER if aligned and x.size % _TOGETHER == 0 else 1
    blocks = _factor_blocks(x.size)
    largest = Scratch(call.workspace).array((blocks,), uint32)
    parameters = {
        "x": const_pointer(x),
        "largest": pointer(largest),
        "given": _steps(x),
        **_counts(x),
    }
    last = {
        "largest": const_pointer(largest),
        "factor": pointer(factor),
        "count": i32(blocks),
        "most": real("float", LARGEST[call.node.attrs["form"]]),
        "least": real("float", LEAST),
    }
    return CudaRunner(
        [
            _launch("block_sizes", blocks, f"<{together}>", parameters),
            _launch("block_factor", 1, "", last),
        ]
    )


def _factor_blocks(count: int) -> int:
    """Return the number of blocks: each thread has a few packs of numbers."""
    return max(1, min(-(-count // (4 * _TOGETHER * _THREADS)), 8 * driver().multiprocessors))


def _factor_workspace(node: Node) -> int:
    return workspace_bytes(Spec((_factor_blocks(node.inputs[0].spec.size),), uint32))


TABLE.add(Kernel("float8_factor", "cuda", "float8", _bind_factor, workspace=_factor_workspace))


@unless_empty
def _bind_rounding(call: Call) -> Runner:
    x, factor = call.inputs
    layouts: tuple[bool, ...] = call.node.attrs["transposed"]
    targets: dict[bool, np.ndarray] = dict(zip(layouts, call.outputs, strict=True))
    form = _FORMATS[call.node.attrs["form"]]
    which = flags(False in targets, True in targets)
    parameters = {
        "x": const_pointer(x),
        "factor": const_pointer(factor),
        "as_is": pointer(targets[min(targets)]),
        "transposed": pointer(targets[max(targets)]),
    }
    if _is_in_tiles(x, *targets.values()):
        rows, columns = x.shape
        down, across = -(-rows // _SIDE), -(-columns // _SIDE)
        sizes = {"rows": i32(rows), "columns": i32(columns), "across": i32(across)}
        function, blocks, parameters = "block_to_float8", down * across, {**parameters, **sizes}
    else:
        parameters |= {
            "given": _steps(x),
            "first": _steps(targets.get(False, x)),
            "second": _steps(targets.get(True, x)),
            **_counts(x),
        }
        function, blocks = "to_float8_each", _blocks(x.size)
    return CudaRunner([_launch(function, blocks, f"<{form}, {which}>", parameters)])


def _is_in_tiles(x: Array, *targets: Array) -> bool:
    """Return True if threads may read and write several elements of dense rows together."""
    dense = all(
        each.flags.c_contiguous and address_of(each) % (_TOGETHER * each.itemsize) == 0
        for each in (x, *targets)
    )
    return dense and not any(side % _TOGETHER for side in x.shape) and x.size < 2**31


def _steps(array: Array) -> Parameter:
    return indices("Steps", strides_of(array), True)


def _counts(array: Array) -> dict[str, Parameter]:
    return {"columns": i64(array.shape[1]), "count": i64(array.size)}


def _blocks(count: int) -> int:
    return min(-(-count // _THREADS), _MOST_BLOCKS)


def _launch(
    function: str, blocks: int, template: str, parameters: dict[str, Parameter]
) -> KernelLaunch:
    return function_launch(
        _HEADER, f"{function}_kernel", blocks, _THREADS, function + template, parameters
    )


TABLE.add(Kernel("to_float8", "cuda", "float8", _bind_rounding))


# --- products


@dataclass(frozen=True)
class _Product:
    """A product of bytes, and the problem that cuBLASLt is given; None if it cannot take it."""

    whole: Multiplication
    problem: Problem | None

    @classmethod
    def of(cls, call: Call) -> _Product:
        left, right, _ = call.inputs
        attrs = call.node.attrs
        whole = Multiplication(left, right.swapaxes(0, 1), call.outputs[0])
        problem = problem_of(
            whole, "DEFAULT", cublas.MOST_WORKSPACE, attrs["forms"], fast=attrs["fast"]
        )
        # Tensor cores read both factors along the sums.
        is_along = problem is not None and problem.a.transposed and not problem.b.transposed
        return cls(whole, problem if is_along else None)

    def is_aligned(self, scale: Array) -> bool:
        """Return True if tensor cores can read the arrays, and the library the scale."""
        layouts = () if self.problem is None else self.problem.layouts
        leading = (each.leading for each in layouts)
        places = (address_of(scale), *(each.alignment for each in layouts), *leading)
        return not any(place % cublas.SIDE_ALIGNMENT for place in places)


def _bind_library(rank: int, call: Call) -> Runner:
    product = _Product.of(call)
    if product.problem is None or not product.is_aligned(call.inputs[2]):
        return _bind_exact(call)
    spare = cublas.aligned_part(call.workspace)
    found = algorithms(product.problem, device.current_card())
    found = found[found["workspace"] <= spare.nbytes]
    if not len(found):
        return _bind_exact(call)
    last = min(rank + 1, len(found))
    scale = call.inputs[2]
    chosen = found[last - 1 : last]
    return CudaRunner([LtCall(product.whole, product.problem, chosen, spare, scale=scale)])


def _supports(rank: int, node: Node) -> bool:
    if device.cublas_lt() is None or not driver().card.has_float8:
        return False
    if (rank and not device.may_measure()) or 0 in (*node.shape, node.inputs[0].shape[1]):
        return False
    return len(_algorithms(node)) > rank


def _algorithms(node: Node) -> np.ndarray[Any, Any]:
    problem = _Product.of(described_call(node)).problem
    if problem is None:
        return np.empty(0)
    return algorithms(cublas.aligned(problem), device.current_card())


def _workspace(node: Node) -> int:
    # The exact product takes the place of the library's for arrays that lie otherwise.
    most = max((int(each["workspace"]) for each in _algorithms(node)), default=0)
    return max(most + cublas.WORKSPACE_ALIGNMENT + ALIGNMENT, _exact_workspace(node))


@unless_empty
def _bind_exact(call: Call) -> Runner:
    """Return the product in float32, in which both formats are exact."""
    left, right, scale = call.inputs
    out, scratch = call.outputs[0], Scratch(call.workspace)
    calls: list[Any] = []
    values = []
    for given, form in zip((left, right), call.node.attrs["forms"], strict=True):
        value = scratch.array(given.shape, float32)
        parameters = {
            "bytes": const_pointer(given),
            "values": pointer(value),
            "given": _steps(given),
            **_counts(given),
        }
        if given.size:
            template = f"<{_FORMATS[form]}>"
            calls.append(_launch("from_float8", _blocks(given.size), template, parameters))
        values.append(value)
    terms = scratch.array(out.shape, float32)
    calls += tiled.launches(Multiplication(values[0], values[1].swapaxes(0, 1), terms))
    parameters = {
        "terms": const_pointer(terms),
        "scale": const_pointer(scale),
        "values": pointer(out),
        "result": _steps(out),
        **_counts(out),
    }
    calls.append(_launch("scaled", _blocks(out.size), f"<{type_of(out)}>", parameters))
    return CudaRunner(calls)


def _exact_workspace(node: Node) -> int:
    a, b, _ = (given.outputs[0] for given in node.inputs)
    values = (Spec(each.shape, float32) for each in (a, b))
    return workspace_bytes(*values, Spec(node.shape, float32))


for _rank in range(RANKS):
    _name = "cublas" if _rank == 0 else f"cublas {_rank + 1}"
    TABLE.add(
        Kernel(
            "float8_matmul",
            "cuda",
            _name,
            partial(_bind_library, _rank),
            partial(_supports, _rank),
            _workspace,
            priority=10 - _rank,
            varies=True,
        )
    )
TABLE.add(Kernel("float8_matmul", "cuda", "float32", _bind_exact, workspace=_exact_workspace))
