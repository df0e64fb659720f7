"""Wrong calls of all public callables, a few of the many that `tests/fuzz/wrong_calls.py` makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import audio, data, dmath, nn, op, search
from caldera.errors import CalderaError
from tests.fuzz import wrong_calls


@pytest.fixture(autouse=True)
def _no_session_is_left() -> Iterator[None]:
    yield
    dmath.disconnect()


@pytest.mark.parametrize("seed", [1])
def test_wrong_calls_are_refused_in_words(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = wrong_calls.wrong_calls(60, seed, tmp_path, "op.")
    assert not [f"{call}: {error!r}" for call, error in found if error is not None]


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.ReLU()(),
        lambda: nn.Dense(3)(np.ones((2, 3)), np.ones(3)),
        lambda: nn.Sequential([nn.Dense(3)])(),
        lambda: nn.Concat()(),
        lambda: nn.trace(3),
        lambda: search.Grid(3),
        lambda: op.batch_norm(1, 1, 1, 1, 1, mean=2),
        lambda: op.ones(np.array(2), dtype=()),
        lambda: op.ctc_loss(np.zeros((2, 4, 3), "f4"), np.array([[1], [1]]), [4, 4], np.array(int)),
        lambda: cd.NeuralNetwork(),
        lambda: cd.load(),
        lambda: cd.tensor([1.0], dtype=np),
        lambda: dmath.ones((4, 3)).max(keepdims=np.array([1j, 2j])),
        lambda: dmath.ones((4, 3)).cumsum(np.array([True, False])),
        lambda: data.Crop((2, 2, 2)),
        lambda: data.table_inputs({b"a": 1}),
        lambda: data.source("x" * 100_000),
        lambda: audio.read("x" * 100_000),
        lambda: list(audio.librispeech("x" * 100_000)),
        lambda: audio.beam_search(np.zeros((1, 2, 3)), ["", "a", "b"], width=-7),
        lambda: audio.normalise(True, lengths=[1]),
        lambda: audio.fbank(np.zeros((1, 800), "f4"), float("inf")),
    ],
)
def test_calls_that_ended_in_exceptions_of_python(call: object) -> None:
    with pytest.raises(CalderaError):
        call()  # type: ignore[operator]


def test_numbers_of_numpy_are_as_good_as_those_of_python() -> None:
    samples = data.ArrayData(np.zeros((4, 2)))
    assert samples.order(np.int8(3), 0).tolist() == samples.order(3, 0).tolist()
    assert dmath.random((2,), seed=np.int8(-3)).shape == (2,)
    assert op.sum(np.ones((2, 3)), keepdims=np.bool_(True)).shape == (1, 1)
    assert op.sum(np.ones((2, 3)), keepdims=np.bool_(True)).item() == 6.0
    assert data.Crop(np.array(2))(np.zeros((1, 1, 4, 4)), data.Draw(seed=1)).shape == (1, 1, 2, 2)
