"""Kernels compiled to machine code by LLVM. Importing this registers them for the CPU."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.kernels.native import (
    attention,
    batchnorm,
    convolution,
    copying,
    crossentropy,
    elementwise,
    fourier,
    fused,
    groupnorm,
    indexing,
    layernorm,
    pooling,
    position,
    product,
    random,
    reduction,
    response,
    small_product,
    softmax,
    winograd,
)
