"""Kernels for NVIDIA GPUs.

Importing this package registers the kernels; it requires neither CuPy nor a GPU.

Families have the same names as in the CPU package and in the oracles. `runtime/` compiles, launches
and measures, `codegen/` writes source, `include/` holds the CUDA headers.

Measurements are in kernels-h200.md and card-h200.md in benchmarks/results; `python
benchmarks/kernels/special_kernels.py --device cuda` repeats them. A custom kernel is included for
one of three reasons: it is faster in measurements, no library provides the operation, or it
replaces a library that may be absent:

- `convolution/small_channels`: 1.0 to 5.0 times as fast as the best of cuDNN's plans; slower cases
  are left to cuDNN.
- `persistent`: small networks in 33 us instead of 107 us a step as a CUDA graph, LeNet-5 in 45
  instead of 129.
- `product/tiled`, `convolution/implicit_gemm`: every dtype and layout, without cuBLASLt and cuDNN.
  Their results check the libraries' results where the oracle would take too long. Products are
  faster than cuBLASLt for long sums and some small layers. Convolutions are faster than cuDNN for a
  third of the problems, all in float32 or float64.
- `product/cublas`, padded: cuBLASLt for sides such as 100 classes, where padding is faster in
  measurements.
- `elementwise/relu_mask`: the gradient of a large relu reads bits; 50 to 80 us of 3.2 ms in a wide
  perceptron.
- `convolution/separable`: pointwise convolutions are cuBLASLt products on images seen as matrices.
  Depthwise ones with a stride take a third to a fourteenth of the time of `implicit_gemm`, which
  was chosen before; without a stride they take 0.43 to 0.80 of cuDNN's time.
- `reduction/reduce`, products with ones: cuBLASLt for sums of columns if it is faster in
  measurements: 0.64 to 0.89 of a loop's time for wide ones (reductions-h200.md).
- `elementwise`, `reduction`, `softmax`, `normalisation`, `pooling`, `movement`, `random`: no
  library supports fused bodies, any layout and the same bits on every run.
- `normalisation/batchnorm_cooperative`: 0.51 to 0.66 of the time of three launches.
- `indexing`, `sorting`: sums in a fixed order; the libraries' atomic additions have no fixed order.
  `indexing/scatter_few_rows` takes a third to a half of the time of those kernels for few rows.
- `attention`: any mask and shared heads, in a fixed order. `tensor_core` serves half precision
  where cuDNN does not (masks, odd sizes, without the library), `tiles` everything else; `tiles`
  also checks `tensor_core` and cuDNN.
- `linalg/blocked`: Cholesky, QR and solve for a single large matrix, by cuBLASLt and a kernel for
  diagonal blocks. QR and solve take a third to two thirds of CuPy's time with cuSOLVER, Cholesky
  three quarters to nine tenths (placement-h200.md).
- `linalg/cusolver`: the library for large matrices.
- `linalg/batched`: many small matrices in one launch, also inside captured graphs. There it takes a
  tenth to a thousandth of the time of cuSOLVER, which serves large matrices.
- `recurrent`: all steps of a recurrent layer in one launch; no library supports arbitrary cells.
- `fourier`: cuFFT, with our own conversion of layouts and dtypes.
"""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.cuda import (
    collective,
    convolution,
    fourier,
    movement,
    persistent,
    pooling,
    random,
    softmax,
    sorting,
)
from caldera.kernels.cuda.attention import cudnn_sdpa, tensor_core, tiles
from caldera.kernels.cuda.convolution import cudnn, epilogue, separable
from caldera.kernels.cuda.convolution.small_channels import kernels
from caldera.kernels.cuda.elementwise import fused, loop, relu_mask
from caldera.kernels.cuda.indexing import gather, scatter, scatter_few_rows
from caldera.kernels.cuda.linalg import batched, blocked, cusolver
from caldera.kernels.cuda.normalisation import (
    batchnorm_cooperative,
    channel_norms,
    layernorm,
    local_response,
)
from caldera.kernels.cuda.product import cublas, float8, tiled
from caldera.kernels.cuda.recurrent import persistent as recurrent
from caldera.kernels.cuda.reduction import cumsum, reduce
from caldera.kernels.cuda.runtime import measure
