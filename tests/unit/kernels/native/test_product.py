"""Native products against the oracle: all layouts, dtypes and ways to cut the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.epilogue import ACTIVATIONS, matmul_accumulate, matmul_epilogue
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import BY_NAME, float32
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.native.product import gemm, packed, problem
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from tests.unit.kernels.checking import DTYPES, LAYOUTS, check_kernel

SHAPES: list[Any] = [
    ((3, 4), (4, 5), False, False),
    ((4, 3), (5, 4), True, True),
    ((37, 50), (50, 41), False, False),
    ((300, 5), (300, 7), True, False),
    ((70, 1), (1, 70), False, False),
    ((2, 9, 8), (8, 3), False, False),
    ((2, 1, 3, 4), (3, 5, 4), False, True),
    ((3, 0), (0, 5), False, False),
    ((0, 4), (4, 5), False, False),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "elu": {"alpha": 0.7},
    "gelu": {"approximate": True},
    "leaky_relu": {"slope": 0.2},
}


@pytest.fixture(autouse=True)
def _split_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_SPLITTING", 2)
    monkeypatch.setattr(gemm, "WORTH_SPLITTING_COPIES", 2)
    monkeypatch.setattr(problem, "WORTH_SPLITTING_COPIES", 2)


def _native(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cpu") if each.name != "reference"]


def _numbers(spec: Spec) -> np.ndarray:
    generator = np.random.default_rng(list(spec.shape))
    return generator.uniform(-1.0, 1.0, spec.shape).astype(spec.dtype)


def _check(node: Node) -> None:
    inputs = tuple(_numbers(given.spec) for given in node.inputs)
    assert _native(node)
    for kernel in _native(node):
        for arrange in LAYOUTS.values():
            check_kernel(kernel, node, tuple(arrange(array) for array in inputs))


def _operands(a: Any, b: Any, dtype: str) -> list[Node]:
    return [parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate([a, b])]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: str, threads: int) -> None:
    with cd.settings.override(threads=threads):
        for a, b, ta, tb in SHAPES:
            _check(matmul(*_operands(a, b, dtype), ta=ta, tb=tb))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_with_a_bias_and_an_activation(dtype: str) -> None:
    for a, b, ta, tb in SHAPES[3:]:
        left, right = _operands(a, b, dtype)
        columns = matmul(left, right, ta=ta, tb=tb).shape[-1]
        bias = parameter(2, Spec((columns,), BY_NAME[dtype]))
        how: Any = {"ta": ta, "tb": tb, "attributes": ()}
        _check(matmul_epilogue(left, right, bias, activation="sigmoid", **how))
        _check(matmul_epilogue(left, right, activation="relu", **how))
        _check(matmul_epilogue(left, right, bias, activation=None, **how))


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_an_activation_of_rows_in_three_registers(name: str) -> None:
    left, right = _operands((70, 33), (33, 144), "float32")
    _check(matmul_epilogue(left, right, ta=False, tb=False, activation=name, attributes=()))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_at_the_ends_of_the_range(name: str) -> None:
    assert name in problem.ACTIVATIONS
    numbers = np.array(
        [0.0, -0.0, 1e-30, 3.0, -3.0, 80.0, -80.0, np.inf, -np.inf, np.nan], "float32"
    )
    left, right = _operands((len(numbers), 1), (1, 1), "float32")
    node = matmul_epilogue(
        left,
        right,
        ta=False,
        tb=False,
        activation=name,
        attributes=tuple(SETTINGS.get(name, {}).items()),
    )
    for kernel in _native(node):
        check_kernel(kernel, node, (numbers[:, None], np.ones((1, 1), "float32")))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_place", [True, False])
def test_accumulation(dtype: str, in_place: bool) -> None:
    wanted = BY_NAME[dtype]
    shapes = [(6, 9), (5, 6), (5, 9), (), ()]
    nodes = [parameter(i, Spec(shape, wanted)) for i, shape in enumerate(shapes)]
    node = matmul_accumulate(*nodes, ta=True, tb=False)
    assert len(_native(node)) > 1
    for kernel in _native(node):
        inputs = [_numbers(given.spec) for given in node.inputs]
        (right,) = evaluate(node, inputs)
        out = inputs[0] if in_place else np.empty((6, 9), wanted)
        needed = kernel.workspace(node)
        workspace = np.empty(needed, np.uint8) if needed else None
        kernel.bind(Call(node, (out,), tuple(inputs), workspace))()
        tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
        np.testing.assert_allclose(
            out.astype("float64"), right.astype("float64"), rtol=tolerance, atol=tolerance
        )


def test_a_factor_is_not_overwritten_by_its_own_product() -> None:
    x = parameter(0, Spec((4, 4), float32))
    one = parameter(1, Spec((), float32))
    node = matmul_accumulate(x, x, x, one, one, ta=False, tb=False)
    assert not any(kernel.in_place(node) for kernel in _native(node))


def test_matrices_that_meet_the_same_one_become_one_product() -> None:
    call = Call(
        matmul(*_operands((4, 3, 5), (5, 2), "float32"), ta=False, tb=False),
        (np.empty((4, 3, 2), "float32"),),
        (),
    )
    found = gemm.ProductArrays.of(call, np.empty((4, 3, 5), "float32"), np.empty((5, 2), "float32"))
    assert found.extent == (12, 2, 5)
    assert found.batch == ()


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 9, 100])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 10, 17, 64, 100])
def test_tiles_fit_into_the_result_and_the_registers(rows: int, columns: int) -> None:
    for dtype in ("float32", "float64"):
        lanes, vectors, height = packed.tile_for(rows, columns, dtype)
        assert 1 <= lanes <= columns
        assert vectors * height + vectors + 2 <= host_target().registers


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (7, 10), (9, 17), (100, 1)])
def test_tiles_at_the_edges(rows: int, columns: int) -> None:
    _check(matmul(*_operands((rows, 3), (3, columns), "float32"), ta=False, tb=False))


@pytest.mark.parametrize(("threads", "dtype"), [(1, "float32"), *[(3, dtype) for dtype in DTYPES]])
def test_few_rows_with_a_large_matrix(threads: int, dtype: str) -> None:
    with cd.settings.override(threads=threads):
        for a, b in (((1, 83), (83, 1111)), ((3, 130), (130, 700)), ((2, 1, 65), (65, 1100))):
            left, right = _operands(a, b, dtype)
            bias = parameter(2, Spec(b[1:], BY_NAME[dtype]))
            node = matmul_epilogue(
                left, right, bias, activation="relu", ta=False, tb=False, attributes=()
            )
            assert "few rows" in [each.name for each in _native(node)]
            _check(node)
            turned = (*b[:-2], b[-1], b[-2])
            node = matmul(*_operands(a, turned, dtype), ta=False, tb=True)
            assert "few rows" in [each.name for each in _native(node)]
            _check(node)
    assert "few rows" not in [
        each.name for each in _native(matmul(right, right, ta=True, tb=False))
    ]


def test_blocks_cover_the_result_evenly() -> None:
    assert problem.blocks(1, 100, 528, 2, finish=False) == (100, 264)
    assert problem.blocks(1, 784, 528, 2, finish=False) == (392, 528)
    assert problem.blocks(8, 100, 528, 2, finish=False) == (100, 528)
    assert problem.blocks(1, 800, 800, 4, finish=False) == (400, 400)
    assert problem.blocks(1, 4096, 4096, 1, finish=True) == (128, 4096)
