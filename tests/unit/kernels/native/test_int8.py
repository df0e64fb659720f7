"""Products of bytes: every kind of instruction against sums of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.int8 import GROUP, PANEL, int8_linear
from caldera.core.tensor.dtype import float32, int8
from caldera.errors import GradientError
from caldera.kernels.native.product import int8 as kernels
from caldera.kernels.native.product import problem
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.nn.quantised import panels_of
from tests.unit.kernels.native.other_targets import building_for, runs_here

Arrays = list[np.ndarray]


def _case(rows: int, inputs: int, columns: int, step: float | None, *, bias: bool) -> Any:
    """A node with its arrays, and the right result."""
    draw = np.random.default_rng([rows, inputs, columns])
    panels = -(-columns // PANEL)
    x = draw.normal(size=(rows, inputs)).astype("float32")
    weight = draw.integers(-127, 128, (inputs, columns)).astype("int8")
    scale, offset = draw.uniform(0.01, 1, (2, panels * PANEL)).astype("float32")
    arrays = [x, panels_of(weight), scale, *([offset] if bias else [])]
    specs = [Spec(each.shape, each.dtype) for each in arrays]
    nodes = [parameter(number, spec) for number, spec in enumerate(specs)]
    node = int8_linear(*nodes, columns=columns, step=step)
    steps = np.abs(x).max(1, keepdims=True) / np.float32(127) if step is None else np.float32(step)
    whole = np.clip(np.rint(x / steps), -127, 127).astype("int64") @ weight.astype("int64")
    right = whole.astype("float32") * steps * scale[:columns]
    return node, arrays, right + offset[:columns] if bias else right


def _kernel(node: Node) -> Kernel:
    return next(each for each in TABLE.candidates(node, "cpu") if each.name == "bytes")


def _run(node: Node, arrays: Arrays, out: np.ndarray, *, is_called: bool = True) -> None:
    kernel = _kernel(node)
    workspace = np.full(kernel.workspace(node) + 64, 0xFF, np.uint8)
    runner = kernel.bind(Call(node, (out,), tuple(arrays), workspace[:-64]))
    if is_called:
        runner()
        runner()
        assert (workspace[-64:] == 0xFF).all(), "written behind the workspace"


def _sizes(seed: int) -> Any:
    draw = np.random.default_rng(seed)
    rows, inputs, columns = (int(draw.integers(1, most)) for most in (40, 150, 140))
    return rows, inputs, columns, (None, 0.02)[seed % 2]


@pytest.mark.parametrize("name", ["sse2", "avx2", "avx512", "vnni", "avxvnni", "neon", "dot"])
def test_every_instruction_set(name: str) -> None:
    with cd.settings.override(threads=1), building_for(name):
        ways = {"vnni": kernels.VNNI, "avxvnni": kernels.VNNI, "dot": kernels.DOT}
        assert kernels.instructions() == ways.get(name, kernels.PLAIN)
        for case in (_sizes(0), _sizes(1), (1, 3, 2, None)):
            node, arrays, right = _case(*case, bias=True)
            out = np.full(right.shape, np.nan, "float32")
            _run(node, arrays, out, is_called=runs_here(name))
            if runs_here(name):
                np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_random_sizes(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_SPLITTING", 2)
    with cd.settings.override(threads=threads):
        for seed in range(5):
            node, arrays, right = _case(*_sizes(seed), bias=seed % 3 > 0)
            out = np.full(right.shape, np.nan, "float32")
            _run(node, arrays, out)
            np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-5)


def test_arrays_with_gaps() -> None:
    node, (x, *others), right = _case(5, 31, 20, None, bias=True)
    wide = np.zeros((10, 62), "float32")
    wide[::2, ::2] = x
    out = np.zeros((5, 40), "float32")[:, ::2]
    _run(node, [wide[::2, ::2], *others], out)
    np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-5)


def test_largest_sums_do_not_overflow() -> None:
    inputs = 1 << 16
    nodes = [
        parameter(0, Spec((1, inputs), float32)),
        parameter(1, Spec((1, inputs // GROUP, PANEL, GROUP), int8)),
        parameter(2, Spec((PANEL,), float32)),
    ]
    node = int8_linear(*nodes, columns=PANEL, step=None)
    arrays = [np.ones((1, inputs), "float32"), np.full(nodes[1].shape, 127, "int8")]
    out = np.zeros((1, PANEL), "float32")
    _run(node, [*arrays, np.ones(PANEL, "float32")], out)
    np.testing.assert_allclose(out, inputs * 127.0, rtol=1e-6)


def test_rows_that_are_no_numbers_do_not_disturb_others() -> None:
    node, (x, *others), right = _case(6, 40, 30, None, bias=True)
    x[1, 3], x[2, 0], x[3, 39], x[4] = np.nan, np.inf, -np.inf, 0
    out = np.zeros(right.shape, "float32")
    _run(node, [x, *others], out)
    assert np.isnan(out[1:4]).all()
    np.testing.assert_allclose(out[[0, 5]], right[[0, 5]], rtol=2e-6, atol=2e-5)
    np.testing.assert_array_equal(out[4], others[-1][:30])


def test_a_gradient_through_rounded_inputs_is_refused() -> None:
    panels = panels_of(np.ones((8, PANEL), "int8"))
    x = op.var("x", (2, 8))
    node = int8_linear(x.node, lift(panels), lift(np.ones(PANEL, "f")), columns=PANEL, step=None)
    with pytest.raises(GradientError, match="int8_linear: expected a differentiable op"):
        op.grad(op.sum(Expr(node)), [x])
