"""Texts, series and images of any size, from the command line to predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caldera.cli import main


def run(words: str) -> int:
    return main(words.split())


def test_texts_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "reviews.csv"
    rows = [
        f'"{"lovely" if n % 2 else "dull"}, film {n}",{"good" if n % 2 else "bad"}'
        for n in range(40)
    ]
    table.write_text("review,kind\n" + "\n".join(rows))
    out = tmp_path / "run"
    assert (
        run(
            f"train --data {table} --text-column review --target-column kind --epochs 20 "
            f"--batch-size 4 --learning-rate 0.02 --out {out} --quiet"
        )
        == 0
    )
    assert "texts are divided into" in capsys.readouterr().out
    (tmp_path / "new.csv").write_text("number,review\n1,so lovely\n2,dull dull\n")
    assert run(f"predict {out}/reviews.caldera {tmp_path}/new.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["good", "bad"]
    (tmp_path / "one.txt").write_text("a dull film")
    assert run(f"predict {out}/reviews.caldera {tmp_path}/one.txt") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("one.txt,bad")
    (tmp_path / "other.csv").write_text("number,revew\n1,so lovely\n")
    assert run(f"predict {out}/reviews.caldera {tmp_path}/other.csv") != 0
    assert "the column 'review' of texts" in capsys.readouterr().err


def test_a_series_in_its_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "tides.csv"
    levels = 4000 + 50 * np.sin(np.arange(200) / 5)
    table.write_text("day,level\n" + "\n".join(f"d{n},{v:.2f}" for n, v in enumerate(levels)))
    out = tmp_path / "run"
    assert (
        run(
            f"train --data {table} --target-column level --past 12 --future 2 --hidden 16 "
            f"--epochs 5 --dropout 0 --out {out} --quiet"
        )
        == 0
    )
    assert "shape (12, 1)" in capsys.readouterr().out
    assert run(f"predict {out}/tides.caldera {table}") == 0
    name, *values = capsys.readouterr().out.splitlines()[1].split(",")
    assert name == "forecast"
    assert all(3850 < float(value) < 4150 for value in values)


def test_images_of_any_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pictures"
    for number in range(12):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8 + number), (20 * number,) * 3).save(path)
    (folder / "a" / "broken.png").write_bytes(b"no image")
    words = f"train --data {folder} --hidden 4 --epochs 1 --out {tmp_path}/run --quiet"
    assert run(words) != 0
    assert "--skip-broken" in capsys.readouterr().err
    assert run(f"{words} --skip-broken --augment flip,crop,rotate,colour,cutout") == 0
    said = capsys.readouterr().out
    assert "12 sizes, 8x8 to 19x8, are resized to 14x8" in said
    assert "1 broken images left out: a/broken.png" in said
    assert run(f"{words} --augment flp") != 0
    assert "did you mean 'flip'" in capsys.readouterr().err
