"""For compressing gradients: choosing the largest, rounding by chance, packing to the bit."""

from __future__ import annotations

from caldera.kernels.native.compression.largest import (
    largest_in_blocks,
    take_largest_in_blocks,
)
from caldera.kernels.native.compression.levels import from_levels, to_levels
from caldera.kernels.native.compression.merge import merge_sorted
from caldera.kernels.native.compression.rounding import FORMATS, round_by_chance
from caldera.kernels.native.compression.scatter import add_at, not_zero, put_only, take_out

__all__ = [
    "FORMATS",
    "add_at",
    "from_levels",
    "largest_in_blocks",
    "merge_sorted",
    "not_zero",
    "put_only",
    "round_by_chance",
    "take_largest_in_blocks",
    "take_out",
    "to_levels",
]
