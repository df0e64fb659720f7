"""Acoustic models train and go through files; decoding finds the best text."""

from __future__ import annotations

from itertools import groupby, product
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import audio, nn
from caldera.audio import models
from caldera.base.registry import provided


@pytest.mark.parametrize(
    "make",
    [
        lambda shape: models.frame_dnn(shape, 3, left=1, right=1, units=8, depth=1),
        lambda shape: models.tdnn(shape, 3, units=8, offsets=((-1, 0, 1), (0,))),
        lambda shape: models.blstm(shape, 3, units=4, depth=1),
        lambda shape: models.conformer(shape, 3, width=8, heads=2, depth=1, kernel=3, dropout=0.0),
    ],
)
def test_models_learn_frames_and_are_saved(make: object, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(32, 6, 4)).astype(np.float32)
    y = x[..., :3].argmax(-1)
    model = cd.NeuralNetwork(
        make((6, 4)),
        optimizer="adam",
        learning_rate=0.02,
        batch_size=16,
        epochs=5,
        seed=1,  # type: ignore[operator]
    )
    history = model.fit((x, y), verbose=0)
    assert history["loss"][-1] < history["loss"][0]
    again = cd.load(model.save(tmp_path / "acoustic.caldera"))
    np.testing.assert_allclose(again.predict(x), model.predict(x), atol=1e-6)


def test_a_network_may_begin_with_samples() -> None:
    layers = [
        nn.Input((800,)),
        audio.FilterBank(rate=8000, bins=8, augment=True),
        audio.StatisticsPooling(),
        nn.Dense(2),
    ]
    model = cd.NeuralNetwork(layers, batch_size=4, epochs=1)
    x = np.sin(np.arange(800) * np.arange(1, 5)[:, None] / 3).astype(np.float32)
    model.fit((x, np.array([0, 1, 0, 1])), verbose=0)
    assert model.predict(x).shape == (4, 2)


def test_a_file_with_layers_of_sound_needs_no_import_of_them() -> None:
    own = {name: nn.layers[name] for name in nn.layers}
    own = {name: kind for name, kind in own.items() if kind.__module__.startswith("caldera.audio")}
    assert own
    for name, kind in own.items():
        # What a process has that has not imported caldera.audio.
        assert provided(f"layer {name}") is kind


def _likeliest(frames: np.ndarray) -> str:
    chances: dict[str, float] = {}
    for way in product(range(frames.shape[1]), repeat=len(frames)):
        text = "".join(" ab"[each - 1] for each, _ in groupby(way) if each != 0)
        chance = float(np.prod([frames[t, c] for t, c in enumerate(way)]))
        chances[text] = chances.get(text, 0.0) + chance
    return max(chances, key=lambda each: chances[each])


def test_beam_search_finds_what_all_ways_together_make_likeliest() -> None:
    draws = np.random.default_rng(5)
    frames = draws.dirichlet(np.ones(4), size=(12, 5))
    found = audio.beam_search(np.log(frames), ["", " ", "a", "b"], width=200)
    assert found == [_likeliest(each) for each in frames]
    assert any(
        a != "".join(" ab"[i - 1] for i in b)
        for a, b in zip(found, audio.greedy(frames), strict=True)
    )


def test_a_language_model_decides_between_words_that_sound_alike() -> None:
    alphabet = ["", " ", "a", "b", "c"]
    frames = np.full((5, 5), 0.01)
    for t, (label, other) in enumerate([(2, 2), (0, 0), (1, 1), (4, 3), (0, 0)]):
        frames[t, label], frames[t, other] = 0.5, max(0.46, frames[t, other])
        frames[t, label] = 0.5
    logits = np.log(frames)
    model = audio.NGram(["a b", "a b", "a b a"], order=2)
    assert audio.beam_search(logits, alphabet) == ["a c"]
    assert audio.beam_search(logits, alphabet, language=model, weight=1.0) == ["a b"]


def test_an_n_gram_model_is_a_distribution() -> None:
    model = audio.NGram(["a b c", "a c", "b"], order=3)
    for before in ([], ["a"], ["a", "b"], ["never"]):
        known = ["a", "b", "c", "</s>", "unknown"]
        assert sum(np.exp(model.score(before, word)) for word in known) == pytest.approx(1.0)
    assert model.sentence("a b c") > model.sentence("c b a")
