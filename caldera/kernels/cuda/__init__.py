"""Kernels of an NVIDIA card. Importing this registers them; it needs neither CuPy nor a card.

Families have the names of those of the CPU and of the oracles; `runtime/` compiles, launches and
measures, `codegen/` writes source, `include/` holds the CUDA headers.

A kernel of our own is here because a measurement shows it ahead (kernels-h200.md and card-h200.md
in benchmarks/results, `python benchmarks/kernels/special_kernels.py --device cuda`), because no
library has such a thing, or because it serves where the library is absent:

- `convolution/small_channels`: 1.0 to 5.0 times as fast as the best of cuDNN's plans; what was
  slower is left to cuDNN.
- `persistent`: small networks in 33 us instead of 107 us a step as a CUDA graph, LeNet-5 in 45
  instead of 129.
- `product/tiled`, `convolution/implicit_gemm`: every dtype and layout, without cuBLASLt and cuDNN;
  they judge the libraries' results where the oracle would take too long. Products are ahead of
  cuBLASLt for long sums and some small layers, convolutions ahead of cuDNN at a third of the
  problems, all in float32 or float64.
- `product/cublas`, padded: cuBLASLt itself, for sides such as 100 classes, where measuring finds it
  so.
- `elementwise/relu_mask`: the gradient of a large relu reads bits; 50 to 80 us of 3.2 ms in a wide
  perceptron.
- `convolution/separable`: pointwise convolutions are cuBLASLt itself, on images seen as matrices;
  depthwise ones with a stride take a third to a fourteenth of the time of `implicit_gemm`, which
  was chosen before, without one 0.43 to 0.80 of cuDNN's.
- `reduction/reduce`, products with ones: cuBLASLt itself, for sums of columns, where measuring
  finds it so: 0.64 to 0.89 of the time of a loop for wide ones (reductions-h200.md).
- `elementwise`, `reduction`, `softmax`, `normalisation`, `pooling`, `movement`, `random`: there is
  no library for fused bodies, any layout and the same bits on every run.
- `normalisation/batchnorm_cooperative`: 0.51 to 0.66 of the time of three launches.
- `indexing`, `sorting`: sums in a fixed order, which the libraries' atomic additions have not.
  `indexing/scatter_few_rows` takes a third to a half of the other ways' time for few rows.
- `attention`: any mask and heads that share, in a fixed order. `tensor_core` serves half precision
  where cuDNN does not (masks, odd sizes, without the library), `tiles` everything else; it judges
  the two.
- `linalg/blocked`: Cholesky, QR and solve of one large matrix, by cuBLASLt and a kernel for blocks
  on the diagonal; QR and solve in a third to two thirds of CuPy's time with cuSOLVER, Cholesky in
  three quarters to nine tenths (placement-h200.md).
- `linalg/cusolver`: the library for large matrices, and card and host together (`choices.fix`).
- `linalg/batched`: for many small matrices in one launch, inside captured graphs; there it takes a
  tenth to a thousandth of cuSOLVER's time, which serves large ones.
- `recurrent`: all steps of a recurrent layer in one launch; no library takes any cell.
- `fourier`: Stockham passes, behind cuFFT wherever that is there, and what runs elsewhere.
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
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.recurrent import persistent as recurrent
from caldera.kernels.cuda.reduction import cumsum, reduce
from caldera.kernels.cuda.runtime import measure
