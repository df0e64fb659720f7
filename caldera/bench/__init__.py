"""Honest measurement beside other frameworks: what `caldera bench` runs.

Every framework, in every setting, computes in a process of its own (`worker`); one process measures
at a time, in turns (`session`). All of them get the same weights and data, and a result counts only
if it is equal (`equality`). Other frameworks are imported by their workers alone.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.bench.honesty import Claims, Findings, check

__all__ = ["Claims", "Findings", "check"]

_guard(globals())
