"""A part of the training data is held out to choose by; the test data choose nothing silently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import comm, data, nn, parallel
from caldera.errors import ConfigError, DataError
from caldera.train.report.run import run_page

X = np.arange(40, dtype=np.float32)[:, None] / 40
Y = (np.arange(40) % 4 == 0).astype(np.int64)


class Seen(cd.Callback):
    """Remembers which samples were trained with, and which were looked at."""

    def run_begins(self, run) -> None:
        self.train = set(run.loader.data.x[:, 0].tolist())
        held = run.validation.data
        self.validation = set(held.x[:, 0].tolist())
        self.classes = np.bincount(held.y, minlength=2).tolist()


def _model(**settings) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(2)], batch_size=8, **settings)


def _fit(given=(X, Y), seed: int = 0, **options) -> tuple[Seen, cd.History]:
    seen = Seen()
    history = _model(seed=seed).fit(
        given, **{"validation": 0.2, "epochs": 1, "verbose": 0, "callbacks": [seen]} | options
    )
    return seen, history


def test_a_part_is_held_out_by_seed_and_in_equal_shares() -> None:
    seen, history = _fit()
    assert "val_loss" in history
    assert (len(seen.train), len(seen.validation)) == (32, 8)
    assert not seen.train & seen.validation
    assert seen.classes == [6, 2]
    assert _fit()[0].validation == seen.validation
    assert _fit(seed=1)[0].validation != seen.validation
    staged, _ = _fit(data.Pipeline((X, Y), [lambda x, draw: x * 1]))
    assert staged.validation == seen.validation


def test_weights_go_with_their_samples() -> None:
    # Only samples of weight can be learnt from: those of class 1, wherever they come to be.
    model = _model(learning_rate=0.1)
    model.fit((X, Y), validation=0.2, epochs=5, verbose=0, sample_weights=Y.astype(float))
    assert (model.predict(X).argmax(axis=1) == 1).all()
    with pytest.raises(DataError, match="one weight for each of 40 samples"):
        _fit(sample_weights=np.ones(32))


@pytest.mark.parametrize(
    ("given", "part", "said"),
    [
        ((X, Y), 1.5, "between 0 and 1, got 1.5"),
        ((X, Y), True, "between 0 and 1, got True"),
        ((X, Y), 0.0, "between 0 and 1, got 0.0"),
        ((X[:2], Y[:2]), 0.1, "enough samples to hold out a part of 0.1"),
        (data.IterableData(list(zip(X, Y, strict=True))), 0.2, "got a stream"),
        (
            data.Pipeline((X, Y), [data.OneHot(2), data.Mixup(0.2)]),
            0.2,
            "got a pipeline with Mixup",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused(given, part: float, said: str) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        _fit(given, validation=part)


def test_ranks_hold_out_the_same() -> None:
    def train(communicator) -> tuple[set[float], set[float]]:
        # Seeds that differ: that of the first rank counts.
        seen, _ = _fit(
            seed=communicator.rank, parallel=parallel.DataParallel(communicator=communicator)
        )
        return seen.train, seen.validation

    first, second = comm.run_virtual_ranks(2, train)
    assert first == second


def _record(tmp_path: Path, found: data.Dataset, validation, callbacks=(), **settings) -> str:
    model = _model(**settings)
    history = model.fit(
        found.train, validation=validation, callbacks=callbacks, epochs=1, verbose=0
    )
    folder = cd.RunFolder(tmp_path)
    record = folder.write(model, history, found, measured=False)
    assert folder.record().selection == record.selection
    if record.selection:
        assert record.selection[1:] in run_page(folder)
    return record.selection


def test_the_record_says_what_was_chosen_by_which_data(tmp_path: Path) -> None:
    found = data.arrays(X, Y, test=0.25)
    best = [cd.KeepBest("val_accuracy")]
    once = "the test set was evaluated once"
    assert _record(tmp_path, found, None) == ""
    assert _record(tmp_path, found, 0.2, best) == (
        f"chosen by val_accuracy on 20% held out of the training data (6 samples); {once}"
    )
    parts = found.hold_out(0.5)
    assert _record(tmp_path, parts, parts.validation, [cd.EarlyStopping()]) == (
        f"chosen by val_loss on 50% held out of the training data (15 samples); {once}"
    )
    assert _record(tmp_path, found, (X, Y), [cd.Target("val_loss", 0.0)]) == (
        f"chosen by val_loss on validation data (40 samples); {once}"
    )
    plateau = cd.optim.Adam(cd.optim.ReduceOnPlateau(0.1))
    with pytest.warns(UserWarning, match="val_loss on the test samples of a data set chooses"):
        said = _record(tmp_path, found, found.test, optimizer=plateau)
    assert "chosen by val_loss on the test set, so that results on it are too good" in said
    with pytest.warns(UserWarning, match=r"hold out .*validation=0.2"):
        assert "by val_accuracy on the test set" in _record(tmp_path, found, found.test, best)
    assert "no choice used the test set" in _record(
        tmp_path, found, found.test, [cd.KeepBest("loss")]
    )


def test_only_the_test_samples_are_marked() -> None:
    found = data.arrays(X, Y, test=0.25).transformed(test=lambda x, draw: x)
    parts = found.hold_out(0.5)
    validation, test = data.split(found.test, test=0.5)
    marks = [each.is_test for each in (found.train, found.test, parts.validation, validation, test)]  # type: ignore[union-attr]
    assert marks == [False, True, False, False, False]


def test_choosing_without_validation_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"fit\(..., validation=0.2\)"):
        _fit(validation=None, callbacks=[cd.KeepBest()])


def test_held_out_samples_get_the_stages_of_the_test() -> None:
    found = data.arrays(X, Y, test=0.25).hold_out(0.5)
    assert found.validation is not None
    staged = found.transformed(train=lambda x, draw: x + 100, test=lambda x, draw: x + 1)
    assert staged.validation is not None
    np.testing.assert_array_equal(staged.validation.x, found.validation.x + 1)
    assert "15 to choose by" in repr(found)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        found.hold_out(1.0)
