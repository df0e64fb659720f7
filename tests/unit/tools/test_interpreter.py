"""Which Python `make` builds its virtual environment with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import interpreter


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A program that answers like a Python of this version."""
    return _program(tmp_path / "python3", f"echo {sys.version_info.major} {sys.version_info.minor}")


def _program(file: Path, does: str) -> Path:
    file.write_text(f"#!/bin/sh\n{does}\n")
    file.chmod(0o755)
    return file


def _built(monkeypatch: pytest.MonkeyPatch, with_profiles: bool) -> None:
    monkeypatch.setattr(interpreter, "is_optimised", lambda: with_profiles)


def test_one_without_profiles_gives_way_to_the_systems(
    monkeypatch: pytest.MonkeyPatch, system: Path
) -> None:
    _built(monkeypatch, with_profiles=False)
    assert interpreter.chosen(str(system)) == str(system)


def test_one_with_profiles_stays(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    _built(monkeypatch, with_profiles=True)
    assert interpreter.chosen(str(system)) == sys.executable


@pytest.mark.parametrize(
    "does", ["echo 3 7", "exit 1", None], ids=["another version", "no ensurepip", "not there"]
)
def test_it_stays_where_the_systems_will_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str | None
) -> None:
    _built(monkeypatch, with_profiles=False)
    other = tmp_path / "python3" if does is None else _program(tmp_path / "python3", does)
    assert interpreter.chosen(str(other)) == sys.executable


def test_make_is_told_one_that_makes_environments() -> None:
    told = subprocess.run(
        [sys.executable, interpreter.__file__], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run([told, "-c", "import ensurepip, venv"], check=True)
