"""Spoken digits without a download of a corpus: `python benchmarks/speech/speech_data.py FOLDER`.

Debian has a synthesiser with many voices (espeak-ng) and human recordings with their texts (the
asterisk-core-sounds packages). They are fetched with `apt-get download` and unpacked into FOLDER;
nothing is installed. What comes out:

- FOLDER/voices: ten words by synthetic speakers, in the layout of Speech Commands; a speaker is an
  accent with a variant of the voice, and those of the test and validation lists are never trained
  on;
- FOLDER/human: the same words by a human speaker, who is in no list either;
- FOLDER/letters: names of letters that are alike in many languages, as LETTER/SPEAKER_nohash_N: in
  `human` by fifteen human speakers, each of another language or from another package (klettres and
  the asterisk-core-sounds of Spanish, French and Italian), in `voices` by the synthesiser.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

SOUNDS = (
    "asterisk-core-sounds-en",
    "asterisk-core-sounds-en-wav",
    "asterisk-core-sounds-es-wav",
    "asterisk-core-sounds-fr-wav",
    "asterisk-core-sounds-it-wav",
    "klettres-data",
)
SYNTHESISER = (
    "espeak-ng",
    "espeak-ng-data",
    "libespeak-ng1",
    "libpcaudio0",
    "libsonic0",
    "libpulse0",
    "libsndfile1",
    "libasyncns0",
    "libflac12",
    "libmp3lame0",
    "libmpg123-0",
    "libogg0",
    "libopus0",
    "libvorbis0a",
    "libvorbisenc2",
)
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4", "f5")
SPEEDS = (130, 165, 200)
TEST, VALIDATION = ("m3", "m6", "f2", "f5"), ("m7", "f4")
"""Variants that are tested and chosen by, in every accent."""
LETTERS = ("A", "E", "I", "O", "F", "K", "L", "M", "S", "T")
LANGUAGES = ("cs", "da", "de", "es", "fr", "hu", "it", "lt", "nb", "nds", "nl", "pt_BR")
"""Those of klettres whose names for these letters are alike; English has others."""
SPEAKERS = ("es_MX_f_Allison", "fr_CA_f_June", "it_IT_m_Carlo")
LETTER_VOICES = ("cs", "da", "de", "es", "fr", "hu", "it", "lt", "nb", "nl", "pt-br")
LETTER_VARIANTS = ("m1", "m3", "m5", "f1", "f2", "f4")


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


def synthesiser(root: Path) -> tuple[list[str], dict[str, str]]:
    """The program with what it needs, and its environment."""
    library = next(root.rglob("libespeak-ng.so.1")).parent
    paths = [library, *{path.parent for path in root.rglob("libpulsecommon*.so")}]
    data = next(root.rglob("phontab")).parents[1]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, paths))}
    return [str(root / "usr/bin/espeak-ng"), f"--path={data}"], environment


def speak(root: Path, folder: Path) -> int:
    """Have every voice say every word; how many recordings there are."""
    program, environment = synthesiser(root)
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
    sounds = root / "usr/share/asterisk/sounds/en_US_f_Allison"
    count = 0
    for name, text in lines:
        word = text.strip().strip('."').lower()
        source = sounds / f"{name.strip()}.wav"
        if word in WORDS and source.is_file():
            (folder / word).mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / word / f"{sounds.name}_nohash_{count}.wav")
            count += 1
    return count


def letters(root: Path, folder: Path) -> tuple[int, int]:
    """Names of letters, by humans and by voices."""
    program, environment = synthesiser(root)
    klettres = root / "usr/share/klettres"
    found: list[tuple[str, str, Path]] = []
    for language in LANGUAGES:
        text = (klettres / language / "sounds.xml").read_text(encoding="utf-8")
        alphabet = text[text.index("<alphabet") : text.index("</alphabet")]
        named = dict(re.findall(r'<sound\s+name="([^"]*)"\s+file="([^"]*)"', alphabet))
        found += [(each, f"klettres.{language}", klettres / named[each]) for each in LETTERS]
    for speaker in SPEAKERS:
        sounds = root / "usr/share/asterisk/sounds" / speaker / "letters"
        found += [(each, speaker, sounds / f"{each.lower()}.wav") for each in LETTERS]
    for letter in LETTERS:
        for part in ("human", "voices"):
            (folder / part / letter).mkdir(parents=True, exist_ok=True)
        for voice, variant in product(LETTER_VOICES, LETTER_VARIANTS):
            name = folder / "voices" / letter / f"{voice}.{variant}_nohash_0.wav"
            given = ["-v", f"{voice}+{variant}", "-s", "140", "-w", name, letter]
            subprocess.run([*program, *given], env=environment, check=True)
    for letter, speaker, path in found:
        shutil.copy(path, folder / "human" / letter / f"{speaker}_nohash_0{path.suffix}")
    return len(found), len(LETTERS) * len(LETTER_VOICES) * len(LETTER_VARIANTS)


def main() -> None:
    """Make the data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    root = unpack(folder)
    print("synthetic", speak(root, folder / "voices"))
    print("human", humans(root, folder / "human"))
    print("letters, human and synthetic", *letters(root, folder / "letters"))


if __name__ == "__main__":
    main()
