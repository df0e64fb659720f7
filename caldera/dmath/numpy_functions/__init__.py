"""NumPy's functions on arrays whose parts are on ranks, by NumPy's rules: they stay there.

A table leads from each of NumPy's functions to a handler. `dispatch` binds a call by NumPy's own
signature, so that an argument without a handler is refused in one place.
"""

from __future__ import annotations

from caldera.dmath.numpy_functions import (  # noqa: F401 - each of them registers its handlers
    elements,
    fourier,
    matrices,
    movement,
    norms,
    positions,
    products,
    reductions,
    running,
    statistics,
)
from caldera.dmath.numpy_functions.dispatch import apply_function as apply_function
from caldera.dmath.numpy_functions.ufuncs import apply_ufunc as apply_ufunc
