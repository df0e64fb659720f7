"""A model knows what it was trained on, in its file too, and refuses data that mean another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data, io, nn
from caldera.errors import DataError
from caldera.train.saving.model_file import KEY
from tests.unit.data.test_schema import TEXT


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


def _model(inputs: int = 2, outputs: int = 2) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((inputs,)), nn.Dense(outputs)], batch_size=2)


def _flowers(table, text: str = TEXT) -> data.Dataset:
    return data.csv(table(text), "kind", ignore=["id"], test=0, scale=False)


def test_the_file_alone_knows_columns_and_classes(table, tmp_path: Path) -> None:
    flowers = _flowers(table)
    model = _model()
    assert model.schema is None
    model.fit(flowers.train, epochs=1, verbose=0)
    assert model.schema == flowers.schema
    again = cd.load(model.save(tmp_path / "flowers.caldera"))
    assert again.schema == flowers.schema
    other = _model()
    other.load_weights(tmp_path / "flowers.caldera")
    assert other.schema == flowers.schema


def test_other_columns_and_classes_are_refused(table) -> None:
    model = _model()
    model.fit(_flowers(table).train, epochs=1, verbose=0)
    swapped = _flowers(table, "length,width,id,kind\n10,1,7,rose\n20,2,8,iris\n")
    roses = _flowers(table, "width,length,id,kind\n1,10,7,rose\n2,20,8,rose\n")
    for wrong, said in ((swapped, "'width', 'length', got"), (roses, "'iris', 'rose', got")):
        for use in (model.evaluate, lambda given: model.fit(given, epochs=0, verbose=0)):
            with pytest.raises(DataError, match=said):
                use(wrong.train)
        with pytest.raises(DataError, match=said):
            model.fit(_flowers(table).train, validation=wrong.train, epochs=0, verbose=0)
    # Arrays have no names.
    assert model.evaluate((swapped.train.x, swapped.train.y))
    assert model.evaluate(data.arrays(np.eye(2), [0, 1], test=0).train)
    model.schema = None
    model.fit(swapped.train, epochs=1, verbose=0)
    assert model.schema == swapped.schema


def test_more_classes_may_come_later(table) -> None:
    model = _model(1, 3)
    model.fit(data.csv(table("x,y\n1,0\n2,1\n"), test=0, scale=False).train, epochs=0, verbose=0)
    more = data.csv(table("x,y\n1,0\n2,1\n3,2\n"), test=0, scale=False)
    model.fit(more.train, epochs=0, verbose=0)
    assert model.schema is not None
    assert model.schema.classes == ("0", "1", "2")
    model.evaluate(data.csv(table("x,y\n1,0\n2,0\n"), test=0, scale=False).train)
    assert model.schema.classes == ("0", "1", "2")


def test_columns_that_a_stage_has_changed_are_forgotten(table) -> None:
    doubled = data.Pipeline(_flowers(table).train, [lambda x, draw: np.concatenate([x, x], axis=1)])
    model = _model(4)
    model.fit(doubled, epochs=0, verbose=0)
    assert model.schema is not None
    assert (model.schema.columns, model.schema.classes) == ((), ("iris", "rose"))


def test_a_run_is_not_resumed_with_other_columns(table, tmp_path: Path) -> None:
    how = {"epochs": 1, "verbose": 0, "checkpoint": tmp_path / "run"}
    _model().fit(_flowers(table).train, **how)  # type: ignore[arg-type]
    swapped = "length,width,id,kind\n10,1,7,rose\n20,2,8,iris\n30,3,9,rose\n"
    with pytest.raises(DataError, match="'width', 'length', got 'length', 'width'"):
        _model().fit(_flowers(table, swapped).train, resume=True, **how)  # type: ignore[arg-type]


def _rewritten(path: Path, change) -> Path:
    """The file with another text about its model."""
    content = json.loads(io.load_safetensors_metadata(path)[KEY])
    # The format in which nothing vouches for the text.
    content["format"] = "caldera-1"
    change(content)
    io.save_safetensors(path, io.load_safetensors(path), {KEY: json.dumps(content)})
    return path


def test_older_files_load_and_damaged_ones_do_not(table, tmp_path: Path) -> None:
    model = _model()
    model.fit(_flowers(table).train, epochs=0, verbose=0)
    path = tmp_path / "flowers.caldera"
    old = cd.load(_rewritten(model.save(path), lambda content: content.pop("schema")))
    assert old.schema is None
    for wrong in ({"version": 1, "columns": 5}, {"version": 3}, "x", 3):
        with pytest.raises(DataError, match=r"flowers\.caldera schema"):
            cd.load(_rewritten(model.save(path), lambda content, w=wrong: content.update(schema=w)))

    def fewer(content) -> None:
        content["schema"]["columns"].pop()

    with pytest.raises(DataError, match="damaged"):
        cd.load(_rewritten(model.save(path), fewer))
