"""Matrices spread over many processes, used like any other mathematics library."""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.compiler.sharding.distributions import (
    Axis,
    BlockCyclic,
    Blocks,
    Columns,
    Distribution,
    Grid,
    Replicated,
    Rows,
)
from caldera.compiler.sharding.layout import Layout
from caldera.dmath.array import Array, evaluate
from caldera.dmath.connect import connect, current, disconnect, spmd
from caldera.dmath.creation import arange, array, eye, full, normal, ones, random, zeros
from caldera.dmath.files import load, save
from caldera.dmath.hand_over import from_dask, from_pandas
from caldera.dmath.linalg import add_row_col_sum, svd, svd_bound
from caldera.dmath.session import Session
from caldera.op import (
    cholesky,
    concat,
    cumsum,
    determinant,
    eigh,
    fft,
    fft2,
    fftn,
    ifft,
    ifft2,
    ifftn,
    inverse,
    irfft,
    lstsq,
    matmul,
    norm,
    outer,
    qr,
    rfft,
    slogdet,
    solve,
    sort,
    stack,
    top_k,
    where,
)

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
    "add_row_col_sum",
    "arange",
    "array",
    "cholesky",
    "concat",
    "connect",
    "cumsum",
    "current",
    "determinant",
    "disconnect",
    "eigh",
    "evaluate",
    "eye",
    "fft",
    "fft2",
    "fftn",
    "from_dask",
    "from_pandas",
    "full",
    "ifft",
    "ifft2",
    "ifftn",
    "inverse",
    "irfft",
    "load",
    "lstsq",
    "matmul",
    "norm",
    "normal",
    "ones",
    "outer",
    "qr",
    "random",
    "rfft",
    "save",
    "slogdet",
    "solve",
    "sort",
    "spmd",
    "stack",
    "svd",
    "svd_bound",
    "top_k",
    "where",
    "zeros",
]

_guard(globals())
