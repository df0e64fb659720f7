"""Graph: nodes and their specs, ops, programs, and memory orders of values.

The ops are defined in `ops`, gradients in `differentiate`, checks of a graph in `verify`.
"""
# ruff: noqa: F401 - what other files import from here

from __future__ import annotations

from caldera.core.graph.memory_format import (
    NHWC,
    Order,
    as_numbers,
    as_pairs,
    dense_strides,
    laid_out,
    order_name,
    same_memory,
    seen_as,
    stored_shape,
)
from caldera.core.graph.node import (
    Node,
    Spec,
    Symbol,
    any_pins,
    describe,
    frozen,
    intern,
    intern_like,
    pinned,
)
from caldera.core.graph.opdef import (
    HOLOMORPHIC,
    ITEM,
    LINEAR,
    MOST_KNOWN,
    OPS,
    FlopsRule,
    Kind,
    Mismatch,
    Nodes,
    Op,
    as_tuple,
    composite,
    detached,
    item,
    items,
    location,
    op,
    parameter,
    refuse_dtype,
    refuse_shape,
    scope,
)
from caldera.core.graph.program import (
    Body,
    Outputs,
    Program,
    program_of,
    rebuild,
    rebuilt,
    rewrite,
    substitute,
    topological,
    users_of,
)
