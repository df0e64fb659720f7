"""`caldera plan`: tables, sentences and charts for any model that `caldera summary` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Caldera

pytestmark = pytest.mark.usefixtures("in_a_folder")
WORDS = ("plan", "lenet5", "--ranks", "64", "--link", "10Gb", "--speed", "100G")


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are written where the user is."""
    monkeypatch.chdir(tmp_path)


def test_the_shortest_command_prints_and_plots(caldera: Caldera) -> None:
    done = caldera("plan", "--ranks", "128", "--link", "100Gb", "--speed", "1T")
    assert done.status == 0
    assert done.out.endswith("wrote   plan.html\n")
    assert Path("plan.html").read_text().startswith("<!doctype html>")
    # 128 ranks do not share 64 samples: that is a matter of samples, whatever fits.
    assert "averaging, for 128 ranks would share a batch of 64 samples." in done.out


def test_both_scalings_are_printed(caldera: Caldera) -> None:
    done = caldera(*WORDS, "--batch-size", "512")
    assert done.status == 0
    assert "strong scaling: 64 ranks, a batch of 512 in all" in done.out
    assert "weak scaling: 64 ranks, a batch of 32,768 in all" in done.out
    assert done.out.count("Proposed: ") == 2
    assert "ParameterServer" in done.out


def test_charts_as_a_picture_and_as_a_page(caldera: Caldera, tmp_path: Path) -> None:
    picture, page = tmp_path / "plan.svg", tmp_path / "new" / "plan.html"
    assert caldera(*WORDS, "--plot", picture).out.endswith(f"wrote   {picture}\n")
    assert picture.read_text().startswith("<svg")
    assert caldera(*WORDS, "--plot", page).status == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    for shown in ("lenet5 on 64 ranks", "Strong scaling", "Weak scaling", "10 Gbit/s", "All ways"):
        assert shown in text


def test_mistakes(caldera: Caldera, tmp_path: Path) -> None:
    for words, said in (
        (("--plot", tmp_path / "plan.pdf"), "ends in .html or .svg"),
        (("--link", "10G"), "b is for bits, B for bytes"),
        (("--ranks", "0"), "--ranks: expected an integer >= 1"),
        (("--memory", "1kB"), "a way to train that fits"),
    ):
        done = caldera(*WORDS, *words)
        assert done.status == 2
        assert said in done.err
    done = caldera("plan", "lenet5", "--ranks", "4", "--speed", "1T")
    assert done.status == 2
    assert "several processes to measure it between" in done.err
