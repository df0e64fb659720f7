"""The floors of the house: a lower one never imports a higher one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

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
        "optional",
        "plain_data",
        "registry",
        "threads",
    ),
    2: ("memory",),
    3: ("tensor", "comm", "graph", "io"),
    4: ("passes", "kernels", "draw"),
    5: ("plan", "compress"),
    6: ("lazy", "op"),
    7: ("nn", "optim", "data", "strategy", "testing"),
    8: ("train", "parallel"),
    9: ("planner", "bench", "onnx", "sklearn", "report"),
    10: ("cli",),
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is imported when the file is loaded) for each import of Caldera."""
    tree = _tree(path)
    checked_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if id(node) in checked_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found += [(n, id(node) not in inside) for n in names if n.startswith("caldera.")]
    return found


def _files() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__"]


def test_every_room_has_a_floor() -> None:
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in _files()}
    assert rooms == FLOOR_OF.keys()


def test_training_and_strategies_meet_in_their_protocols_alone() -> None:
    """Neither names the other, not even for its types: `strategy.py` is below both."""
    for room, other in (("train", "parallel"), ("parallel", "train")):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(_tree(path)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    assert not node.module.startswith(f"caldera.{other}"), path


def test_no_floor_imports_a_higher_one() -> None:
    wrong = []
    for path in _files():
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for module, _ in _imports(path):
            other = module.split(".")[1]
            if FLOOR_OF[other] > FLOOR_OF[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_no_import_of_our_own_hides_in_a_function() -> None:
    hidden = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in _files()
        for module, at_load in _imports(path)
        if not at_load
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
        for node in ast.walk(_tree(path)):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for library, rooms in allowed.items():
                if any(module.split(".")[0] == library for module in modules):
                    assert name.startswith(rooms), f"{name} imports {library}"
