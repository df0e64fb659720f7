"""A notebook as Jupyter runs it: one kernel, with all that a user would look at."""

from __future__ import annotations

import re
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELLS = (
    "import caldera as cd\nfrom caldera import nn\ndata = cd.data.digits()\ndata",
    "model = cd.NeuralNetwork([nn.Input(data.shape), nn.Flatten(), nn.Dense(10)], epochs=2)\nmodel",
    "history = model.fit(data.train, validation=data.test)",
    "history",
    "history.plot()",
    "cd.tensor([1.0, 2.0])",
    "model.summary(show=False)",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[Any]]:
    """What each cell has shown."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=120).execute()
    return [cell.outputs for cell in book.cells]


def shown(outputs: list[Any], kind: str) -> list[str]:
    return [each.data[kind] for each in outputs if kind in each.get("data", {})]


def test_every_object_has_its_picture_or_table(outputs: list[list[Any]]) -> None:
    for place, words in ((0, "1,438"), (1, "Flatten"), (3, "<svg"), (5, "Tensor 2"), (6, "FLOPs")):
        (html,) = shown(outputs[place], "text/html")
        assert words in html
    (svg,) = shown(outputs[4], "image/svg+xml")
    assert svg.startswith("<svg")


def test_training_leaves_one_table_of_its_epochs_and_no_bar(outputs: list[list[Any]]) -> None:
    assert [each.output_type for each in outputs[2]] == ["display_data"]
    (html,) = shown(outputs[2], "text/html")
    assert re.findall(r"<tr><td[^>]*>([^<]*)<", html) == ["1/2", "2/2"]
    assert all(f">{name}</th>" in html for name in ("loss", "val_accuracy", "time"))
    (text,) = shown(outputs[2], "text/plain")
    assert len(text.splitlines()) == 3
    assert "\u2501" not in html + text
