"""A batch in slices: the kernels that a limit on the workspace would otherwise rule out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.config import settings
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import parameter
from caldera.graph.ops import product
from caldera.kernels.choose import Choices, choices
from caldera.kernels.microbatch import fitting, in_microbatches, is_microbatching
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel, KernelTable, Runner
from caldera.kernels.thread_counts import name_on_all_threads
from caldera.tensor.dtype import float32, float64

IMAGES, FILTERS = (7, 6, 12, 12), (8, 6, 3, 3)
HOW = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


def _node(name: str, dtype: np.dtype = float32, batch: int = 7) -> Node:
    x = parameter(0, Spec((batch, *IMAGES[1:]), dtype))
    w = parameter(1, Spec(FILTERS, dtype))
    y = product.conv2d(x, w, **HOW)
    g = parameter(2, y.spec)
    nodes = {
        "conv2d": y,
        "conv2d_input": product.conv2d_input(g, w, shape=x.shape, **HOW),
        "conv2d_weight": product.conv2d_weight(x, g, shape=w.shape, **HOW),
    }
    node: Node = nodes[name]
    return node


def _kernel(node: Node, name: str = "direct") -> Kernel:
    return next(each for each in TABLE.candidates(node, "cpu") if each.name == name)


OPS = ["conv2d", "conv2d_input", "conv2d_weight"]


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_slices_give_what_the_whole_gives(name: str, dtype: np.dtype) -> None:
    node = _node(name, dtype)
    kernel = _kernel(node)
    whole = kernel.workspace(node)
    seen = set()
    for share in (0.9, 0.6, 0.4, 0.3):
        sliced = in_microbatches(kernel, node, int(whole * share))
        if sliced is None:
            continue
        seen.add(sliced.name)
        assert sliced.workspace(node) <= whole * share
        generator = np.random.default_rng(0)
        inputs = tuple(generator.uniform(-1, 1, given.shape).astype(dtype) for given in node.inputs)
        out = np.full(node.shape, np.nan, dtype)
        workspace = np.full(sliced.workspace(node) + 64, 0xFF, np.uint8)
        run = sliced.bind(Call(node, (out,), inputs, workspace[:-64]))
        for _ in range(2):
            run()
            (right,) = evaluate(node, inputs)
            scale = np.abs(right).max()
            np.testing.assert_allclose(out, right, rtol=0, atol=4e-6 * scale)
        assert (workspace[-64:] == 0xFF).all()
    assert seen


def test_no_slice_is_small_enough() -> None:
    node = _node("conv2d")
    assert in_microbatches(_kernel(node), node, 16) is None
    assert in_microbatches(_kernel(_node("conv2d", batch=1)), _node("conv2d", batch=1), 16) is None


def _greedy(call: Call) -> Runner:
    """Computes as the oracle does, and needs as many bytes as there are images."""

    def run() -> None:
        np.copyto(call.outputs[0], evaluate(call.node, call.inputs)[0])

    assert len(call.workspace) >= call.outputs[0].shape[0]
    return run


@pytest.mark.parametrize(("limit", "count"), [(6, 2), (4, 2), (3, 3), (2, 4), (1, 7)])
def test_as_few_slices_as_the_limit_allows(limit: int, count: int) -> None:
    greedy = Kernel("conv2d", "cpu", "greedy", _greedy, workspace=lambda node: node.shape[0])
    (sliced,) = fitting([greedy], _node("conv2d"), limit)
    assert sliced.name == f"greedy in {count} slices"
    assert is_microbatching(sliced, "greedy")
    assert not is_microbatching(greedy, "greedy")
    assert fitting([greedy], _node("conv2d"), 7) == [greedy]
    assert fitting([greedy], _node("conv2d"), 0) == []


def test_with_a_limit_the_faster_kernel_serves_in_slices(tmp_path: Path) -> None:
    """Without slices only the kernel that needs no workspace would be left, however slow."""
    table = KernelTable()
    node = _node("conv2d")
    fast = _kernel(node)

    def slowly(call: Call) -> Runner:
        def run() -> None:
            for _ in range(20):
                np.copyto(call.outputs[0], evaluate(call.node, call.inputs)[0])

        return run

    table.add(Kernel("conv2d", "cpu", "slow", slowly, priority=50))
    table.add(fast)
    limit = fast.workspace(node) - 1
    with settings.override(cache_dir=tmp_path, tune_budget_s=10.0, workspace_limit=limit):
        verdict = Choices(table).verdict(node, "cpu")
        assert verdict.source == "measured"
        assert name_on_all_threads(verdict.kernel.name) == "direct in 2 slices"
        assert verdict.beaten["slow"] > 1.0
        # The same kernel, not an equal one: a plan's explanation asks again.
        assert Choices(table).verdict(node, "cpu").kernel is verdict.kernel


def test_explain_names_the_slices() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, IMAGES).astype("float32")
    w = np.random.default_rng(1).uniform(-1, 1, FILTERS).astype("float32")

    def convolved() -> cd.Expr:
        return op.conv2d(op.var("x", x.shape, fill=x), op.var("w", w.shape, fill=w), padding=1)

    expected = cd.compile([convolved()]).run()[0].numpy()
    choices.fix("conv2d", "direct")
    try:
        node = _node("conv2d")
        with settings.override(workspace_limit=_kernel(node).workspace(node) - 1):
            plan = cd.compile([convolved()], without=("layout",))
            explained = str(plan.explain(time=False))
            found = plan.run()[0].numpy()
    finally:
        choices.unfix("conv2d")
    assert "direct in 2 slices (fixed)" in explained
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
