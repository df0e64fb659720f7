"""The form of the package's source: sizes of files and functions, names of classes."""

import ast
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import caldera

PACKAGE = Path(caldera.__file__).parent
LONGEST_FILE, LONGEST_FUNCTION = 450, 60
AT_THE_ROOT = {
    *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("benchmarks", "caldera", "docs", "pyproject.toml", "tests", "tools", "zensical.toml"),
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def test_no_file_is_too_long_and_the_formatter_decides_every_line():
    long = {name: text.count("\n") for name, (text, _) in modules().items()}
    assert {name: lines for name, lines in long.items() if lines > LONGEST_FILE} == {}
    assert [name for name, (text, _) in modules().items() if "fmt: skip" in text] == []


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


def test_no_function_is_too_long():
    long = [
        f"{name}: {node.name} ({code_lines(node)} lines)"
        for name, (_, tree) in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and code_lines(node) > LONGEST_FUNCTION
    ]
    assert long == []


def test_a_public_class_name_means_one_thing():
    places = defaultdict(list)
    for name, (_, tree) in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.skipif(
    shutil.which("git") is None or not (PACKAGE.parent / ".git").exists(), reason="no repository"
)
def test_no_output_of_a_program_is_kept_at_the_root():
    command = ["git", "ls-tree", "--name-only", "HEAD"]
    listed = subprocess.run(
        command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    ).stdout
    assert set(listed.split()) <= AT_THE_ROOT
