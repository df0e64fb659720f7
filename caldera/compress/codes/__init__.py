"""Codes: how a vector of values becomes bytes on the wire. One a file."""

from __future__ import annotations

from caldera.compress.codes._base import Code
from caldera.compress.codes.halves import Halves
from caldera.compress.codes.levels import Levels
from caldera.compress.codes.packed import Packed
from caldera.compress.codes.plain import Plain
from caldera.compress.codes.signs import Signs
from caldera.compress.codes.ternary import Ternary

__all__ = ["Code", "Halves", "Levels", "Packed", "Plain", "Signs", "Ternary"]
