"""`caldera predict` labels a sound with a model that takes samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import audio, nn
from caldera.cli import main


def test_a_wav_file_is_labelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tone = np.sin(np.arange(900) / 3)
    audio.write(tmp_path / "tone.wav", tone * 0.5, rate=16000)
    layers = [nn.Input((400,)), audio.FilterBank(rate=8000, bins=6), nn.Flatten(), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, epochs=1, batch_size=2)
    data = cd.data.arrays(np.stack([tone[:400], -tone[:400]] * 2), ["high", "low"] * 2, test=0.5)
    model.fit(data.train, verbose=0)
    saved = model.save(tmp_path / "words.caldera")
    assert main(["predict", str(saved), str(tmp_path / "tone.wav")]) == 0
    head, line = capsys.readouterr().out.split()
    assert head == "sample,class,probability"
    assert line.split(",")[0] == "tone.wav"
    assert line.split(",")[1] in ("high", "low")


def test_a_model_of_other_things_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audio.write(tmp_path / "tone.wav", np.zeros(10), rate=8000)
    saved = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)]).save(tmp_path / "plain.caldera")
    assert main(["predict", str(saved), str(tmp_path / "tone.wav")]) != 0
    assert "with one audio.FilterBank" in capsys.readouterr().err.replace("\n", " ")
