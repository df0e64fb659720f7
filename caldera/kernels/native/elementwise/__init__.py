"""Element-wise bodies and reductions as native loops over arrays of any strides.

A body becomes a `LoopBody` (what is computed), the arrays become `Axes` (where it lies); both are
plain values, so loops that differ only in lengths and strides share one compiled kernel.
"""

from __future__ import annotations
