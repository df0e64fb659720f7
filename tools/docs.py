"""`python -m tools.docs FOLDER [--version NAME]`: the documentation as a site, by Zensical.

`zensical.toml` says what it consists of; while it is written, `PYTHONPATH=. zensical serve` shows
it. With a version the site goes to a folder of that name inside FOLDER, beside those of other
versions, and its pages have a menu of them all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "zensical.toml"
_MENU = '\n[project.extra.version]\nprovider = "mike"\ndefault = "latest"\n'
_REDIRECT = '<!doctype html>\n<meta http-equiv="refresh" content="0; url=latest/index.html">\n'


def build(folder: Path, *, has_versions: bool = False) -> None:
    """Write the site; whatever the generator warns about is an error."""
    with tempfile.TemporaryDirectory() as scratch:
        # Elsewhere than in the repository, so that builds do not meet.
        shutil.copytree(ROOT / "docs", Path(scratch, "docs"))
        config = Path(scratch, "zensical.toml")
        config.write_text(_settled() + (_MENU if has_versions else ""))
        path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        words = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(config)]
        subprocess.run(words, check=True, env=environment, cwd=scratch)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(Path(scratch, "out/docs"), folder)


def _settled() -> str:
    """The settings, where what is read from the repository has its full path."""
    text = CONFIG.read_text()
    for path in (".", "tools/griffe_extension.py"):
        assert text.count(f'= ["{path}"]') == 1, path
        text = text.replace(f'= ["{path}"]', f'= ["{ROOT / path}"]')
    return text


def build_version(folder: Path, version: str) -> None:
    """Write the site of a version, which becomes the latest one, beside those that are there."""
    build(folder / version, has_versions=True)
    listing = folder / "versions.json"
    known = json.loads(listing.read_text()) if listing.exists() else []
    others = [each["version"] for each in known if each["version"] != version]
    names = sorted([version, *others], key=_numbers, reverse=True)
    latest = names[0]
    listing.write_text(
        json.dumps(
            [
                {"version": name, "title": name, "aliases": ["latest"] if name == latest else []}
                for name in names
            ]
        )
    )
    link = folder / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to(latest, target_is_directory=True)
    (folder / "index.html").write_text(_REDIRECT)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main() -> None:
    """What the command does."""
    parser = argparse.ArgumentParser(description="Build the documentation.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", help="such as 0.1.0")
    given = parser.parse_args()
    if given.version:
        build_version(given.folder, given.version)
    else:
        build(given.folder)
    print(f"open {given.folder.resolve() / 'index.html'}")


if __name__ == "__main__":
    main()
