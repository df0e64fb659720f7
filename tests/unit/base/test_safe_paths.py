"""Files of the current folder are not run because they have the name of a library."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from caldera.base.children import PACKAGE_FOLDER, child_environment, python_module, run_program

PACKAGE = Path(PACKAGE_FOLDER) / "caldera"
_LATER = re.compile(r"^\s+(?:import|from) (\w+)", re.MULTILINE)
_BY_NAME = re.compile(r"\b(?:optional_import|import_module|find_spec)\(\s*\"(\w+)")


@cache
def lazy_modules() -> frozenset[str]:
    """What modules of Caldera import when it is first needed: within functions, or by name."""
    found = {"z3", "triton", "sitecustomize", "usercustomize"}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found.update(_LATER.findall(text), _BY_NAME.findall(text))
    return frozenset(found - {"caldera", "__future__"})


@pytest.fixture
def sprung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Names of traps that were run, a line each; the current folder is full of them."""
    folder, found = tmp_path / "traps", tmp_path / "sprung"
    folder.mkdir()
    found.touch()
    trap = f"open({str(found)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(__name__)\n"
    for name in lazy_modules() | set(packages_distributions()) | set(sys.stdlib_module_names):
        if name.isidentifier():
            (folder / f"{name}.py").write_text(trap)
    monkeypatch.chdir(folder)
    return found


def _without_flag() -> dict[str, str]:
    """The environment of a user who has never heard of safe paths."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE_FOLDER}
    environment.pop("PYTHONSAFEPATH", None)
    return environment


def test_the_names_of_lazy_imports_are_found() -> None:
    assert lazy_modules() >= {"mpi4py", "cupy", "optuna", "torch", "jax", "scipy", "rich", "PIL"}


EVERYTHING = """
import os
import sys
from pathlib import Path

from caldera import dmath
from caldera.base.children import child_environment
from caldera.base.machine import card_state
from caldera.bench.contestants import has_compiler
from caldera.bench.results import code_version
from caldera.bench.worker_process import WorkerProcess, worker_environment
from caldera.comm.mpi_library import find_launcher, library

library(), find_launcher(), card_state(), has_compiler(), code_version()
if hasattr(os, "fork"):
    with dmath.connect(2) as session:
        assert session.ranks == 2
environment = child_environment(worker_environment(Path(sys.argv[1]), 1, "cpu"))
WorkerProcess("caldera", environment).close()
print("done")
"""


def test_children_of_all_kinds_run_nothing_of_the_current_folder(
    sprung: Path, tmp_path: Path
) -> None:
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING)
    # As a user starts it: its own folder is in its path, and the current one is not.
    words = [sys.executable, str(script), str(tmp_path / "caches")]
    done = subprocess.run(
        words, env=_without_flag(), capture_output=True, text=True, timeout=120, check=False
    )
    assert sprung.read_text() == ""
    assert done.stdout.split() == ["done"], done.stderr


def test_children_of_children_have_safe_paths_too(sprung: Path) -> None:
    # Such a child starts Python as libraries do, without a flag.
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import mpi4py, z3'])"
    for words in (["-P", "-c", inner], ["-c", inner], ["-c", "import z3"]):
        assert run_program(sys.executable, *words, seconds=60) is not None
        assert sprung.read_text() == ""
    # Without it they run: the traps are real.
    subprocess.run(
        [sys.executable, "-c", "import z3"],
        env=_without_flag(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert sprung.read_text() == "z3\n"


@pytest.mark.parametrize("words", [["info"], ["train", "--help"], ["search", "--help"]])
def test_the_command_line_runs_nothing_of_the_current_folder(
    words: list[str], sprung: Path
) -> None:
    # What Python itself needs to find a module is imported before any line of Caldera runs.
    shown = "import runpy, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = run_program(sys.executable, "-c", shown, seconds=60)
    assert done is not None
    for name in (*done.stdout.decode().split(), "caldera"):
        Path(f"{name}.py").unlink(missing_ok=True)
    assert all(Path(f"{name}.py").exists() for name in ("mpi4py", "random", "json", "numpy"))
    started = subprocess.run(
        [sys.executable, "-m", "caldera", *words],
        env=_without_flag(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert sprung.read_text() == ""
    assert started.returncode == 0, started.stderr


def test_no_other_file_starts_processes() -> None:
    starts = ("os.exec", "os.spawn", "os.popen", "os.posix_spawn", "os.fork", "os.system")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == PACKAGE / "base/children.py" or not re.search(r"subprocess|multip|os\.", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                where = f"{path}:{node.lineno} {called}"
                assert not called.startswith((*starts, "multiprocessing.")), where
                assert called.partition(".")[0] != "subprocess", where


def test_empty_parts_of_the_path_are_left_out_and_named_ones_kept() -> None:
    given = {"PYTHONPATH": os.pathsep.join(["", "lib", "", "more", ""]), "LANG": "C"}
    found = child_environment(given, "here")
    assert found["PYTHONPATH"] == os.pathsep.join(["here", "lib", "more"])
    assert found["PYTHONSAFEPATH"] == "1"
    assert python_module("json.tool")[1] == "-P"


def test_a_program_that_is_not_there_or_does_not_end_gives_nothing() -> None:
    assert run_program("no-such-program-anywhere", seconds=5) is None
    assert run_program(sys.executable, "-c", "import time; time.sleep(60)", seconds=0.2) is None
    done = run_program(sys.executable, "-c", "print(input())", seconds=60, content=b"told\n")
    assert done is not None
    assert done.stdout.split() == [b"told"]
