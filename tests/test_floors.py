"""The floors of the house: a lower one never imports a higher one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import caldera

ROOT = Path(caldera.__file__).parent

FLOORS = {
    1: (
        "amounts",
        "arguments",
        "errors",
        "config",
        "configurable",
        "file_cache",
        "file_limit",
        "file_names",
        "file_trust",
        "launchers",
        "machine",
        "notebook",
        "optional",
        "plain_data",
        "registry",
        "threads",
    ),
    2: ("memory",),
    3: ("tensor", "comm", "graph", "io"),
    4: ("passes", "kernels", "draw"),
    5: ("plan", "compress", "sharding"),
    6: ("lazy", "op"),
    7: ("nn", "optim", "data", "strategy", "testing"),
    8: ("train", "parallel", "dmath"),
    9: ("audio", "code", "planner", "bench", "onnx", "search", "serve", "sklearn", "report"),
    10: ("cli",),
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}


class Import(NamedTuple):
    """What a file imports, whether it does so when it is loaded, and whether only for its types."""

    name: str
    at_load: bool
    for_types: bool


@cache
def _imports(path: Path) -> list[Import]:
    found: list[Import] = []
    _read(ast.parse(path.read_text()).body, True, False, found)
    return found


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
    return [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__"]


def test_every_room_has_a_floor() -> None:
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in _files()}
    assert rooms == FLOOR_OF.keys()


def test_training_and_strategies_meet_in_their_protocols_alone() -> None:
    """Neither names the other, not even for its types: `strategy.py` is below both."""
    for room, other in (("train", "parallel"), ("parallel", "train")):
        for path in (ROOT / room).rglob("*.py"):
            for each in _imports(path):
                assert not each.name.startswith(f"caldera.{other}."), path


def test_no_floor_imports_a_higher_one() -> None:
    wrong = []
    for path in _files():
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for each in _own(path):
            other = each.name.split(".")[1]
            if FLOOR_OF[other] > FLOOR_OF[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {each.name}")
    assert not wrong


def test_no_import_of_our_own_hides_in_a_function() -> None:
    hidden = [
        f"{path.relative_to(ROOT)} imports {each.name}"
        for path in _files()
        for each in _own(path)
        if not each.at_load
    ]
    assert not hidden


def test_only_some_rooms_know_the_optional_libraries() -> None:
    allowed = {
        "cupy": ("memory/", "kernels/cuda/", "comm/nccl.py"),
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
