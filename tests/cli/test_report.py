"""`caldera report`: one page about a run that `caldera train` wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Caldera


def test_a_page_beside_the_run(caldera: Caldera, trained: Path) -> None:
    done = caldera("report", trained)
    assert done.status == 0
    assert done.out == f"wrote   {trained / 'report.html'}\n"
    text = (trained / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    for shown in ("<h1>digits</h1>", "Confusion matrix", "batch_size", "split of the data"):
        assert shown in text
    (trained / "report.html").unlink()


def test_a_page_elsewhere(caldera: Caldera, trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    assert caldera("report", trained, "--out", target).status == 0
    assert target.is_file()
    done = caldera("report", trained, "--out", tmp_path / "page.pdf")
    assert done.status == 2
    assert "ends in .html" in done.err


def test_a_folder_that_is_no_run(caldera: Caldera, tmp_path: Path) -> None:
    done = caldera("report", tmp_path)
    assert done.status == 1
    assert "expected the folder of a run" in done.err
    assert done.err.count("\n") == 1


def test_train_says_how_to_get_the_page(caldera: Caldera, tmp_path: Path) -> None:
    words = ("train", "--hidden", "8", "--epochs", "1", "--quiet", "--out", tmp_path / "out")
    assert f"report  caldera report {tmp_path / 'out'}" in caldera(*words).out


def test_several_runs_are_compared(caldera: Caldera, trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    target = tmp_path / "compared.html"
    done = caldera("report", trained, other, "--out", target)
    assert done.status == 0
    assert "2 runs compared" in target.read_text()
    done = caldera("report", trained, tmp_path, "--out", target)
    assert done.status == 1
    assert "expected the folder of a run" in done.err
