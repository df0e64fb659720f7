"""Operations on lazy values: each returns an expression that is computed on request."""
# ruff: noqa: F403 - each family says which of its names are operations

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.base.registry import provided_attributes as _provided_attributes
from caldera.compiler.lazy import grad, input, var
from caldera.compiler.lazy import takes_open_sizes as _takes_open_sizes
from caldera.core.graph.opdef import location as _location
from caldera.op import (
    arithmetic,
    control,
    convolution,
    creation,
    derivatives,
    fourier,
    indexing,
    layers,
    linalg,
    logic,
    loss,
    movement,
    pooling,
    product,
    random,
    reduction,
    running,
    sampling,
    searching,
    special,
    transposed_convolution,
    unary,
    windows,
)
from caldera.op.arithmetic import *
from caldera.op.control import *
from caldera.op.convolution import *
from caldera.op.creation import *
from caldera.op.derivatives import *
from caldera.op.fourier import *
from caldera.op.indexing import *
from caldera.op.layers import *
from caldera.op.linalg import *
from caldera.op.logic import *
from caldera.op.loss import *
from caldera.op.movement import *
from caldera.op.pooling import *
from caldera.op.product import *
from caldera.op.random import *
from caldera.op.reduction import *
from caldera.op.running import *
from caldera.op.sampling import *
from caldera.op.searching import *
from caldera.op.special import *
from caldera.op.transposed_convolution import *
from caldera.op.unary import *
from caldera.op.windows import *

if TYPE_CHECKING:
    from caldera.code.skip_gram import skip_gram

__all__ = [
    "grad",
    "input",
    "skip_gram",
    "var",
    *arithmetic.__all__,
    *control.__all__,
    *convolution.__all__,
    *creation.__all__,
    *derivatives.__all__,
    *fourier.__all__,
    *indexing.__all__,
    *layers.__all__,
    *linalg.__all__,
    *loss.__all__,
    *searching.__all__,
    *running.__all__,
    *sampling.__all__,
    *logic.__all__,
    *movement.__all__,
    *pooling.__all__,
    *product.__all__,
    *random.__all__,
    *reduction.__all__,
    *special.__all__,
    *transposed_convolution.__all__,
    *unary.__all__,
    *windows.__all__,
]

_guard(globals(), where=_location)
for _name in __all__:
    # Wrapped outside the guards: these then receive known sizes.
    if _name in globals() and _name not in ("input", "var"):
        globals()[_name] = _takes_open_sizes(globals()[_name])
        globals()[_name].__module__ = __name__  # where pickle finds it
_answer_foreign(globals(), _provided_attributes("op"))
