"""Element-wise bodies and reductions as native loops over arrays of any strides.

A body becomes a `LoopBody` (the computation), the arrays become `Axes` (their layout). Both are
plain values, so loops that differ only in lengths and strides share one compiled kernel.
"""

from __future__ import annotations
