"""Learning curves: a history as charts."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from caldera.errors import ConfigError
from caldera.train.tracking.history import History

SVG = "{http://www.w3.org/2000/svg}"


def history(**columns: list[float]) -> History:
    made = History()
    for row in range(len(next(iter(columns.values())))):
        made.add(row, {name: values[row] for name, values in columns.items()})
    return made


def drawn(made: History, folder: Path) -> ElementTree.Element:
    path = made.plot(folder / "curves.svg")
    return ElementTree.parse(path).getroot()


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def titles(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}title")]


def test_the_picture_names_panels_lines_and_last_values(tmp_path: Path) -> None:
    made = history(
        loss=[1.0, 0.5],
        val_loss=[1.1, 0.7],
        accuracy=[0.5, 0.6],
        val_accuracy=[0.4, 0.55],
        seconds=[1.0, 1.0],
    )
    found = texts(drawn(made, tmp_path))
    for expected in ("loss", "accuracy", "training", "validation", "epoch", "0.7000", "0.5500"):
        assert expected in found
    assert "seconds" not in found


def test_every_value_is_in_the_picture(tmp_path: Path) -> None:
    found = titles(drawn(history(loss=[1.0, 0.5, 0.25], val_loss=[3.0, 2.0, 1.0]), tmp_path))
    assert "training, epoch 2: 0.5" in found
    assert len(found) == 6


def test_the_best_validation_loss_is_marked_unless_it_is_the_last(tmp_path: Path) -> None:
    found = texts(drawn(history(loss=[1.0, 0.9, 0.8], val_loss=[1.0, 0.7, 0.9]), tmp_path))
    assert "validation, best 0.7000 in epoch 2" in found
    found = texts(drawn(history(loss=[1.0, 0.9], val_loss=[1.0, 0.7]), tmp_path))
    assert "validation" in found


@pytest.mark.parametrize(
    "loss",
    [
        [0.5],
        [0.0],
        [0.5, 0.5, 0.5],
        [math.nan, math.nan],
        [1.0, math.nan, 0.5, math.inf, 0.25],
        [-math.inf, 1.0],
        [1e-30, 1e30],
        [-1.0, -2.0],
        [0.0, 1e9],
        [1e-12, 2e-12],
        [5.0, 0.01],
        [float(i) for i in range(500)],
    ],
)
def test_every_history_can_be_drawn(tmp_path: Path, loss: list[float]) -> None:
    picture = drawn(history(loss=loss, val_loss=loss[::-1], other=loss), tmp_path)
    width = float(picture.get("width", "0"))
    height = float(picture.get("height", "0"))
    text = (tmp_path / "curves.svg").read_text()
    assert "nan" not in re.sub(r"<title>.*?</title>", "", text)
    for circle in picture.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= width
        assert 0 <= float(circle.get("cy", "-1")) <= height


def test_values_that_are_not_finite_leave_gaps_and_crosses(tmp_path: Path) -> None:
    picture = drawn(history(loss=[1.0, math.nan, 0.5, 0.4]), tmp_path)
    assert "\u00d7 not finite" in texts(picture)
    assert "training, epoch 2: nan" in titles(picture)
    # One stretch of a single point, one of two.
    strokes = [p.get("d", "") for p in picture.iter(f"{SVG}path") if p.get("stroke-width") == "2"]
    assert [stroke.count("L") for stroke in strokes if "h22" not in stroke] == [0, 1]


def test_a_history_without_epochs_can_be_drawn(tmp_path: Path) -> None:
    assert "loss" in texts(drawn(History(), tmp_path))


def test_metrics_between_0_and_1_share_a_panel(tmp_path: Path) -> None:
    made = history(loss=[1.0], f1=[0.5], recall=[0.6], mae=[12.0])
    found = texts(drawn(made, tmp_path))
    assert {"metrics", "f1", "recall", "mae"} <= set(found)


def test_hostile_names_do_not_break_the_picture(tmp_path: Path) -> None:
    picture = drawn(history(**{"loss": [1.0], "<script>&\"'": [5.0]}), tmp_path)
    assert "<script>&\"'" in texts(picture)


@pytest.mark.parametrize(("name", "problem"), [("curves.png", "svg"), ("no/such.svg", "folder")])
def test_a_path_that_does_not_do_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        history(loss=[1.0]).plot(tmp_path / name)
