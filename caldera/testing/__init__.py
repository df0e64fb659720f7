"""Tools for testing code that is built on Caldera."""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.testing.gradients import check_gradients

__all__ = ["check_gradients"]

_guard(globals())
