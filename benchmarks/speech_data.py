"""Spoken digits without a download of a corpus: `python benchmarks/speech_data.py FOLDER`.

Debian has a synthesiser with many voices (espeak-ng) and human recordings with their texts (the
asterisk-core-sounds packages). They are fetched with `apt-get download` and unpacked into FOLDER;
nothing is installed. What comes out:

- FOLDER/voices: ten words by synthetic speakers, in the layout of Speech Commands; a speaker is an
  accent with a variant of the voice, and those of the test and validation lists are never trained
  on;
- FOLDER/human: the same words by a human speaker, who is in no list either.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

SOUNDS = ("asterisk-core-sounds-en", "asterisk-core-sounds-en-wav")
SYNTHESISER = (
    "espeak-ng", "espeak-ng-data", "libespeak-ng1", "libpcaudio0", "libsonic0", "libpulse0",
    "libsndfile1", "libasyncns0", "libflac12", "libmp3lame0", "libmpg123-0", "libogg0", "libopus0",
    "libvorbis0a", "libvorbisenc2",
)  # fmt: skip
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4", "f5")
SPEEDS = (130, 165, 200)
TEST, VALIDATION = ("m3", "m6", "f2", "f5"), ("m7", "f4")
"""Variants that are tested and chosen by, in every accent."""


def unpack(folder: Path) -> Path:
    """Fetch the packages and unpack them; gives the root of their files."""
    debs, root = folder / "packages", folder / "root"
    if root.is_dir():
        return root
    debs.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *SOUNDS, *SYNTHESISER], cwd=debs, check=True)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    return root


def speak(root: Path, folder: Path) -> int:
    """Have every voice say every word; how many recordings there are."""
    library = next(root.rglob("libespeak-ng.so.1")).parent
    paths = [library, *{path.parent for path in root.rglob("libpulsecommon*.so")}]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, paths))}
    data = next(root.rglob("phontab")).parents[1]
    program = [str(root / "usr/bin/espeak-ng"), f"--path={data}"]
    lists: dict[str, list[str]] = {"testing": [], "validation": []}
    count = 0
    for word in WORDS:
        (folder / word).mkdir(parents=True, exist_ok=True)
        for accent, variant in product(ACCENTS, VARIANTS):
            for number, speed in enumerate(SPEEDS):
                name = f"{accent}.{variant}_nohash_{number}.wav"
                given = ["-v", f"{accent}+{variant}", "-s", str(speed), "-w", folder / word / name]
                subprocess.run([*program, *given, word], env=environment, check=True)
                count += 1
                if variant in TEST or variant in VALIDATION:
                    part = "testing" if variant in TEST else "validation"
                    lists[part].append(f"{word}/{name}")
    for part, names in lists.items():
        (folder / f"{part}_list.txt").write_text("\n".join(names))
    return count


def humans(root: Path, folder: Path) -> int:
    """Recordings whose text is one of the words, beside each other by word."""
    listing = next(root.rglob("core-sounds-en.txt*"))
    opened = gzip.open if listing.suffix == ".gz" else open
    with opened(listing, "rt", encoding="utf-8", errors="replace") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    sounds = next((root / "usr/share/asterisk/sounds").iterdir())
    count = 0
    for name, text in lines:
        word = text.strip().strip('."').lower()
        source = sounds / f"{name.strip()}.wav"
        if word in WORDS and source.is_file():
            (folder / word).mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / word / f"{sounds.name}_nohash_{count}.wav")
            count += 1
    return count


def main() -> None:
    """Make the data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    root = unpack(folder)
    print("synthetic", speak(root, folder / "voices"))
    print("human", humans(root, folder / "human"))


if __name__ == "__main__":
    main()
