"""Trained models as libraries for C, C++ and Fortran, without Python.

cd.export.c(model, "out")
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.export.library import c

__all__ = ["c"]

_guard(globals(), own_words=False)
