"""Factorisations by card and host together; NumPy stands in for CuPy, which has its functions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.core.graph.ops import factorisation, linalg
from caldera.core.memory import Device
from caldera.errors import DataError
from caldera.kernels.cuda.linalg import cusolver
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel, stand_ins
from tests.card.emulated import EmulatedCard
from tests.unit.kernels.checking import compare


class Later:
    """What a stream of copies does, done no sooner than somebody waits for it."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        """CuPy's streams are used with `with`."""

    def __exit__(self, *_: object) -> None:
        """See above."""

    def add(self, call: Callable[[], None]) -> None:
        """Something to be done later."""
        self._queue.append(call)

    def synchronize(self) -> None:
        """Do all of it."""
        while self._queue:
            self._queue.pop(0)()

    def record(self) -> Later:
        """An event: whoever waits for it has this stream catch up."""
        return self

    def wait_event(self, event: Later) -> None:
        """Nothing of this stream goes on before that."""
        event.synchronize()


class CardArray(np.ndarray):
    """What CuPy's arrays have besides."""

    def set(self, array: np.ndarray, stream: Later) -> None:
        """Copy from the host: pinned memory is read when the copy is done."""
        stream.add(lambda: np.copyto(self, array))


class NumPyAsCuPy:
    """NumPy under the name of CuPy: kernels run at once, copies when they are waited for."""

    def __init__(self) -> None:
        main = Later()
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: Later(),
            get_current_stream=lambda: main,
            alloc_pinned_memory=bytearray,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, count: int, dtype: Any) -> np.ndarray:
        """Memory of the card that nobody has written to."""
        return np.full(count, np.nan, dtype).view(CardArray)

    def asnumpy(self, held: np.ndarray, stream: Later, out: np.ndarray, blocking: bool) -> None:
        """Copy to the host, at some time."""
        assert not blocking
        stream.add(lambda: np.copyto(out, held))


@pytest.fixture
def both(card: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A card, small panels, and NumPy for its library unless it has its own."""
    monkeypatch.setattr(cusolver, "PANEL", 16)
    monkeypatch.setattr(cusolver, "SMALLEST", 8)
    if isinstance(card, EmulatedCard):
        monkeypatch.setattr(cusolver, "card_count", lambda: 1)
        monkeypatch.setattr(cusolver, "cupy_array", lambda array: array)
        played = NumPyAsCuPy()
        monkeypatch.setattr(cusolver, "cupy", lambda: played)
        cusolver._copy_stream.cache_clear()
    return card


def kernel_of(node: Any) -> Kernel:
    return next(each for each in TABLE.candidates(node, "cuda") if each.name == "hybrid")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [16, 40])
def test_factorisations_are_those_of_the_oracle(both: Device, n: int, dtype: str) -> None:
    draw = np.random.default_rng(n)
    a = draw.normal(size=(n, n)).astype(dtype)
    well = (a + 8 * np.eye(n)).astype(dtype)
    given: list[tuple[Any, tuple[np.ndarray, ...]]] = [
        (factorisation.cholesky, ((a @ a.T + n * np.eye(n)).astype(dtype),)),
        (factorisation.qr, (well,)),
        (factorisation.qr, (draw.normal(size=(n + 9, n)).astype(dtype),)),
        (factorisation.qr, (well[: n - 7],)),
        # Rows have to change places.
        (linalg.solve, (np.roll(well, 5, axis=0), draw.normal(size=(n, 3)).astype(dtype))),
    ]
    for op, inputs in given:
        node = op.node(*stand_ins(*inputs))
        for mine, right in zip(
            run_kernel(both, kernel_of(node), node, inputs), evaluate(node, inputs), strict=True
        ):
            compare(mine, right)


def test_columns_that_need_no_reflection(both: Device) -> None:
    a = np.triu(np.arange(1.0, 33.0 * 32 + 1)[: 32 * 32].reshape(32, 32))
    node = factorisation.qr.outputs(*stand_ins(a))[0].inputs[0]
    q, r = run_kernel(both, kernel_of(node), node, (a,))
    np.testing.assert_allclose(q @ r, a, rtol=1e-12)


def test_what_cannot_be_factorised_is_an_error(both: Device) -> None:
    indefinite, singular = -np.eye(20), np.zeros((20, 20))
    node = factorisation.cholesky(*stand_ins(indefinite))
    assert not kernel_of(node).capturable
    with pytest.raises(DataError, match=r"op\.cholesky: expected symmetric positive definite"):
        run_kernel(both, kernel_of(node), node, (indefinite,))
    right = np.ones((20, 1))
    node = linalg.solve(*stand_ins(singular, right))
    with pytest.raises(DataError, match=r"op\.solve: expected invertible"):
        run_kernel(both, kernel_of(node), node, (singular, right))


def test_it_does_not_serve_before_it_was_measured(both: Device) -> None:
    given = np.broadcast_to(np.zeros((), "float32"), (4096, 4096))
    node = factorisation.cholesky(*stand_ins(given))
    assert TABLE.candidates(node, "cuda")[-1].name == "hybrid"
