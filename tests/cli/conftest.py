"""Command lines run in this process; and a small model that several tests look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from caldera.cli import main


class Done(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


Caldera = Callable[..., Done]


@pytest.fixture
def caldera(capsys: pytest.CaptureFixture[str]) -> Caldera:
    """Runs a command line."""

    def run(*words: object) -> Done:
        status = main([str(word) for word in words])
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a short training run wrote."""
    folder = tmp_path_factory.mktemp("trained")
    words = "train --data digits --hidden 32 --dropout 0 --epochs 2 --batch-size 32 --quiet --out"
    assert main([*words.split(), str(folder)]) == 0
    return folder
