"""The real data sets, where this machine has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Read once, before the tests take the variable away.
FOLDER = Path(os.environ.get("CALDERA_DATA") or ROOT.parent / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where a file or folder of the real data is not there."""
    return pytest.mark.skipif(
        not (FOLDER / name).exists(),
        reason=f"no {name} in {FOLDER}; set CALDERA_DATA to the folder that has it",
    )
