"""Texts as numbers: tokenizers, lists, tables and folders, and a model that keeps them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.data import Tokenizer
from caldera.errors import CalderaError, ConfigError, DataError

TEXTS = ["a good film", "so bad, so bad!", "good, good", "bad film", "it's good", "it's bad"]
LABELS = ["+", "-", "+", "-", "+", "-"]
HAS_BYTE_PAIRS = importlib.util.find_spec("tokenizers") is not None
KINDS = [
    "words",
    "letters",
    pytest.param(
        "byte_pairs", marks=pytest.mark.skipif(not HAS_BYTE_PAIRS, reason="no package tokenizers")
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_known_texts_come_back(kind: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    letters = list("abé 漢😀.,'\n\t")
    texts = ["".join(generator.choice(letters, generator.integers(0, 30))) for _ in range(20)]
    made = Tokenizer.fit(texts, kind, lowercase=False)
    encoded = made.encode(texts)
    for text, numbers in zip(texts, encoded, strict=True):
        assert all(2 <= number < made.size for number in numbers)
        again = made.decode(numbers)
        assert made.encode([again]) == [numbers]
        assert kind == "words" or again == text
    rows = made.transform(texts)
    assert rows.shape == (20, made.length)
    for row, numbers in zip(rows.tolist(), encoded, strict=True):
        assert row == (numbers + [0] * made.length)[: made.length]
    assert Tokenizer.from_plain(made.to_plain(), "a file") == made


def test_the_most_frequent_are_kept() -> None:
    made = Tokenizer.fit(["b a b", "b c A"], size=2, length=3)
    assert made.vocabulary == ("b", "a")
    assert made.transform(["a b c d"]).tolist() == [[3, 2, 1]]
    assert made.decode([3, 1, 0]) == "a �"


def test_the_length_is_what_most_texts_have() -> None:
    texts = ["a " * 10] * 97 + ["a " * 200] * 3
    assert Tokenizer.fit(texts).length == 10
    assert Tokenizer.fit(["a " * 900]).length == 256
    assert Tokenizer.fit([""]).length == 1


def test_damaged_tokenizers_are_refused() -> None:
    good = Tokenizer.fit(["a b"]).to_plain()
    for damage in (
        {"kind": "syllables"},
        {"length": 0},
        {"length": 1 << 40},
        {"vocabulary": ["a", "a"]},
        {"merges": ["a b"]},
        {"vocabulary": [1]},
        {"kind": 3},
        {"more": 1},
        {"kind": "byte_pairs", "merges": ["ab"]},
    ):
        with pytest.raises(DataError):
            Tokenizer.from_plain(good | damage, "a file")
    if HAS_BYTE_PAIRS:
        wrong = Tokenizer.from_plain(good | {"kind": "byte_pairs", "merges": ["x y"]}, "a file")
        with pytest.raises(DataError, match="merges of tokens in the vocabulary"):
            wrong.encode(["a"])


def write(folder: Path) -> dict[str, Any]:
    for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
        path = folder / "texts" / {"+": "plus", "-": "minus"}[label] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    lines = [
        f'{number},"{text}",{label}'
        for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    (folder / "table.csv").write_text("number,review,kind\n" + "\n".join(lines), encoding="utf-8")
    return {"folder": folder / "texts", "table": folder / "table.csv"}


def test_tables_and_folders_give_what_lists_give(tmp_path: Path) -> None:
    made = write(tmp_path)
    wanted = data.texts(TEXTS, LABELS, test=2)
    pairs = data.texts(list(zip(TEXTS, LABELS, strict=True)), test=2)
    table = data.texts(made["table"], test=2)
    folder = data.texts(made["folder"], test=2)
    assert table.schema is not None
    assert table.schema.text is not None
    assert table.schema.text.column == "review"
    for each in (pairs, table):
        np.testing.assert_array_equal(each.train.x, wanted.train.x)
        assert each.class_names == ("+", "-")
    assert folder.class_names == ("minus", "plus")
    assert (len(folder.train), len(folder.test)) == (4, 2)


def test_a_model_takes_the_texts_it_was_trained_on(tmp_path: Path) -> None:
    found = data.texts(TEXTS * 4, LABELS * 4, test=0.25)
    assert found.schema is not None
    assert found.schema.text is not None
    layers = nn.models.text_classifier(
        found.schema.text.size, found.shape[0], found.classes, width=8, dropout=0.0
    )
    model = cd.NeuralNetwork(layers, learning_rate=0.1)
    model.fit(found.train, epochs=8, verbose=0)
    again = cd.load(model.save(tmp_path / "texts.caldera"))
    assert again.schema is not None
    scores = again.predict(["good film, good", "so bad"])
    assert [again.schema.classes[number] for number in scores.argmax(1)] == ["+", "-"]
    np.testing.assert_array_equal(again.predict("so bad")[0], scores[1])
    other = data.texts(["bad so film", "good"], ["-", "+"], test=0, schema=again.schema)
    assert again.evaluate(other.train)["accuracy"] == 1.0
    with pytest.raises(DataError, match=r"schema=model\.schema"):
        again.evaluate(data.texts(["bad", "good"], ["-", "+"], test=0, length=6).train)


def test_mistakes_are_named(tmp_path: Path) -> None:
    made = write(tmp_path)
    with pytest.raises(DataError, match="did you mean 'review'"):
        data.texts(made["table"], text="revew")
    with pytest.raises(DataError, match="target= one of the columns"):
        data.texts(made["table"], target="other")
    with pytest.raises(ConfigError, match="did you mean 'words'"):
        data.texts(TEXTS, LABELS, tokenizer="word")
    with pytest.raises(DataError, match="6 texts and 1 labels"):
        data.texts(TEXTS, ["+"])
    known = data.texts(TEXTS, LABELS).schema
    with pytest.raises(DataError, match="the classes"):
        data.texts(["a", "b"], ["+", "?"], schema=known)
    (tmp_path / "latin.csv").write_bytes(b"text,kind\n\xe9t\xe9,1\n")
    assert data.texts(tmp_path / "latin.csv", test=0).class_names == ("1",)
    (tmp_path / "ragged.csv").write_text("text,kind\na,b\nc,d,e\n")
    with pytest.raises(DataError, match="3"):
        data.texts(tmp_path / "ragged.csv")
    with pytest.raises(DataError, match="a class for each text, in the column 'kind', got none"):
        data.texts({"text": ["a", "b"], "kind": ["x", None]})
    (tmp_path / "nothing").mkdir()
    for bad in (tmp_path / "nothing", tmp_path / "none.csv", [], [1, 2], None, 3):
        with pytest.raises(CalderaError):
            data.texts(bad)
    for numbers in (3, [[1], [1, 2]], ["a"], [2.5], None, np.zeros(())):
        with pytest.raises(DataError, match="a row of integers"):
            Tokenizer.fit(["a"]).decode(numbers)  # type: ignore[arg-type]
    for texts in ([None], ["a", 3], 5, [b"a"]):
        with pytest.raises(DataError):
            Tokenizer.fit(texts)  # type: ignore[arg-type]
