"""A batch in slices: the kernels that a limit on the workspace would otherwise rule out."""

from __future__ import annotations

from itertools import product as combinations
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import product
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel, KernelTable, Runner
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import Choices, choices
from caldera.kernels.workspace import (
    BatchedNode,
    WorkspaceOption,
    best_options,
    best_sizes,
    divided,
    shared_limits,
)

IMAGES, FILTERS = (7, 16, 10, 10), (16, 16, 3, 3)
HOW = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
OPS = ["conv2d", "conv2d_input", "conv2d_weight"]


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


def _assert_right(kernel: Kernel, node: Node) -> None:
    """It computes what the oracle does, twice, and writes nowhere else."""
    generator = np.random.default_rng(0)
    inputs = tuple(
        generator.uniform(-1, 1, given.shape).astype(node.dtype) for given in node.inputs
    )
    out = np.full(node.shape, np.nan, node.dtype)
    workspace = np.full(kernel.workspace(node) + 64, 0xFF, np.uint8)
    run = kernel.bind(Call(node, (out,), inputs, workspace[:-64]))
    (right,) = evaluate(node, inputs)
    for _ in range(2):
        run()
        np.testing.assert_allclose(out, right, rtol=0, atol=4e-6 * np.abs(right).max())
    assert (workspace[-64:] == 0xFF).all()


# --- dividing


@pytest.mark.parametrize("seed", range(3))
def test_the_division_is_the_fastest_there_is(seed: int) -> None:
    generator = np.random.default_rng(seed)
    seconds = {size: float(generator.uniform(0.2, 1.0) * size**0.8) for size in (1, 2, 4, 8)}
    between = float(generator.uniform(0, 0.3))
    for entries in range(2, 14):
        sizes = best_sizes(entries, seconds, between)
        counts = [range(entries // size + 1) for size in seconds]
        rivals = [
            sum(n * time for n, time in zip(each, seconds.values(), strict=True))
            + (sum(each) - 1) * between
            for each in combinations(*counts)
            if sum(n * size for n, size in zip(each, seconds, strict=True)) == entries
        ]
        assert sum(sizes) == entries
        total = sum(seconds[size] for size in sizes) + (len(sizes) - 1) * between
        assert total == pytest.approx(min(rivals))


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_slices_of_several_sizes_and_kernels_give_what_the_whole_gives(
    name: str, dtype: np.dtype
) -> None:
    node = _node(name, dtype)
    batch = BatchedNode.of(node)
    assert batch is not None
    able = TABLE.candidates(node, "cpu")
    first, last = able[0], able[-2]
    limit = 1 << 20
    sliced = divided(batch, ((first, 4), (last, 1), (last, 1), (first, 1)), limit)
    assert sliced.name == f"4 by {first.name}, 2 x 1 by {last.name}, 1 by {first.name}"
    assert sliced.workspace(node) <= limit
    _assert_right(sliced, node)


def test_what_cannot_be_cut() -> None:
    assert BatchedNode.of(_node("conv2d", batch=1)) is None
    assert BatchedNode.of(_node("conv2d_weight", np.dtype(np.float16))) is None


# --- choosing


def _greedy(name: str, each: int, seconds: float) -> Kernel:
    """Computes as the oracle does, and needs so many bytes for each image."""

    def bind(call: Call) -> Runner:
        assert each * call.outputs[0].shape[0] <= (0 if each == 0 else len(call.workspace))

        def run() -> None:
            np.copyto(call.outputs[0], evaluate(call.node, call.inputs)[0])

        return run

    return Kernel(
        "conv2d",
        "cpu",
        name,
        bind,
        workspace=lambda node: each * node.shape[0],
        estimate=lambda node: seconds * node.shape[0],
    )


@pytest.mark.parametrize(
    ("limit", "name"),
    [(7, "greedy"), (6, "4 by greedy, 2 by greedy, 1 by greedy"), (1, "7 x 1 by greedy")],
)
def test_without_measuring_the_estimates_divide(limit: int, name: str) -> None:
    table = KernelTable()
    for kernel in (_greedy("greedy", 1, 1.0), _greedy("greedier", 2, 1.5)):
        table.add(kernel)
    with settings.override(deterministic=True, workspace_limit=limit):
        choice = Choices(table).choose(_node("conv2d"), "cpu")
    assert (choice.kernel.name, choice.source) == (name, "guess")


def test_with_a_limit_slices_of_the_faster_kernel_serve(tmp_path: Path) -> None:
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
        chosen = Choices(table)
        with chosen.exhaustive():
            choice = chosen.choose(node, "cpu")
        assert choice.source == "measured"
        assert "by direct" in choice.kernel.name
        assert choice.beaten["slow"] > 1.0
        assert choice.kernel.workspace(node) <= limit
        # The same kernel, not an equal one: a plan's explanation asks again. So does another
        # process, which has what was measured, and would predict the rest for itself.
        for asked in (chosen, Choices(table)):
            again = asked.choose(node, "cpu", measure=False)
            assert (again.kernel, again.source) == (choice.kernel, "remembered")
    with settings.override(cache_dir=tmp_path / "else", tune_budget_s=10.0, workspace_limit=limit):
        chosen.clear()
        choice = chosen.choose(node, "cpu")
        assert chosen.choose(node, "cpu", measure=False).kernel == choice.kernel


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_no_limit_is_so_small_that_the_oracle_serves(
    name: str, measure: bool, tmp_path: Path
) -> None:
    node = _node(name)
    with settings.override(cache_dir=tmp_path, workspace_limit=0):
        kernel = Choices().kernel(node, "cpu", measure=measure)
        assert ORACLE not in kernel.name
        least = min(
            each.workspace(node) for each in TABLE.candidates(node, "cpu") if each.name != ORACLE
        )
        assert 0 < kernel.workspace(node) <= least
    _assert_right(kernel, node)


def test_a_product_keeps_to_its_kernels_as_well(tmp_path: Path) -> None:
    node = product.matmul(
        parameter(0, Spec((64, 64), float32)),
        parameter(1, Spec((64, 64), float32)),
        ta=True,
        tb=False,
    )
    with settings.override(cache_dir=tmp_path, workspace_limit=0):
        assert Choices().kernel(node, "cpu").name != ORACLE


# --- one limit for all


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_is_shared_out_in_the_best_way(seed: int) -> None:
    generator = np.random.default_rng(seed)
    layers = [
        [
            WorkspaceOption(int(generator.integers(0, 40)), float(generator.uniform()))
            for _ in range(4)
        ]
        for _ in range(4)
    ]
    for limit in (0, 20, 50, 90, 200):
        ways = [
            sum(each.seconds for each in way)
            for way in combinations(*layers)
            if sum(each.workspace for each in way) <= limit
        ]
        found = [row[i] for row, i in zip(layers, best_options(layers, limit), strict=True)]
        if ways:
            assert sum(each.workspace for each in found) <= limit
            assert sum(each.seconds for each in found) == pytest.approx(min(ways))
        else:
            assert [each.workspace for each in found] == [
                min(each.workspace for each in row) for row in layers
            ]


def test_layers_share_one_limit(tmp_path: Path) -> None:
    table = KernelTable()
    table.add(_greedy("greedy", 8, 1.0))
    table.add(_greedy("frugal", 1, 3.0))
    nodes = [_node("conv2d"), _node("conv2d", float64)]
    with settings.override(cache_dir=tmp_path, deterministic=True):
        for total in (112, 64, 30, 16, 2):
            mine = Choices(table)
            limits = shared_limits(mine, nodes, "cpu", total)
            kernels = [mine.kernel(node, "cpu", limit=limits[node]) for node in nodes]
            taken = [each.workspace(node) for each, node in zip(kernels, nodes, strict=True)]
            assert sum(taken) <= total
            if total >= 112:
                assert [each.name for each in kernels] == ["greedy", "greedy"]


# --- in plans


def _convolved() -> cd.Expr:
    x = np.random.default_rng(0).uniform(-1, 1, IMAGES).astype("float32")
    w = np.random.default_rng(1).uniform(-1, 1, FILTERS).astype("float32")
    return op.conv2d(op.var("x", x.shape, fill=x), op.var("w", w.shape, fill=w), padding=1)


def test_explain_names_the_slices_and_the_limit(tmp_path: Path) -> None:
    expected = cd.compile([_convolved()]).run()[0].numpy()
    choices.fix("conv2d", "direct")
    try:
        node = _node("conv2d")
        limit = _kernel(node).workspace(node) - 1
        # What other tests have measured says how to cut as well.
        with settings.override(cache_dir=tmp_path, workspace_limit=limit):
            plan = cd.compile([_convolved()], without=("layout",))
            explained = str(plan.explain(time=False))
            found = plan.run()[0].numpy()
    finally:
        choices.unfix("conv2d")
    assert "4 by direct, 2 by direct, 1 by direct (fixed)" in explained
    assert "in a step, limit" in explained
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_plan_shares_its_limit_out(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, w = (
        op.var(name, shape, fill=generator.uniform(-1, 1, shape).astype("float32"))
        for name, shape in (("x", IMAGES), ("w", FILTERS))
    )
    loss = op.sum(op.conv2d(x, w, padding=1) ** 2)
    wanted = [loss, op.grad(loss, x), op.grad(loss, w)]
    with settings.override(cache_dir=tmp_path, deterministic=True):
        whole = cd.compile(wanted, without=("layout",))
        total = sum(whole.explain(time=False).workspaces) * 3 // 4
        with settings.override(workspace_total=total):
            plan = cd.compile(wanted, without=("layout",))
            explanation = plan.explain(time=False)
            shown = str(explanation)
        expected, found = whole.run(), plan.run()
    assert 0 < sum(explanation.workspaces) <= total
    assert "of all steps" in shown
    assert " by " in shown
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3, atol=1e-3)
