"""Attention by its decomposition, for those nodes that no other kernel can run."""

from __future__ import annotations

from caldera.kernels.reference.registry import by_decomposition

by_decomposition("scaled_dot_product_attention")
by_decomposition("scaled_dot_product_attention_grad")
