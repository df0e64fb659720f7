"""Convolutions by Winograd's algorithm, by Fourier transforms and on planes, against the oracle in
float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.base.threads import at_most_threads
from caldera.core.graph.memory_format import NHWC, laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.tensor.dtype import float64
from caldera.kernels.native import families  # noqa: F401 - registers its kernels
from caldera.kernels.native.codegen.matrix_multiply import standalone
from caldera.kernels.native.convolution.winograd import layout
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.kernels.tuning.database import tuning_key
from tests.unit.kernels.native.convolution.cases import convolution_nodes

BOUNDS = {
    ("winograd 2x2", "float32"): 9e-7,
    ("winograd 4x4", "float32"): 2e-5,
    ("fourier", "float32"): 9e-7,
    ("planes", "float32"): 9e-7,
    ("winograd 2x2", "float64"): 4e-15,
    ("winograd 4x4", "float64"): 4e-14,
    ("fourier", "float64"): 4e-15,
    ("planes", "float64"): 2e-14,
}
"""Largest error, beside the largest element of the result. PyTorch's own convolutions are between
2e-7 and 9e-7 in float32."""
HALF_BOUNDS = {"float16": 2e-3, "bfloat16": 1e-2}
GUARD = 64


def _nodes(x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> Iterator[Node]:
    """A convolution and its two gradients, with the usual padding unless another is given."""
    return convolution_nodes(x, w, **{"padding": ((1, 1), (1, 1)), **how})


def _kernel(node: Node, name: str) -> Kernel | None:
    candidates = TABLE.candidates(node, "cpu")
    return next((kernel for kernel in candidates if kernel.name == name), None)


def _offered(nodes: Iterator[Node], name: str) -> list[Node]:
    """Those of the nodes that a kernel of few channels is for: only where vectors are wide."""
    if name != "planes":
        return list(nodes)
    return [node for node in nodes if _kernel(node, name) is not None]


def _right(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    """What the oracle computes in float64."""
    stand_ins = [parameter(i, Spec(each.shape, float64)) for i, each in enumerate(inputs)]
    wide = node.op.node(*stand_ins, **node.attrs)
    (right,) = evaluate(wide, [each.astype(float64) for each in inputs])
    return right


def _guarded(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """An array between two guards of nan, and all of that memory."""
    memory = np.full(spec.size + 2 * GUARD, np.nan).astype(spec.dtype)
    return memory, laid_out(memory[GUARD : GUARD + spec.size], spec.shape, spec.order)


def _error(
    node: Node, name: str, arrange: Callable[[np.ndarray], np.ndarray] | None = None
) -> float:
    """The largest error of a kernel, run twice in memory that held nan."""
    kernel = _kernel(node, name)
    assert kernel is not None
    generator = np.random.default_rng(1)
    inputs = []
    for given in node.inputs:
        _, array = _guarded(given.spec)
        array[...] = generator.standard_normal(array.shape)
        inputs.append(array if arrange is None else arrange(array))
    memory, out = _guarded(node.spec)
    if arrange is not None:
        out = arrange(out)
    needed = kernel.workspace(node)
    workspace = np.full(needed + GUARD, 0xFF, np.uint8)
    run = kernel.bind(Call(node, (out,), tuple(inputs), workspace[:needed]))
    right = _right(node, inputs)
    for _ in range(2):
        out[...] = np.nan
        run()
    for guard in (memory[:GUARD], memory[-GUARD:]):
        assert np.isnan(guard.astype(float64)).all(), "written beside the result"
    assert (workspace[needed:] == 0xFF).all(), "written behind the workspace"
    return float(np.abs(out.astype(float64) - right).max() / np.abs(right).max())


WINOGRAD: dict[str, dict[str, Any]] = {
    "tiles come out even": {"x": (2, 16, 8, 12), "w": (16, 16, 3, 3)},
    "odd everything": {"x": (3, 17, 9, 7), "w": (11, 17, 3, 3)},
    "uneven padding": {"x": (2, 9, 6, 5), "w": (24, 9, 3, 3), "padding": ((0, 2), (1, 0))},
    "no padding": {"x": (1, 8, 7, 6), "w": (8, 8, 3, 3), "padding": ((0, 0), (0, 0))},
    "more padding than filter": {
        "x": (1, 8, 3, 2),
        "w": (10, 8, 3, 3),
        "padding": ((4, 3), (0, 5)),
    },
    "a single pixel": {"x": (1, 8, 1, 1), "w": (9, 8, 3, 3)},
    "grouped": {"x": (2, 24, 5, 6), "w": (16, 12, 3, 3), "groups": 2},
    "several blocks": {"x": (2, 12, 31, 30), "w": (20, 12, 3, 3)},
    "many filters": {"x": (1, 264, 5, 5), "w": (256, 264, 3, 3)},
    "multiplied by BLAS": {"x": (3, 136, 20, 19), "w": (248, 136, 3, 3)},
}
FOURIER: dict[str, dict[str, Any]] = {
    "7x7": {"x": (2, 16, 15, 17), "w": (17, 16, 7, 7), "padding": ((3, 3), (3, 3))},
    "7x9, uneven padding": {"x": (1, 19, 12, 30), "w": (16, 19, 7, 9), "padding": ((0, 8), (1, 0))},
    "filter larger than image": {
        "x": (1, 16, 3, 3),
        "w": (16, 16, 11, 11),
        "padding": ((20, 3), (5, 9)),
    },
    "several blocks": {"x": (3, 16, 60, 61), "w": (16, 16, 7, 7), "padding": ((3, 3), (3, 3))},
}
PLANES: dict[str, dict[str, Any]] = {
    "one channel": {"x": (3, 1, 12, 20), "w": (6, 1, 5, 5), "padding": ((2, 2), (2, 2))},
    "uneven, dilated": {
        "x": (2, 6, 9, 11),
        "w": (4, 6, 3, 2),
        "padding": ((0, 3), (2, 1)),
        "dilation": (2, 3),
    },
    "several blocks": {"x": (2, 5, 70, 90), "w": (7, 5, 4, 3), "padding": ((3, 0), (0, 1))},
    "a single pixel": {"x": (2, 3, 1, 1), "w": (2, 3, 3, 1), "padding": ((1, 1), (0, 0))},
}
CASES = [
    pytest.param(name, case, id=f"{name}, {title}")
    for names, cases in (
        (("winograd 2x2", "winograd 4x4"), WINOGRAD),
        (("fourier",), FOURIER),
        (("planes",), PLANES),
    )
    for name in names
    for title, case in cases.items()
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_kernels_are_as_accurate_as_they_say(name: str, case: dict[str, Any]) -> None:
    _check_accuracy(name, case, "float32")


@pytest.mark.parametrize(("name", "case"), CASES[::3])
def test_kernels_are_as_accurate_in_float64(name: str, case: dict[str, Any]) -> None:
    """Cases of each algorithm: of a kernel only the widths differ, and it is compiled again."""
    _check_accuracy(name, case, "float64")


def test_every_algorithm_has_cases_of_float64() -> None:
    assert {each.values[0] for each in CASES[::3]} == {each.values[0] for each in CASES}


def _check_accuracy(name: str, case: dict[str, Any], dtype: str) -> None:
    with settings.override(accuracy="fast"):
        for node in _offered(_nodes(**case, dtype=dtype), name):
            assert _error(node, name) < BOUNDS[name, dtype]


@pytest.mark.parametrize("threads", [1, 3, 40])
@pytest.mark.parametrize("name", ["winograd 2x2", "winograd 4x4", "fourier", "planes"])
def test_any_number_of_threads(name: str, threads: int) -> None:
    case = {"fourier": FOURIER, "planes": PLANES}.get(name, WINOGRAD)["several blocks"]
    with settings.override(accuracy="fast", threads=threads):
        for node in _offered(_nodes(**case), name):
            assert _error(node, name) < BOUNDS[name, "float32"]


def test_parts_are_the_same_whoever_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts a worker, and scratch memory for as many workers as there were."""
    monkeypatch.setattr(layout, "_WORTH_A_TURN", 1)
    generator = np.random.default_rng(3)
    with settings.override(threads=2):
        for node in _nodes((8, 16, 16, 16), (16, 16, 3, 3)):
            assert WinogradTiling(node, 2).turns > 1
            with at_most_threads(1):
                assert WinogradTiling(node, 2).turns == 1
            inputs = [_guarded(each.spec)[1] for each in node.inputs]
            for each in inputs:
                each[...] = generator.standard_normal(each.shape)
            _, out = _guarded(node.spec)
            kernel = _kernel(node, "winograd 2x2")
            assert kernel is not None
            workspace = np.zeros(kernel.workspace(node), np.uint8)
            run = kernel.bind(Call(node, (out,), tuple(inputs), workspace))
            found = set()
            for threads in (1, 2, 7):
                with settings.override(threads=threads):
                    run()
                found.add(out.tobytes())
            assert len(found) == 1


def test_tiles_at_the_border_of_any_image() -> None:
    """Runs of tiles that begin and end anywhere, rows and columns that are not there."""
    generator = np.random.default_rng(7)
    with settings.override(threads=1):
        for _ in range(6):
            height, width = (int(each) for each in generator.integers(9, 24, 2))
            padding = generator.integers(0, 4, (2, 2)).tolist()
            how = {"padding": tuple(tuple(pair) for pair in padding)}
            for node in _nodes((3, 16, height, width), (16, 16, 3, 3), **how):
                assert _error(node, "winograd 2x2") < BOUNDS["winograd 2x2", "float32"]


# --- layouts and dtypes


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, along all axes."""
    view = np.zeros([2 * n + 1 for n in array.shape], array.dtype)[1::2, 1::2, 1::2, 1::2]
    view[...] = array
    return view


def _some_channels(array: np.ndarray) -> np.ndarray:
    """Channels out of the middle of images that lie channels last."""
    count, channels, height, width = array.shape
    view = np.zeros((count, height, width, channels + 5), array.dtype)[..., 3 : 3 + channels]
    view = view.transpose(0, 3, 1, 2)
    view[...] = array
    return view


def _backwards(array: np.ndarray) -> np.ndarray:
    """A view with negative strides."""
    return np.flip(np.ascontiguousarray(np.flip(array)))


@pytest.mark.parametrize("arrange", [_with_gaps, _some_channels, _backwards])
@pytest.mark.parametrize("name", ["winograd 2x2", "winograd 4x4", "fourier", "planes"])
def test_arrays_may_lie_in_any_way(name: str, arrange: Callable[..., np.ndarray]) -> None:
    case = {"fourier": FOURIER["7x7"], "planes": PLANES["uneven, dilated"]}.get(
        name, WINOGRAD["odd everything"]
    )
    with settings.override(accuracy="fast"):
        for order in (NHWC, None):
            for node in _offered(_nodes(**case, order=order), name):
                assert _error(node, name, arrange) < BOUNDS[name, "float32"]


@pytest.mark.parametrize("dtype", HALF_BOUNDS)
@pytest.mark.parametrize("name", ["winograd 2x2", "fourier", "planes"])
def test_halves_are_computed_in_float32(name: str, dtype: str) -> None:
    case = {"fourier": FOURIER["7x7"], "planes": PLANES["one channel"]}.get(
        name, WINOGRAD["odd everything"]
    )
    for order in (NHWC, None):
        for node in _offered(_nodes(**case, dtype=dtype, order=order), name):
            assert _error(node, name) < HALF_BOUNDS[dtype]


# --- beside direct convolution


def test_what_is_strict_is_as_accurate_as_direct_convolution() -> None:
    for node in _nodes((2, 64, 8, 9), (64, 64, 3, 3)):
        assert _error(node, "winograd 2x2") < max(9e-7, _error(node, "direct"))
    for node in _nodes((1, 32, 12, 12), (32, 32, 9, 9), padding=((4, 4), (4, 4))):
        assert _error(node, "fourier") < max(9e-7, _error(node, "direct"))


def test_larger_tiles_round_more_and_have_to_be_asked_for() -> None:
    for node in _nodes((2, 64, 8, 9), (64, 64, 3, 3)):
        with settings.override(accuracy="strict"):
            assert _kernel(node, "winograd 4x4") is None
            strict = tuning_key(node, "cpu", TABLE.candidates(node, "cpu"))
        with settings.override(accuracy="fast"):
            assert _error(node, "winograd 4x4") < 2e-5
            assert tuning_key(node, "cpu", TABLE.candidates(node, "cpu")) != strict


# --- what is offered where


@pytest.mark.parametrize(
    "case",
    [
        {"x": (2, 16, 9, 9), "w": (16, 16, 3, 3), "stride": (2, 1)},
        {"x": (2, 16, 9, 9), "w": (16, 16, 3, 3), "dilation": (1, 2)},
        {"x": (2, 16, 9, 9), "w": (16, 16, 5, 5)},
        {"x": (2, 3, 9, 9), "w": (16, 3, 3, 3)},
        {"x": (0, 16, 9, 9), "w": (16, 16, 3, 3)},
        {"x": (2, 16, 30, 30), "w": (16, 16, 7, 7), "stride": (2, 2)},
        {"x": (2, 32, 30, 30), "w": (32, 16, 7, 7), "groups": 2},
        {"x": (2, 3, 30, 30), "w": (16, 3, 7, 7)},
    ],
)
def test_other_convolutions_are_left_to_other_kernels(case: dict[str, Any]) -> None:
    with settings.override(accuracy="fast"):
        for node in _nodes(**case):
            names = {kernel.name for kernel in TABLE.candidates(node, "cpu")}
            assert names.isdisjoint({"winograd 2x2", "winograd 4x4", "fourier"})
            assert "direct" in names


@pytest.mark.parametrize("name", ["winograd 2x2", "winograd 4x4", "fourier"])
def test_blocks_shrink_to_fit_into_the_workspace_allowed(name: str) -> None:
    case = (FOURIER if name == "fourier" else WINOGRAD)["several blocks"]
    with settings.override(accuracy="fast", threads=2):
        for node in _nodes(**case):
            kernel = _kernel(node, name)
            assert kernel is not None
            whole = kernel.workspace(node)
            limit = int(0.75 * whole)
            with settings.override(workspace_limit=limit):
                assert kernel.workspace(node) <= limit
                assert _error(node, name) < BOUNDS[name, "float32"]


def test_few_channels_stay_in_registers_and_in_the_nearest_cache() -> None:
    """16 channels are one vector of the widest there are: BLAS would only rearrange them."""
    for node in _nodes((32, 16, 32, 32), (16, 16, 3, 3)):
        found = WinogradTiling(node, 2)
        assert found.register_tile is not None
        assert found.in_place is (found.panel == 16 and not found.is_sum)
        taken = found.filter_step + found.step + (0 if found.in_place else found.other_step)
        assert found.points * taken * 4 <= 52 << 10


def test_winograd_without_a_blas() -> None:
    with standalone():
        (node, *_) = _nodes((2, 16, 8, 12), (16, 16, 3, 3))
        assert _error(node, "winograd 2x2") < BOUNDS["winograd 2x2", "float32"]
        (many, *_) = _nodes((3, 136, 20, 19), (248, 136, 3, 3))
        assert _kernel(many, "winograd 2x2") is None
