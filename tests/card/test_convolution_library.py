"""Convolutions by cuDNN and as products: what the libraries are asked, checked by fakes that
compute from the raw pointers, shapes and strides they are given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node
from caldera.core.graph.ops import product
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.kernels.cuda.convolution import cudnn
from caldera.kernels.cuda.product import cublas
from caldera.kernels.cuda.runtime import cublaslt, device
from caldera.kernels.cuda.runtime import cudnn as runtime_cudnn
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from caldera.kernels.tuning.choose import choices
from caldera.kernels.workspace import BatchedNode, divided
from tests.card.candidates import check, run_kernel
from tests.card.fake_cublaslt import FakeCublasLt
from tests.card.fake_cudnn import FakeCudnn
from tests.card.test_convolution import ENDINGS, TILED, EpilogueCode, ended_of, inputs_of, nodes_of
from tests.unit.kernels.checking import DTYPES, LAYOUTS, compare
from tests.unit.ops.cases.convolution import SETTINGS, Setting

pytestmark = pytest.mark.skipif(card_count() > 0, reason="a real card has the real libraries")


def _forget() -> None:
    for known in (
        runtime_cudnn.handle,
        cudnn.graph_of,
        cublaslt.handle,
        cublaslt.algorithms,
        cublas._found,
    ):
        known.cache_clear()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    """A library that does what cuDNN does."""
    fake = FakeCudnn()
    monkeypatch.setattr(device, "cudnn", lambda: fake)
    _forget()
    yield fake
    _forget()


def _as_planned(node: Node, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The inputs as a plan lays them out."""
    return tuple(
        laid_out(
            np.array(array.transpose(given.spec.order or range(array.ndim)), order="C"),
            array.shape,
            given.spec.order,
        )
        for given, array in zip(node.inputs, inputs, strict=True)
    )


def _kernels(node: Node, name: str = "cudnn") -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cuda") if each.name.startswith(name)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", [*SETTINGS, *TILED], ids=lambda setting: setting.name)
def test_every_kind(
    card: Device,
    library: FakeCudnn,
    setting: Setting,
    dtype: str,
) -> None:
    for node in nodes_of(setting, dtype):
        kernels = _kernels(node)
        if 0 in setting.x:
            assert not kernels
            continue
        inputs = inputs_of(node)
        (right,) = evaluate(node, inputs)
        for kernel in kernels:
            before = len(library.executed)
            (result,) = run_kernel(card, kernel, node, _as_planned(node, inputs), times=2)
            compare(result, right)
            assert len(library.executed) == before + 2


def test_arrays_that_lie_otherwise_are_our_own_kernels_business(
    card: Device,
    library: FakeCudnn,
) -> None:
    for node in nodes_of(TILED[0], "float32"):
        inputs = tuple(LAYOUTS["with gaps"](array) for array in inputs_of(node))
        (right,) = evaluate(node, inputs)
        (result,) = run_kernel(card, _kernels(node)[0], node, inputs)
        compare(result, right)
    assert not library.executed


@pytest.mark.parametrize(
    ("dtype", "compute", "accuracy", "plans"),
    [
        ("float32", None, "strict", [3, 4]),
        ("float32", "tf32", "strict", [1, 3, 4]),
        ("float32", None, "fast", [2, 3, 4]),
        ("float16", None, "strict", [1, 3]),
        ("float64", None, "strict", [1, 3, 4]),
    ],
)
def test_plans_round_no_more_than_they_may(
    card: Device,
    library: FakeCudnn,
    dtype: str,
    compute: str | None,
    accuracy: str,
    plans: list[int],
) -> None:
    plain = next(nodes_of(TILED[0], dtype))
    how = {} if compute is None else {"compute": compute}
    node = product.conv2d(*plain.inputs, **{**plain.attrs, **how})
    with settings.override(accuracy=accuracy):
        kernels = _kernels(node)
        assert [each.name for each in kernels] == ["cudnn", "cudnn 2", "cudnn 3"][: len(plans)]
        for kernel in kernels:
            run_kernel(card, kernel, node, _as_planned(node, inputs_of(node)))
        with settings.override(deterministic=True):
            assert [each.name for each in _kernels(node)] == ["cudnn"]
    assert library.executed == plans


def test_what_cudnn_does_not_support(
    card: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCudnn(refused=("conv2d_weight",))
    monkeypatch.setattr(device, "cudnn", lambda: fake)
    _forget()
    found = {node.op.name: bool(_kernels(node)) for node in nodes_of(TILED[0], "float32")}
    assert found == {"conv2d": True, "conv2d_input": True, "conv2d_weight": False}
    _forget()


# --- with a bias and an activation


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: str(ending[1]))
def test_bias_and_activation(
    card: Device, library: FakeCudnn, ending: EpilogueCode, dtype: str
) -> None:
    for node in ended_of(TILED[0], dtype, ending):
        inputs = _as_planned(node, inputs_of(node))
        (right,) = evaluate(node, inputs)
        kernels = TABLE.candidates(node, "cuda")
        is_fused = any(kernel.name == "cudnn fused" for kernel in kernels)
        assert is_fused == (ending[1] in (None, *cudnn.ACTIVATIONS))
        for kernel in kernels:
            (result,) = run_kernel(card, kernel, node, inputs, times=2)
            compare(result, right)


def test_a_bias_that_lies_with_gaps(card: Device, library: FakeCudnn) -> None:
    node = next(ended_of(TILED[0], "float32", ENDINGS[0]))
    inputs = tuple(LAYOUTS["with gaps"](array) for array in inputs_of(node))
    (result,) = run_kernel(card, _kernels(node, "cudnn fused")[0], node, inputs)
    compare(result, evaluate(node, inputs)[0])
    assert not library.executed


def test_without_an_engine_for_the_ending_there_are_two_launches(
    card: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCudnn(refused=("add",))
    monkeypatch.setattr(device, "cudnn", lambda: fake)
    _forget()
    node = next(ended_of(TILED[0], "float32", ENDINGS[0]))
    assert [each.name for each in _kernels(node)] == ["cudnn", "cudnn 2"]
    inputs = _as_planned(node, inputs_of(node))
    (result,) = run_kernel(card, _kernels(node)[0], node, inputs)
    compare(result, evaluate(node, inputs)[0])
    assert fake.executed
    _forget()


# --- in slices


def test_a_batch_in_slices(card: Device, library: FakeCudnn) -> None:
    setting = Setting("3x3", (6, 8, 6, 5), (12, 8, 3, 3), padding=((1, 1), (1, 1)))
    for node in (*nodes_of(setting, "float32"), *ended_of(setting, "float32", ENDINGS[0])):
        kernel = next(each for each in TABLE.candidates(node, "cuda") if each.name == "cudnn")
        limit = kernel.workspace(node) - 2500
        batch = BatchedNode.of(node)
        assert batch is not None
        sliced = divided(batch, ((kernel, 4), (kernel, 2)), limit)
        assert sliced.workspace(node) <= limit
        inputs = _as_planned(node, inputs_of(node))
        before = len(library.executed)
        (result,) = run_kernel(card, sliced, node, inputs, times=2)
        compare(result, evaluate(node, inputs)[0])
        assert len(library.executed) >= before + 4


def test_slices_are_chosen(card: Device, library: FakeCudnn) -> None:
    node = next(nodes_of(Setting("3x3", (6, 8, 6, 5), (12, 8, 3, 3)), "float32"))
    choices.fix("conv2d", "cudnn", "cuda")
    try:
        with settings.override(workspace_limit=14000):
            assert choices.kernel(node, "cuda").name == "4 by cudnn, 2 by cudnn"
    finally:
        choices.unfix("conv2d", "cuda")


# --- one pixel at a time

POINTWISE = [
    Setting("1x1", (3, 16, 5, 4), (20, 16, 1, 1)),
    Setting("1x1 grouped", (2, 16, 5, 4), (24, 8, 1, 1), groups=2),
    Setting("1x1, one image", (1, 16, 5, 4), (20, 16, 1, 1)),
]


def test_lanes_have_contexts_of_their_own(
    card: Device, library: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = next(nodes_of(TILED[0], "float32"))
    for lane in (0, 1, 1, 2):
        monkeypatch.setattr(runtime_cudnn, "launching_side_stream", lambda lane=lane: lane)
        run_kernel(card, _kernels(node)[0], node, _as_planned(node, inputs_of(node)))
    assert len(library.handles) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("setting", POINTWISE, ids=lambda setting: setting.name)
def test_products_of_our_own(card: Device, setting: Setting, dtype: str) -> None:
    seen = set()
    for node in nodes_of(setting, dtype):
        if _kernels(node, "1x1"):
            layouts = ("dense", "channels last", "with gaps")
            check(card, node, inputs_of(node), ["1x1 product"], layouts=layouts)
            seen.add((node.op.name, node.inputs[0].spec.order is None))
    # A sum over images that lie row major is no single product.
    rows = {("conv2d_weight", True)} if setting.x[0] > 1 else set()
    assert len(seen) == 6 - len(rows)
    assert not seen & rows


def test_products_by_the_library(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCublasLt()
    monkeypatch.setattr(device, "cublas_lt", lambda: fake)
    _forget()
    for setting in POINTWISE:
        for node in nodes_of(setting, "float32"):
            for kernel in _kernels(node, "1x1"):
                inputs = _as_planned(node, inputs_of(node))
                before = len(fake.ranks)
                (result,) = run_kernel(card, kernel, node, inputs)
                compare(result, evaluate(node, inputs)[0])
                assert len(fake.ranks) > before
    _forget()


def test_without_the_libraries(card: Device) -> None:
    for node in nodes_of(TILED[0], "float32"):
        assert [each.name for each in TABLE.candidates(node, "cuda")] == ["direct"]
    assert np.prod(TILED[0].x) > 0
