"""Names in messages and reports: each flag, argument and public name in advice exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import caldera as cd
from caldera.cli.program import find_commands, make_parsers
from caldera.train.report.advice import ARGUMENTS, FLAGS

PACKAGE = Path(cd.__file__).parent
CALL = re.compile(r"(?<![\w.])(?:\w+\.)*(\w+)\(([^()]*)")
KEYWORD = re.compile(r"(?<![\w.-])([a-z][a-z_0-9]+)=(?!=)")
ADVISED = re.compile(r"(?<![\w.-])([a-z][a-z_0-9]+)=(?:[\"'\d.{]\S*)? of (fit|predict|evaluate)\b")
NAME = re.compile(r"(?<![\w.`/])(?:cd|nn|optim|data|parallel|serve|dmath)(?:\.[A-Za-z_]\w*)+")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
OTHER_PROGRAMS = {"--data-binary", "--flag", "--head", "--mpi", "--wait", "--with-ft"}
"""Flags of programs that texts name too: curl, ray, srun, and an example of a shell."""
JOBS = "cli/job_scripts.py"
"""Writes the flags of batch systems."""


KINDS = (ast.Expr, ast.JoinedStr, ast.Constant, ast.FunctionDef, ast.ClassDef)


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """The nodes of these kinds of each file: it is read and walked through once."""
    return {
        str(path.relative_to(PACKAGE)): [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, KINDS)
        ]
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def texts() -> list[tuple[str, str]]:
    """The texts of the package that are no docstrings, with their files."""
    return [(file, text) for file, found in nodes().items() for text in _texts(found)]


def _texts(found: list[ast.AST]) -> Iterator[str]:
    alone = {
        id(node.value)
        for node in found
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {id(part) for node in found if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in found:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] * (id(node) not in alone | parts)


def test_flags_in_texts_exist() -> None:
    _, parsers = make_parsers(find_commands())
    known = {flag for parser in parsers.values() for flag in parser._option_string_actions}
    unknown = {
        (file, flag)
        for file, text in texts()
        if " " in text and file != JOBS
        for flag in FLAG.findall(text)
        if flag not in known | OTHER_PROGRAMS
    }
    assert unknown == set()


@cache
def arguments() -> dict[str, set[str]]:
    """The arguments of each function, and of each class with the fields of its bases; `**` for
    any."""
    found: dict[str, set[str]] = {}
    for inside in nodes().values():
        for node in inside:
            if isinstance(node, ast.FunctionDef):
                given = node.args
                names = {each.arg for each in (*given.args, *given.kwonlyargs)}
                names |= {"**"} if given.kwarg and _is_open(node, given.kwarg) else set()
                found.setdefault(node.name, set()).update(names)
            elif isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_fields(node))
    return found


def _is_open(node: ast.FunctionDef, argument: ast.arg) -> bool:
    """False for `**unknown: Never`, and for an override that passes its arguments to its base."""
    is_never = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Never"
    return not is_never and f"super().{node.name}(" not in ast.unparse(node)


def _fields(node: ast.ClassDef) -> set[str]:
    made = [
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    if made:
        given = made[0].args
        return {each.arg for each in (*given.args, *given.kwonlyargs)} | (
            {"**"} if given.kwarg else set()
        )
    own = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    return own | ({"**"} if node.bases else set())


@cache
def public() -> set[str]:
    """The names of public functions and classes, and of methods of models."""
    rooms = (cd, cd.nn, cd.nn.losses, cd.nn.models, cd.optim, cd.data, cd.parallel, cd.search)
    names = {name for room in rooms for name in dir(room)} | {"fit", "predict", "evaluate"}
    return names & arguments().keys()


def wrong_names(text: str) -> list[str]:
    """Arguments and public names in a text that do not exist."""
    pairs = [(each, name) for name, given in CALL.findall(text) for each in KEYWORD.findall(given)]
    pairs += ADVISED.findall(text)
    wrong = [
        f"{name}({keyword}=)"
        for keyword, name in pairs
        if name in public() and not {keyword, "**"} & arguments()[name]
    ]
    return wrong + [name for name in NAME.findall(text) if not _exists(name)]


def _exists(name: str) -> bool:
    found = cd
    for part in name.removeprefix("cd.").split("."):
        if part.endswith("_"):
            return True
        found = getattr(found, part, None)
    return found is not None


def test_arguments_and_names_in_texts_exist() -> None:
    found = {(file, wrong) for file, text in texts() if " " in text for wrong in wrong_names(text)}
    assert found == set()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('fit(class_weight="balanced") lets', ["fit(class_weight=)"]),
        ('class_weight="balanced" of fit lets', ["fit(class_weight=)"]),
        ('class_weights="balanced" of fit lets', []),
        ("stop earlier (cd.EarlyStop)", ["cd.EarlyStop"]),
        ("with nn.Embedding(10, 4, device='host')", []),
    ],
)
def test_wrong_names_are_found(text: str, wrong: list[str]) -> None:
    assert wrong_names(text) == wrong


def test_each_advice_of_the_report_can_be_followed() -> None:
    _, parsers = make_parsers(find_commands("train"))
    for name, flag in FLAGS._asdict().items():
        parsers["train"].parse_args(flag.split() if " " in flag else [flag, "1"])
        assert flag.startswith("--"), name
    assert (
        ARGUMENTS.learning_rate.rstrip("=") in arguments()["NeuralNetwork"] | arguments()["Model"]
    )
