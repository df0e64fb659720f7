"""A valid call of each function and class of the rooms for speech and for code."""

from __future__ import annotations

import numpy as np

from caldera import code
from tests.bad_calls.calls_of_op import x
from tests.bad_calls.damage import Given

_TEXT = "define i32 @f(i32 %x) {\n  %y = add i32 %x, 1\n  ret i32 %y\n}"


def _words() -> code.Vocabulary:
    return code.Vocabulary.of(["a", "b", "a"], least=1)


def _vectors() -> code.Embedding:
    return code.Embedding(_words(), np.eye(3))


AUDIO: dict[str, Given] = {
    "ConformerBlock": lambda f: f(2, 3),
    "FilterBank": lambda f: f(8000, 8),
    "NGram": lambda f: f(["ab", "b"], 2),
    "Splice": lambda f: f(1, 1),
    "StatisticsPooling": lambda f: f(),
    "TimeDelay": lambda f: f(3),
    "add_noise": lambda f: f(x(8), x(8), 10.0),
    "beam_search": lambda f: f(x(1, 3, 2), ["", "a"], width=2, blank=0, weight=0.5, bonus=0.5),
    "cepstra": lambda f: f(x(2, 8), 4),
    "change_speed": lambda f: f(x(100), 1.1),
    "deltas": lambda f: f(x(6, 2)),
    "fbank": lambda f: f(x(800), 8000.0, 8),
    "frame_signal": lambda f: f(x(20), 4, 2),
    "greedy": lambda f: f(x(1, 3, 2)),
    "librispeech": lambda f: f("missing"),
    "mask": lambda f: f(np.array([1, 2]), 3),
    "mel_filters": lambda f: f(8000.0, 64, 4),
    "mel_spectrogram": lambda f: f(x(400), 8000.0, 4, 64, 32),
    "mfcc": lambda f: f(x(800), 8000.0, 4, 8),
    "model_input": lambda f: f("missing.wav", None),
    "normalise": lambda f: f(x(2, 3, 4)),
    "power_spectrum": lambda f: f(x(2, 3, 2)),
    "power_to_db": lambda f: f(np.abs(x(3))),
    "read": lambda f: f("missing.wav"),
    "resample": lambda f: f(x(80), 8000, 4000),
    "spec_augment": lambda f: f(x(2, 8, 4), bands=1, band_width=2, times=1, time_width=2),
    "speech_commands": lambda f: f("missing"),
    "splice": lambda f: f(x(2, 6, 3), 1, 1),
    "stft": lambda f: f(x(200), 64, 32),
    "write": lambda f: f("a.wav", x(80), 8000),
    "kaldi.read_ark": lambda f: f("missing.ark"),
    "kaldi.read_scp": lambda f: f("missing.scp"),
    "kaldi.write_ark": lambda f: f("a.ark", {"a": x(3, 2)}),
    "models.blstm": lambda f: f((6, 4), 3, units=4, depth=1),
    "models.conformer": lambda f: f((6, 4), 3, width=8, heads=2, depth=1, kernel=3),
    "models.frame_dnn": lambda f: f((6, 4), 3, units=4, depth=1),
    "models.tdnn": lambda f: f((6, 4), 3, units=4),
}
CODE: dict[str, Given] = {
    "Embedding": lambda f: f(_words(), np.eye(3)),
    "Vocabulary": lambda f: f(["<unknown>", "a"], [0, 1]),
    "analogy_scores": lambda f: f(_vectors(), 1),
    "compile_c": lambda f: f("missing.c", ["-O1"], 5.0),
    "context_pairs": lambda f: f([(0, 1)], 2, 1),
    "distance_score": lambda f: f(_vectors()),
    "flow_edges": lambda f: f(code.read_ir(_TEXT)),
    "normalised": lambda f: f("%4 = add nsw i32 %3, -16"),
    "poj104": lambda f: f("missing", seed=0),
    "pairs_of": lambda f: f([code.read_ir(_TEXT)], _words(), 1),
    "read_ir": lambda f: f(_TEXT),
    "train_embedding": lambda f: f([code.read_ir(_TEXT)], 1, 4, 1, 1, 2, 0.025, 0.0, 0),
}
