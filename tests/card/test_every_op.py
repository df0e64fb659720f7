"""A card can run everything: each op has kernels of its own or can be taken apart into such."""

from __future__ import annotations

import caldera.kernels.cuda  # noqa: F401 - registers them
from caldera.core.graph.opdef import OPS
from caldera.kernels.table import TABLE

BY_PLANS = frozenset({"scan", "broadcast_to", "flip", "slice", "transpose", "view_as_real"})
"""What plans do by themselves, whatever the device: a loop is the calls of its body, and some ops
are always another view of the same memory."""
BY_PASSES = frozenset({"real", "imag", "conj", "view_as_complex"})
"""What nothing is left of once complex numbers are two real ones."""


def test_every_op_can_run_on_a_card() -> None:
    single = {name for name, op in OPS.items() if op.decompose is None}
    apart = ("leaf", "state", "distributed")
    written = {name for name in single if OPS[name].kind not in apart}
    missing = {name for name in written - BY_PLANS - BY_PASSES if not TABLE.has(name, "cuda")}
    assert missing == set()


def test_kernels_are_registered_for_ops_that_exist() -> None:
    registered = {op for op, family in TABLE._kernels if family == "cuda"}
    assert registered - set(OPS) <= {"copy"}


def test_kernels_of_an_op_have_names_that_tell_them_apart() -> None:
    for name in OPS:
        names = TABLE.names(name, "cuda")
        assert len(names) == len(set(names))
