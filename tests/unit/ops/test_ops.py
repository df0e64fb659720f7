"""Every op against NumPy, and every derivative against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import caldera as cd
from caldera.compiler.lazy import Expr, lift
from caldera.compiler.passes.lower import lower
from caldera.core.graph.opdef import OPS
from caldera.core.graph.program import Program, topological
from caldera.kernels.reference import interpret
from caldera.testing import check_gradients
from tests.unit.ops.case import Case
from tests.unit.ops.cases import ALL

# One test an op, not one a case: with thousands of them, pytest takes longer than the cases.
VALUES: dict[str, list[Case]] = {}
DERIVATIVES: dict[str, list[Case]] = {}
for each in ALL:
    if each.expected is not None:
        VALUES.setdefault(each.op, []).append(each)
    if each.differentiable:
        DERIVATIVES.setdefault(each.op, []).append(each)

Compute = Callable[[tuple[Expr, ...]], list[np.ndarray]]
APART = ("leaf", "distributed")
"""Kinds of ops without a case here: those of ranks together are in tests/unit/compiler/sharding."""

OF_PLANS = ("turn", "collective_start", "collective_finish")
"""Ops that are nothing without a plan."""


@contextmanager
def _about(case: Case) -> Iterator[None]:
    """What happens inside is about this case; random numbers are those of a test of its own."""
    cd.seed(0)
    try:
        yield
    except BaseException as problem:
        problem.add_note(f"the case is {case.label}")
        raise


def _results(case: Case, dtype: str) -> tuple[Expr, ...]:
    wanted = {"f": dtype, "c": {"float32": "complex64", "float64": "complex128"}[dtype]}
    arrays = [a.astype(wanted.get(a.dtype.kind, a.dtype)) for a in case.inputs]
    result = case.function(*[Expr(lift(array)) for array in arrays])
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def test_cases_use_the_op_they_are_for() -> None:
    for case in ALL:
        with _about(case):
            roots = [result.node for result in _results(case, "float64")]
            assert case.op in {node.op.name for node in topological(roots)}


def _planned(results: tuple[Expr, ...]) -> list[np.ndarray]:
    return [result.numpy() for result in results]


def _by_the_oracle(results: tuple[Expr, ...]) -> list[np.ndarray]:
    """Node by node with the reference kernels, which test_candidates compares all others with."""
    nodes = tuple(result.node for result in results)
    roots = lower(Program(nodes), has_kernel=lambda name: False).outputs
    order = topological(roots)
    if any(node.op.name in OF_PLANS for node in order):
        return _planned(results)
    leaves = {
        node: np.asarray(node.attrs["symbol"].value.numpy())
        for node in order
        if "symbol" in node.attrs
    }
    with np.errstate(all="ignore"):
        return interpret(roots, leaves)


# Plans in float64 are those of the derivatives below.
@pytest.mark.parametrize(
    ("dtype", "compute", "tolerance"),
    [("float32", _planned, 1e-5), ("float64", _by_the_oracle, 1e-12)],
    ids=["planned", "oracle"],
)
@pytest.mark.parametrize("op", VALUES)
def test_values_are_those_of_numpy(op: str, dtype: str, compute: Compute, tolerance: float) -> None:
    for case in VALUES[op]:
        assert case.expected is not None
        expected = case.expected(*case.inputs)
        expected = expected if isinstance(expected, tuple | list) else (expected,)
        with _about(case):
            for value, right in zip(compute(_results(case, dtype)), expected, strict=True):
                assert value.shape == np.shape(right)
                wide = "complex128" if np.iscomplexobj(right) else "float64"
                np.testing.assert_allclose(
                    value.astype(wide), np.asarray(right, wide), rtol=tolerance, atol=tolerance
                )


@pytest.mark.parametrize("op", DERIVATIVES)
def test_derivatives_are_those_of_finite_differences(op: str) -> None:
    # The first derivatives of one case of each op have their loops compiled. Any other loop would
    # be compiled for its case alone; what loops compute, test_candidates and passes/test_property
    # check.
    compiled = max(DERIVATIVES[op], key=lambda case: case.order)
    with _about(compiled):
        check_gradients(compiled.function, compiled.inputs)
    cd.choices.fix("fused", "reference")
    try:
        for case in DERIVATIVES[op]:
            if case is not compiled or case.order > 1:
                with _about(case):
                    check_gradients(case.function, case.inputs, order=case.order)
    finally:
        cd.choices.unfix("fused")


def test_every_op_has_a_case() -> None:
    covered = {case.op for case in ALL}
    missing = {name for name, op in OPS.items() if op.kind not in APART} - covered
    assert not missing, f"ops without a case in tests/unit/ops/cases: {sorted(missing)}"


def test_every_differentiable_op_has_its_derivative_checked() -> None:
    covered = {case.op for case in ALL if case.differentiable}
    missing = {
        name for name, op in OPS.items() if op.differentiable and op.kind not in (*APART, "state")
    } - covered
    assert not missing, f"derivatives without a check: {sorted(missing)}"
