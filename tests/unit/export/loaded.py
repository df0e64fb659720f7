"""Exported libraries loaded into this process, and the plans they are compared with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.export.functions import as_exported, predict_plan

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is not installed."""
    missing = [each for each in programs if shutil.which(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def run(*command: object, folder: Path | None = None) -> str:
    """Run a program, and return what it prints; its errors are the test's."""
    done = subprocess.run(
        [str(each) for each in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


class Loaded:
    """A handle of an exported library."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._library = ctypes.CDLL(str(folder / f"lib{name}.so"))
        for each in ("message", "target"):
            getattr(self._library, f"{name}_{each}").restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        assert getattr(self._library, f"{name}_create")(ctypes.byref(self.handle)) == 0

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *given: object) -> None:
        getattr(self._library, f"{self._name}_destroy")(self.handle)

    def call(self, function: str, *given: Any) -> int:
        """Call a function with numbers and arrays; return the error code."""
        words = [
            each.ctypes.data_as(ctypes.c_void_p)
            if isinstance(each, np.ndarray)
            else ctypes.c_int64(each)
            if isinstance(each, int)
            else each
            for each in given
        ]
        return int(getattr(self._library, f"{self._name}_{function}")(self.handle, *words))

    def function(self, name: str, result: Any) -> Any:
        """Return a function of the library that takes no handle."""
        found = getattr(self._library, f"{self._name}_{name}")
        found.restype = result
        return found

    def text(self, function: str) -> str:
        """Return the text of `message` or `target`."""
        return str(getattr(self._library, f"{self._name}_{function}")(self.handle).decode())

    def predict(self, *inputs: np.ndarray, outputs: Sequence[int]) -> np.ndarray:
        """Predict for rows whose outputs have this shape."""
        y = np.full((len(inputs[0]), *outputs), np.nan, np.float32)
        code = self.call("predict", len(inputs[0]), *inputs, y)
        assert code == 0, self.text("message")
        return y


def planned(model: cd.Model, *inputs: np.ndarray, threads: int = 1) -> np.ndarray:
    """What the plan gives that was exported for as many rows."""
    with as_exported(threads):
        plan = predict_plan(model, len(inputs[0])).plan
        return plan.run({f"x{i}": each for i, each in enumerate(inputs)})[0].numpy().copy()
