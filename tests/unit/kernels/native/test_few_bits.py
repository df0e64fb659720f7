"""Products with weights of 8 and 4 bits for every kind of instruction, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.passes.few_bits import MOST_ROWS
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.few_bits import dequantise, few_bits_linear, padded, quantised
from caldera.errors import CalderaError, GradientError
from caldera.kernels.native.product import problem
from caldera.kernels.table import TABLE, Call
from tests.unit.kernels.native.other_targets import building_for, runs_here
from tests.unit.ops.cases.few_bits import by_numpy

FORMATS = [(8, 0), (4, 32), (4, 64), (4, 128)]


def _compute(form: Any, arrays: list[np.ndarray], right: np.ndarray, *, called: bool) -> None:
    specs = [Spec(each.shape, each.dtype) for each in arrays]
    node = form(*[parameter(number, spec) for number, spec in enumerate(specs)])
    (kernel,) = (each for each in TABLE.candidates(node, "cpu") if each.name == "few_bits")
    workspace = np.full(kernel.workspace(node) + 64, 0xFF, np.uint8)
    around = np.full((right.shape[0] + 2, right.shape[1]), np.nan, "float32")
    runner = kernel.bind(Call(node, (around[1:-1],), tuple(arrays), workspace[:-64]))
    if called:
        runner()
        np.testing.assert_allclose(around[1:-1], right, rtol=1e-5, atol=1e-4)
        assert np.isnan(around[[0, -1]]).all(), "written outside of the result"


def _check(seed: int, *, called: bool = True) -> None:
    draw = np.random.default_rng(seed)
    bits, group = FORMATS[seed % 4]
    rows, outputs, inputs = (int(draw.integers(1, most)) for most in (20, 40, 300))
    codes, scale = quantised(draw.normal(size=(outputs, inputs)).astype("float32"), bits, group)
    x = draw.normal(size=(rows, padded(inputs, bits))).astype("float32")
    weight = by_numpy(codes, scale)
    _compute(few_bits_linear, [x, codes, scale], x @ weight.T, called=called)

    def decoded(*given: Any) -> Any:
        return dequantise(*given, columns=inputs)

    _compute(decoded, [codes, scale], weight[:, :inputs], called=called)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_every_instruction_set(name: str) -> None:
    with cd.settings.override(threads=1), building_for(name):
        for seed in (0, 1):
            _check(seed, called=runs_here(name))


@pytest.mark.parametrize("threads", [1, 3])
def test_random_sizes(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_SPLITTING", 2)
    with cd.settings.override(threads=threads):
        for seed in range(10, 15):
            _check(seed)


@pytest.mark.parametrize(("bits", "group"), FORMATS)
def test_rounding_errors_are_half_a_step(bits: int, group: int) -> None:
    weight = np.random.default_rng(bits + group).normal(size=(9, 200)).astype("float32")
    weight[2], weight[3, :64] = 0, 0
    codes, scale = quantised(weight, bits, group)
    found = by_numpy(codes, scale)
    steps = np.repeat(np.abs(scale), found.shape[1] // scale.shape[1], 1)[:, :200]
    # With 4 bits, the positive end has 7 steps and the negative one 8.
    assert (np.abs(found[:, :200] - weight) <= steps * (0.501 if bits == 8 else 1.001)).all()
    assert not found[:, 200:].any()
    assert not found[2].any()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 3, MOST_ROWS, MOST_ROWS + 1])
def test_products_and_tables_in_plans(turned: bool, rows: int) -> None:
    draw = np.random.default_rng(rows)
    codes, scale = quantised(draw.normal(size=(50, 72)).astype("float32"), 4, 64)
    states = [op.var("codes", codes.shape, fill=codes, dtype="uint8")]
    states.append(op.var("scale", scale.shape, fill=scale))
    table = Expr(dequantise(*[each.node for each in states], columns=72))
    x, words = op.input("x", (rows, 1, 72)), op.input("words", (rows, 2), dtype="int64")
    weight = op.transpose(table) if turned else table
    product = op.matmul(x, weight, transpose_b=not turned)
    plan = compile([product, op.embedding(table, words)], remember=False)
    right, places = by_numpy(codes, scale)[:, :72], draw.integers(0, 50, (rows, 2))
    given = draw.normal(size=(rows, 1, 72)).astype("float32")
    found = [each.numpy() for each in plan.run({"x": given, "words": places})]
    np.testing.assert_allclose(found[0], given @ right.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], right[places], rtol=1e-6)
    assert ("few_bits_linear" in str(plan.explain())) == (rows <= MOST_ROWS)


def test_refused() -> None:
    codes, scale = op.var("codes", (3, 64), dtype="int8"), op.var("scale", (3, 1))
    for wrong in ({"columns": 100}, {"columns": 0}):
        with pytest.raises(CalderaError, match="weights in rows"):
            dequantise(codes.node, scale.node, **wrong)
    with pytest.raises(CalderaError, match="int8 or uint8"):
        dequantise(scale.node, scale.node, columns=3)
    weight = Expr(dequantise(codes.node, scale.node, columns=40))
    with pytest.raises(GradientError, match="dequantise: expected a differentiable op"):
        op.grad(op.sum(weight), [scale])
