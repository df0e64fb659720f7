"""Kernels for the CPU that do better than the oracle."""

from __future__ import annotations

from caldera.kernels.cpu import convolution, elementwise, epilogue, fused, product, reduction

__all__ = ["convolution", "elementwise", "epilogue", "fused", "product", "reduction"]
