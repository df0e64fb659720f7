"""Composite ops by their parts, for those nodes that no other kernel can run."""

from __future__ import annotations

from caldera.kernels.reference.registry import by_parts

by_parts("matmul_epilogue")
by_parts("scaled_dot_product_attention")
by_parts("scaled_dot_product_attention_grad")
