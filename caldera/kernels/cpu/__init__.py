"""Kernels for the CPU that do better than the oracle."""

from __future__ import annotations

from caldera.kernels.cpu import convolution, elementwise, fused, product, reduction

__all__ = ["convolution", "elementwise", "fused", "product", "reduction"]
