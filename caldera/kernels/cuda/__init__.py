"""Kernels of an NVIDIA card. Importing this registers them; it needs neither CuPy nor a card.

Families lie where those of the CPU and of the oracles do; `runtime/` compiles, launches and
measures, `codegen/` writes source, `include/` holds the CUDA headers.

A kernel of our own is here because a measurement shows it ahead (benchmarks/results/card-h200.md),
because no library has such a thing, or because it serves where the library is absent:

- `convolution/small_channels`: 1.0 to 5.0 times as fast as the best of cuDNN's plans; what was
  slower is left to cuDNN.
- `persistent`: small networks in 33 us instead of 107 us a step as a CUDA graph, LeNet-5 in 45
  instead of 129.
- `product/tiled`, `convolution/implicit_gemm`: every dtype and layout, without cuBLASLt and cuDNN;
  they judge the libraries' results where the oracle would take too long.
- `convolution/pointwise`: cuBLASLt itself, on images seen as matrices.
- `elementwise`, `reduction`, `softmax`, `normalisation`, `pooling`, `movement`, `random`: there is
  no library for fused bodies, any layout and the same bits on every run.
- `indexing`, `sorting`: sums in a fixed order, which the libraries' atomic additions have not.
- `attention`: any mask and heads that share; no library is asked.
- `linalg/batched`, `fourier/stockham`: without CuPy, inside captured graphs, and for many small
  matrices or rows in one launch; cuSOLVER and cuFFT are rivals where they are there. No measurement
  of these two, nor of `normalisation/batchnorm_cooperative` against three launches, is recorded.
"""

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
