"""Benchmarks against other frameworks: the implementation of `caldera bench`.

Every framework runs in every setting in a separate process (`worker`); one process measures at a
time, in turns (`session`). All contestants get the same weights and data, and a result counts only
if it is equal to the reference's (`equality`). Other frameworks are imported only by their workers.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.bench.honesty import Claims, Findings, check

__all__ = ["Claims", "Findings", "check"]

_guard(globals())
