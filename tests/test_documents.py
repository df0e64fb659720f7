"""The code in the README and in CONTRIBUTING runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera.cli import commands
from caldera.core.graph.opdef import OPS
from caldera.core.memory import devices
from caldera.kernels.reference import FUNCTIONS
from caldera.kernels.table import TABLE
from caldera.optim.optimizer import optimizers
from caldera.search.method import methods as search_methods
from tests.markdown_blocks import Block, blocks

ROOT = Path(__file__).parent.parent
RECIPES = (
    "layer",
    "optimizer",
    "data source",
    "kernel",
    "strategy",
    "search method",
    "device",
    "command",
)


def _blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)


def _recipe(title: str) -> list[Block]:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n## {title}\n")[2]
    found = blocks(text.partition("\n## ")[0])
    assert found, title
    return found


def test_readme_code_runs_and_prints_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = blocks((ROOT / "README.md").read_text())[1:3]
    assert (code.language, output.language) == ("python", "text")
    monkeypatch.chdir(tmp_path)
    exec(code.code, {})
    words, printed = output.code.split(), capsys.readouterr().out.split()
    assert printed[:-1] == words[:-1]
    assert float(printed[-1]) == pytest.approx(float(words[-1]), abs=0.015)
    assert cd.load(tmp_path / "digits.caldera").predict(np.zeros((2, 1, 8, 8))).shape == (2, 10)
    assert (tmp_path / "run" / "run.json").exists()


def test_an_op_is_added_in_the_five_steps_of_contributing() -> None:
    names: dict[str, object] = {}
    try:
        for block in _recipe("Adding an op in five steps"):
            exec(block.code, names)
        assert "logcosh" in OPS
        value = names["logcosh_of"](np.array([0.0, 800.0]))  # type: ignore[operator]
        assert value.numpy().tolist() == [0.0, 800.0 - np.log(2)]
    finally:
        # The other tests must not meet an op that is not part of the package.
        OPS.pop("logcosh", None)
        FUNCTIONS.pop("logcosh", None)
        TABLE.forget("logcosh")


@pytest.fixture
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a recipe adds to the package is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "_devices", dict(devices._devices))
    monkeypatch.setattr(devices, "_makers", dict(devices._makers))
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.setattr(search_methods, "_entries", dict(search_methods._entries))
    monkeypatch.setattr(optimizers, "_entries", dict(optimizers._entries))
    # First of all: what is registered meanwhile is gone afterwards.
    TABLE.load("cpu")
    before = {key: list(row) for key, row in TABLE._kernels.items()}
    yield
    TABLE._kernels = before
    cd.choices.clear()
    cd.forget_plans()


@pytest.mark.usefixtures("own_layers", "_as_before")
@pytest.mark.parametrize("what", RECIPES)
def test_a_recipe_of_contributing_runs(what: str, tmp_path: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in _recipe(f"Adding {'an' if what[0] in 'aeiou' else 'a'} {what}"):
        if block.remark:
            # A file of the package, which is found where commands are looked for.
            assert (ROOT / block.remark).parent.is_dir()
            (tmp_path / Path(block.remark).name).write_text(block.code)
        else:
            exec(block.code, names)
