"""Kernels of an NVIDIA card. Importing this registers them; it needs neither CuPy nor a card."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.cuda import (
    attention,
    batchnorm,
    batchnorm_small,
    blas,
    collective,
    convolution,
    copying,
    crossentropy,
    cudnn,
    cufft,
    cumsum,
    cusolver,
    elementwise,
    ended,
    fewchannels,
    fourier,
    fused,
    grouping,
    groupnorm,
    indexing,
    layernorm,
    linalg,
    listing,
    measure,
    movement,
    persistent,
    pointwise,
    pooling,
    random,
    reduction,
    response,
    scatter,
    softmax,
    sorting,
    tiles,
)
