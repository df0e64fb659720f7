"""All ways to reduce give the same, whatever the dtype and the axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernels.reductions import reduction_node, reduction_runners
from caldera.base.config import settings
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import Choices

SHAPES = [
    ((64, 2048), (1,)),
    ((64, 1030), (0,)),
    ((300, 300), (0, 1)),
    ((4, 5, 4000), (1, 2)),
    ((600, 5, 30), (0, 1)),
    ((7, 100, 33), (1,)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint64", "bool"])
def test_every_way_gives_what_the_oracle_gives(dtype: str) -> None:
    generator = np.random.default_rng(0)
    seen: set[str] = set()
    for shape, axes in SHAPES:
        for op in ("sum", "max", "prod"):
            node = reduction_node(shape, axes, dtype, op)
            x = (
                generator.uniform(0.99, 1.01, shape)
                if op == "prod"
                else generator.normal(0, 2, shape)
            )
            x = x.astype(dtype) if dtype.startswith("float") else (x > 1).astype(dtype)
            (right,) = evaluate(node, (x,))
            tolerance = {"float16": 5e-3, "float32": 2e-6 if op == "sum" else 1e-5}.get(
                dtype, 1e-12
            )
            for kernel in TABLE.candidates(node, "cpu"):
                out = np.zeros(node.shape, node.dtype)
                workspace = np.empty(kernel.workspace(node), np.uint8)
                kernel.bind(Call(node, (out,), (x,), workspace))()
                scale = float(np.abs(right.astype("float64")).max())
                np.testing.assert_allclose(
                    out.astype("float64"),
                    right.astype("float64"),
                    rtol=tolerance,
                    atol=tolerance * scale,
                    err_msg=f"{op} {shape} {axes} {kernel.name}",
                )
                seen.add(kernel.name)
    assert {"native", ORACLE} <= seen
    assert ("product with ones" in seen) == (dtype in ("float32", "float64"))


def test_long_sums_in_float32_are_not_taken_one_by_one_unless_that_is_allowed() -> None:
    def names(shape: tuple[int, int], axis: int) -> set[str]:
        node = reduction_node(shape, (axis,), "float32")
        return {kernel.name for kernel in TABLE.candidates(node, "cpu")}

    assert names((100, 5000), 1).isdisjoint({"product with ones"})
    assert names((5000, 100), 0).isdisjoint({"product with ones"})
    with settings.override(accuracy="fast"):
        assert "product with ones" in names((100, 5000), 1)


def test_a_view_is_summed_by_a_product_as_well() -> None:
    node = reduction_node((100, 200), (1,), "float32")
    kernel = next(k for k in TABLE.candidates(node, "cpu") if k.name == "product with ones")
    x = np.random.default_rng(0).normal(size=(200, 100)).astype("float32").T
    out = np.empty(100, "float32")
    workspace = np.empty(kernel.workspace(node), np.uint8)
    kernel.bind(Call(node, (out,), (x,), workspace))()
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-4, atol=1e-4)


def test_sums_of_all_elements_are_measured_as_well(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path, tune_budget_s=10.0):
        choice = Choices().choose(reduction_node((300, 300), (0, 1), "float64"), "cpu")
    assert choice.source == "measured"
    assert choice.kernel.name != ORACLE


def test_runners_of_the_benchmark_have_every_candidate() -> None:
    runners = reduction_runners((256, 256), (1,))
    assert {"native", "product with ones", "np.sum"} <= set(runners)
