"""For compressing gradients: choosing the largest, rounding by chance, packing to the bit."""

from __future__ import annotations

from caldera.kernels.native.compression.sparse import (
    add_at,
    merge_sorted,
    not_zero,
    put_only,
    take_out,
)
from caldera.kernels.native.compression.stochastic_rounding import (
    FORMATS,
    dequantise,
    quantise,
    round_stochastically,
)
from caldera.kernels.native.compression.top_k import take_top_k_in_blocks, top_k_in_blocks

__all__ = [
    "FORMATS",
    "add_at",
    "dequantise",
    "merge_sorted",
    "not_zero",
    "put_only",
    "quantise",
    "round_stochastically",
    "take_out",
    "take_top_k_in_blocks",
    "top_k_in_blocks",
]
