"""Assignment: the new value of a variable at the end of a run."""

from __future__ import annotations

from caldera.graph.node import Spec
from caldera.graph.opdef import op, refuse_dtype, refuse_shape


@op("assign", kind="state")
def assign(target: Spec, value: Spec) -> Spec:
    """The value, and a promise that `target` holds it when the run is over."""
    if value.shape != target.shape:
        refuse_shape("a value of the variable's shape")
    if value.dtype != target.dtype:
        refuse_dtype("a value of the variable's dtype", hint="cast it with op.cast")
    return value
