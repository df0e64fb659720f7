"""Free text in a column of a table: guessed, learnt, kept in the model, applied to new rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.data.tables.text_encoder import TextEncoder
from caldera.errors import DataError

GOOD, BAD = ["lovely", "warm", "quiet", "bright"], ["broken", "noisy", "dark", "damp"]


def homes(rows: int = 240) -> dict[str, list[object]]:
    """A price that depends on the size, and on what people say."""
    random = np.random.default_rng(0)
    area = random.uniform(30, 120, rows)
    is_good = random.random(rows) < 0.5
    said = [
        f"the flat is {random.choice(GOOD if good else BAD)} and has {n} rooms near a river"
        for n, good in enumerate(is_good)
    ]
    said[3] = ""
    price = 2000 * area + np.where(is_good, 40_000, -40_000)
    return {"area": area.tolist(), "said": said, "price": price.round().tolist()}


@pytest.fixture(scope="module")
def found() -> data.Dataset:
    return data.table(homes(), "price")


def test_texts_are_guessed_and_learnt_from_what_several_rows_say(found: data.Dataset) -> None:
    assert found.schema is not None
    column = next(each for each in found.schema.columns if each.name == "said")
    assert column.kind == "text"
    assert column.text is not None
    words = set(column.text.tokenizer.vocabulary)
    assert {*GOOD, *BAD, "flat"} <= words
    assert not words & {str(n) for n in range(240)}
    assert found.schema.features[-1] == "said is missing"
    assert "words: " in found.schema.describe()
    told = data.table(homes(), "price", kinds={"said": "ignored"}).schema
    assert told is not None
    assert told.names == ("area",)


def test_a_model_keeps_the_words_and_takes_new_rows(found: data.Dataset, tmp_path: Path) -> None:
    layers = [nn.Input(found.shape), nn.Dense(32, activation="relu"), nn.Dense(1)]
    model = cd.NeuralNetwork(layers, "mean_squared", metrics=["mae"], learning_rate=0.01, epochs=25)
    model.fit(found.train, verbose=0)
    assert model.evaluate(found.test)["mae"] < 15_000
    again = cd.load(model.save(tmp_path / "homes.caldera"))
    assert again.schema == model.schema
    rows = [{"said": f"a {word} flat", "area": 70.0} for word in ("lovely", "broken")]
    high, low = again.predict(rows).ravel()
    assert high - low > 40_000
    with pytest.warns(UserWarning, match="1 texts without a known word"):
        again.predict([{"said": "zzz", "area": 70.0}])
    # An embedding bag: the words' vectors, added.
    assert found.schema is not None
    spans = found.schema.category_spans
    assert len(spans) == 1
    assert nn.ColumnEmbedding(spans, 4)(found.test.x[:5]).shape == (5, 1 + 4)


def test_features_have_one_length_and_rare_words_count_more() -> None:
    texts = np.array(["the red house", "the blue house", "the red red barn", "the barn"], object)
    encoder = TextEncoder.fit(texts)
    assert encoder.tokenizer.vocabulary == ("the", "barn", "house", "red")
    rows = encoder.transform(np.array(["the barn", "RED, red!", "", None], object))
    assert np.linalg.norm(rows, axis=1).tolist() == pytest.approx([2, 2, 0, 0])
    assert rows[0, 1] > rows[0, 0] > 0
    assert np.flatnonzero(rows[1]).tolist() == [3]


def test_names_and_codes_are_no_texts() -> None:
    rows = {
        "code": [f"flat {n}" for n in range(40)],
        "size": list(range(40)),
        "kind": ["a", "b"] * 20,
    }
    schema = data.table(rows, "kind").schema
    assert schema is not None
    assert schema.names == ("size",)
    told = data.table(rows, "kind", kinds={"code": "text"}).schema
    assert told is not None
    assert told.features == ("code: flat", "size")


def test_a_damaged_file_is_refused(found: data.Dataset) -> None:
    assert found.schema is not None
    plain = found.schema.to_plain()
    text = next(each["text"] for each in plain["columns"] if each["text"])
    text["weights"] = text["weights"][1:]
    with pytest.raises(DataError, match="weights for"):
        data.Schema.from_plain(plain, "homes.caldera")
