"""What a user meets first: importing is quick, and every public name explains itself."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
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
    "uvicorn",
)
PUBLIC_ROOMS = (
    "caldera",
    "caldera.comm",
    "caldera.compress",
    "caldera.data",
    "caldera.dmath",
    "caldera.io",
    "caldera.nn",
    "caldera.nn.models",
    "caldera.onnx",
    "caldera.op",
    "caldera.optim",
    "caldera.parallel",
    "caldera.search",
    "caldera.serve",
    "caldera.sklearn",
    "caldera.testing",
)


def _modules() -> list[str]:
    found = pkgutil.walk_packages(caldera.__path__, "caldera.")
    return sorted(module.name for module in found if not module.name.endswith("__main__"))


MODULES = _modules()


def _has_examples(name: str) -> bool:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ">>>" in Path(spec.origin).read_text()


def test_importing_brings_in_nothing_heavy() -> None:
    code = f"import sys, caldera; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert loaded.strip() == "[]"


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("name", [name for name in MODULES if _has_examples(name)])
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(
        module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, raise_on_error=False
    )
    assert failures == 0


@pytest.mark.parametrize("room", PUBLIC_ROOMS)
def test_public_names_have_a_docstring_with_an_example(room: str) -> None:
    module = importlib.import_module(room)
    public = {name: getattr(module, name) for name in module.__all__}
    without = [
        name
        for name, value in public.items()
        if callable(value) and ">>>" not in (inspect.getdoc(value) or "")
    ]
    assert not without, f"these of {room} have no example: {', '.join(without)}"


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
