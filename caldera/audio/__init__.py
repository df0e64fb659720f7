"""Sound and speech: files, features as expressions, augmentation, acoustic models, decoding.

    sound = audio.read("hello.wav", rate=16000)
    features = audio.fbank(sound.samples * 32768, sound.rate, bins=40)      # Kaldi's, as a graph

`audio.kaldi` reads and writes Kaldi's archives, `audio.models` has networks, and
`pip install 'caldera[audio]'` adds what reads flac. The loss is `nn.CTCLoss` or cross-entropy.
"""

from __future__ import annotations

from caldera.audio import kaldi, models
from caldera.audio.augment import add_noise, change_speed, spec_augment
from caldera.audio.corpora import Utterance, librispeech, speech_commands
from caldera.audio.decoding import NGram, beam_search, greedy
from caldera.audio.features import (
    cepstra,
    deltas,
    fbank,
    frame_signal,
    mask,
    mel_spectrogram,
    mfcc,
    normalise,
    power_spectrum,
    power_to_db,
    splice,
    stft,
)
from caldera.audio.files import SUFFIXES, Sound, read, resample, write
from caldera.audio.mel import mel_filters
from caldera.audio.models import (
    ConformerBlock,
    FilterBank,
    Splice,
    StatisticsPooling,
    TimeDelay,
    model_input,
)
from caldera.base.arguments import guard as _guard

__all__ = [
    "SUFFIXES",
    "ConformerBlock",
    "FilterBank",
    "NGram",
    "Sound",
    "Splice",
    "StatisticsPooling",
    "TimeDelay",
    "Utterance",
    "add_noise",
    "beam_search",
    "cepstra",
    "change_speed",
    "deltas",
    "fbank",
    "frame_signal",
    "greedy",
    "kaldi",
    "librispeech",
    "mask",
    "mel_filters",
    "mel_spectrogram",
    "mfcc",
    "model_input",
    "models",
    "normalise",
    "power_spectrum",
    "power_to_db",
    "read",
    "resample",
    "spec_augment",
    "speech_commands",
    "splice",
    "stft",
    "write",
]

_guard(globals(), "Sound", "Utterance", methods={"NGram": "sentence"})
