"""Sums of columns as products with ones, by the card's library or by what plays it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.reduction import reduce
from caldera.kernels.cuda.runtime import cublaslt, device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from caldera.kernels.tuning.choose import choices
from tests.card.candidates import run_kernel, stand_ins
from tests.card.fake_cublaslt import FakeCublasLt
from tests.unit.kernels.checking import LAYOUTS, compare

NAME = "product with ones"


@pytest.fixture(autouse=True)
def _library(card: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not card_count():
        fake = FakeCublasLt()
        monkeypatch.setattr(device, "cublas_lt", lambda: fake)
        monkeypatch.setattr(device, "may_measure", lambda: True)
    monkeypatch.setattr(reduce, "FEWEST_ELEMENTS", 8)
    caches = (cublaslt.handle, cublaslt.algorithms, reduce._found)
    for known in caches:
        known.cache_clear()
    yield
    for known in caches:
        known.cache_clear()


def _kernel(node: Node) -> Kernel | None:
    return {each.name: each for each in TABLE.candidates(node, "cuda")}.get(NAME)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 8), (0,)),
        ((64, 24), (0,)),
        ((3, 4, 16), (0, 1)),
        ((70, 3, 8), (0,)),
        ((40,), (0,)),
        ((12, 16), (0, 1)),
    ],
)
def test_sums_of_columns(
    card: Device, shape: tuple[int, ...], axis: tuple[int, ...], dtype: str
) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(BY_NAME[dtype])
    for keepdims in (False, True):
        node = OPS["sum"](*stand_ins(x), axis=axis, keepdims=keepdims)
        kernel = _kernel(node)
        assert kernel is not None
        for layout in LAYOUTS.values():
            given = (layout(x),)
            (found,) = run_kernel(card, kernel, node, given)
            (right,) = evaluate(node, given)
            compare(found, right)


def _offered(shape: tuple[int, ...], axis: tuple[int, ...], dtype: str = "float32") -> bool:
    node = OPS["sum"](parameter(0, Spec(shape, BY_NAME[dtype])), axis=axis, keepdims=False)
    return _kernel(node) is not None


def test_only_short_sums_of_columns_of_floats() -> None:
    assert _offered((4096, 64), (0,))
    assert not _offered((4097, 64), (0,))
    with settings.override(accuracy="fast"):
        assert _offered((4097, 64), (0,))
    assert not _offered((64, 64), (1,))
    assert not _offered((4, 64, 64), (1,))
    assert not _offered((64, 64), (0,), "float64")
    assert not _offered((64, 64), (0,), "int32")
    assert not _offered((0, 64), (0,))


def test_plans_sum_by_it_and_let_go_of_the_ones(card: Device) -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 48, 24)).astype("float32")
    x = op.var("x", (48, 24), fill=numbers[0], device=card)
    choices.fix("sum", NAME, "cuda")
    try:
        plan = cd.compile([op.sum(x, axis=0)], device=card, remember=False)
        held = plan.run()[0]
        x.assign(numbers[1])
        again = plan.run()[0]
    finally:
        choices.unfix("sum", "cuda")
    assert [step.kernel.name for step in plan.schedule.steps] == [NAME]
    for found, given in zip((held, again), numbers, strict=True):
        compare(found.numpy(), given.sum(axis=0))
    del plan
    gc.collect()
    assert not reduce._known


def test_ones_live_as_long_as_somebody_needs_them(card: Device) -> None:
    x = np.ones((16, 8), "float32")
    node = OPS["sum"](*stand_ins(x), axis=(0,), keepdims=False)
    kernel = _kernel(node)
    assert kernel is not None
    first, second = reduce._ones(16, BY_NAME["float32"]), reduce._ones(16, BY_NAME["float32"])
    assert first is second
    run_kernel(card, kernel, node, (x,))
    del first, second
    gc.collect()
    assert not reduce._known
