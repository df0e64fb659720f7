"""Corpora in the layouts in which they are given out: Speech Commands and LibriSpeech."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from os.path import isdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caldera import data
from caldera.audio.files import read
from caldera.base.arguments import require
from caldera.errors import DataError


class Utterance(NamedTuple):
    """Recording with its transcript and speaker.

    >>> from pathlib import Path
    >>> from caldera import audio
    >>> audio.Utterance(Path("84-121-0000.flac"), "GO ON", "84").speaker
    '84'
    """

    path: Path
    text: str
    speaker: str

    def read(self, rate: int | None = None, **options: Any) -> np.ndarray:
        """Return the samples of the recording; see `audio.read`."""
        return read(self.path, rate, **options).samples


def speech_commands(
    folder: str | PathLike[str],
    *,
    rate: int = 16000,
    seconds: float = 1.0,
    words: tuple[str, ...] | None = None,
) -> data.Dataset:
    """Load spoken words: a folder for each, with files `SPEAKER_nohash_N.wav`.

    `testing_list.txt` and `validation_list.txt` name the test and validation samples. Their
    speakers must not occur in the training samples: otherwise an error is raised. Sounds are
    truncated or padded with zeros to `seconds`. `words` are the classes, by default all folders.

    >>> from pathlib import Path
    >>> from caldera import audio
    >>> for word, speaker in (("yes", "a1"), ("no", "a1"), ("yes", "b2"), ("no", "b2")):
    ...     Path(f"commands/{word}").mkdir(parents=True, exist_ok=True)
    ...     audio.write(f"commands/{word}/{speaker}_nohash_0.wav", [0.1, 0.2], rate=16000)
    >>> _ = Path("commands/testing_list.txt").write_text("yes/b2_nohash_0.wav\\nno/b2_nohash_0.wav")
    >>> audio.speech_commands("commands", words=("yes", "no"))
    Dataset(commands: 2 samples to train, 2 to test, shape (16000,), 2 classes)
    """
    root = Path(fspath(folder))
    inside = root.iterdir() if root.is_dir() else ()
    names = tuple(() if words is None else words) or tuple(
        sorted(each.name for each in inside if each.is_dir() and each.name[0] != "_")
    )
    files = [path for name in names for path in sorted((root / name).glob("*.wav"))]
    require(
        files,
        f"audio.speech_commands {root}",
        "folders of wav files, one for each word",
        hint="unpack the archive there",
        error=DataError,
    )
    train, testing, validation = _split_by_lists(root, files)
    length = round(rate * seconds)

    def part(paths: list[Path]) -> data.ArrayData:
        x = np.zeros((len(paths), length), np.float32)
        for row, path in zip(x, paths, strict=True):
            samples = read(path, rate).samples[:length]
            row[: len(samples)] = samples
        labels = np.array([names.index(path.parent.name) for path in paths], np.int64)
        return data.ArrayData(x, labels)

    held = part(validation) if validation else None
    return data.Dataset(part(train), part(testing), len(names), names, root.name, validation=held)


def _split_by_lists(root: Path, files: list[Path]) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files to train with, to test with and to validate with, by the lists in `root`."""
    lists = [root / f"{part}_list.txt" for part in ("testing", "validation")]
    listed = [set(path.read_text().split()) if path.is_file() else set() for path in lists]
    testing, validation = (
        [path for path in files if f"{path.parent.name}/{path.name}" in names] for names in listed
    )
    apart = {*testing, *validation}
    train = [path for path in files if path not in apart]
    shared = {_speaker(path) for path in apart} & {_speaker(path) for path in train}
    if shared:
        raise DataError.build(
            f"audio.speech_commands {root}",
            expected="speakers to test with that are new",
            got=f"{len(shared)} in both, such as {min(shared)}",
            hint="correct the lists of files",
        )
    return train, testing, validation


def _speaker(path: Path) -> str:
    return path.name.split("_nohash_")[0]


def librispeech(folder: str | PathLike[str]) -> Iterator[Utterance]:
    """Read sentences of LibriSpeech.

    `SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt` has a line for each recording in the same folder,
    flac or wav.

    >>> from pathlib import Path
    >>> from caldera import audio
    >>> Path("dev-clean/84/121").mkdir(parents=True, exist_ok=True)
    >>> audio.write("dev-clean/84/121/84-121-0000.wav", [0.1, 0.2], rate=16000)
    >>> _ = Path("dev-clean/84/121/84-121.trans.txt").write_text("84-121-0000 GO ON")
    >>> [each.text for each in audio.librispeech("dev-clean")]
    ['GO ON']
    """
    root = Path(fspath(folder))
    found = sorted(root.glob("*/*/*.trans.txt")) if isdir(root) else []
    require(
        found,
        f"audio.librispeech {root}",
        "SPEAKER/CHAPTER/*.trans.txt",
        hint="pass the folder of a single part, such as LibriSpeech/dev-clean",
        error=DataError,
    )
    for listing in found:
        for line in listing.read_text().splitlines():
            key, _, text = line.partition(" ")
            sounds = [listing.parent / f"{key}{suffix}" for suffix in (".flac", ".wav")]
            sound = next((each for each in sounds if each.is_file()), None)
            if sound is None:
                raise DataError.build(
                    f"audio.librispeech {listing}", expected=f"{sounds[0].name}", got="no such file"
                )
            yield Utterance(sound, text, listing.parent.parent.name)
