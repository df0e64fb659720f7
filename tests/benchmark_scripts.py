"""Scripts of `benchmarks/` as modules, for tests of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def imported_script(name: str) -> Iterator[ModuleType]:
    """The script, which finds its neighbours as scripts do; none of them stays imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield import_module(name)
    for each in [path.stem for path in FOLDER.glob("*.py")]:
        sys.modules.pop(each, None)
