"""Parts of the page of a run: what they say of made-up records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import caldera as cd
from caldera.train.report.compare import compare_page
from caldera.train.report.mistakes import mistakes_card
from caldera.train.report.predictions import (
    certainty_charts,
    classes_parts,
    columns_section,
    values_parts,
)
from caldera.train.report.run import curves_section
from caldera.train.tracking.run_record import (
    CalibrationRecord,
    ColumnRecord,
    LayerRecord,
    MistakeRecord,
    RocRecord,
    RunRecord,
    ValuesRecord,
)
from tests.unit.train.report.test_run_page import Reader, changed


def history(loss: list[float], held: list[float], rates: list[float] | None = None) -> cd.History:
    made = cd.History()
    for epoch, (one, other) in enumerate(zip(loss, held, strict=True)):
        rate = rates[epoch] if rates else None
        made.add(epoch, {"loss": one, "val_loss": other}, rate)
    return made


@pytest.fixture(scope="module")
def record(digits_run: cd.RunFolder) -> RunRecord:
    return digits_run.record()


def test_training_loss_above_validation_is_explained(record: RunRecord) -> None:
    above = history([3.0, 2.0], [2.5, 1.5])
    plain = curves_section(record, above)
    assert "The training loss is above the validation loss. This is no error" in plain
    layers = [*record.network.layers, LayerRecord("d", "Dropout", [3], 0, 0, 0)]
    dropped = replace(record, network=replace(record.network, layers=layers))
    assert "dropout makes training harder" in curves_section(dropped, above)
    assert "above the validation" not in curves_section(record, history([2, 1], [3, 2]))


def test_overfitting_is_reported(record: RunRecord) -> None:
    said = curves_section(record, history([3.0, 2.0, 1.0, 0.5], [3.0, 2.0, 2.5, 3.0]))
    assert "lowest after epoch 2 (2.0000) and rises from there to 3.0000" in said
    assert "overfits" in said
    assert "overfits" not in curves_section(record, history([3, 2, 1], [3, 2, 1.5]))
    assert "overfits" not in curves_section(record, history([3, 2, 1], [3, 2, float("nan")]))


def test_noise_of_the_validation_loss_is_not_overfitting(record: RunRecord) -> None:
    # The training loss does not fall after the best epoch.
    level = history([3.0, 0.0184, 0.0212, 0.0225], [3.0, 0.0073, 0.0085, 0.0085])
    assert "overfits" not in curves_section(record, level)
    # One bad epoch at the end.
    last = history([3.0, 2.0, 1.5, 1.0, 0.9], [3.0, 1.0, 1.01, 1.02, 1.4])
    assert "overfits" not in curves_section(record, last)


def test_a_learning_rate_that_changes_has_a_curve(record: RunRecord) -> None:
    losses = [3.0, 2.0, 1.0]
    assert 'aria-label="learning rate"' in curves_section(
        record, history(losses, losses, [0.1, 0.01, 0.001])
    )
    assert 'aria-label="learning rate"' not in curves_section(
        record, history(losses, losses, [0.1] * 3)
    )


def test_scores_by_class_are_those_of_their_definitions(record: RunRecord) -> None:
    counts = [[8, 2, 0], [1, 4, 0], [5, 0, 0]]
    data = replace(record.data, class_names=["cat", "dog", "emu"])
    assert record.classes is not None
    classes = replace(record.classes, train=[80, 40, 5], mistakes=[], roc=record.classes.roc[:3])
    text = "".join(classes_parts(replace(record, confusion=counts, data=data, classes=classes)))
    read = Reader(text)
    at = read.texts.index("cat")
    # 8 of 14 that were called cats are, and 8 of 10 cats were found.
    assert read.texts[at + 1 : at + 6] == ["57%", "80%", "67%", "10", "80"]
    at = read.texts.index("emu")
    assert read.texts[at + 1 : at + 5] == ["0.0%", "0.0%", "0.0%", "5"]
    at = read.texts.index("macro average")
    assert read.texts[at + 1] == "41%"
    assert "Class cat has 16 times the training samples of class emu" in text
    by_command = replace(record, confusion=counts, data=data, classes=classes)
    by_command = replace(by_command, settings={"data": "cats.csv"})
    assert 'class_weights="balanced" of fit weights all classes' in text
    assert "--class-weights balanced weights all" in "".join(classes_parts(by_command))


PNG = "iVBORw0KGgoAAAA="


def wrong(picture: str) -> MistakeRecord:
    return MistakeRecord(7, 0, 1, 0.99, 0.01, picture)


def test_mistakes_are_pictures_or_a_table() -> None:
    names = ["<cat>", "dog"]
    read = Reader(mistakes_card([wrong(PNG)], names, 5))
    (image,) = read.all("img")
    assert image["alt"] == "test sample 7: <cat>, predicted as dog"
    assert "dog" in read.texts
    for other in ("", 'x" onerror="alert(1)', "PHN2Zz4=", PNG + '"'):
        read = Reader(mistakes_card([wrong(other)], names, 5))
        assert read.all("img") == []
        assert "<cat>" in read.texts
    assert "There are none" in mistakes_card([], names, 0)
    rows = [replace(wrong(""), row={"line": "12", "patient": "P-7", "age": "51"})]
    read = Reader(mistakes_card(rows, names, 5))
    at = read.texts.index("line")
    assert read.texts[at : at + 5] == ["line", "patient", "age", "is", "taken for"]
    assert read.texts[at + 7 : at + 10] == ["12", "P-7", "51"]


def test_certainty_in_words() -> None:
    curve = RocRecord(0.9, [0.0, 0.1, 1.0], [0.0, 0.9, 1.0])
    shy, proud = CalibrationRecord(0.4, 0.9, 10), CalibrationRecord(0.9, 0.4, 10)
    assert "underconfident" in certainty_charts([curve], ["yes"], [shy])
    assert "more certain than it should be" in certainty_charts([curve], ["yes"], [proud])
    right = certainty_charts([curve], ["yes"], [CalibrationRecord(0.9, 0.91, 10)])
    assert "well calibrated" in right
    assert "(AUC): 0.900. " in right
    empty = RocRecord(float("nan"), [], [])
    assert "ROC" not in certainty_charts([empty], ["yes"], [])
    many = certainty_charts([curve] * 20 + [empty], [str(i) for i in range(21)], [])
    assert "mean of the classes: 0.900" in many


def test_values_in_words() -> None:
    bad = ValuesRecord("price", -0.5, 1.0, 2.0, [])
    text = "".join(values_parts([[1.0, 2.0], [2.0, float("nan")]], bad))
    assert "would be as good" in text
    assert "true price" in text
    assert "explains 90%" in "".join(values_parts([[1.0, 2.0]], replace(bad, r2=0.9)))


def test_columns_of_a_table() -> None:
    columns = [ColumnRecord(f"<{i}>", 0.5 - 0.03 * i, 0.01) for i in range(20)]
    read = Reader(columns_section(columns, "accuracy"))
    assert read.texts.count("<0>") == 2
    assert read.texts.count("<19>") == 1
    nothing = [ColumnRecord("a", -0.1, 0.0), ColumnRecord("b", float("nan"), 0.0)]
    assert "width:0.0%" in columns_section(nothing, "accuracy")


def test_runs_are_compared(digits_run: cd.RunFolder, tmp_path: object) -> None:
    better = {name: value + 0.01 for name, value in digits_run.record().results.items()}
    settings = {**digits_run.record().settings, "batch_size": 99}
    other = changed(digits_run, tmp_path / "<other>", results=better, settings=settings)  # type: ignore[operator]
    read = Reader(compare_page([digits_run, other]))
    assert "2 runs compared" in read.texts
    bold = f"{better['accuracy']:.4f}"
    assert bold in read.texts
    assert len(read.all("b")) == 2
    at = read.texts.index("batch_size")
    assert read.texts[at + 1 : at + 3] == ["64", "99"]
    assert "epochs" not in read.texts[at:]
    charts = [each["aria-label"] for each in read.all("svg")]
    assert charts == ["validation loss", "validation accuracy"]


def test_runs_on_other_data_are_not_ranked(
    digits_run: cd.RunFolder, values_run: cd.RunFolder, ended_run: cd.RunFolder
) -> None:
    read = Reader(compare_page([digits_run, values_run, ended_run]))
    assert any("cannot be compared" in each for each in read.texts)
    assert read.all("b") == []


def test_tables_can_be_scrolled_by_all(digits_run: cd.RunFolder) -> None:
    """What axe-core sees in a browser, as far as the text of the page shows it."""
    from caldera.train.report import run_page

    read = Reader(run_page(digits_run))
    scrolled = [found for _, found in read.elements if found.get("class") == "scroll"]
    assert len(scrolled) > 5
    assert all(found.get("tabindex") == "0" and found.get("aria-label") for found in scrolled)
    assert all(found.get("aria-label") for found in read.all("svg") if found.get("role") == "img")
    assert all(found.get("alt") for found in read.all("img"))
    levels = [int(name[1]) for name, _ in read.elements if name in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert np.all(np.diff(levels) <= 1)
