"""Every op against NumPy, and every derivative against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.graph.body import topological
from caldera.graph.opdef import OPS
from caldera.lazy import Expr, lift
from caldera.testing import check_gradients
from tests.unit.ops.case import Case
from tests.unit.ops.cases import ALL


def _results(case: Case, dtype: str) -> tuple[Expr, ...]:
    wanted = {"f": dtype, "c": {"float32": "complex64", "float64": "complex128"}[dtype]}
    arrays = [a.astype(wanted.get(a.dtype.kind, a.dtype)) for a in case.inputs]
    result = case.function(*[Expr(lift(array)) for array in arrays])
    return tuple(result) if isinstance(result, tuple | list) else (result,)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.label)
def test_case_uses_the_op_it_is_for(case: Case) -> None:
    names = {node.op.name for node in topological([r.node for r in _results(case, "float64")])}
    assert case.op in names


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "case", [case for case in ALL if case.expected is not None], ids=lambda case: case.label
)
def test_value_is_that_of_numpy(case: Case, dtype: str) -> None:
    assert case.expected is not None
    expected = case.expected(*case.inputs)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for result, right in zip(_results(case, dtype), expected, strict=True):
        assert result.shape == np.shape(right)
        wide = "complex128" if np.iscomplexobj(right) else "float64"
        np.testing.assert_allclose(
            result.numpy().astype(wide), np.asarray(right, wide), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.differentiable], ids=lambda case: case.label
)
def test_derivative_is_that_of_finite_differences(case: Case) -> None:
    check_gradients(case.function, case.inputs, order=case.order)


def test_every_op_has_a_case() -> None:
    covered = {case.op for case in ALL}
    missing = {name for name, op in OPS.items() if op.kind != "leaf"} - covered
    assert not missing, f"ops without a case in tests/unit/ops/cases: {sorted(missing)}"


def test_every_differentiable_op_has_its_derivative_checked() -> None:
    covered = {case.op for case in ALL if case.differentiable}
    missing = {
        name for name, op in OPS.items() if op.differentiable and op.kind not in ("leaf", "state")
    } - covered
    assert not missing, f"derivatives without a check: {sorted(missing)}"
