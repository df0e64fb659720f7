"""What a user meets first: importing is quick, and every public name explains itself."""

from __future__ import annotations

import doctest
import importlib
import inspect
import linecache
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import caldera
from caldera.compiler.sharding.algorithms import lapack

HEAVY = (
    "numpy.ma",
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
    "caldera.code",
    "caldera.audio",
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


def test_every_public_package_is_an_attribute_on_first_use() -> None:
    rooms = [name.removeprefix("caldera.") for name in PUBLIC_ROOMS if name.count(".") == 1]
    code = f"import caldera as cd; print(all(hasattr(cd, name) for name in {rooms}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
    assert set(rooms) <= set(caldera.__all__)


def test_python_m_caldera_is_the_command_line() -> None:
    words = [sys.executable, "-m", "caldera", "--version"]
    assert caldera.__version__ in subprocess.check_output(words, text=True)


def test_importing_it_and_making_a_tensor_bring_in_nothing_heavy() -> None:
    code = (
        "import sys, caldera; caldera.tensor([1.0])\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert loaded.strip() == "[]"


def test_it_works_without_what_only_linux_has() -> None:
    """As far as Linux can play another system: macOS has none of these."""
    code = (
        "import builtins, ctypes, io, os, signal, sys, socket, threading, numpy, llvmlite.binding\n"
        "sys.platform = 'darwin'\n"
        "for name in ('sched_getaffinity', 'sched_setaffinity', 'memfd_create', 'eventfd',\n"
        "             'posix_fadvise', 'pidfd_open'):\n"
        "    if hasattr(os, name): delattr(os, name)\n"
        "def opened(path, *words, real=io.open, **options):\n"
        "    if str(path).startswith(('/proc', '/sys', '/dev/shm')):\n"
        "        raise FileNotFoundError(path)\n"
        "    return real(path, *words, **options)\n"
        "builtins.open = io.open = opened\n"
        "from caldera.cli import main\n"
        "main(['info'])\n"
        "import numpy as np, caldera as cd\n"
        "from caldera import nn, search\n"
        "model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss='mean_squared')\n"
        "print(model.predict(np.zeros((1, 2), 'float32')))\n"
        "study = search.run(lambda x: x * x, {'x': search.uniform(0, 1)}, trials=2, workers=2,\n"
        "                   method='random', verbose=0)\n"
        "print(len(study.trials))\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert said[-2:] == ["[[0.]]", "2"]


def test_without_scikit_learn_and_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what uses them needs them, and says so."""
    loaded = [name for name in sys.modules if name.split(".")[0] in ("sklearn", "scipy")]
    for name in {"sklearn", "scipy", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("caldera.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(caldera.ConfigError, match=r"pip install 'caldera\[sklearn\]'"):
        importlib.import_module("caldera.sklearn")
    for cached in (lapack._scipy, lapack._lapack, lapack.has_scipy, lapack._routine):
        cached.cache_clear()
    try:
        c = np.ones((2, 2))
        lapack.accumulate_product(c, c.copy(), c.copy(), -1.0)
        assert c.tolist() == [[-1, -1], [-1, -1]]
        with pytest.raises(caldera.ConfigError, match=r"pip install 'caldera\[dmath\]'"):
            lapack.solve_triangular(c, c, lower=True)
    finally:
        for cached in (lapack._scipy, lapack._lapack, lapack.has_scipy, lapack._routine):
            cached.cache_clear()


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("name", [name for name in MODULES if _has_examples(name)])
def test_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Examples may write files.
    monkeypatch.chdir(tmp_path)
    # The debugger that doctest prepares for each example would look at every source file again.
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)
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
