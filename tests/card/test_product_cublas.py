"""Products by cuBLASLt: what the library is asked, checked by one that computes with NumPy from the
raw pointers, layouts and attributes it is given."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import epilogue, product
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.product import cublas
from caldera.kernels.cuda.product.cublas import WORKSPACE_ALIGNMENT
from caldera.kernels.cuda.runtime import cublaslt, device
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel
from tests.card.emulated import EmulatedDriver
from tests.card.fake_cublaslt import FakeCublasLt
from tests.card.test_product import LARGER, SMALL, Shape, numbers, products
from tests.unit.kernels.checking import DTYPES, LAYOUTS, compare

pytestmark = pytest.mark.skipif(card_count() > 0, reason="a real card has the real library")


def _forget() -> None:
    for known in (cublaslt.handle, cublaslt.algorithms, cublas._found):
        known.cache_clear()


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublasLt]:
    """A library that does what cuBLASLt does."""
    fake = FakeCublasLt()
    monkeypatch.setattr(device, "cublas_lt", lambda: fake)
    _forget()
    yield fake
    _forget()


def _kernels(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cuda") if each.name.startswith("cublas")]


def _check(card: Device, node: Node, inputs: tuple[np.ndarray, ...]) -> None:
    kernels = _kernels(node)
    assert kernels
    (right,) = evaluate(node, inputs)
    for kernel in kernels:
        (result,) = run_kernel(card, kernel, node, inputs, times=2)
        compare(result, right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a", "b", "ta", "tb"), [*SMALL, *LARGER])
def test_products(
    card: Device,
    lt: FakeCublasLt,
    a: Shape,
    b: Shape,
    ta: bool,
    tb: bool,
    dtype: str,
) -> None:
    node = products(a, b, ta=ta, tb=tb, dtype=dtype)
    if 0 in (*a, *b):
        assert not _kernels(node)
        return
    _check(card, node, numbers(a, b, dtype=dtype))
    assert lt.ranks


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrays_that_lie_anyhow(
    card: Device,
    lt: FakeCublasLt,
    layout: str,
    dtype: str,
) -> None:
    for a, b, ta, tb in (SMALL[0], SMALL[1], SMALL[2], SMALL[5]):
        node = products(a, b, ta=ta, tb=tb, dtype=dtype)
        arrays = tuple(LAYOUTS[layout](array) for array in numbers(a, b, dtype=dtype))
        _check(card, node, arrays)
    # Gaps and negative distances are left to our own kernels.
    assert bool(lt.ranks) == (layout not in ("with gaps", "backwards"))


def test_second_choices_serve_where_they_may_be_measured(
    card: Device,
    lt: FakeCublasLt,
) -> None:
    node = products((20, 30), (30, 40), dtype="float32")
    assert [each.name for each in _kernels(node)] == ["cublas", "cublas 2", "cublas 3"]
    _check(card, node, numbers((20, 30), (30, 40)))
    assert lt.ranks == [0, 0, 1, 1, 2, 2]
    with settings.override(deterministic=True):
        assert [each.name for each in _kernels(node)] == ["cublas"]


def test_the_workspace_is_what_the_algorithms_ask_for(card: Device, lt: FakeCublasLt) -> None:
    node = products((20, 30), (30, 40), dtype="float32")
    assert _kernels(node)[0].workspace(node) == 2 * 4096 + 16 + WORKSPACE_ALIGNMENT
    with settings.override(workspace_limit=5000):
        assert [each.name for each in _kernels(node)] == ["cublas", "cublas 2"]
        assert _kernels(node)[0].workspace(node) == 4096 + 16 + WORKSPACE_ALIGNMENT


def test_algorithms_are_those_whose_workspace_was_asked_for(card: Device, lt: FakeCublasLt) -> None:
    node = products((20, 30), (30, 40), dtype="float32")
    _check(card, node, numbers((20, 30), (30, 40)))
    # Within another limit the library names other algorithms, and in another order.
    assert lt.limits == {cublas.MOST_WORKSPACE}
    assert set(lt.ranks) == {0, 1, 2}


def test_a_library_without_an_algorithm(
    card: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "cublas_lt", lambda: FakeCublasLt(algorithms=0))
    _forget()
    assert not _kernels(products((20, 30), (30, 40), dtype="float32"))
    _forget()


def test_tensor_cores_round_only_where_they_are_asked_to(card: Device, lt: FakeCublasLt) -> None:
    for dtype, compute, wanted in (
        ("float32", None, 68),
        ("float32", "tf32", 77),
        ("float64", "tf32", 70),
        ("bfloat16", "tf32", 68),
    ):
        plain = products((20, 30), (30, 40), dtype=dtype)
        how = {} if compute is None else {"compute": compute}
        node = product.matmul(*plain.inputs, ta=False, tb=False, **how)
        _check(card, node, numbers((20, 30), (30, 40), dtype=dtype))
        assert lt.compute_types[-1] == wanted


# --- sides of any length


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of every size are worth a copy."""
    monkeypatch.setattr(cublas, "FEWEST_FLOPS", 0)
    cublas._found.cache_clear()
    yield
    cublas._found.cache_clear()


def _check_padded(card: Device, node: Node, inputs: tuple[np.ndarray, ...]) -> None:
    kernels = [each for each in _kernels(node) if "padded" in each.name]
    assert kernels
    (right,) = evaluate(node, inputs)
    for kernel in kernels[:2]:
        (result,) = run_kernel(card, kernel, node, inputs, times=2)
        compare(result, right)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("a", "b", "ta", "tb"),
    [
        ((40, 30), (30, 50), False, False),
        ((30, 41), (30, 64), True, False),
        ((24, 50), (33, 50), False, True),
        ((50, 24), (30, 50), True, True),
        ((2, 3, 17), (17, 64), False, False),
        ((2, 16, 9), (2, 9, 10), False, False),
    ],
)
def test_odd_sides_are_made_longer(
    card: Device,
    lt: FakeCublasLt,
    any_size: None,
    a: Shape,
    b: Shape,
    ta: bool,
    tb: bool,
    dtype: str,
) -> None:
    node = products(a, b, ta=ta, tb=tb, dtype=dtype)
    inputs = numbers(a, b, dtype=dtype)
    inner, step = a[-2 if ta else -1], 16 // inputs[0].itemsize
    _check_padded(card, node, inputs)
    assert not any(each % 16 for row in lt.row_bytes for each in row)
    # The sums are made longer where their terms lie side by side.
    assert lt.depths == {inner if ta and not tb else -(-inner // step) * step}
    # Operands may be parts of larger arrays.
    _check_padded(card, node, tuple(LAYOUTS["with gaps"](array) for array in inputs))


def test_sides_that_are_fine_stay_as_they_are(
    card: Device, lt: FakeCublasLt, any_size: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    even = products((16, 32), (32, 64), dtype="float16")
    odd = products((16, 32), (32, 65), dtype="float16")
    names = [[each.name for each in _kernels(node)] for node in (even, odd)]
    assert not any("padded" in name for name in names[0])
    assert names[1][-1].startswith("cublas padded")
    with settings.override(deterministic=True):
        assert [each.name for each in _kernels(odd)] == ["cublas"]
    monkeypatch.setattr(cublas, "FEWEST_FLOPS", 1 << 27)
    assert not any("padded" in each.name for each in _kernels(odd))


# --- endings


def _epilogue(activation: str | None, bias: bool, dtype: str, batch: Shape = ()) -> Node:
    shapes = [(*batch, 20, 30), (30, 40), *([(40,)] if bias else [])]
    inputs = [parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate(shapes)]
    node: Node = epilogue.matmul_epilogue(
        *inputs,
        ta=False,
        tb=False,
        activation=activation,
        attributes=(("approximate", True),) if activation == "gelu" else (),
    )
    return node


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh"])
def test_endings(
    card: Device,
    lt: FakeCublasLt,
    activation: str | None,
    bias: bool,
    dtype: str,
) -> None:
    if activation is None and not bias:
        return
    node = _epilogue(activation, bias, dtype)
    inputs = numbers(*[given.shape for given in node.inputs], dtype=dtype)
    _check(card, node, inputs)
    is_theirs = bias and activation in (None, "relu") and dtype != "float64"
    assert set(lt.epilogues) == {"BIAS" if is_theirs else "DEFAULT"}
    using = driver()
    if activation == "relu" and isinstance(using, EmulatedDriver):
        # What is left is a loop that takes several elements at once.
        assert "loop" in using.launches
        assert "split_k_reduce" not in using.launches
    # A bias with gaps is added by our own kernel.
    if bias:
        arrays = (*inputs[:2], LAYOUTS["with gaps"](inputs[2]))
        _check(card, node, arrays)


def test_a_nan_comes_through_relu(card: Device, lt: FakeCublasLt) -> None:
    node = _epilogue("relu", True, "float32")
    left, right, bias = numbers((20, 30), (30, 40), (40,))
    left[3, 4] = np.nan
    _check(card, node, (left, right, bias))


def test_fast_endings_are_the_librarys(card: Device, lt: FakeCublasLt) -> None:
    with settings.override(accuracy="fast"):
        for activation, bias, name in (
            ("relu", True, "RELU_BIAS"),
            ("relu", False, "RELU"),
            ("gelu", True, "GELU_BIAS"),
        ):
            lt.epilogues.clear()
            node = _epilogue(activation, bias, "float32", batch=(2,))
            _check(card, node, numbers(*[given.shape for given in node.inputs]))
            assert set(lt.epilogues) == {name}


@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulation(card: Device, lt: FakeCublasLt, dtype: str) -> None:
    shapes = [(20, 40), (30, 20), (30, 40), (), ()]
    inputs = [parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate(shapes)]
    node = epilogue.matmul_accumulate(*inputs, ta=True, tb=False)
    c, a, b = numbers(*shapes[:3], dtype=dtype)
    for alpha, beta in ((0.25, -0.5), (0.0, 1.0), (1.0, 0.0)):
        if alpha == 0:
            a = np.full_like(a, np.nan)
        _check(card, node, (c, a, b, np.array(alpha, a.dtype), np.array(beta, a.dtype)))


def test_nothing_is_left_behind(card: Device, lt: FakeCublasLt) -> None:
    node = products((20, 30), (30, 40), dtype="float32")
    _check(card, node, numbers((20, 30), (30, 40)))
    gc.collect()
    # All that stays is the library's context.
    assert len(lt.alive) == 1


# --- where the libraries are missing


def test_without_the_library_our_own_kernels_serve(card: Device) -> None:
    assert device.cublas_lt() is None
    assert device.cudnn() is None
    node = products((20, 30), (30, 40), dtype="float32")
    assert [each.name for each in TABLE.candidates(node, "cuda")] == ["tiles"]


def test_importing_the_kernels_imports_no_library() -> None:
    program = (
        "import sys, caldera.kernels.cuda; "
        "print([m for m in ('cupy', 'nvmath', 'cudnn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
