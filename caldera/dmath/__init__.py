"""Matrices spread over many processes, used like any other mathematics library."""

from __future__ import annotations

from caldera.dmath.array import Array, evaluate
from caldera.dmath.connect import connect, current, disconnect, spmd
from caldera.dmath.creation import arange, array, eye, full, normal, ones, random, zeros
from caldera.dmath.files import load, save
from caldera.dmath.session import Session
from caldera.sharding.distributions import (
    Axis,
    BlockCyclic,
    Blocks,
    Columns,
    Distribution,
    Grid,
    Replicated,
    Rows,
)
from caldera.sharding.layout import Layout

__all__ = [
    "Array",
    "Axis",
    "BlockCyclic",
    "Blocks",
    "Columns",
    "Distribution",
    "Grid",
    "Layout",
    "Replicated",
    "Rows",
    "Session",
    "arange",
    "array",
    "connect",
    "current",
    "disconnect",
    "evaluate",
    "eye",
    "full",
    "load",
    "normal",
    "ones",
    "random",
    "save",
    "spmd",
    "zeros",
]
