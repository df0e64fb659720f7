"""What a user meets first: importing is quick, and every public name explains itself."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import caldera

HEAVY = (
    "cupy",
    "mpi4py",
    "optuna",
    "matplotlib",
    "onnx",
    "torch",
    "jax",
    "sklearn",
    "scipy",
    "pandas",
    "PIL",
    "rich",
)
PUBLIC_ROOMS = (
    "caldera",
    "caldera.comm",
    "caldera.compress",
    "caldera.data",
    "caldera.io",
    "caldera.nn",
    "caldera.nn.models",
    "caldera.onnx",
    "caldera.op",
    "caldera.optim",
    "caldera.parallel",
    "caldera.sklearn",
    "caldera.testing",
)


def _modules() -> list[str]:
    found = pkgutil.walk_packages(caldera.__path__, "caldera.")
    return sorted(module.name for module in found if not module.name.endswith("__main__"))


def test_importing_brings_in_nothing_heavy() -> None:
    code = f"import sys, caldera; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(
        module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, raise_on_error=False
    )
    assert failures == 0


def _public() -> dict[str, object]:
    found: dict[str, object] = {}
    for room in PUBLIC_ROOMS:
        module = importlib.import_module(room)
        found |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    return {name: value for name, value in found.items() if callable(value)}


@pytest.mark.parametrize("name", sorted(_public()))
def test_public_names_have_a_docstring_with_an_example(name: str) -> None:
    text = inspect.getdoc(_public()[name]) or ""
    assert ">>>" in text, f"{name} has no example"


@pytest.mark.parametrize("room", PUBLIC_ROOMS)
def test_all_names_what_a_room_offers(room: str) -> None:
    module = importlib.import_module(room)
    offered = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith("caldera")
    }
    assert offered <= set(module.__all__)
