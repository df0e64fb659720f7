"""The page of layers says what stands for each layer and loss of Keras and PyTorch, or why not."""

from __future__ import annotations

import json
import re
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import caldera
from caldera import nn

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "layers.md"
RECORDED = json.loads(Path(__file__).with_name("peer_names.json").read_text())
COLUMNS = {"keras": "Keras", "torch": "PyTorch"}
STRUCTURAL_OF_KERAS, FAMILIES_OF_TORCH = 5, 2
"""The number of layers that may be missing."""


def tables() -> list[tuple[str, list[dict[str, str]]]]:
    """The tables of the page: the heading above each, and its rows by column."""
    found: list[tuple[str, list[dict[str, str]]]] = []
    heading, columns = "", None
    for line in PAGE.read_text().splitlines():
        if line.startswith(("## ", "Of ")):
            heading = line.removeprefix("## ")
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if columns is None:
            columns = cells
            found.append((heading, []))
        elif not set(line) <= set("|-"):
            found[-1][1].append(dict(zip(columns, cells, strict=True)))
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def listed(peer: str, *, missing: bool) -> list[str]:
    return [
        name
        for heading, rows in tables()
        for row in rows
        for name in names(row[COLUMNS[peer]])
        if ("Caldera" not in row) == missing
    ]


def of_peer(peer: str) -> list[str]:
    recorded = RECORDED[peer]
    return [*recorded["layers"], *recorded.get("losses", ())]


@pytest.mark.parametrize("peer", COLUMNS)
def test_every_name_is_answered_once_or_missing_with_a_reason(peer: str) -> None:
    covered, absent = (listed(peer, missing=each) for each in (False, True))
    assert {name for name, count in Counter(covered + absent).items() if count > 1} == set()
    assert set(covered + absent) == set(of_peer(peer))


def test_few_layers_are_missing() -> None:
    (rows,) = [rows for heading, rows in tables() if heading == "What is missing"]
    assert all(row["Why, and what to use"] for row in rows)
    layers, losses = (set(RECORDED["keras"][kind]) for kind in ("layers", "losses"))
    keras = {name for row in rows for name in names(row["Keras"])}
    assert len(keras & layers) <= STRUCTURAL_OF_KERAS
    assert keras - layers <= losses
    torch = {name for row in rows for name in names(row["PyTorch"]) if not name.endswith("Loss")}
    assert len({re.sub(r"\dd$", "", name) for name in torch}) <= FAMILIES_OF_TORCH


def test_what_stands_for_them_exists() -> None:
    for heading, rows in tables():
        for row in rows:
            for text in names(row.get("Caldera", row.get("Why, and what to use", ""))):
                name = text.partition("(")[0]
                if name.partition(".")[0] in ("nn", "op", "data", "audio", "onnx", "parallel"):
                    assert attrgetter(name)(caldera), f"{heading}: {name}"


def test_the_page_lists_all_layers() -> None:
    text = PAGE.read_text()
    ours = [
        name
        for name, value in vars(nn).items()
        if name in nn.__all__ and isinstance(value, type) and issubclass(value, nn.Layer)
    ]
    assert len(ours) > 90
    assert [name for name in ours if f"nn.{name}" not in text] == []


def classes(module: Any, base: type) -> set[str]:
    """The names of a module's classes, one for each; aliases are left out."""
    found: dict[type, list[str]] = {}
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name[0].isupper() and isinstance(value, type) and issubclass(value, base):
            found.setdefault(value, []).append(name)
    return {
        each.__name__ if each.__name__ in several else several[0] for each, several in found.items()
    }


def test_the_recorded_names_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    assert classes(torch.nn, torch.nn.Module) - set(of_peer("torch")) == set()


def test_the_recorded_names_are_those_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    found = classes(keras.layers, object) | classes(keras.losses, object)
    assert found - set(of_peer("keras")) == set()
