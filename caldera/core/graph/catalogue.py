"""All families of ops. Importing this module fills the table `OPS`."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.core.graph.ops import (
    activation,
    attention,
    base,
    collective,
    control,
    ctc,
    elementwise,
    epilogue,
    factorisation,
    float8,
    fourier,
    indexing,
    linalg,
    loss,
    movement,
    normalisation,
    product,
    random,
    reduction,
    special,
)
