"""`cd.RunFolder`: what is known of a run, written and read back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn
from caldera.base.plain_data import from_plain, to_plain
from caldera.errors import DataError
from caldera.train.tracking.run_record import RunRecord


def flowers() -> cd.data.Dataset:
    x = np.random.default_rng(0).normal(size=(90, 3)).astype("float32")
    names = np.array(["iris", "rose", "tulip"])
    return cd.data.arrays(x, names[x.argmax(axis=1)], name="flowers")


@pytest.fixture(scope="module")
def trained() -> tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset]:
    data = flowers()
    model = cd.NeuralNetwork(
        [nn.Input((3,)), nn.Dense(8, activation="relu"), nn.Dense(3)],
        learning_rate=0.05,
        epochs=5,
        seed=4,
    )
    return model, model.fit(data.train, validation=data.test, verbose=0), data


def test_everything_is_read_back(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    model, history, data = trained
    run = cd.RunFolder(tmp_path / "deep" / "run")
    record = run.write(model, history, data)
    assert run.record() == record
    assert run.history() == history
    again = cd.load(run.model_file("flowers"))
    assert again.predict(data.test.x).shape == (len(data.test), 3)
    assert again.schema is not None
    assert again.schema.classes == ("iris", "rose", "tulip")


@pytest.mark.parametrize("name", ["../escaped", "a/b", "/tmp/up", "nul", "", "x" * 300])
def test_a_name_is_no_path(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path, name: str
) -> None:
    model, history, data = trained
    run = cd.RunFolder(tmp_path / "run")
    record = run.write(model, history, dataclasses.replace(data, name=name), measured=False)
    assert record.name == name
    assert run.model_file(name).parent == run.path
    cd.load(run.model_file(name))
    assert list(tmp_path.iterdir()) == [run.path]


def test_what_fails_after_training_does_not_lose_the_model(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("for the profile")

    monkeypatch.setattr("caldera.train.tracking.run_folder.record_of", fail)
    with pytest.raises(MemoryError):
        cd.RunFolder(tmp_path).write(*trained)
    cd.load(cd.RunFolder(tmp_path).model_file("flowers"))


def test_nothing_of_an_earlier_run_is_left(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    model, history, data = trained
    run = cd.RunFolder(tmp_path)
    run.write(model, history, data, measured=False)
    for name in ("report.html", "graph.svg", "mine.caldera"):
        (tmp_path / name).write_text("")
    other = dataclasses.replace(data, name="weeds")
    run.write(model, cd.History(), other, measured=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "history.json",
        "mine.caldera",
        "run.json",
        "weeds.caldera",
    ]


def test_only_the_first_of_several_ranks_writes(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = comm.run_virtual_ranks(2, lambda each: each.Dup())
    for each in reversed(ranks):
        monkeypatch.setattr("caldera.train.tracking.run_folder.world", lambda each=each: each)
        cd.RunFolder(tmp_path).write(*trained, measured=False)
        assert bool(list(tmp_path.iterdir())) == (each.rank == 0)


def test_what_is_recorded_is_true(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    model, history, data = trained
    record = cd.RunFolder(tmp_path).write(model, history, data, settings={"split_seed": 9})
    assert record.results == pytest.approx(model.evaluate(data.test))
    assert record.seconds == pytest.approx(sum(history["seconds"]))
    assert set(record.seeds.values()) == {4, 9}
    assert record.data.class_names == ["iris", "rose", "tulip"]
    counts = np.array(record.confusion)
    predicted = model.predict(data.test.x).argmax(axis=1)
    assert np.trace(counts) == (predicted == data.test.y).sum()
    assert counts.sum(axis=1).tolist() == np.bincount(data.test.y, minlength=3).tolist()
    profile = record.profile
    assert profile is not None
    assert profile.seconds == pytest.approx(sum(step.seconds for step in profile.steps))
    assert profile.memory["parameters"] == 4 * (3 * 8 + 8 + 8 * 3 + 3)
    assert max(profile.arena_in_use) <= profile.arena_bytes <= profile.naive_bytes
    assert profile.nodes_optimised < profile.nodes_as_written
    assert record.machine["caldera"]["version"] == cd.__version__


def test_measuring_changes_nothing(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    model, history, data = trained
    before = [each.numpy() for each in model.parameters()]
    cd.RunFolder(tmp_path).write(model, history, data)
    for old, parameter in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(parameter.numpy(), old)


def test_no_path_of_this_machine_is_recorded(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    cd.RunFolder(tmp_path).write(*trained)
    text = (tmp_path / "run.json").read_text()
    assert str(cd.settings.cache_dir) not in text
    assert str(Path.home()) not in text or Path.home() == Path("/")


def test_a_run_that_was_ended_is_not_measured(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    run = cd.RunFolder(tmp_path)
    record = run.write(*trained, measured=False)
    assert (record.results, record.confusion, record.profile) == ({}, None, None)
    assert run.graph() is None
    assert run.record() == record


def test_numbers_that_json_has_not_survive(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    run = cd.RunFolder(tmp_path)
    record = run.write(*trained, measured=False)
    plain = to_plain(record) | {"results": {"loss": "nan", "mae": "-inf"}}
    (tmp_path / "run.json").write_text(json.dumps(plain))
    found = run.record().results
    assert np.isnan(found["loss"])
    assert found["mae"] == -np.inf


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "caldera-run-99"}, "the format caldera-run-1"),
        ({"seconds": "long"}, r"run.json.seconds: expected float, got 'long'"),
        ({"seconds": int("9" * 400)}, "an integer of more than 64 bits"),
        ({"network": {"layers": 3}}, "another set of keys"),
        ({"network": 5}, "expected NetworkRecord, got 5"),
        ({"confusion": [[1, 2]]}, "a square table"),
        ({"predictions": [[1.0]]}, "pairs of values"),
        ({"surprise": 1}, "surprise"),
        ({"seeds": {"a": True}}, r"seeds.a: expected int, got True"),
    ],
)
def test_damaged_records_are_refused(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset],
    tmp_path: Path,
    change: dict[str, object],
    said: str,
) -> None:
    run = cd.RunFolder(tmp_path)
    plain = to_plain(run.write(*trained, measured=False))
    (tmp_path / "run.json").write_text(json.dumps(plain | change))
    with pytest.raises(DataError, match=said):
        run.record()


def test_what_is_no_json_or_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`caldera train --out FOLDER` writes one"):
        cd.RunFolder(tmp_path).record()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match="expected JSON"):
        cd.RunFolder(tmp_path).record()
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="expected JSON"):
        cd.RunFolder(tmp_path).record()


def test_plain_values_come_back_as_they_were(
    trained: tuple[cd.NeuralNetwork, cd.History, cd.data.Dataset], tmp_path: Path
) -> None:
    record = cd.RunFolder(tmp_path).write(*trained)
    assert from_plain(RunRecord, json.loads(json.dumps(to_plain(record))), "run") == record
