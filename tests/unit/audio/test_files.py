"""Sound files, resampling, Kaldi's archives, and corpora in their layouts."""

from __future__ import annotations

import base64
import os
import random
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile

from caldera import audio
from caldera.audio import kaldi
from caldera.errors import ConfigError, DataError
from tests.unit.audio.oracles import REFERENCE


@pytest.mark.parametrize(("width", "step"), [(1, 1 / 128), (2, 1 / 32768), (3, 2e-7), (4, 1e-7)])
def test_wav_files_of_every_width(tmp_path: Path, width: int, step: float) -> None:
    x = np.sin(np.arange(50.0)) * 0.9
    whole = np.round(x * (1 << (8 * width - 1))).astype(np.int64)
    raw = (whole + (128 if width == 1 else 0)).astype("<i8").view(np.uint8).reshape(-1, 8)
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(1), file.setsampwidth(width), file.setframerate(8000)
        file.writeframes(raw[:, :width].tobytes())
    sound = audio.read(tmp_path / "x.wav")
    assert sound.rate == 8000
    np.testing.assert_allclose(sound.samples, x, atol=step)


def test_channels_and_what_is_no_sound(tmp_path: Path) -> None:
    audio.write(tmp_path / "two.wav", np.array([[0.5, 0.5], [0.0, -2.0]]), 8000)
    np.testing.assert_allclose(audio.read(tmp_path / "two.wav").samples, [0.25, -0.25])
    np.testing.assert_allclose(audio.read(tmp_path / "two.wav", channels="first")[0], [0.5, 0.5])
    assert audio.read(tmp_path / "two.wav", channels="all", scale=2.0)[0].tolist() == [
        [1, 1],
        [0, -2],
    ]
    with pytest.raises(DataError, match="a file"):
        audio.read(tmp_path / "none.wav")


@pytest.mark.parametrize(
    ("name", "subtype", "step"),
    [
        ("a.flac", "PCM_16", 1 / 32768),
        ("a.flac", "PCM_24", 3e-7),
        ("a.ogg", "VORBIS", 0.05),
        ("a.wav", "FLOAT", 1e-7),
        ("a.wav", "ULAW", 0.03),
    ],
)
def test_flac_ogg_and_wav_that_the_standard_library_does_not_know(
    tmp_path: Path, name: str, subtype: str, step: float
) -> None:
    t = np.arange(1600) / 8000
    x = 0.5 * np.stack([np.sin(2 * np.pi * 300 * t), np.cos(2 * np.pi * 200 * t)])
    soundfile.write(tmp_path / name, x.T, 8000, subtype=subtype)
    found = audio.read(tmp_path / name, channels="all")
    assert (found.samples.shape, found.samples.dtype, found.rate) == ((2, 1600), np.float32, 8000)
    np.testing.assert_allclose(found.samples, x, atol=step)
    np.testing.assert_allclose(audio.read(tmp_path / name).samples, x.mean(0), atol=step)
    assert audio.read(tmp_path / name, rate=4000).samples.shape == (800,)


@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.wav"])
def test_damaged_sounds_are_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"fLaC OggS RIFF" * 5)
    with pytest.raises(DataError, match="a sound file"):
        audio.read(tmp_path / name)
    whole = tmp_path / f"whole-{name}"
    soundfile.write(whole, np.sin(np.arange(4000.0)) * 0.5, 8000)
    (tmp_path / name).write_bytes(whole.read_bytes()[:1500])
    if name == "a.wav":
        # What is there can be heard.
        assert 0 < len(audio.read(tmp_path / name).samples) < 4000
    else:
        with pytest.raises(DataError, match="a sound file"):
            audio.read(tmp_path / name)


@pytest.mark.parametrize(("old", "new"), [(8000, 16000), (44100, 16000), (16000, 11025)])
def test_resampling_keeps_tones_and_leaves_out_what_there_is_no_room_for(
    old: int, new: int
) -> None:
    t = np.arange(old // 2) / old
    found = audio.resample(np.sin(2 * np.pi * 1000 * t), old, new)
    wanted = np.sin(2 * np.pi * 1000 * np.arange(len(found)) / new)
    assert len(found) == -(-(old // 2) * new // old)
    np.testing.assert_allclose(found[200:-200], wanted[200:-200], atol=2e-3)
    if new < old:
        too_high = audio.resample(np.sin(2 * np.pi * new * 0.6 * t), old, new)
        assert np.abs(too_high[200:-200]).max() < 5e-3


@pytest.mark.parametrize("name", list(REFERENCE["kaldiio"]))
def test_archives_that_kaldiio_wrote(tmp_path: Path, name: str) -> None:
    wanted = REFERENCE["kaldiio"][name]
    (tmp_path / "a.ark").write_bytes(base64.b64decode(wanted["bytes"]))
    found = dict(kaldi.read_ark(tmp_path / "a.ark"))
    assert found.keys() == wanted["read"].keys()
    for key, array in found.items():
        np.testing.assert_allclose(array, wanted["read"][key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["binary", "text", "compressed"])
def test_what_is_written_is_read(tmp_path: Path, form: kaldi.Form) -> None:
    given = {
        "m": np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32),
        "d": np.linspace(0, 1, 6).reshape(2, 3),
        "v": np.array([0.1, -1e-9], np.float32),
        "ali": np.array([5, 5, -1], np.int32),
    }
    kaldi.write_ark(tmp_path / "a.ark", given, scp=tmp_path / "a.scp", form=form)
    for found in (
        dict(kaldi.read_ark(tmp_path / "a.ark")),
        dict(kaldi.read_scp(tmp_path / "a.scp")),
    ):
        assert list(found) == list(given)
        for key, array in found.items():
            lossy = form == "compressed" and given[key].ndim == 2
            np.testing.assert_allclose(array, given[key], rtol=1e-6, atol=0.03 if lossy else 1e-12)
        assert found["ali"].dtype == np.int32


@pytest.mark.parametrize(
    "damaged",
    [
        b"key",
        b"key \0BFM \4\xff\xff\xff\x7f\4\xff\xff\xff\x7f",
        b"key \0BXX ",
        b"key  [ 1 2\n 3 ]\n",
        b"key \0BFV \4\5\0\0\0abc",
        b"key 1 b 2\n",
        b"a \0BF",
        b"a \0B",
        b"a ",
        b"a 1 2",
        b"a 1_0\n",
        b"a 3000000000\n",
        b"a [ 1e300 ]\n",
        b"a [ 1 2",
        b"a [ 1_0 ]\n",
        b"a [ 1 ] 2\n",
        b" \0BFV \4\0\0\0\0",
        b"a \0BCM \0\0\xc0\x7f\0\0\x80\x3f\1\0\0\0\1\0\0\0" + b"\1" * 9,
    ],
)
def test_damaged_archives_are_refused(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "a.ark").write_bytes(damaged)
    with pytest.raises(DataError):
        list(kaldi.read_ark(tmp_path / "a.ark"))


@pytest.mark.parametrize("form", ["binary", "text", "compressed"])
def test_archives_that_are_cut_or_have_bits_flipped_end(tmp_path: Path, form: kaldi.Form) -> None:
    path = tmp_path / "a.ark"
    given = {
        "m": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
        "none": np.zeros(0, np.int32),
        "ali": np.array([12, 345, -1], np.int32),
        "v": np.array([0.5, 2.25], np.float32),
    }
    kaldi.write_ark(path, given, form=form)
    whole, draw = path.read_bytes(), random.Random(3)
    wanted = dict(kaldi.read_ark(path))
    assert list(wanted) == list(given)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        # What comes before the end is as it was: never a part of an array.
        with suppress(DataError):
            for key, array in kaldi.read_ark(path):
                np.testing.assert_array_equal(array, wanted[key])
    for _ in range(300):
        flipped = bytearray(whole)
        for _ in range(draw.choice((1, 1, 8))):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        with suppress(DataError):
            list(kaldi.read_ark(path))


def test_numbers_that_kaldi_does_not_have_are_not_wrapped(tmp_path: Path) -> None:
    for form in ("binary", "text"):
        for wrong in (np.array([2**31]), np.array([-(2**31) - 1]), np.array([2**63], np.uint64)):
            with pytest.raises(DataError, match="int32"):
                kaldi.write_ark(tmp_path / "a.ark", {"a": wrong}, form=form)  # type: ignore[arg-type]
        edge = np.array([2**31 - 1, -(2**31)])
        kaldi.write_ark(tmp_path / "a.ark", {"a": edge}, form=form)  # type: ignore[arg-type]
        assert dict(kaldi.read_ark(tmp_path / "a.ark"))["a"].tolist() == edge.tolist()
    with pytest.raises(DataError, match="finite"):
        kaldi.write_ark(tmp_path / "a.ark", {"a": np.full((2, 2), np.nan)}, form="compressed")


def test_scripts_open_files_alone_within_their_length(tmp_path: Path) -> None:
    kaldi.write_ark(tmp_path / "a.ark", {"a": np.ones(3)})
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/zero", str(tmp_path / "pipe"), f"{tmp_path}/a.ark:{'9' * 40}", "a.ark:99"):
        (tmp_path / "a.scp").write_text(f"a {place}\n")
        with pytest.raises(DataError):
            list(kaldi.read_scp(tmp_path / "a.scp"))


def test_commands_in_scripts_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.scp").write_text("key touch it |\n")
    with pytest.raises(DataError, match="not run"):
        list(kaldi.read_scp(tmp_path / "a.scp"))


def test_the_layout_of_speech_commands(tmp_path: Path) -> None:
    for word, level in (("yes", 0.5), ("no", 0.25)):
        (tmp_path / word).mkdir()
        for speaker in ("a1", "b2", "c3"):
            audio.write(tmp_path / word / f"{speaker}_nohash_0.wav", np.full(30, level), 100)
    (tmp_path / "testing_list.txt").write_text("yes/b2_nohash_0.wav\nno/b2_nohash_0.wav\n")
    (tmp_path / "validation_list.txt").write_text("yes/c3_nohash_0.wav\nno/c3_nohash_0.wav\n")
    found = audio.speech_commands(tmp_path, rate=100, seconds=0.4)
    assert (found.class_names, found.shape, found.train.y.tolist()) == (
        ("no", "yes"),
        (40,),
        [0, 1],
    )
    assert found.test.x[1, :31].tolist() == [0.5] * 30 + [0.0]
    assert found.validation is not None
    (tmp_path / "testing_list.txt").write_text("yes/b2_nohash_0.wav\n")
    with pytest.raises(DataError, match="1 in both, such as b2"):
        audio.speech_commands(tmp_path, rate=100)


def test_the_layout_of_librispeech(tmp_path: Path) -> None:
    folder = tmp_path / "84" / "121"
    folder.mkdir(parents=True)
    audio.write(folder / "84-121-0000.wav", np.zeros(10), 8000)
    soundfile.write(folder / "84-121-0001.flac", np.zeros(20), 8000)
    (folder / "84-121.trans.txt").write_text("84-121-0000 GO ON\n84-121-0001 AND ON\n")
    found, other = audio.librispeech(tmp_path)
    assert (found.text, found.speaker, found.read().shape) == ("GO ON", "84", (10,))
    assert (other.text, other.path.suffix, other.read(16000).shape) == ("AND ON", ".flac", (40,))
    (folder / "84-121.trans.txt").write_text("84-121-0002 GO ON\n")
    with pytest.raises(DataError, match=r"84-121-0002\.flac"):
        list(audio.librispeech(tmp_path))


def test_a_package_whose_library_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError("cannot load library 'libsndfile.so'")

    (tmp_path / "a.flac").write_bytes(b"fLaC")
    monkeypatch.setattr("caldera.base.registry.import_module", missing)
    with pytest.raises(ConfigError, match=r"caldera\[audio\].*libsndfile"):
        audio.read(tmp_path / "a.flac")


def test_rates_that_make_gigabytes_of_a_small_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    # Of one sample a second come 16,000; of 9,999,991 a filter of 16,000 rows.
    for rate, samples in ((1, 100_000), (9_999_991, 100)):
        audio.write(path, np.zeros(samples), rate)
        with pytest.raises(DataError, match=f"from {rate} to 16000 samples a second.*requires at"):
            audio.read(path, rate=16000)


def test_blocks_of_resampling_are_one_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = np.random.default_rng(0).standard_normal((2, 3001)).astype("float32")
    whole = audio.resample(sound, 44100, 16000)
    monkeypatch.setattr(audio.files, "_BLOCK", 5000)
    np.testing.assert_array_equal(audio.resample(sound, 44100, 16000), whole)
