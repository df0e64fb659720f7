"""cuBLASLt through the low-level bindings of nvmath-python: descriptors, algorithms, calls.

cuBLAS is column-major, so the transposed product is requested: our right operand is passed first.
All objects of a call are created before it runs, and a run only launches.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from weakref import finalize

import numpy as np

from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.software import address_of
from caldera.core.tensor.dtype import float64
from caldera.kernels.common.product import Matrices, as_matrices
from caldera.kernels.cuda.product.problem import Multiplication
from caldera.kernels.cuda.runtime import device
from caldera.kernels.table import Array

RANKS = 8
"""Algorithms that are tried against each other: the library names no more, and of large products
the last ones have been the fastest."""
ALIGNMENT = 64
"""Alignment in bytes of all arrays in plans; the library requires at most 16."""
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14, "e4m3": 28, "e5m2": 29}
"""cudaDataType_t."""
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77
"""cublasComputeType_t."""
TRANSPOSED = 1
"""cublasOperation_t."""
RESULT = np.dtype(
    [
        ("algorithm", np.uint64, 8),
        ("workspace", np.uint64),
        ("state", np.int32),
        ("waves", np.float32),
        ("reserved", np.int32, 4),
    ]
)
"""cublasLtMatmulHeuristicResult_t."""


@dataclass(frozen=True)
class MatrixLayout:
    """Matrix in cuBLAS's layout, with `rows` contiguous elements per column."""

    rows: int
    columns: int
    leading: int
    transposed: bool
    apart: int
    """Stride between matrices of the batch."""
    alignment: int
    data: int
    """Type of the elements, one of DATA_TYPES."""

    @classmethod
    def of(cls, matrices: Matrices, apart: int, data: str = "") -> MatrixLayout:
        """Matrices of ours: their rows are its columns, unless they are transposed already."""
        rows, columns = matrices.array.shape[-2:]
        size = (rows, columns) if matrices.transposed else (columns, rows)
        address = address_of(matrices.array)
        alignment = min(ALIGNMENT, address & -address)
        kind = DATA_TYPES[data or matrices.array.dtype.name]
        return cls(*size, matrices.leading, matrices.transposed, apart, alignment, kind)


@dataclass(frozen=True)
class Problem:
    """Key of a product: all properties that determine the choice of an algorithm."""

    compute: int
    a: MatrixLayout
    b: MatrixLayout
    d: MatrixLayout
    count: int
    epilogue: str
    limit: int
    scaled: bool = False
    """True if a number in memory multiplies the product, as products of 8 bits require."""
    fast: bool = False
    """True if tensor cores may keep fewer digits of partial sums of products of 8 bits."""

    @property
    def layouts(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """Both factors and the result."""
        return self.a, self.b, self.d

    @property
    def scale(self) -> int:
        """The type of alpha and beta."""
        return DATA_TYPES["float64" if self.compute == COMPUTE_64F else "float32"]


def problem_of(
    product: Multiplication,
    epilogue: str,
    limit: int,
    forms: tuple[str, str] = ("", ""),
    *,
    fast: bool = False,
) -> Problem | None:
    """Return the problem for the plain product; None if cuBLAS does not support the arrays'
    layouts.

    `forms` are the formats of factors whose bytes hold numbers of 8 bits.
    """
    found = [as_matrices(each) for each in (product.left, product.right, product.out)]
    left, right, out = found
    if left is None or right is None or out is None or out.transposed or len(product.batch) > 1:
        return None
    apart = product.batch[0].strides if product.batch else (0, 0, 0)
    if min(apart) < 0 or 0 in product.extent:
        return None
    return Problem(
        _compute_type(product),
        MatrixLayout.of(right, apart[1], forms[1]),
        MatrixLayout.of(left, apart[0], forms[0]),
        MatrixLayout.of(out, apart[2]),
        product.count,
        epilogue,
        limit,
        scaled=any(forms),
        fast=fast,
    )


def _compute_type(product: Multiplication) -> int:
    if product.dtype == float64:
        return COMPUTE_64F
    is_rounded = product.compute == "tf32" and product.left.dtype.name == "float32"
    return COMPUTE_TF32 if is_rounded else COMPUTE_32F


class Descriptors:
    """Library objects for a problem, freed with this object; `bias` and `scale` are addresses."""

    def __init__(self, lt: Any, problem: Problem, bias: int, scale: int) -> None:
        self.product = lt.matmul_desc_create(problem.compute, problem.scale)
        finalize(self, lt.matmul_desc_destroy, self.product)
        attributes = lt.MatmulDescAttribute
        put = partial(_put, lt.matmul_desc_set_attribute, self.product)
        put(attributes.TRANSA, ctypes.c_int32(problem.a.transposed * TRANSPOSED))
        put(attributes.TRANSB, ctypes.c_int32(problem.b.transposed * TRANSPOSED))
        if problem.epilogue != "DEFAULT":
            put(attributes.EPILOGUE, ctypes.c_uint32(lt.Epilogue[problem.epilogue]))
        if "BIAS" in problem.epilogue:
            put(attributes.BIAS_POINTER, ctypes.c_int64(bias))
            put(attributes.BIAS_DATA_TYPE, ctypes.c_int32(problem.a.data))
        if problem.scaled:
            put(attributes.A_SCALE_POINTER, ctypes.c_int64(scale))
        if problem.fast:
            put(attributes.FAST_ACCUM, ctypes.c_int8(1))
        a, b, d = (self._layout(lt, each, problem.count) for each in problem.layouts)
        self.a, self.b, self.d = a, b, d

    def _layout(self, lt: Any, layout: MatrixLayout, count: int) -> int:
        size = (layout.rows, layout.columns, layout.leading)
        found: int = lt.matrix_layout_create(layout.data, *size)
        finalize(self, lt.matrix_layout_destroy, found)
        if count > 1:
            attributes = lt.MatrixLayoutAttribute
            put = partial(_put, lt.matrix_layout_set_attribute, found)
            put(attributes.BATCH_COUNT, ctypes.c_int32(count))
            put(attributes.STRIDED_BATCH_OFFSET, ctypes.c_int64(layout.apart))
        return found


def _put(function: Any, handle: int, attribute: Any, value: Any) -> None:
    function(handle, int(attribute), ctypes.addressof(value), ctypes.sizeof(value))


@lru_cache
def handle(card: int) -> int:
    """Return the library's context on a GPU."""
    return device.cublas_lt().create()


@lru_cache(maxsize=4096)
def algorithms(problem: Problem, card: int) -> np.ndarray:
    """Return the algorithms that the library thinks fastest, the best one first; maybe none."""
    lt = device.cublas_lt()
    # The result depends on the presence of a bias, not on its address.
    descriptors = Descriptors(lt, problem, ALIGNMENT, ALIGNMENT)
    preference = lt.matmul_preference_create()
    attributes = lt.MatmulPreferenceAttribute
    put = partial(_put, lt.matmul_preference_set_attribute, preference)
    put(attributes.MAX_WORKSPACE_BYTES, ctypes.c_uint64(problem.limit))
    # Split sums are added up with the same precision as unsplit ones.
    exact = lt.ReductionScheme.COMPUTE_TYPE
    if all(each.data == problem.scale for each in problem.layouts):
        exact |= lt.ReductionScheme.INPLACE
    put(attributes.REDUCTION_SCHEME_MASK, ctypes.c_uint32(exact))
    for name, layout in zip("ABCD", (problem.a, problem.b, problem.d, problem.d), strict=True):
        put(attributes[f"MIN_ALIGNMENT_{name}_BYTES"], ctypes.c_uint32(layout.alignment))
    results, count = np.zeros(RANKS, RESULT), ctypes.c_int(0)
    try:
        lt.matmul_algo_get_heuristic(
            handle(card),
            descriptors.product,
            descriptors.a,
            descriptors.b,
            descriptors.d,
            descriptors.d,
            preference,
            RANKS,
            results.ctypes.data,
            ctypes.addressof(count),
        )
    except lt.cuBLASLtError:
        # The library reports unsupported problems by an error.
        return results[:0]
    finally:
        lt.matmul_preference_destroy(preference)
    found = results[: count.value]
    return found[found["state"] == 0]


# --- running it


class LtCall:
    """One call of cublasLtMatmul with everything it needs: out = alpha left right + beta out."""

    def __init__(
        self,
        product: Multiplication,
        problem: Problem,
        algorithm: np.ndarray,
        workspace: Array,
        alpha: float = 1.0,
        beta: float = 0.0,
        scale: Array | None = None,
    ) -> None:
        self._lt = device.cublas_lt()
        pointers = [0 if each is None else address_of(each) for each in (product.bias, scale)]
        self._descriptors = Descriptors(self._lt, problem, *pointers)
        self._algorithm = algorithm.copy()
        number = ctypes.c_double if problem.compute == COMPUTE_64F else ctypes.c_float
        self._scales = (number(alpha), number(beta))
        self._kept = (product, workspace, scale)
        found, out = self._descriptors, address_of(product.out)
        nbytes = 0 if workspace is None else workspace.nbytes
        self._arguments = (
            handle(device.current_card()),
            found.product,
            ctypes.addressof(self._scales[0]),
            address_of(product.right),
            found.a,
            address_of(product.left),
            found.b,
            ctypes.addressof(self._scales[1]),
            out,
            found.d,
            out,
            found.d,
            self._algorithm.ctypes.data,
            address_of(workspace) if nbytes else 0,
            nbytes,
        )

    def __call__(self) -> None:
        self._lt.matmul(*self._arguments, launching_stream())
