"""Layers of packages: a lower layer never imports a higher one."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import caldera

ROOT = Path(caldera.__file__).parent

LAYERS = {
    1: ("errors",),
    2: ("base",),
    3: ("core",),
    4: ("comm", "io", "draw"),
    5: ("kernels",),
    6: ("compiler", "compress"),
    7: ("op", "testing"),
    8: ("nn", "optim", "data"),
    9: ("train", "dmath", "code"),
    10: ("parallel", "audio", "onnx", "serve", "export"),
    11: ("search", "bench"),
    12: ("sklearn", "cli"),
}
LAYER_OF = {package: layer for layer, packages in LAYERS.items() for package in packages}
INNER = {
    "core": (("memory",), ("tensor",), ("graph",)),
    "compiler": (("passes",), ("plan", "sharding"), ("lazy",)),
}
"""Levels inside the two packages that hold several, from the lowest to the highest."""


class Import(NamedTuple):
    """A name that a file imports: at load time or later, for its types alone or not.

    A string that names a module (`_LATER["plan"]`, `provide(...)`) is an import as well.
    """

    name: str
    at_load: bool
    for_types: bool
    is_text: bool = False


@cache
def _imports(path: Path) -> list[Import]:
    found: list[Import] = []
    text = path.read_text()
    _read(ast.parse(text).body, True, False, found)
    strings = re.findall(r"""["'](caldera(?:\.\w+)+)["']""", text)
    found += [Import(name, False, False, is_text=True) for name in strings if _is_module(name)]
    return found


def _is_module(name: str) -> bool:
    path = ROOT.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def _read(statements: list[ast.stmt], at_load: bool, for_types: bool, found: list[Import]) -> None:
    """Add what these statements import; only statements are looked at, which are few."""
    for node in statements:
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names if node.module]
            found += [Import(name, at_load, for_types) for name in names]
        elif isinstance(node, ast.Import):
            found += [Import(alias.name, at_load, for_types) for alias in node.names]
        else:
            loaded = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            test = getattr(node, "test", None)
            types = for_types or (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")
            for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                for name in ("body", "orelse", "finalbody"):
                    _read(getattr(part, name, []), loaded, types, found)


def _own(path: Path) -> list[Import]:
    """What a file imports of Caldera and not only for its types."""
    return [
        each for each in _imports(path) if each.name.startswith("caldera.") and not each.for_types
    ]


def _files() -> list[Path]:
    """All modules but the front door and `python -m caldera`, which stand above all packages."""
    return [path for path in ROOT.rglob("*.py") if path.parent != ROOT or "__" not in path.stem]


def test_every_package_has_a_layer() -> None:
    packages = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in _files()}
    assert packages == LAYER_OF.keys()


def test_training_and_strategies_meet_in_their_protocols_alone() -> None:
    """Training never names a strategy, and strategies name only `train.strategy`."""
    for path in (ROOT / "train").rglob("*.py"):
        for each in _imports(path):
            assert not each.name.startswith("caldera.parallel"), path
    planner = ROOT / "parallel" / "planner"
    for path in (ROOT / "parallel").rglob("*.py"):
        for each in _imports(path):
            is_training = each.name.startswith("caldera.train.")
            if is_training and planner not in path.parents:
                assert each.name.startswith("caldera.train.strategy."), path


def test_no_layer_imports_a_higher_one() -> None:
    wrong = []
    for path in _files():
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for each in _own(path):
            other = each.name.split(".")[1]
            if LAYER_OF[other] > LAYER_OF[package]:
                wrong.append(f"{path.relative_to(ROOT)} imports {each.name}")
    assert not wrong


@pytest.mark.parametrize("package", INNER)
def test_no_inner_level_imports_a_higher_one(package: str) -> None:
    level = {name: number for number, names in enumerate(INNER[package]) for name in names}
    assert {path.name for path in (ROOT / package).iterdir() if path.is_dir()} - level.keys() <= {
        "__pycache__"
    }
    for path in (ROOT / package).rglob("*/*.py"):
        own = level[path.relative_to(ROOT / package).parts[0]]
        for each in _own(path):
            _, other, *inside = each.name.split(".")
            if other == package and inside[0] in level:
                assert level[inside[0]] <= own, f"{path.relative_to(ROOT)} imports {each.name}"


def test_no_import_of_our_own_hides_in_a_function() -> None:
    hidden = [
        f"{path.relative_to(ROOT)} imports {each.name}"
        for path in _files()
        for each in _own(path)
        if not each.at_load and not each.is_text
    ]
    assert not hidden


def test_no_packages_import_each_other_in_a_circle() -> None:
    """Packages of one layer may import each other, but in one direction."""
    lower: dict[str, set[str]] = {package: set() for package in LAYER_OF}
    for path in _files():
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        lower[package] |= {each.name.split(".")[1] for each in _own(path)} - {package}
    try:
        TopologicalSorter(lower).prepare()
    except CycleError as error:
        pytest.fail(f"packages import each other in a circle: {' -> '.join(error.args[1])}")


def test_only_some_packages_know_the_optional_libraries() -> None:
    allowed = {
        "cupy": ("core/memory/", "kernels/cuda/", "comm/nccl.py"),
        "mpi4py": ("comm/mpi.py", "comm/abort.py"),
        "torch": ("bench/",),
        "jax": ("bench/",),
        "onnx": ("onnx/",),
        "onnxruntime": ("onnx/",),
    }
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        for each in _imports(path):
            library = each.name.split(".")[0]
            assert library not in allowed or name.startswith(allowed[library]), (
                f"{name} imports {library}"
            )
