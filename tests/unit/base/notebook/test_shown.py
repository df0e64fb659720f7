"""What notebooks show of our objects: HTML that is whole, and in which no text becomes a tag."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import caldera as cd
from caldera import nn, op, search
from caldera.base.formatting import MOST_ROWS, html_table, html_text, note
from caldera.draw import live_line as live
from caldera.draw.svg import Picture

EVIL = "<script>alert(1)</script>"
VOID = ("img", "br", "hr")


class Checked(HTMLParser):
    """Whether elements are closed in order, and which there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def history() -> cd.History:
    made = cd.History()
    made.add(0, {"loss": 0.5, "val_loss": 0.6})
    made.add(1, {"loss": 0.25, "val_loss": 0.5})
    return made


def test_tables_are_whole_and_escape() -> None:
    found = Checked(html_table([EVIL, "b"], [[EVIL, 1], [2, 3]], numbers=[1]))
    assert "script" not in found.seen
    assert found.words.count("alert") == 2
    long = Checked(html_table(["n"], [[i] for i in range(1000)]))
    assert long.seen.count("tr") == MOST_ROWS + 2
    assert "script" not in Checked(note(EVIL) + html_text(EVIL)).seen


def test_tensors() -> None:
    shown = Checked(cd.tensor(np.arange(6.0).reshape(2, 3).astype("float32"))._repr_html_())
    assert "Tensor 2 \u00d7 3, float32" in shown.words
    assert "[3. 4. 5.]" in shown.words
    Checked(cd.tensor(1.0)._repr_html_())
    assert len(cd.tensor(np.zeros((300, 300)))._repr_html_()) < 2000


def test_histories_have_curves_and_a_table() -> None:
    shown = Checked(history()._repr_html_())
    assert {"svg", "table", "details"} <= set(shown.seen)
    assert "0.2500" in shown.words
    assert "no epoch yet" in Checked(cd.History()._repr_html_()).words


def test_plots_without_a_path_are_pictures(tmp_path: Path) -> None:
    picture = history().plot()
    assert isinstance(picture, Picture)
    assert picture._repr_svg_().startswith("<svg")
    assert "save(" in repr(picture)
    assert picture.save(tmp_path / "curves.svg").read_text() == picture.svg
    assert history().plot(tmp_path / "same.svg") == tmp_path / "same.svg"
    assert (tmp_path / "same.svg").read_text() == picture.svg
    with pytest.raises(cd.ConfigError, match=r"ends in \.svg"):
        picture.save(tmp_path / "curves.png")


def test_plans_and_their_explanations() -> None:
    x = op.var("x", (3,), fill=cd.constant(2.0))
    plan = cd.compile([op.exp(x) * 2.0])
    shown = Checked(plan._repr_html_())
    assert "exp" in shown.words
    assert "table" in shown.seen
    picture = plan.draw()
    assert isinstance(picture, Picture)
    assert "as it runs" in picture.svg


def test_models_before_and_after_they_know_their_inputs() -> None:
    model = cd.NeuralNetwork([nn.Dense(3, activation="relu"), nn.Dense(2)])
    before = Checked(model._repr_html_())
    assert "Dense" in before.words
    model.predict(np.zeros((2, 4), "float32"))
    shown = Checked(model._repr_html_())
    assert "parameters  23 (23 trained)" in shown.words
    assert shown.seen.count("tr") == 3
    summary = model.summary(show=False)
    assert summary._repr_html_() == model._repr_html_()


def test_data_sets() -> None:
    shown = Checked(cd.data.digits()._repr_html_())
    assert shown.seen.count("img") == 10
    assert "1,438" in shown.words
    x = np.random.default_rng(0).normal(size=(20, 3))
    table = cd.data.arrays(x, [EVIL, "b"] * 10)
    shown = Checked(table._repr_html_())
    assert "img" not in shown.seen
    assert "script" not in shown.seen
    values = cd.data.arrays(x, x[:, 0], classes=False).hold_out(0.25)
    assert "samples to choose by" in Checked(values._repr_html_()).words


def test_studies() -> None:
    space = {"x": search.integer(0, 3)}
    study = search.run(lambda x: (x - 1) ** 2, space, method="grid", verbose=0)
    shown = Checked(study._repr_html_())
    assert "best: trial 1" in shown.words
    assert shown.seen.count("tr") == 5
    assert "svg" in shown.seen
    assert isinstance(study.plot(), Picture)


class Display:
    """IPython's `display`, and what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        return self

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        self.told.append(shown["text/plain"])


def test_progress_in_a_notebook_is_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display()
    monkeypatch.setattr(live, "optional_import", lambda *_: display)
    console = Console(force_jupyter=True)
    line = live.live_line(console)
    line.update(Text("epoch 1/2 <b>"), refresh=True)
    live.print_line(console, "epoch 1/2  loss 0.5")
    line.stop()
    assert display.told == ["epoch 1/2 <b>", ""]
    assert capsys.readouterr().out == "epoch 1/2  loss 0.5\n"
    line.add({"epoch": "1/2", "loss": "0.5"})
    line.update("moving")
    line.add({"epoch": "2/2", "loss": "0.25"})
    table = "epoch  loss\n  1/2   0.5"
    assert display.told[2:] == [table, f"{table}\nmoving", f"{table}\n  2/2  0.25"]


def test_a_log_has_no_live_line() -> None:
    with open("/dev/null", "w") as log:
        assert live.live_line(Console(file=log)) is None
