"""Linear algebra on large matrices by cuSOLVER and cuBLAS.

The library, called through CuPy for one matrix at a time, reports whether it succeeded, and the
host waits for the report. Such calls cannot be captured, and a matrix that cannot be factorised or
inverted raises an error, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.core.graph.node import Node
from caldera.core.graph.ops.factorisation import ABOUT_EQUAL
from caldera.core.memory.gpus import PACKAGE, card_count, cupy
from caldera.core.tensor.dtype import FLOATS, bfloat16, float16, part_of
from caldera.kernels.cuda.runtime.device import cupy_array
from caldera.kernels.reference import FUNCTIONS
from caldera.kernels.reference.arrays import named
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_CALL_SECONDS = 2e-4
_ROW_SECONDS = 2e-6
_ROTATION_SECONDS = 3e-5
"""A row of a factorisation by rotations and reflections, which wait for each other."""
_FLOPS = 5e12
Results = tuple[Any, ...]


def _symmetric(a: Any) -> Any:
    return (a + a.T.conj()) * a.dtype.type(0.5)


def _slogdet(a: Any) -> Results:
    sign, logarithm = cupy().linalg.slogdet(a)
    return sign, logarithm


def _qr(a: Any) -> Results:
    q, r = cupy().linalg.qr(a)
    sign = _sign(cupy().diagonal(r))
    r = r * sign.conj()[:, None]
    if r.dtype.kind == "c":
        # Removes the imaginary rounding errors of the real diagonal.
        steps = cupy().arange(r.shape[0])
        r[steps, steps] = r[steps, steps].real
    return q * sign, r


def _svd(a: Any) -> Results:
    u, s, vt = cupy().linalg.svd(a, full_matrices=False)
    sign = _sign_of_columns(u)
    return u * sign.conj(), s, vt * sign[:, None]


def _eigh(a: Any) -> Results:
    w, v = cupy().linalg.eigh(_symmetric(a))
    return w, v * _sign_of_columns(v).conj()


def _eig(a: Any) -> Results:
    # CuPy has no such function for all libraries of CUDA 12: the host computes it.
    return tuple(map(cupy().asarray, FUNCTIONS["eig"](cupy().asnumpy(a))))


def _sign(x: Any) -> Any:
    """The direction of each number, 1 for 0: what makes it positive if it is divided by it."""
    if x.dtype.kind != "c":
        return cupy().where(x < 0, -1, 1).astype(x.dtype)
    length = cupy().abs(x)
    return cupy().where(length == 0, 1, x / cupy().where(length == 0, 1, length)).astype(x.dtype)


def _sign_of_columns(vectors: Any) -> Any:
    """Return the direction of each column: the direction of the first of its largest components."""
    magnitude = cupy().abs(vectors)
    among_largest = magnitude >= ABOUT_EQUAL * magnitude.max(axis=0, keepdims=True)
    first = cupy().argmax(among_largest, axis=0)
    deciding = vectors[first, cupy().arange(vectors.shape[1])]
    return _sign(deciding)


def bind(call: Call) -> Runner:
    """Return a runner that calls the library for an op, for each matrix in order."""
    node = call.node
    function, _ = _LIBRARY[node.op.name]
    outputs = [cupy_array(array) for array in call.outputs]
    batch = node.shape[:-2] if node.op.name == "solve" else node.inputs[0].shape[:-2]
    inputs = [
        cupy().broadcast_to(cupy_array(array), (*batch, *array.shape[-2:])) for array in call.inputs
    ]
    state = optional_import("cupyx", PACKAGE, "linear algebra").errstate
    # The library has no functions for halves: they are computed in float32.
    widened = node.inputs[0].dtype == float16

    def run() -> None:
        with state(linalg="raise"), named(node.op.name):
            for index in np.ndindex(*batch):
                given = [array[index] for array in inputs]
                results = function(*[each.astype("float32") if widened else each for each in given])
                for output, result in zip(outputs, results, strict=True):
                    output[index] = result

    return run


def supports(node: Node) -> bool:
    """Return True if the library supports this node; CuPy does not support bfloat16."""
    sizes = [given.spec.size for given in node.inputs]
    dtype = part_of(node.inputs[0].dtype)
    return card_count() > 0 and dtype in FLOATS - {bfloat16} and min(sizes) > 0


def _seconds(node: Node) -> float:
    *batch, m, n = node.inputs[0].shape
    _, row_seconds = _LIBRARY[node.op.name]
    each = _CALL_SECONDS + min(m, n) * row_seconds
    return float(np.prod(batch, dtype=float)) * each + node.op.count_flops(node) / _FLOPS


_LIBRARY: dict[str, tuple[Callable[..., Results], float]] = {
    "solve": (lambda a, b: (cupy().linalg.solve(a, b),), _ROW_SECONDS),
    "inverse": (lambda a: (cupy().linalg.inv(a),), _ROW_SECONDS),
    "slogdet": (_slogdet, _ROW_SECONDS),
    "cholesky": (lambda a: (cupy().linalg.cholesky(_symmetric(a)),), _ROW_SECONDS),
    "qr": (_qr, _ROW_SECONDS),
    "eigh": (_eigh, _ROTATION_SECONDS),
    "svd": (_svd, _ROTATION_SECONDS),
    "eig": (_eig, _ROTATION_SECONDS),
}
"""Function for each op, and its seconds per row."""
for _op in _LIBRARY:
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "cusolver",
            bind,
            supports,
            estimate=_seconds,
            capturable=False,
            measured=False,
        )
    )
