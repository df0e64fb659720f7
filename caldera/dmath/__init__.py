"""Matrices spread over many processes."""

from __future__ import annotations

from caldera.dmath.connect import connect, current, disconnect, spmd
from caldera.dmath.session import Session

__all__ = ["Session", "connect", "current", "disconnect", "spmd"]
