"""What cuBLASLt does, on the host: descriptors by number, and products from raw pointers."""

from __future__ import annotations

import ctypes
import enum
import itertools
from typing import Any

import numpy as np

from caldera.core.tensor.dtype import BY_NAME

TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
SCALES = {68: "float32", 70: "float64", 77: "float32"}
INTEGERS = {1: ctypes.c_uint8, 4: ctypes.c_int32, 8: ctypes.c_int64}


class cuBLASLtError(Exception):
    """As the bindings name it."""


class MatmulDescAttribute(enum.IntEnum):
    """With the numbers of the library."""

    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    BIAS_DATA_TYPE = 26


class MatrixLayoutAttribute(enum.IntEnum):
    """With the numbers of the library."""

    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class MatmulPreferenceAttribute(enum.IntEnum):
    """With the numbers of the library."""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Epilogue(enum.IntEnum):
    """With the numbers of the library."""

    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


class ReductionScheme(enum.IntEnum):
    """With the numbers of the library."""

    NONE = 0
    INPLACE = 1
    COMPUTE_TYPE = 2
    OUTPUT_TYPE = 4


SIZES = {
    MatmulDescAttribute.TRANSA: 4,
    MatmulDescAttribute.TRANSB: 4,
    MatmulDescAttribute.EPILOGUE: 4,
    MatmulDescAttribute.BIAS_POINTER: 8,
    MatmulDescAttribute.BIAS_DATA_TYPE: 4,
}
LAYOUT_SIZES = {
    MatrixLayoutAttribute.BATCH_COUNT: 4,
    MatrixLayoutAttribute.STRIDED_BATCH_OFFSET: 8,
}
PREFERENCE_SIZES = {
    each: 8 if each is MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES else 4
    for each in MatmulPreferenceAttribute
}


class FakeCublasLt:
    """Stands for the module nvmath.bindings.cublasLt."""

    cuBLASLtError = cuBLASLtError
    MatmulDescAttribute = MatmulDescAttribute
    MatrixLayoutAttribute = MatrixLayoutAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    Epilogue = Epilogue
    ReductionScheme = ReductionScheme

    def __init__(self, workspace: int = 4096, algorithms: int = 3) -> None:
        self._numbers = itertools.count(1000)
        self.alive: dict[int, dict[Any, Any]] = {}
        self._workspace = workspace
        self._algorithms = algorithms
        self.epilogues: list[str] = []
        self.compute_types: list[int] = []
        self.ranks: list[int] = []
        self.limits: set[int] = set()
        self.row_bytes: list[tuple[int, ...]] = []
        self.depths: set[int] = set()

    def _new(self, **facts: Any) -> int:
        number = next(self._numbers)
        self.alive[number] = facts
        return number

    def _set(self, sizes: dict[Any, int], number: int, name: int, place: int, size: int) -> None:
        attribute = type(next(iter(sizes)))(name)
        assert size == sizes[attribute], f"{attribute!r} has {sizes[attribute]} bytes"
        self.alive[number][attribute] = INTEGERS[size].from_address(place).value

    def create(self) -> int:
        return self._new()

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert SCALES[compute] == TYPES[scale]
        return self._new(compute=compute)

    def matmul_desc_destroy(self, number: int) -> None:
        del self.alive[number]

    def matmul_desc_set_attribute(self, number: int, name: int, place: int, size: int) -> None:
        self._set(SIZES, number, name, place, size)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        assert leading >= rows > 0
        assert columns > 0
        return self._new(kind=kind, rows=rows, columns=columns, leading=leading)

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def matrix_layout_set_attribute(self, number: int, name: int, place: int, size: int) -> None:
        self._set(LAYOUT_SIZES, number, name, place, size)

    def matmul_preference_create(self) -> int:
        return self._new()

    def matmul_preference_set_attribute(
        self, number: int, name: int, place: int, size: int
    ) -> None:
        self._set(PREFERENCE_SIZES, number, name, place, size)

    def matmul_algo_get_heuristic(
        self,
        handle: int,
        product: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        wanted: int,
        results: int,
        count: int,
    ) -> None:
        assert handle in self.alive
        if not self._algorithms:
            raise cuBLASLtError(15)
        facts = self.alive[preference]
        self.limits.add(facts[MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES])
        found = 0
        for rank in range(min(wanted, self._algorithms)):
            needed = self._workspace * rank
            if needed > facts[MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES]:
                continue
            words = (ctypes.c_uint64 * 12).from_address(results + 96 * found)
            words[:] = [0xA190 + rank, *[0] * 7, needed, 0, 0, 0]
            found += 1
        ctypes.c_int.from_address(count).value = found

    def _operand(self, place: int, number: int, transposed: int) -> np.ndarray:
        """The matrices of a layout, as they enter the product."""
        facts = self.alive[number]
        dtype = BY_NAME[TYPES[facts["kind"]]]
        assert place % dtype.itemsize == 0
        count = facts.get(MatrixLayoutAttribute.BATCH_COUNT, 1)
        apart = facts.get(MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, 0)
        reach = (count - 1) * apart + (facts["columns"] - 1) * facts["leading"] + facts["rows"]
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(place)
        seen = np.lib.stride_tricks.as_strided(
            np.frombuffer(memory, dtype),
            (count, facts["rows"], facts["columns"]),
            np.array([apart, 1, facts["leading"]]) * dtype.itemsize,
        )
        return seen.swapaxes(1, 2) if transposed else seen

    def _row_bytes(self, number: int) -> int:
        facts = self.alive[number]
        return int(facts["leading"] * BY_NAME[TYPES[facts["kind"]]].itemsize)

    def matmul(
        self,
        handle: int,
        product: int,
        alpha: int,
        a: int,
        a_layout: int,
        b: int,
        b_layout: int,
        beta: int,
        c: int,
        c_layout: int,
        d: int,
        d_layout: int,
        algorithm: int,
        workspace: int,
        room: int,
        stream: int,
    ) -> None:
        facts = self.alive[product]
        wide = SCALES[facts["compute"]]
        number = ctypes.c_double if wide == "float64" else ctypes.c_float
        factor, kept = number.from_address(alpha).value, number.from_address(beta).value
        assert (c, c_layout) == (d, d_layout)
        rank = ctypes.c_uint64.from_address(algorithm).value - 0xA190
        assert room >= self._workspace * rank
        if room:
            np.frombuffer((ctypes.c_char * room).from_address(workspace), np.uint8)[:] = 0xEE
        left = self._operand(a, a_layout, facts[MatmulDescAttribute.TRANSA]).astype(wide)
        right = self._operand(b, b_layout, facts[MatmulDescAttribute.TRANSB]).astype(wide)
        with np.errstate(all="ignore"):
            result = np.matmul(left, right)
        if (factor, kept) != (1, 0):
            # What is multiplied by 0 is not read.
            before = self._operand(d, d_layout, 0) if kept else np.zeros_like(result)
            result = (factor * result + kept * before).astype(wide)
        self.depths.add(left.shape[-1])
        epilogue = Epilogue(facts.get(MatmulDescAttribute.EPILOGUE, 1))
        if "BIAS" in epilogue.name:
            dtype = BY_NAME[TYPES[facts[MatmulDescAttribute.BIAS_DATA_TYPE]]]
            place = facts[MatmulDescAttribute.BIAS_POINTER]
            memory = (ctypes.c_char * (result.shape[1] * dtype.itemsize)).from_address(place)
            result += np.frombuffer(memory, dtype).astype(wide)[:, None]
        if "RELU" in epilogue.name:
            result = np.fmax(result, 0)
        if "GELU" in epilogue.name:
            inner = np.sqrt(2 / np.pi) * (result + 0.044715 * result**3)
            result = (0.5 * result * (1 + np.tanh(inner))).astype(wide)
        target = self._operand(d, d_layout, 0)
        target[...] = result
        self.row_bytes.append(
            tuple(self._row_bytes(each) for each in (a_layout, b_layout, d_layout))
        )
        self.epilogues.append(epilogue.name)
        self.compute_types.append(facts["compute"])
        self.ranks.append(rank)
