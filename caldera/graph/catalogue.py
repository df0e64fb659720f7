"""Every family of ops. Importing this fills the table `OPS`."""

from __future__ import annotations

from caldera.graph.ops import (
    activation,
    attention,
    base,
    collective,
    control,
    elementwise,
    epilogue,
    fourier,
    indexing,
    leaf,
    linalg,
    loss,
    movement,
    norm_epilogue,
    normalisation,
    pooling,
    product,
    random,
    reduction,
    state,
)

FAMILIES = (
    activation,
    attention,
    base,
    collective,
    control,
    elementwise,
    epilogue,
    fourier,
    indexing,
    leaf,
    linalg,
    loss,
    movement,
    norm_epilogue,
    normalisation,
    pooling,
    product,
    random,
    reduction,
    state,
)
