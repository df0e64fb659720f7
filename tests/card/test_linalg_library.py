"""What is asked of NVIDIA's libraries for linear algebra and Fourier transforms.

CuPy has NumPy's functions under NumPy's names, so NumPy can stand in for it.
"""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.ops import factorisation, linalg
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.errors import DataError
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import nodes_of_cases, run_kernel, stand_ins
from tests.unit.kernels.checking import LAYOUTS, compare

MATRICES = {"solve", "inverse", "slogdet", "cholesky", "qr", "svd", "eigh", "eig"}
TRANSFORMS = {"fft", "rfft", "irfft"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("ops", "name"), [(MATRICES, "cusolver"), (TRANSFORMS, "cufft")])
def test_the_cases_of_every_op(libraries: Device, ops: set[str], name: str, dtype: str) -> None:
    found = set()
    for node, inputs in nodes_of_cases(ops, dtype):
        kernels = [each for each in TABLE.candidates(node, "cuda") if each.name == name]
        if not kernels:
            assert min(given.spec.size for given in node.inputs) == 0
            continue
        for layout in ("dense", "with gaps", "backwards"):
            arranged = tuple(LAYOUTS[layout](array) for array in inputs)
            results = run_kernel(libraries, kernels[0], node, arranged, times=2)
            for mine, right in zip(results, evaluate(node, inputs), strict=True):
                compare(mine, right)
        found.add(node.op.name)
    assert found == ops


def test_halves_are_computed_in_float32_where_they_can_be_read(libraries: Device) -> None:
    a = np.array([[3.0, 1.0], [1.0, 2.0]])
    for dtype, can_read in (("float16", True), ("bfloat16", False)):
        given = a.astype(BY_NAME[dtype])
        node = linalg.inverse(*stand_ins(given))
        found = {each.name: each for each in TABLE.candidates(node, "cuda")}
        assert ("cusolver" in found) == can_read
        if can_read:
            compare(*run_kernel(libraries, found["cusolver"], node, (given,)), np.linalg.inv(a))


def test_a_matrix_that_cannot_be_inverted_is_an_error(libraries: Device) -> None:
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    node = linalg.inverse(*stand_ins(singular))
    kernel = next(each for each in TABLE.candidates(node, "cuda") if each.name == "cusolver")
    assert not kernel.capturable
    with pytest.raises(DataError, match=r"op\.inverse: expected invertible matrices"):
        run_kernel(libraries, kernel, node, (singular,))


def test_large_matrices_are_the_librarys(libraries: Device) -> None:
    def first(n: int) -> str:
        given = np.broadcast_to(np.zeros((), "float32"), (n, n))
        maker = factorisation.svd.outputs(*stand_ins(given))[0].inputs[0]
        return TABLE.candidates(maker, "cuda")[0].name

    assert first(16) == "one block"
    assert first(1000) == "cusolver"


def test_one_block_is_not_asked_for_large_matrices(libraries: Device) -> None:
    def names(dtype: str, *shapes: tuple[int, ...]) -> list[str]:
        given = [np.broadcast_to(np.zeros((), BY_NAME[dtype]), shape) for shape in shapes]
        found = [each.name for each in TABLE.candidates(linalg.solve(*stand_ins(*given)), "cuda")]
        # A real card has more than is played here.
        return [name for name in found if name != "blocked"]

    assert names("float32", (4096, 4096), (4096, 1)) == ["cusolver"]
    assert names("float16", (4, 2000, 2000), (4, 2000, 1)) == ["cusolver"]
    assert "one block" in names("float32", (64, 512, 512), (64, 512, 1))
    # Nobody else can.
    assert names("bfloat16", (2000, 2000), (2000, 1)) == ["one block"]
    assert names("float32", (2000, 2000), (2000, 0)) == ["one block"]
