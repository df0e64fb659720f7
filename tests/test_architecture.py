"""The page about the architecture is true: its files are there, and what it names is in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_package_layers import INNER, LAYERS
from tools.package_layers import PICTURE, picture

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text()


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(title: str) -> list[list[str]]:
    """The cells of a table, without the marks of code."""
    lines = [line for line in _section(title).splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines[2:]]


def _names(path: Path) -> set[str]:
    """What a file defines, methods with their class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{each.name}" for each in inside}
    return found


def test_the_picture_shows_the_layers() -> None:
    drawn = PICTURE.read_text()
    assert drawn == picture(LAYERS, INNER), "python -m tools.package_layers draws it"
    for layer, packages in LAYERS.items():
        group = drawn.partition(f'id="layer-{layer}"')[2].partition("</g>")[0]
        assert tuple(re.findall(r'class="package"[^>]*>([^<]+)<', group)) == packages
    described = {
        int(layer): set(re.findall(r"\w+", packages))
        for layer, packages, _ in _rows("Layers of packages")
    }
    assert described == {layer: set(packages) for layer, packages in LAYERS.items()}
    assert f"({PICTURE.relative_to(ROOT / 'docs')})" in PAGE


@pytest.mark.parametrize(
    "title",
    ["From a batch to a step", "From the loss to new weights", "From a command to its result"],
)
def test_the_ways_lead_through_functions_that_exist(title: str) -> None:
    rows = _rows(title)
    assert len(rows) > 4
    for file, name, _ in rows:
        assert name in _names(ROOT / file), f"{file}: {name}"


def test_everything_is_where_the_page_says() -> None:
    rows = _rows("Where is it?")
    assert len(rows) > 12
    for what, file, name in rows:
        assert (ROOT / file).is_file(), what
        assert not name or name in _names(ROOT / file), f"{file}: {name}"


def test_the_core_can_be_read_in_an_afternoon() -> None:
    files = [file for file, _ in _rows("An afternoon's reading")]
    assert len(set(files)) == len(files) <= 24
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
    assert 5500 < lines < 7500


def test_other_files_and_folders_on_the_page_exist() -> None:
    for name in re.findall(r"`((?:caldera|tests)/[\w/]+(?:\.py)?)`", PAGE):
        assert (ROOT / name).exists(), name
