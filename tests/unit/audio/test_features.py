"""Features against Kaldi's and librosa's numbers, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import audio, op, testing
from caldera.errors import CalderaError
from tests.unit.audio.oracles import compare, signal

X = signal()


def test_filter_banks_and_cepstra_are_those_of_kaldi() -> None:
    compare("fbank 16000 23", audio.fbank(X, 16000).numpy())
    compare("fbank 16000 40", audio.fbank(X, 16000, 40).numpy())
    compare("fbank 8000 23", audio.fbank(X, 8000).numpy())
    compare("mfcc energy", audio.mfcc(X, 16000).numpy(), atol=1e-3)
    compare("mfcc", audio.mfcc(X, 16000, energy=False).numpy(), atol=1e-3)


def test_spectra_are_those_of_librosa() -> None:
    y = X / 32768
    compare("stft", np.abs(audio.stft(y, 512).numpy())[:, ::8], atol=1e-5)
    mel = audio.mel_spectrogram(y, 16000, 40, 512)
    compare("mel", mel.numpy(), atol=1e-6)
    compare("mel htk", audio.mel_spectrogram(y, 16000, 40, 512, htk=True).numpy(), atol=1e-6)
    compare("mfcc librosa", audio.cepstra(audio.power_to_db(mel), 13).numpy(), atol=1e-3)


def test_a_batch_gives_what_its_samples_give_and_has_gradients() -> None:
    both = np.stack([X[:900], X[300:1200]])
    found = audio.fbank(both, 16000, 10)
    np.testing.assert_allclose(found[1].numpy(), audio.fbank(both[1], 16000, 10).numpy(), rtol=1e-5)
    short = signal(24, 1000).astype("float64").reshape(1, 24) / 1e3
    options = {"bins": 3, "frame_length": 0.016, "frame_shift": 0.008}
    testing.check_gradients(lambda x: audio.fbank(x, 1000, **options), [short])
    testing.check_gradients(
        lambda x: audio.normalise(audio.deltas(x)), [short.reshape(1, 12, 2)[:, :5]]
    )


def test_deltas_and_splicing() -> None:
    line = np.arange(12, dtype=np.float32).reshape(12, 1) ** 2
    found = audio.deltas(line).numpy()
    assert found.shape == (12, 3)
    # In the middle of a parabola: 2 t, and 2.
    np.testing.assert_allclose(found[5:7], [[25, 10, 2], [36, 12, 2]], rtol=1e-5)
    assert audio.splice(line, 2, 1).numpy()[0].tolist() == [0, 0, 0, 1]


def test_normalising_counts_only_frames_before_the_end() -> None:
    x = np.random.default_rng(0).normal(3, 2, size=(2, 8, 4)).astype(np.float32)
    found = audio.normalise(x, lengths=[8, 5]).numpy()
    np.testing.assert_allclose(found[1, :5], audio.normalise(x[1:, :5]).numpy()[0], atol=1e-5)
    assert not found[1, 5:].any()
    np.testing.assert_allclose(found[0].std(0), 1, rtol=1e-3)


def test_augmentation() -> None:
    ones = np.ones((64, 30, 20), np.float32)
    x = op.var("x", ones.shape, fill=ones)
    hidden = audio.spec_augment(x, bands=1, band_width=5, times=1, time_width=10, time_part=0.2)
    kept, gradient = (
        each.numpy() for each in cd.compile([hidden, op.grad(op.sum(hidden), x)]).run()
    )
    assert np.array_equal(kept, gradient)
    bands, times = (kept == 0).all(1).sum(1), (kept == 0).all(2).sum(1)
    assert (bands.min(), bands.max(), times.min(), times.max()) == (0, 5, 0, 6)
    assert audio.change_speed(np.zeros(1000, np.float32), 0.9).shape == (1112,)
    loud = audio.add_noise(np.full(500, 0.5), np.sin(np.arange(99.0)), snr=0.0)
    assert np.mean((loud - 0.5) ** 2) == pytest.approx(0.25, rel=1e-4)
    assert not audio.add_noise(np.zeros(5), np.zeros(9), snr=3.0).any()


@pytest.mark.parametrize(
    "call",
    [
        lambda: audio.fbank(X[:100], 16000),
        lambda: audio.fbank(X[None, None], 16000),
        lambda: audio.fbank(X.astype("int16"), 16000),
        lambda: audio.fbank(X, 16000, low=9000.0),
        lambda: audio.stft(X, 512, window="box"),
        lambda: audio.cepstra(X[:9], 10),
        lambda: audio.change_speed(X, 0.0),
        lambda: audio.resample(X, 0, 8000),
    ],
)
def test_misuse_is_told(call: object) -> None:
    with pytest.raises(CalderaError, match=r"expected .*, got"):
        call()  # type: ignore[operator]
