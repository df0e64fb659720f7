"""What a wheel would hold, without building one (`make wheel` does)."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

from tools.wheel import ROOT, files_to_pack, package_files, problems


def test_every_file_of_the_package_goes_into_a_wheel() -> None:
    assert package_files() - files_to_pack() == set()
    assert {"caldera/py.typed", "caldera/serve/page.js"} <= files_to_pack()
    assert {
        "caldera/data/datasets/files/digits.npz",
        "caldera/data/datasets/files/digits.licence.txt",
    } <= files_to_pack()


def test_an_editable_install_is_a_path() -> None:
    """Only with this does setuptools write one; type checkers and editors follow nothing else."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-dir"] == {"": "."}


def test_what_is_wrong_with_a_wheel_is_found(tmp_path: Path) -> None:
    path = tmp_path / "caldera-1.whl"
    about = "caldera-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in package_files() - {"caldera/py.typed"}:
            wheel.writestr(name, "")
        wheel.writestr("tests/test_it.py", "")
        wheel.writestr(f"{about}/entry_points.txt", "")
        wheel.writestr(f"{about}/METADATA", "Requires-Dist: numpy\nRequires-Dist: scipy>=1\n")
    assert problems(path) == [
        "caldera/py.typed is missing",
        "tests/test_it.py is too much",
        "no LICENSE",
        "Requires-Dist: scipy>=1 for everybody",
    ]
