"""The public names of Caldera, read from the package: what the modules of users' packages list."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import caldera

WINGS = {"base", "compiler", "core", "draw", "kernels"}
"""Packages that users need not know, but for what `ALSO` names."""
ALSO = ("core.memory", "core.tensor")
INTERNAL = {
    "bench.frameworks",
    "bench.honesty",
    "bench.translate",
    "bench.workloads",
    "cli",
    "comm.algorithms",
    "comm.places",
    "compress.compressor",
    "onnx.reading",
    "onnx.writing",
    "search.workers",
    "train.saving.checkpointer",
}
"""Modules whose names other packages of Caldera import, but no page of the reference shows."""


def modules() -> Iterator[str]:
    """The public modules that say what is in them: read from the package."""
    yield from ("", *ALSO)
    for found in iter_modules(caldera.__path__):
        is_there = found.name != "sklearn" or find_spec("sklearn") is not None
        if found.name not in WINGS and found.ispkg and is_there:
            yield from _within(found.name)


def _within(name: str) -> Iterator[str]:
    module = import_module(f"caldera.{name}")
    if hasattr(module, "__all__") and name not in INTERNAL:
        yield name
    for found in iter_modules(getattr(module, "__path__", [])):
        path = Path(str(module.__file__)).parent / found.name
        says = found.ispkg or "\n__all__" in path.with_suffix(".py").read_text()
        if says and f"{name}.{found.name}" not in INTERNAL:
            yield from _within(f"{name}.{found.name}")


@cache
def public_names() -> dict[str, object]:
    """All public names, and what they name."""
    return {
        f"{name}.{each}".lstrip("."): getattr(module, each)
        for name in modules()
        for module in (import_module(f"caldera.{name}".rstrip(".")),)
        for each in module.__all__
    }
