"""Which tests are near to a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.nearest_tests import changed_files, imports_of, named_in, nearest_tests

FILES = {
    "pack/__init__.py": "from pack.shapes import Square\n",
    "pack/shapes.py": "from . import numbers\n\n\nclass Square:\n    side = numbers.ONE\n",
    "pack/numbers.py": "ONE = 1\nHEADER = 'square.cuh'\n",
    "pack/square.cuh": "#pragma once\n",
    "docs/index.md": "# A square\n",
    "tests/conftest.py": "",
    "tests/helpers.py": "import pack.numbers\n",
    "tests/test_numbers.py": "from pack.numbers import ONE\n",
    "tests/test_shapes.py": "from pack.shapes import Square\n",
    "tests/test_front.py": "import pack\n",
    "tests/test_pages.py": "PAGES = 'docs'; FOLDER = \"docs\"\n",
    "tests/unit/test_helped.py": "from ..helpers import pack\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "-am", "a")


def nearest(repository: Path, *changed: str) -> list[str]:
    return nearest_tests(changed, imports_of(repository), repository)


def test_who_imports_a_file_is_nearer_than_who_gets_it_through_others(repository: Path) -> None:
    assert nearest(repository, "pack/numbers.py") == [
        "tests/test_numbers.py",
        "tests/test_shapes.py",
        "tests/unit/test_helped.py",
        "tests/test_front.py",
    ]
    assert nearest(repository, "pack/__init__.py") == ["tests/test_front.py"]


def test_a_test_is_nearest_to_itself_and_a_conftest_to_all_below_it(repository: Path) -> None:
    assert nearest(repository, "tests/test_front.py") == ["tests/test_front.py"]
    every = {name for name in FILES if Path(name).name.startswith("test_")}
    assert set(nearest(repository, "tests/conftest.py")) == every


def test_other_files_belong_to_those_that_name_them_or_their_folder(repository: Path) -> None:
    imports = imports_of(repository)
    assert named_in("pack/square.cuh", imports, repository) == ["pack/numbers.py"]
    assert "tests/test_numbers.py" in nearest(repository, "pack/square.cuh")
    assert nearest(repository, "docs/index.md") == ["tests/test_pages.py"]
    assert nearest(repository, "elsewhere/unknown.txt") == []


def test_what_was_changed_since_the_branch_began(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "-b", "work")
    assert changed_files(repository) == []
    (repository / "pack/shapes.py").write_text("side = 2\n")
    commit(repository)
    (repository / "pack/numbers.py").unlink()
    (repository / "tests/test_new.py").write_text("import pack\n")
    found = changed_files(repository)
    assert found == ["pack/numbers.py", "pack/shapes.py", "tests/test_new.py"]
    assert nearest(repository, *found)[0] == "tests/test_new.py"
