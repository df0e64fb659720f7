"""Kernels of an NVIDIA card. Importing this registers them; it needs neither CuPy nor a card."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.cuda import (
    attention,
    collective,
    convolution,
    persistent,
    pooling,
    random,
    softmax,
    sorting,
)
from caldera.kernels.cuda.convolution import cudnn, epilogue, pointwise
from caldera.kernels.cuda.convolution.small_channels import kernels
from caldera.kernels.cuda.elementwise import fused, horizontal_fusion, loop
from caldera.kernels.cuda.fourier import cufft, stockham
from caldera.kernels.cuda.indexing import gather, scatter, scatter_few_rows
from caldera.kernels.cuda.linalg import batched, cusolver
from caldera.kernels.cuda.movement import copy, rearrange
from caldera.kernels.cuda.normalisation import (
    batchnorm,
    batchnorm_cooperative,
    groupnorm,
    layernorm,
    local_response,
)
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.reduction import cumsum, reduce
from caldera.kernels.cuda.runtime import measure
