"""All families of native kernels: importing this registers them, as the table does when asked.

Families that many programs do not use are imported when a program has one of their ops.
"""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.native import (
    attention,
    ctc,
    fourier,
    indexing,
    movement,
    pooling,
    random,
)
from caldera.kernels.native.elementwise import loop
from caldera.kernels.native.normalisation import batchnorm, groupnorm, layernorm, local_response
from caldera.kernels.native.product import amx, few_bits, few_rows, gemm, int8, packed
from caldera.kernels.native.reduction import argmax, reduce
from caldera.kernels.native.softmax import softmax
from caldera.kernels.table import TABLE

_HERE = __name__.rpartition(".")[0]
_CONVOLUTION = ("", ".fourier", ".norm_sums", ".planes", ".products", ".winograd")
LATER = {
    tuple(f"{_HERE}.convolution{name}" for name in _CONVOLUTION): (
        "conv2d",
        "conv2d_input",
        "conv2d_input_norm_reduce",
        "conv2d_moments",
        "conv2d_weight",
    ),
    (f"{_HERE}.convolution.int8",): ("int8_conv2d", "int8_conv2d_relu"),
    (f"{_HERE}.collective",): ("all_sum", "collective_finish", "collective_start", "turn"),
}
"""Modules with the ops whose native kernels they contain."""
TABLE.later |= {(op, "cpu"): modules for modules, ops in LATER.items() for op in ops}
