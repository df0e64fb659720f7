"""All families of native kernels: importing this registers them, as the table does when asked."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.native import (
    attention,
    collective,
    convolution,
    ctc,
    fourier,
    indexing,
    movement,
    pooling,
    random,
)
from caldera.kernels.native.convolution import fourier as fourier_convolution
from caldera.kernels.native.convolution import (
    norm_sums,
    planes,
    products,
    winograd,
)
from caldera.kernels.native.elementwise import loop
from caldera.kernels.native.normalisation import batchnorm, groupnorm, layernorm, local_response
from caldera.kernels.native.product import amx, few_rows, gemm, packed
from caldera.kernels.native.reduction import argmax, reduce
from caldera.kernels.native.softmax import softmax
