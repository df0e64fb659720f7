"""The files of tests that are nearest to what was changed since the branch left main.

    python -m tools.nearest_tests | xargs python -m pytest

In the end nearly every test imports nearly every file, so how far away a test is decides: a file of
tests that imports a changed file is nearer than one that gets it through a room's `__init__`. Files
that are not Python belong to the Python files that name them.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
BRANCHES = ("origin/main", "main")
MOST = 60
"""Files of tests to name: reading more of them takes longer than running what is near."""


# --- what was changed


def changed_files(root: Path = ROOT) -> list[str]:
    """The files that differ from where the branch began, those that git does not know too."""
    tracked = _git(root, "diff", "--name-only", _base(root))
    return sorted({*tracked, *_git(root, "ls-files", "--others", "--exclude-standard")})


def _base(root: Path) -> str:
    for branch in BRANCHES:
        found = _git(root, "merge-base", "HEAD", branch)
        if found:
            return found[0]
    return "HEAD"


def _git(root: Path, *words: str) -> list[str]:
    """The lines that git prints, none if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


# --- who imports whom


def imports_of(root: Path = ROOT) -> dict[str, set[str]]:
    """The files of this repository that each Python file reads when it is imported or tested."""
    python = sorted(_git(root, "ls-files", "-co", "--exclude-standard", "*.py"))
    python = [name for name in python if (root / name).exists()]
    known = set(python)
    return {
        name: {*_imported(name, (root / name).read_text(), known), *_conftests(name, known)}
        for name in python
    }


def _imported(name: str, text: str, known: set[str]) -> Iterator[str]:
    package = PurePosixPath(name).parent.parts
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _file(alias.name, known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # A name of a package may be a file in it.
                yield from _file(f"{module}.{alias.name}", known) or _file(module, known)


def _file(module: str, known: set[str]) -> list[str]:
    path = module.replace(".", "/")
    return [name for name in (f"{path}.py", f"{path}/__init__.py") if name in known]


def _conftests(name: str, known: set[str]) -> Iterator[str]:
    if is_test(name):
        folders = [folder / "conftest.py" for folder in PurePosixPath(name).parents]
        yield from (folder.as_posix() for folder in folders if folder.as_posix() in known)


def is_test(name: str) -> bool:
    """Whether pytest looks for tests in a file of this name."""
    return name.startswith("tests/") and PurePosixPath(name).match("test_*.py")


def named_in(name: str, imports: Iterable[str], root: Path = ROOT) -> list[str]:
    """The Python files that name a file which is not Python, or else its folder."""
    path = PurePosixPath(name)
    for word in (path.name, f'"{path.parts[0]}"'):
        found = [each for each in imports if word in (root / each).read_text()]
        if found:
            return found
    return []


# --- how far away tests are


def nearest_tests(
    changed: Iterable[str], imports: Mapping[str, set[str]], root: Path = ROOT
) -> list[str]:
    """Files of tests, the nearest first; of two that are as near, the one in the same room."""
    changed = list(changed)
    importers = defaultdict(set)
    for name, read in imports.items():
        for each in read:
            importers[each].add(name)
    distance: dict[str, int] = {}
    reached = {name for name in changed if name in imports}
    for name in (name for name in changed if not name.endswith(".py")):
        reached.update(named_in(name, imports, root))
    steps = 0
    while reached:
        distance.update(dict.fromkeys(reached, steps))
        reached = {far for near in reached for far in importers[near]} - distance.keys()
        steps += 1
    rooms = {part for name in changed for part in PurePosixPath(name).with_suffix("").parts}

    def order(name: str) -> tuple[int, int, str]:
        parts = PurePosixPath(name).with_suffix("").parts
        shared = sum(part.removeprefix("test_") in rooms for part in parts)
        return distance[name], -shared, name

    return sorted(filter(is_test, distance), key=order)


def main() -> None:
    """Print the nearest files of tests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=MOST, help="how many files at the most")
    most = parser.parse_args().most
    print("\n".join(nearest_tests(changed_files(), imports_of())[:most]))


if __name__ == "__main__":
    main()
