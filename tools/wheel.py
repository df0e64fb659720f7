"""Build the wheel, and look into it: everything the package needs, and nothing else.

    python -m tools.wheel [FOLDER]

Built from a copy of what belongs to the package, so that nothing is left beside the sources.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
_COPIED = ("pyproject.toml", "README.md", "LICENSE")
_LEFT_OUT = ("__pycache__", "*.pyc")


def package_files() -> set[str]:
    """The files of the package, by their paths in the repository."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "caldera").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def files_to_pack() -> set[str]:
    """What pyproject.toml has go into a wheel: Python files of packages, and what it names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["caldera"]
    named = {
        path.relative_to(ROOT).as_posix()
        for each in patterns
        for path in (ROOT / "caldera").glob(each)
    }
    python = {
        each
        for each in package_files()
        if each.endswith(".py") and (ROOT / each).with_name("__init__.py").is_file()
    }
    return python | named


def build(folder: Path) -> Path:
    """The wheel, in a folder."""
    with tempfile.TemporaryDirectory() as copy:
        for name in _COPIED:
            shutil.copy(ROOT / name, copy)
        shutil.copytree(
            ROOT / "caldera", Path(copy) / "caldera", ignore=shutil.ignore_patterns(*_LEFT_OUT)
        )
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
        subprocess.run([*words, copy], check=True)
    (found,) = folder.glob("caldera-*.whl")
    return found


def problems(wheel: Path) -> list[str]:
    """What is missing in a wheel, and what should not be in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    there = {name for name in names if PurePosixPath(name).parts[0] == "caldera"}
    about = {PurePosixPath(name).name for name in names - there}
    found = [f"{name} is missing" for name in sorted(package_files() - there)]
    found += [f"{name} is too much" for name in sorted(there - package_files())]
    found += [f"{name} is too much" for name in sorted(names - there) if ".dist-info/" not in name]
    found += [f"no {name}" for name in ("LICENSE", "entry_points.txt") if name not in about]
    needed = [line for line in text.splitlines() if line.startswith("Requires-Dist:")]
    heavy = ("scikit-learn", "scipy", "torch", "optuna")
    found += [
        f"{line} for everybody"
        for line in needed
        if "extra ==" not in line and any(name in line for name in heavy)
    ]
    return found


def main() -> int:
    """Build and check; the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder)
        wheel = build(target)
        found = problems(wheel)
        print(f"{wheel.name}  {wheel.stat().st_size / 2**20:.1f} MiB")
        print("\n".join(found) if found else "all that it needs, and nothing else")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
